"""Two ranks that train together, as two nodes of one rank each: real processes on the loopback.

Two ranks of E environments must do what one rank of 2 E does: the same episodes, the same updates.
"""

import signal
import time

import pytest
import torch

from structrl.rl import cli
from structrl.rl.preemption import GRACE
from tests.rl.spy import start_nodes

CONFIG = """
seed_everything: 3
trainer:
  default_root_dir: RUN
  max_epochs: ITERATIONS
  accelerator: cpu
  check_val_every_n_epoch: 2
  callbacks: {class_path: tests.rl.spy.Spy, init_args: {folder: SPY}}
model:
  class_path: structrl.rl.module.PPO
  init_args:
    policy: {class_path: structrl.policies.compact.CompactVLA, init_args: {width: 32, depth: 1}}
    ppo: {critic_warmup: 1, learning_rate: 3.0e-4, target_kl: 0.02}
data:
  class_path: tests.rl.toy_data.ToyData
  init_args: {num_envs: ENVS, episodes_per_iteration: 14, evaluate_episodes: 4}
"""


def write(folder, envs, iterations=3):
    folder.mkdir()
    text = CONFIG.replace("RUN", str(folder / "run")).replace("SPY", str(folder))
    (folder / "c.yaml").write_text(text.replace("ENVS", str(envs)).replace("ITERATIONS", str(iterations)))
    return ["fit", "--config", str(folder / "c.yaml")]


def finish(processes, timeout=300):
    said = [p.communicate(timeout=timeout) for p in processes]
    return [p.returncode for p in processes], said


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What the spies of one rank with 6 environments, and of two ranks with 3 each, have seen."""
    folder = tmp_path_factory.mktemp("ranks")
    two = start_nodes(write(folder / "two", 3))
    try:
        assert cli.fit(write(folder / "one", 6)[1:]) == 0
        codes, said = finish(two)
    finally:
        for process in two:
            process.kill()
    assert codes == [0, 0], said
    files = (folder / "one" / "rank-0.pt", *(folder / "two" / f"rank-{r}.pt" for r in range(2)))
    return [torch.load(file, weights_only=True) for file in files], folder


def test_ranks_run_different_episodes_and_together_those_of_one_rank(runs):
    (one, a, b), _ = runs
    for all_, first, second in zip(one["starts"], a["starts"], b["starts"], strict=True):
        assert len(first) == len(second) == 7
        together = torch.stack([first, second], 1).flatten(0, 1)  # episodes are dealt out in turn
        assert torch.equal(together, all_)
        assert len(torch.unique(together, dim=0)) == 14


def test_ranks_agree_after_every_minibatch(runs):
    (_, a, b), _ = runs
    assert a["grads"] == b["grads"]
    assert all(len(iteration) >= 1 for iteration in a["grads"])
    for one, two in zip(a["weights"], b["weights"], strict=True):
        assert one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def test_ranks_take_part_in_as_many_updates_whoever_has_more_chunks(runs):
    (_, a, b), _ = runs
    assert [len(x) for x in a["actions"]] != [len(x) for x in b["actions"]]
    for one, two in zip(a["calls"], b["calls"], strict=True):
        assert one["evaluate"] == two["evaluate"] > 0


def test_the_number_of_ranks_changes_nothing_but_rounding(runs):
    """The same first three updates: metrics, the KL stop among them, and weights."""
    (one, a, b), _ = runs
    for alone, metrics, others in zip(one["metrics"], a["metrics"], b["metrics"], strict=True):
        assert metrics.keys() == others.keys() == alone.keys()
        for key, value in alone.items():
            if key == "policy/ode_shift":  # measured at noise of each rank's own
                continue
            assert metrics[key] == pytest.approx(others[key], rel=1e-6, abs=1e-9, nan_ok=True), key
            tolerance = 2e-2 if key.startswith(("losses/", "ppo/first")) else 1e-4
            assert metrics[key] == pytest.approx(value, rel=tolerance, abs=2e-4, nan_ok=True), key
    worst = 0.0
    for alone, weights in zip(one["weights"], a["weights"], strict=True):
        worst = max(worst, *(float((alone[k] - weights[k]).abs().max()) for k in alone))
    print(f"largest difference of a weight after three updates: {worst:.2g}")
    assert worst < 1e-5  # 2e-7 was seen


def test_a_kl_stop_is_everybodys(runs):
    (one, a, b), _ = runs
    stops = [[m["ppo/kl_stopped"] for m in log["metrics"]] for log in (one, a, b)]
    assert stops[0] == stops[1] == stops[2] and 1.0 in stops[0], stops
    steps = [[m["ppo/steps"] for m in log["metrics"]] for log in (one, a, b)]
    assert steps[0] == steps[1] == steps[2] == [float(len(g)) for g in a["grads"]]


@pytest.mark.heavy
@pytest.mark.parametrize(("who", "number"), [(0, signal.SIGTERM), (1, signal.SIGUSR1)])
def test_a_signal_to_one_rank_ends_both(tmp_path, who, number):
    """Within seconds, with exit code 0, wherever the other one is; and the run goes on from there."""
    argv = write(tmp_path / "two", 3, iterations=500)
    processes = start_nodes(argv)
    deadline = time.monotonic() + 200
    while not (tmp_path / "two" / "rank-1.pt").exists():
        assert all(p.poll() is None for p in processes) and time.monotonic() < deadline, finish(processes, 5)
        time.sleep(0.02)
    clock = time.monotonic()
    processes[who].send_signal(number)
    codes, said = finish(processes, 60)
    took = time.monotonic() - clock
    print(f"{number.name} to rank {who}: both ended after {took:.1f} s")
    assert codes == [0, 0], said
    assert took < 10 * GRACE  # most of it is Python ending, on a busy machine
    assert f"{number.name}: the iteration is abandoned" in said[0][1]


@pytest.mark.heavy
def test_ranks_with_different_configs_say_so(tmp_path):
    argv = write(tmp_path / "two", 3, iterations=1)
    from tests.rl import spy

    port = str(spy.free_port())
    argv = [*argv, "--trainer.num_nodes=2", "--trainer.devices=1", "--trainer.strategy=ddp"]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [spy.start([*argv, f"--model.ppo.epochs={n + 1}"], NODE_RANK=str(n), **place) for n in range(2)]
    codes, said = finish(processes)
    assert all(codes), codes
    assert "the config of rank 1 is not that of rank 0" in said[0][1] + said[1][1], said
