"""A run that is killed and resumed, again and again, equals one that never was: weights and metrics, bit for bit.

The kill is a real SIGKILL, by the process itself, so that it falls where it is wanted: in front of the n-th of all
calls of the simulator and the policy, or inside the n-th write of a checkpoint.
"""

import io
import multiprocessing
import os
import resource
import signal
import subprocess
import time

import numpy as np
import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from structrl.rl.checkpoints import AtomicCheckpointIO
from structrl.rl.run_folder import newest_checkpoint

ITERATIONS = 6
CONFIG = """
seed_everything: 3
trainer: {default_root_dir: RUN, max_epochs: 6, accelerator: cpu, check_val_every_n_epoch: 2}
model:
  class_path: structrl.rl.module.PPO
  init_args:
    policy: {class_path: structrl.policies.compact.CompactVLA, init_args: {width: 16, depth: 1}}
    ppo: {critic_warmup: 1, learning_rate: 3.0e-4, epochs: 1}
data:
  class_path: tests.rl.toy_data.ToyData
  init_args: {num_envs: 8, episodes_per_iteration: 8, evaluate_episodes: 4MORE}
"""
PHASES = ("simulate", "infer", "update", "evaluate", "checkpoint")
VARIANTS = {"one process": "", "two workers": ", workers: 2", "overlap": ", overlap: true"}


class Killer:
    """Counts the events of a process, and kills it in front of the n-th of kind `what` (None: of any kind)."""

    def __init__(self, what, n, by, where):
        self.what, self.n, self.by, self.where, self.counts = what, n, by, where, {}

    def due(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1
        return self.n == (self.counts[what] if self.what == what else sum(self.counts.values()) if not self.what else 0)

    def event(self, what):
        if self.due(what):
            self.kill(what)

    def kill(self, what):
        with open(self.where, "a") as file:
            file.write(f"{what}\n")
        os.kill(os.getpid(), self.by)

    def install(self):
        from structrl.envs import ChunkEnv
        from structrl.policies.actor_critic import ActorCritic

        names = {"act": "infer", "act_ode": "evaluate", "evaluate": "update"}
        forward, step, save = ActorCritic.forward, ChunkEnv._step, torch.save

        def counted_forward(policy, mode, *arguments):
            self.event(names[mode])
            return forward(policy, mode, *arguments)

        def counted_step(env, td):
            self.event("simulate")
            return step(env, td)

        def counted_save(checkpoint, file, *arguments):
            if self.due("checkpoint"):
                content = io.BytesIO()
                save(checkpoint, content)
                file.write(content.getvalue()[: content.tell() // 2])
                file.flush()
                self.kill("checkpoint")
            return save(checkpoint, file, *arguments)

        ActorCritic.forward, ChunkEnv._step, torch.save = counted_forward, counted_step, counted_save


def run(config, kill, where, quota):
    """In a process of its own: `structrl fit --config CONFIG --resume`."""
    torch.set_num_threads(1)
    killer = Killer(*kill, where)
    killer.install()
    if quota:
        resource.setrlimit(resource.RLIMIT_FSIZE, (quota, resource.RLIM_INFINITY))
    from structrl.rl import cli

    said = killer.counts
    try:
        code = cli.fit(["--config", str(config), "--resume"])
    except Exception as error:
        code, said = 70, {"error": str(error)}
    with open(where, "a") as file:
        file.write(yaml.safe_dump(said, default_flow_style=True, width=1000))
    os._exit(code)  # not the exit handlers of the process that this one was forked from


def fit(folder, what=None, n=0, quota=0, more="", by=signal.SIGKILL):
    """Run until the end or the kill; the exit code.

    `quota`: bytes that a file may have; `more`: of the data; `by`: the signal that kills.
    """
    folder.mkdir(exist_ok=True)
    (folder / "c.yaml").write_text(CONFIG.replace("RUN", str(folder / "run")).replace("MORE", more))
    context = multiprocessing.get_context("forkserver")  # imports once, for all kills
    context.set_forkserver_preload(["structrl.rl.cli", "structrl.rl.module", "tests.rl.toy_data"])
    process = context.Process(target=run, args=(folder / "c.yaml", (what, n, by), folder / "events", quota))
    process.start()
    process.join(300)
    return process.exitcode


def same(one, two):
    a, b = (torch.load(newest_checkpoint(run), weights_only=True) for run in (one, two))
    for key in ("state_dict", "optimizer_states", "structrl", "epoch", "global_step"):
        assert flat(a[key]) == flat(b[key]), key
    assert curves(one) == curves(two)


def flat(x, prefix=""):
    if isinstance(x, dict):
        return {k: v for key, value in x.items() for k, v in flat(value, f"{prefix}.{key}").items()}
    if isinstance(x, list | tuple):
        return flat(dict(enumerate(x)), prefix)
    return {prefix: x.numpy().tobytes() if isinstance(x, torch.Tensor) else x}


def curves(run):
    """Tag -> {environment steps: the values written there}; an iteration that was repeated wrote the same again."""
    events = EventAccumulator(str(run / "tensorboard"), purge_orphaned_data=False)
    events.Reload()
    tags = [t for t in events.Tags()["scalars"] if not t.startswith("time/") and t != "charts/SPS"]
    out = {}
    for tag in tags:
        points = out.setdefault(tag, {})
        for event in events.Scalars(tag):
            points.setdefault(event.step, set()).add(repr(event.value))
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing disturbed, and how many events of which kind it had."""
    folder = tmp_path_factory.mktemp("kill") / "whole"
    assert fit(folder) == 0
    counts = yaml.safe_load((folder / "events").read_text())
    assert counts.keys() == {"simulate", "infer", "update", "evaluate", "checkpoint"}
    assert counts["checkpoint"] == ITERATIONS
    assert all(len(values) == 1 for points in curves(folder / "run").values() for values in points.values())
    return folder / "run", counts


def kill_and_resume(folder, whole, kills, seed):
    """Kill a run `kills` times, each at a random moment of about its next iteration and a half; what was killed."""
    intact, counts = whole
    window = int(1.5 * sum(counts.values()) / ITERATIONS)
    moments = np.random.default_rng(seed).integers(1, window, kills).tolist()
    for at in moments:
        code = fit(folder, None, at)
        if code == 0:  # it had reached its end
            break
        assert code == -signal.SIGKILL
        newest = newest_checkpoint(folder / "run")
        assert newest is None or torch.load(newest, weights_only=True)["epoch"] >= 0
    assert fit(folder) == 0
    same(intact, folder / "run")
    return [line for line in (folder / "events").read_text().splitlines() if ":" not in line]


def test_killed_and_resumed_is_never_killed(whole, tmp_path):
    """In the third iteration's update, and then in the evaluation after the fourth."""
    folder = tmp_path / "killed"
    for what, n in (("update", 10), ("evaluate", 6)):  # an update asks twice what the ODE does
        assert fit(folder, what, n) == -signal.SIGKILL
        assert newest_checkpoint(folder / "run") is not None
    assert fit(folder) == 0
    assert (folder / "events").read_text().splitlines()[:2] == ["update", "evaluate"]
    same(whole[0], folder / "run")


def test_killed_inside_the_write_of_a_checkpoint(whole, tmp_path):
    """Half of the third checkpoint is on the disk: it is not resumed from, and does not stay."""
    folder = tmp_path / "killed"
    checkpoints = folder / "run" / "checkpoints"
    assert fit(folder, "checkpoint", 3) == -signal.SIGKILL
    assert newest_checkpoint(folder / "run").resolve().name == "epoch-00001.ckpt"
    assert [p.name for p in checkpoints.glob(".*")] == [".epoch-00002.ckpt.writing"]
    assert fit(folder) == 0
    same(whole[0], folder / "run")
    assert not list(checkpoints.glob(".*"))


@pytest.mark.heavy
def test_a_full_disk_leaves_the_last_good_checkpoint(whole, tmp_path):
    """The system refuses to write more than half a checkpoint; with room again, the run goes on."""
    folder = tmp_path / "full"
    assert fit(folder, "checkpoint", 3) == -signal.SIGKILL
    size = newest_checkpoint(folder / "run").stat().st_size
    assert fit(folder, quota=size // 2) == 70
    assert "cannot be written" in (folder / "events").read_text()
    assert newest_checkpoint(folder / "run").resolve().name == "epoch-00001.ckpt"
    assert not list((folder / "run" / "checkpoints").glob(".*"))
    assert fit(folder) == 0
    same(whole[0], folder / "run")


def test_a_checkpoint_that_cannot_be_written_says_why(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            AtomicCheckpointIO().save_checkpoint({"x": torch.zeros(100_000)}, tmp_path / "a.ckpt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


@pytest.mark.heavy
@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_in_every_phase(phase, whole, tmp_path):
    """It ends with exit code 0, and what is resumed is the run that nothing disturbed."""
    intact, counts = whole
    draw = np.random.default_rng(11)
    for by in (signal.SIGTERM, signal.SIGUSR1):
        n, folder = int(draw.integers(1, counts[phase] + 1)), tmp_path / by.name
        assert fit(folder, phase, n, by=by) == 0
        assert phase in (folder / "events").read_text().splitlines()
        newest = newest_checkpoint(folder / "run")
        done = 0 if newest is None else torch.load(newest, weights_only=True)["epoch"] + 1
        assert done < ITERATIONS or phase in ("evaluate", "update")
        assert fit(folder) == 0
        same(intact, folder / "run")
        print(f"| {by.name} | {phase} | {n} of {counts[phase]} | {done} of {ITERATIONS} | 0 | equal |")


def test_killed_in_the_first_iteration(whole, tmp_path):
    """There is no checkpoint: it begins anew, and its curves have no point twice."""
    folder = tmp_path / "killed"
    assert fit(folder, "update", 3) == -signal.SIGKILL
    assert newest_checkpoint(folder / "run") is None
    assert fit(folder) == 0
    same(whole[0], folder / "run")
    assert len(EventAccumulator(str(folder / "run" / "tensorboard")).Reload().Scalars("evaluate/charts/success")) == 4


@pytest.mark.heavy
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_kill_in_every_phase(variant, tmp_path):
    """At a random moment of each; what is resumed is bit for bit the run that nothing disturbed."""
    more, draw = VARIANTS[variant], np.random.default_rng(7)
    intact = tmp_path / "whole"
    assert fit(intact, more=more) == 0
    counts = yaml.safe_load((intact / "events").read_text())
    for phase in PHASES:
        n, folder = int(draw.integers(1, counts[phase] + 1)), tmp_path / phase
        assert fit(folder, phase, n, more=more) == -signal.SIGKILL
        newest = newest_checkpoint(folder / "run")
        done = 0 if newest is None else torch.load(newest, weights_only=True)["epoch"] + 1
        clock = time.monotonic()
        assert fit(folder, more=more) == 0
        took = time.monotonic() - clock
        same(intact / "run", folder / "run")
        print(f"| {variant} | {phase} | {n} of {counts[phase]} | {done} of {ITERATIONS} | {took:.1f} | equal |")


@pytest.mark.heavy
def test_ten_kills(whole, tmp_path):
    killed = []
    for seed in range(10):
        killed += kill_and_resume(tmp_path / f"killed-{seed}", whole, 3, seed=100 + seed)
        if len(killed) >= 10 and len(set(killed)) >= 4:
            break
    table = {what: killed.count(what) for what in sorted(set(killed))}
    print(f"killed and resumed, bit for bit equal to a run that was not: {len(killed)} kills: {table}")
    assert len(killed) >= 10


@pytest.mark.heavy
def test_a_really_full_disk(whole, tmp_path):
    """A file system of its own, with room for two checkpoints and a half."""
    intact, _ = whole
    folder = tmp_path / "small"
    folder.mkdir()
    size = newest_checkpoint(intact).stat().st_size
    logs = sum(p.stat().st_size for p in (intact / "tensorboard").iterdir())
    room = int(2.5 * size) + 2 * logs + 200_000
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(folder)]).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        assert fit(folder) == 70
        assert "No space left on device" in (folder / "events").read_text()
        newest = newest_checkpoint(folder / "run")
        assert torch.load(newest, weights_only=True)["epoch"] >= 0
        subprocess.run(["mount", "-o", "remount,size=100m", str(folder)], check=True)
        assert fit(folder) == 0
        same(intact, folder / "run")
    finally:
        subprocess.run(["umount", str(folder)], check=True)
