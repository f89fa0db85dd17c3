"""Task specs and episodes shared by the tabletop's tests."""

import numpy as np

from structrl.lang.spec import AtomSpec, TaskSpec
from structrl.sims.base import Start
from structrl.sims.tabletop import TabletopExpert, TabletopSimulator


def atom(text: str, **params: float) -> AtomSpec:
    predicate, _, args = text.rstrip(")").partition("(")
    return AtomSpec(predicate, tuple(args.replace(" ", "").split(",")), tuple(params.items()))


def task(*atoms: AtomSpec | str, **fields) -> TaskSpec:
    """A task of scene lunch with these atoms and no plan: all that a simulator reads."""
    specs = tuple(atom(each) if isinstance(each, str) else each for each in atoms)
    return TaskSpec("t", specs, (), **({"sim": "tabletop", "sim_args": {"scene": "lunch"}} | fields))


FIRST_THREE = (("atom", 0), ("atom", 1), ("atom", 2), ("and", 3))
PACKED = task("in(apple_1, box_1)", "in(drink_1, box_1)", "closed(box_1)", success=FIRST_THREE)
EVERYTHING = task(
    *("in(apple_1, box_1)", "in(drink_1, box_1)", "closed(box_1)", "open(box_1)"),
    *("grasped(apple_1)", "grasped(drink_1)", "on(apple_1, table_1)", "on(drink_1, table_1)"),
    *("lifted(apple_1)", "lifted(drink_1)", "upright(drink_1)"),
    "near(gripper_1, apple_1)",
    atom("near(apple_1, drink_1)", dist=0.1),
    atom("near(drink_1, box_1)", dist=0.12),
    success=FIRST_THREE,
)


def starts(count: int, seed: int = 0, task_row: int = 0) -> list[Start]:
    return [Start(task_row, -1, (seed, i)) for i in range(count)]


def play(sim: TabletopSimulator, begin: list[Start], steps: int, slop: float = 0.0) -> dict[str, np.ndarray]:
    """The expert's episodes, stopped at success: `done` [E] its step or -1, `first` [E, atoms] first step true."""
    ids = np.arange(sim.num_envs)
    expert = TabletopExpert(sim, slop)
    sim.reset(ids, begin)
    expert.reset(ids, begin)
    done, first = np.full(len(ids), -1), np.full((len(ids), len(sim.tasks[0].atoms)), -1)
    for t in range(1, steps + 1):
        live = ids[done < 0]
        if not len(live):
            break
        sim.step(live, expert.act(live))
        true = sim.atoms(live)
        first[live] = np.where((first[live] < 0) & true, t, first[live])
        done[live[true[:, :3].all(1)]] = t
    return {"done": done, "first": first}
