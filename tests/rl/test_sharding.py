"""FSDP2: a policy split over two ranks learns what DDP learns; its checkpoints are anybody's. Ranks that fail.

Real processes on the loopback, as two nodes of one rank each.
"""

import os
import signal
import time

import pytest
import torch
from tensordict import TensorDict

from structrl.rl import cli
from structrl.rl.lockstep import Lockstep
from structrl.rl.preemption import GRACE
from structrl.rl.run_folder import newest_checkpoint
from tests.rl.spy import start_nodes
from tests.rl.test_kill import flat
from tests.rl.test_ranks import CONFIG, finish

MORE = ", kl_weight: 0.1, micro_batch: 16}"
GRPO = CONFIG.replace("structrl.rl.module.PPO", "structrl.rl.grpo.GRPO")
GRPO = GRPO.replace("episodes_per_iteration: 14", "easy: true, episodes_per_iteration: 8").replace(
    "ppo: {critic_warmup: 1, learning_rate: 3.0e-4, target_kl: 0.02}",
    """flow: {noise: 3.0, mode: early}
    grpo: {group_size: 4, learning_rate: 3.0e-4, dynamic_sampling: mask, keep_if: return_std, min_return_std: 1.0}""",
)


def write(folder, envs=3, iterations=3, config=CONFIG):
    folder.mkdir(exist_ok=True)
    text = config.replace("RUN", str(folder / "run")).replace("SPY", str(folder)).replace("ENVS", str(envs))
    (folder / "c.yaml").write_text(text.replace("ITERATIONS", str(iterations)).replace("target_kl: 0.02}", MORE[2:]))
    return ["fit", "--config", str(folder / "c.yaml")]


def run(folder, strategy, **options):
    processes = start_nodes(write(folder, **options), strategy=strategy)
    codes, said = finish(processes)
    assert codes == [0, 0], said
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(2)]


def worst(one, two):
    """Largest difference of a weight after any iteration."""
    pairs = zip(one["weights"], two["weights"], strict=True)
    return max(float((a[k] - b[k]).abs().max()) for a, b in pairs for k in a)


def contents(path):
    checkpoint = torch.load(path, weights_only=True)
    return {key: flat(checkpoint[key]) for key in ("state_dict", "optimizer_states", "structrl", "epoch")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """DDP and FSDP2, with a reference policy and micro-batches."""
    folder = tmp_path_factory.mktemp("sharding")
    return {name: run(folder / name, name) for name in ("ddp", "fsdp2")}, folder


def test_a_split_policy_learns_what_a_whole_one_does(runs):
    logs, _ = runs
    a, b = logs["fsdp2"]
    difference = worst(a, logs["ddp"][0])
    print(f"largest difference of a weight, FSDP2 against DDP, after three updates: {difference:.2g}")
    assert difference < 1e-5 and worst(a, b) == 0
    for one, two in zip(a["starts"], logs["ddp"][0]["starts"], strict=True):
        assert torch.equal(one, two)
    for metrics, others in zip(a["metrics"], logs["ddp"][0]["metrics"], strict=True):
        assert metrics["losses/approx_kl"] == pytest.approx(others["losses/approx_kl"], rel=1e-3, abs=1e-6)


def test_ranks_call_a_split_policy_equally_often(runs):
    """They run episodes of different lengths; whole policies are called as often as there is something to do."""
    logs, _ = runs
    a, b = logs["fsdp2"]
    assert a["calls"] == b["calls"]
    assert [len(x) for x in a["actions"]] != [len(x) for x in b["actions"]]


def test_its_checkpoint_goes_on_on_one_device(runs):
    """Whole weights and optimiser state in one file: it continues with another strategy as with its own."""
    logs, folder = runs
    before = {name: contents(newest_checkpoint(folder / name / "run")) for name in logs}
    assert before["fsdp2"].keys() == before["ddp"].keys()
    for key in ("state_dict", "optimizer_states"):
        assert before["fsdp2"][key].keys() == before["ddp"][key].keys(), key
    run_folder = str(folder / "fsdp2" / "run")
    argv = ["--resume", run_folder, "--trainer.max_epochs=4", "--trainer.callbacks=null"]
    argv += ["--trainer.num_nodes=1", "--trainer.strategy=auto"]
    assert cli.fit(argv) == 0
    assert torch.load(newest_checkpoint(folder / "fsdp2" / "run"), weights_only=True)["epoch"] == 3


@pytest.mark.heavy
def test_killed_and_resumed_is_never_killed(tmp_path):
    whole = write(tmp_path / "whole", iterations=4)
    assert finish(start_nodes(whole, strategy="fsdp2"))[0] == [0, 0]
    argv = write(tmp_path / "killed", iterations=4)
    processes = start_nodes(argv, strategy="fsdp2")
    while newest_checkpoint(tmp_path / "killed/run") is None:
        assert all(p.poll() is None for p in processes)
        time.sleep(0.01)
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    finish(processes)
    codes, said = finish(start_nodes([*argv, "--resume"], strategy="fsdp2"))
    assert codes == [0, 0], said
    one, two = (contents(newest_checkpoint(tmp_path / name / "run")) for name in ("whole", "killed"))
    assert one == two


@pytest.mark.heavy
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_grpo_on_two_ranks_is_grpo_on_one(tmp_path, strategy):
    """Also where a rank is left without a group that takes part; episodes weigh the same wherever they were run."""
    two = run(tmp_path / "two", strategy, config=GRPO)
    assert cli.fit(write(tmp_path / "one", envs=6, config=GRPO)[1:]) == 0
    one = torch.load(tmp_path / "one/rank-0.pt", weights_only=True)
    difference = worst(one, two[0])
    print(f"GRPO, {strategy}: largest difference of a weight after three updates: {difference:.2g}")
    assert difference < 1e-5
    used = [[metrics["grpo/used"] for metrics in log["metrics"]] for log in (one, *two)]
    assert used[0] == used[1] == used[2] and 1.0 in used[0]  # one group on one rank


@pytest.mark.heavy
@pytest.mark.parametrize(("strategy", "who"), [("ddp", 0), ("fsdp2", 1)])
def test_a_rank_that_fails_ends_the_other_and_says_why(tmp_path, strategy, who):
    """The other one waits for it in the rollout or the update, which may not notice for half an hour."""
    argv = write(tmp_path / "run", iterations=500)
    processes = start_nodes(argv, strategy=strategy, fail_on=who)
    clock = time.monotonic()
    codes, said = finish(processes, 120)
    print(f"{strategy}, rank {who} fails: both had ended after {time.monotonic() - clock:.1f} s, start included")
    assert codes == [1, 1], said
    assert "ZeroDivisionError: the arm is stuck" in said[who][1]
    assert f"because rank {who} failed: ZeroDivisionError: the arm is stuck" in said[1 - who][1]
    assert time.monotonic() - clock < 100 + 10 * GRACE


class Ranks:
    """A sum over ranks that are simulated: how often the others still act."""

    def __init__(self, others):
        self.others = others

    def __call__(self, x):
        self.others -= 1
        return x + max(self.others + 1, 0)


def test_a_rank_that_is_done_acts_on_its_last_row_until_all_are():
    seen = []

    def act(td, chunk, episode):
        seen.append((td["x"].tolist(), chunk.tolist(), episode.tolist()))
        return td.set("x", td["x"] + 100)

    steady = Lockstep(act, Ranks(4))
    td = TensorDict({"x": torch.tensor([5, 6])}, [2])
    steady(td, torch.tensor([1, 2]), torch.tensor([7, 8]))
    steady.close()
    assert seen == [([5, 6], [1, 2], [7, 8]), *[([5], [1], [7])] * 3]
    with pytest.raises(RuntimeError, match="without a single observation"):
        Lockstep(act, Ranks(2)).close()


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        ("fsdp", "strategy `fsdp`"),
        ("deepspeed", "you must have DeepSpeed installed"),
        ('{"class_path": "lightning.pytorch.strategies.ModelParallelStrategy"}', "use ddp, or fsdp2"),
    ],
)
def test_other_strategies_are_refused(tmp_path, capsys, strategy, says):
    assert cli.fit([*write(tmp_path / "no")[1:], f"--trainer.strategy={strategy}", "--trainer.devices=2"]) == 2
    assert says in capsys.readouterr().err


def test_a_warm_start_is_not_split(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text(f"""
trainer: {{default_root_dir: {tmp_path}/run, accelerator: cpu, strategy: fsdp2, max_epochs: 1}}
model: {{class_path: structrl.imitation.FlowMatching}}
data:
  class_path: structrl.imitation.DemoData
  init_args: {{env: {{tasks: [tabletop/pack_lunch]}}, demos: [none.h5]}}
""")
    assert cli.fit(["--config", str(tmp_path / "c.yaml")]) == 2
    assert "FlowMatching trains with ddp" in capsys.readouterr().err
