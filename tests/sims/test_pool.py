"""Workers: the same episodes as in this process, and what happens when they fail."""

import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torchrl.envs import TransformedEnv
from torchrl.envs.utils import check_env_specs

from structrl import keys
from structrl.envs import ChunkEnv, Halves
from structrl.plan import stack_plans
from structrl.rewards import RewardOptions, StructuredReward
from structrl.rl.rollout import run_episodes
from structrl.seeding import Stream, generator
from structrl.sims.base import Start
from structrl.sims.chunks import ChunkRunner
from structrl.sims.pool import Pool, PoolError
from structrl.sims.registry import make_simulator
from structrl.sims.runner import InvalidStartError
from structrl.sims.wire import SharedArrays
from structrl.task import load_task
from tests.sims.faulty import FaultySimulator, PushExpert
from tests.toy import toy_task

ROOT = Path(__file__).parent.parent.parent
LUNCH = "structrl.sims.tabletop:TabletopSimulator"
FAULTY = "tests.sims.faulty:FaultySimulator"
TASKS = [toy_task(2, name="two", horizon=10), toy_task(3, name="three", horizon=14)]
H = 4


@pytest.fixture
def pool():
    """Makes pools of the faulty toy, and closes them."""
    made = []

    def make(
        E=4,
        workers=2,
        target=FAULTY,
        tasks=TASKS,
        chunk=H,
        timeout=60.0,
        record=False,
        python=None,
        rate=0.1,
        **arguments,
    ):
        pool = Pool("toy", target, tasks, E, chunk, arguments, workers=workers, timeout=timeout, record=record,
                    python=python, max_rate=rate)  # fmt: skip
        made.append(pool)
        return pool

    yield make
    for each in made:
        each.close()


def start(e, tasks=2):
    return Start(e % tasks, -1, (7, int(Stream.START), 3, e))


def action_of(e, chunk, dims=2):
    return generator(e, chunk).uniform(-1.2, 1.2, (H, dims)).astype(np.float32)


def episodes(runner, count=12):
    """`count` episodes in a runner, simulator or halves, under actions that the episode number decides."""
    if isinstance(runner, Halves):
        env = runner
    else:
        env = TransformedEnv(ChunkEnv(runner, H), StructuredReward(stack_plans(TASKS), RewardOptions(), H))

    def act(td, chunk, episode):
        actions = [action_of(int(e), int(c)) for e, c in zip(episode, chunk, strict=True)]
        return td.set(keys.ACTION, torch.from_numpy(np.stack(actions)))

    return run_episodes(env, act, [start(e) for e in range(count)])


@pytest.fixture(scope="module")
def undisturbed():
    return episodes(ChunkRunner(FaultySimulator(TASKS, 4)))


def assert_same(a, b):
    """Bit for bit; NaN (the interval of a credit that was not earned) equals NaN."""
    assert set(a.keys(True, True)) == set(b.keys(True, True))
    for key, x in a.items(True, True):
        np.testing.assert_array_equal(x.numpy(), b[key].numpy(), err_msg=str(key))


def assert_the_rest_is_undisturbed(out, undisturbed, lost):
    """Episodes other than `lost` are all there, and what they were without faults."""
    kept = [e for e in range(12) if e not in lost]
    assert out.kept.tolist() == kept and out.dropped == len(lost) and len(out) == len(kept)
    assert_same(out.table, undisturbed.table[kept])
    assert_same(out.final, undisturbed.final[kept])
    there = torch.isin(undisturbed.chunks["episode"], out.kept)
    assert_same(out.chunks.exclude("episode"), undisturbed.chunks[there].exclude("episode"))
    assert torch.equal(out.kept[out.chunks["episode"]], undisturbed.chunks["episode"][there])


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_tabletop_is_the_same_in_any_number_of_workers(workers):
    task, E = load_task("tabletop/pack_lunch"), 4
    ids = np.arange(E)

    def trace(runner):
        runner.reset(ids, [Start(0, -1, (1, 1, 0, e)) for e in range(E)])
        seen = []
        for chunk in range(4):
            if chunk == 2:
                runner.reset(ids[1:3], [Start(0, -1, (1, 1, 0, e)) for e in (8, 9)])
            result = runner.run(np.stack([action_of(e, chunk, 5) for e in range(E)]))
            seen += [result.holds, result.steps, result.t, result.atoms, result.values, runner.holds, runner.done]
            seen += runner.observe(ids).values()
        return [np.copy(x) for x in seen], dict(runner.counts)

    local = ChunkRunner(make_simulator("tabletop", [task], E, threads=1), record=True)
    expected, counts = trace(local)
    remote = Pool("tabletop", LUNCH, [task], E, H, {"threads": 1}, workers=workers, record=True)
    try:
        got, its_counts = trace(remote)
        for a, b in zip(expected, got, strict=True):
            np.testing.assert_array_equal(a, b)
        assert its_counts == counts | {"dropped": 0, "restarts": 0}
        assert remote.sim.atom_tests(0) == local.sim.atom_tests(0) and remote.sim.action == local.sim.action

        # a state goes on anywhere
        state = remote.state(ids)
        for name, value in local.state(ids).items():
            np.testing.assert_array_equal(state[name], value)
        other = ids[::-1]
        remote.set_state(np.sort(other), {k: v[::-1] for k, v in state.items()})
        actions = np.stack([action_of(e, 9, 5) for e in range(E)])
        there, here = remote.run(actions[::-1].copy()), local.run(actions)
        np.testing.assert_array_equal(there.values[::-1], here.values)
        for name, value in remote.observe(ids).items():
            np.testing.assert_array_equal(value[::-1], local.observe(ids)[name])
    finally:
        remote.close()


def test_episodes_of_a_pool_are_those_of_one_process(pool, undisturbed):
    assert_the_rest_is_undisturbed(episodes(pool()), undisturbed, [])


def test_passes_the_checks_of_torchrl(pool):
    env = ChunkEnv(pool(), H)
    check_env_specs(env, break_when_any_done="both")
    env.close()
    assert env.runner._processes[0].process.returncode == 0


FAULTS = [
    (kind, phase) for kind in ("kill", "raise", "corrupt", "huge", "exit") for phase in ("reset", "step", "observe")
]
CHEAP = [("kill", "step"), ("raise", "reset"), ("corrupt", "step"), ("raise", "observe"), ("exit", "step")]


@pytest.mark.parametrize(
    ("kind", "phase"),
    [*CHEAP, *(pytest.param(*each, marks=pytest.mark.heavy) for each in FAULTS if each not in CHEAP)],
)
def test_a_fault_costs_the_episodes_of_its_worker_only(pool, undisturbed, kind, phase, caplog):
    made = pool(faults={"5": [phase, kind]})
    with caplog.at_level(logging.WARNING):
        out = episodes(made)
    lost = sorted({*range(12)} - {*out.kept.tolist()})
    assert 5 in lost and len(lost) <= 2, "another worker's episodes are gone too"
    assert_the_rest_is_undisturbed(out, undisturbed, lost)
    assert made.counts["restarts"] == 1 and made.counts["dropped"] == len(lost)
    (told,) = [r.getMessage() for r in caplog.records]
    assert "worker" in told and f"{len(lost)} running episodes are dropped" in told and "a simulator says hello" in told
    if kind == "raise":
        assert "ZeroDivisionError: the gripper is gone" in told and "in fail\n" in told
    if kind == "kill":
        assert "killed by SIGKILL" in told


@pytest.mark.parametrize("phase", ["step", *(pytest.param(p, marks=pytest.mark.heavy) for p in ("reset", "observe"))])
def test_a_worker_that_hangs_is_replaced(pool, undisturbed, phase, caplog):
    made = pool(faults={"6": [phase, "stop"]}, timeout=6.0)
    begin = time.monotonic()
    out = episodes(made)
    assert 6 <= time.monotonic() - begin < 30
    lost = sorted({*range(12)} - {*out.kept.tolist()})
    assert 6 in lost and len(lost) <= 2
    assert_the_rest_is_undisturbed(out, undisturbed, lost)
    assert re.search(r"gave no answer within (6|5\.9\d*) s", caplog.text)


@pytest.mark.heavy
def test_a_hundred_faults(pool, undisturbed):
    """Every kind and phase, many times: nothing is lost but the episodes of the worker."""
    draw = np.random.default_rng(0)
    total, table = 0, {}
    for _ in range(50):
        faults = {}
        for e in draw.choice(12, 2, replace=False).tolist():  # three in a row may stop the run, as they should
            kind, phase = FAULTS[draw.integers(len(FAULTS))]
            faults[str(e)] = [phase, kind]
        made = pool(faults=faults, rate=1.0)
        out = episodes(made)
        lost = sorted({*range(12)} - {*out.kept.tolist()})
        assert_the_rest_is_undisturbed(out, undisturbed, lost)
        assert made.counts["dropped"] == len(lost) and 1 <= made.counts["restarts"] <= 2
        total += made.counts["restarts"]
        made.close()
        for e, (phase, kind) in faults.items():
            row = table.setdefault((kind, phase), [0, 0])
            row[0] += 1
            row[1] += int(e) in lost
    print("| fault | phase | planted | cost their episode |")
    for (kind, phase), (planted, struck) in sorted(table.items()):
        print(f"| {kind} | {phase} | {planted} | {struck} |")
    print(f"{total} workers replaced; every other episode bit for bit what it was")
    assert total >= 75  # an episode that is lost with another's worker does not get to its own fault


def test_a_dropped_episode_is_reported_by_the_step_and_never_by_a_reset(pool):
    env = ChunkEnv(pool(E=2, faults={"0": ["reset", "raise"]}), H)
    td = env.reset()  # TorchRL refuses a reset that is done
    assert not td[keys.DONE].any() and not td[keys.DROPPED].any()
    after = env.rand_step(td)["next"]
    assert after[keys.DROPPED].flatten().tolist() == [True, False]
    assert after[keys.DONE][0] and after[keys.TRUNCATED][0] and not after[keys.TERMINATED][0]
    assert after[keys.STEPS].flatten().tolist()[0] == 0 and after[keys.STEPS][1] > 0
    with pytest.raises(ValueError, match=r"environments \[0\] are dropped"):
        env.state(np.array([0]))
    env.close()


def test_too_many_faults_stop_the_run(pool):
    always = {str(e): ["reset", "raise"] for e in range(12)}
    made = pool(E=2, workers=1, faults=always)
    with pytest.raises(PoolError, match=r"(?s)failed 3 times without one chunk between.*the gripper is gone"):
        episodes(made)
    assert [p.process.poll() for p in made._processes] != [None], "a worker outlives its pool"
    often = {str(e): ["step", "raise"] for e in range(0, 12, 2)}
    made = pool(E=1, workers=1, faults=often, rate=0.02)
    with pytest.raises(PoolError, match=r"3 of the latest \d+ messages to workers ended in a failure"):
        episodes(made)
    with pytest.raises(PoolError, match="are closed"):
        made.reset(np.arange(1), [start(0)])


def test_no_memory_for_the_arrays_is_said_at_the_start(tmp_path):
    """A file system with room for less than the layout: an error that says how much, not a SIGBUS later."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)]).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        with open(small / "arrays", "w+b") as file, pytest.raises(OSError, match=r"4 MB of shared memory .* fewer env"):
            SharedArrays(file.fileno(), {"images": ("|u1", [4, 1024, 1024])}, create=True)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_all_episodes_dropped_is_an_error(pool):
    made = pool(E=2, workers=2, faults={"0": ["step", "kill"], "1": ["step", "kill"]})
    with pytest.raises(RuntimeError, match="all of 2 episodes were dropped"):
        episodes(made, 2)


def test_mistakes_of_the_user_are_errors_of_the_trainer(pool):
    with pytest.raises(ValueError, match="'toy' has no argument 'dmis'; did you mean 'dims'"):
        pool(dmis=3)
    with pytest.raises(PoolError, match=r"(?s)no such thing as a renderer.*traceback of the worker"):
        pool(broken=True)
    with pytest.raises(ValueError, match=r"there is no module 'nowhere': install it for .*python"):
        pool(target="nowhere.at:All")
    with pytest.raises(PoolError, match="cannot start /no/such/python: No such file"):
        pool(python="/no/such/python")
    with pytest.raises(ValueError, match="5 workers for 4 environments"):
        pool(workers=5)
    over = toy_task(2, name="over", success=(("atom", 0), ("not",)))
    made = pool(E=1, workers=1, tasks=[over])
    with pytest.raises(InvalidStartError, match=r"tasks/over.task: .*`success` holds before the first step"):
        made.reset(np.arange(1), [start(0, 1)])
    made = pool(E=1, workers=1)
    made.reset(np.arange(1), [start(0)])
    with pytest.raises(ValueError, match=r"environment 0 .* is not finite"):
        made.run(np.full((1, H, 2), np.nan, np.float32))


def test_an_expert_acts_in_the_workers(pool):
    made = pool(chunk=1)
    expert = made.make_expert("tests.sims.faulty:PushExpert", slop=0.05)
    ids, starts = np.arange(4), [start(e) for e in range(4)]
    made.reset(ids, starts)
    expert.reset(ids, starts)
    local = PushExpert(FaultySimulator(TASKS, 4), 0.05)
    local.reset(ids, starts)
    np.testing.assert_array_equal(expert.act(ids[1:]), local.act(ids[1:]))


def run_python(script, **kwargs):
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, text=True, **kwargs)


TRAINER = """
    import sys, time
    import numpy as np
    from structrl.sims.pool import Pool
    from structrl.sims.base import Start
    from tests.toy import toy_task
    arguments = {"faults": {"1": ["step", "stop"]}}
    pool = Pool("toy", "tests.sims.faulty:FaultySimulator", [toy_task(2)], 4, 4, arguments, workers=2)
    pool.reset(np.arange(4), [Start(0, -1, (7, 1, 3, e)) for e in range(4)])
    print(*(p.process.pid for p in pool._processes), flush=True)
    sys.stdin.readline()
"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", ["sigkill", "interrupt", "exception", "sigterm"])
def test_no_worker_outlives_the_trainer(how):
    """Also not one that is stopped in the middle of a chunk."""
    end = {"exception": "raise ValueError('a bug')"}.get(how, "pool.run(np.ones((4, 4, 2), np.float32))")
    before = {*os.listdir("/dev/shm")} if Path("/dev/shm").is_dir() else set()
    trainer = run_python(TRAINER + "    " + end, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    workers = [int(pid) for pid in trainer.stdout.readline().split()]
    assert len(workers) == 2 and all(map(alive, workers))
    print(file=trainer.stdin, flush=True)
    if how != "exception":
        time.sleep(0.5)  # it hangs in `run` now
        trainer.send_signal({"sigkill": signal.SIGKILL, "interrupt": signal.SIGINT, "sigterm": signal.SIGTERM}[how])
    assert trainer.wait(10) != 0
    deadline = time.monotonic() + 10
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, workers))
    assert not {f for f in set(os.listdir("/dev/shm")) - before if "structrl" in f}


def test_a_worker_needs_neither_torch_nor_lark(tmp_path):
    """An interpreter whose import of either fails, and that knows nothing of the trainer's path."""
    hook = tmp_path / "sitecustomize.py"
    hook.write_text(
        "import sys\n\nclass Block:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'lark', 'tensordict', 'torchrl', 'lightning'):\n"
        "            raise ModuleNotFoundError(f'{name} is blocked', name=name)\n\nsys.meta_path.insert(0, Block())\n"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    blocked = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True)
    assert "torch is blocked" in blocked.stderr
    task = load_task("tabletop/pack_lunch")
    before = os.times()
    made = Pool("tabletop", LUNCH, [task], 2, H, {"threads": 1}, python=str(python))
    try:
        made.reset(np.arange(2), [Start(0, -1, (1, 1, 0, e)) for e in range(2)])
        assert made.run(np.zeros((2, H, 5), np.float32)).steps.tolist() == [H, H]
        assert made.sim.versions["python"] == ".".join(map(str, sys.version_info[:3]))
    finally:
        made.close()
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    assert spent < 3, "a worker takes longer than 3 s to start, and that on a machine that does nothing else"
