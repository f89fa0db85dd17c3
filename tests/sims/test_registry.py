import pytest

from structrl.sims import registry
from structrl.sims.registry import make_simulator
from tests.toy import ToySimulator, toy_task


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setitem(registry.BUILTIN, "toy", "tests.toy:ToySimulator")


def test_constructs_by_name():
    sim = make_simulator("toy", [toy_task()], 3, dims=4)
    assert isinstance(sim, ToySimulator) and sim.num_envs == 3 and len(sim.action.low) == 4


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("tabeltop", {}, "unknown simulator 'tabeltop'; did you mean 'tabletop'"),
        ("xyz", {}, "unknown simulator 'xyz'; one of: libero, tabletop, toy"),
        ("toy", {"shfit": 1.0}, "'toy' has no argument 'shfit'; did you mean 'shift'"),
        ("toy", {"num_envs2": 1}, "one of: dims, shift, trace, unstable_at"),
    ],
)
def test_unknown_names_and_arguments_suggest_the_nearest(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        make_simulator(name, [toy_task()], 1, **arguments)
