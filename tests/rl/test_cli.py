"""structrl fit: run folders, resuming, signals, and what a mistake in a config looks like."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from structrl.rl import cli
from structrl.rl.run_folder import differences, newest_checkpoint

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
seed_everything: 3
trainer: {default_root_dir: RUN, max_epochs: 4, accelerator: cpu, check_val_every_n_epoch: 2}
model:
  class_path: structrl.rl.module.PPO
  init_args:
    policy: {class_path: structrl.policies.compact.CompactVLA, init_args: {width: 32, depth: 1}}
    ppo: {critic_warmup: 1, learning_rate: 3.0e-4}
data:
  class_path: tests.rl.toy_data.ToyData
  init_args: {num_envs: 4, episodes_per_iteration: 8, evaluate_episodes: 4}
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.replace("RUN", str(tmp_path / "run")))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 4 iterations that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "c.yaml").write_text(CONFIG.replace("RUN", str(folder / "run")))
    assert cli.fit(["--config", str(folder / "c.yaml")]) == 0
    return folder / "run"


def assert_same_run(one, two):
    """Weights, optimiser, counters and every metric but times are equal, bit for bit."""
    a, b = (torch.load(run / "checkpoints" / "last.ckpt", weights_only=True) for run in (one, two))
    for key in ("state_dict", "optimizer_states", "structrl", "epoch", "global_step"):
        assert flat(a[key]) == flat(b[key]), key
    curves_a, curves_b = curves(one), curves(two)
    assert curves_a.keys() == curves_b.keys()
    for tag in curves_a:
        assert curves_a[tag] == curves_b[tag], tag


def flat(x, prefix=""):
    if isinstance(x, dict):
        return {k: v for key, value in x.items() for k, v in flat(value, f"{prefix}.{key}").items()}
    if isinstance(x, list | tuple):
        return flat(dict(enumerate(x)), prefix)
    return {prefix: x.numpy().tobytes() if isinstance(x, torch.Tensor) else x}


def curves(run):
    """Tag -> [(environment steps, value)], all event files of the run together."""
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    tags = [t for t in events.Tags()["scalars"] if not t.startswith("time/") and t != "charts/SPS"]
    return {t: [(e.step, e.value) for e in events.Scalars(t)] for t in tags}


def test_run_folder(whole):
    files = sorted(p.name for p in (whole / "checkpoints").iterdir())
    assert files == ["epoch-00002.ckpt", "epoch-00003.ckpt", "last.ckpt"]
    resolved = yaml.safe_load((whole / "config.yaml").read_text())
    ppo = resolved["model"]["init_args"]["ppo"]
    assert ppo["learning_rate"] == 3e-4
    assert ppo["gae_lambda"] == 0.95, "defaults are resolved"
    state = (whole / "code_state.txt").read_text()
    assert "torch 2" in state
    assert "mujoco" in state


def test_x_axis_is_environment_steps(whole):
    lines = curves(whole)
    steps = [s for s, _ in lines["charts/iteration"]]
    lengths = [v for _, v in lines["charts/episodic_length"]]
    assert steps == pytest.approx([8 * sum(lengths[: i + 1]) for i in range(4)])
    assert [s for s, _ in lines["evaluate/charts/success"]] == [0, steps[1], steps[3]]
    events = EventAccumulator(str(whole / "tensorboard"))
    events.Reload()
    assert "custom_scalars__config__" in events.Tags()["tensors"]


def test_stopped_and_resumed_is_never_stopped(whole, config, capsys):
    run = config.parent / "run"
    assert cli.fit(["--config", str(config), "--trainer.max_epochs=2"]) == 0
    assert newest_checkpoint(run).resolve().name == "epoch-00001.ckpt"
    assert cli.fit(["--config", str(config)]) == 2
    assert "already holds checkpoints; continue the run with --resume" in capsys.readouterr().err
    assert cli.fit(["--config", str(config), "--resume"]) == 0
    assert "trainer.max_epochs: 2 -> 4" in capsys.readouterr().err
    assert_same_run(whole, run)
    assert "trainer.max_epochs: 2 -> 4" in (run / "code_state.txt").read_text()


def test_sigterm_abandons_the_iteration_and_resume_goes_on(whole, config):
    """A real process, stopped somewhere inside its third or fourth iteration."""
    run = config.parent / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "structrl.cli", "fit", "--config", str(config)],
        cwd=ROOT, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (run / "checkpoints" / "epoch-00001.ckpt").exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    if "iteration 4/4" not in err:  # it was not faster than us
        assert f"structrl fit --resume {run}" in err
    assert newest_checkpoint(run) is not None
    assert cli.fit(["--resume", str(run)]) == 0
    ckpt = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    assert flat(ckpt["state_dict"]) == flat(
        torch.load(whole / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    )


def test_preemption_in_the_middle_of_an_iteration(whole, config, monkeypatch):
    """SIGTERM during the third iteration's rollout: nothing of it is left."""
    from tests.rl.toy_data import ToyData

    original = ToyData.collect

    def collect(self, iteration):
        if iteration == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, iteration)

    monkeypatch.setattr(ToyData, "collect", collect)
    run = config.parent / "run"
    assert cli.fit(["--config", str(config)]) == 0
    assert newest_checkpoint(run).resolve().name == "epoch-00001.ckpt"
    monkeypatch.undo()
    assert cli.fit(["--resume", str(run)]) == 0
    assert_same_run(whole, run)


def test_resume_does_not_need_the_warm_start(config, capsys):
    weights, run = config.parent / "warm.ckpt", config.parent / "run"
    argv = ["--config", str(config), "--data.evaluate_episodes=0", f"--model.warm_start={weights}"]
    assert cli.fit(["--config", str(config), "--trainer.max_epochs=1", "--trainer.default_root_dir", f"{run}0"]) == 0
    weights.write_bytes(Path(f"{run}0/checkpoints/last.ckpt").read_bytes())
    assert cli.fit([*argv, "--trainer.max_epochs=1"]) == 0
    weights.unlink()
    assert cli.fit([f"--resume={run}", "--trainer.max_epochs=2"]) == 0, capsys.readouterr().err
    assert cli.validate(["--config", str(run / "config.yaml"), "--data.evaluate_episodes=2"]) == 0


def test_ctrl_c_says_how_to_go_on(config, capsys, monkeypatch):
    from tests.rl.toy_data import ToyData

    def collect(self, iteration):
        raise KeyboardInterrupt

    monkeypatch.setattr(ToyData, "collect", collect)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as stop:
        cli.fit(["--config", str(config)])
    signal.signal(signal.SIGINT, before)  # Lightning ignores it from then on
    assert stop.value.code == 1
    assert f"continue with: structrl fit --resume {config.parent / 'run'}" in capsys.readouterr().err


def test_resume_without_a_checkpoint_says_so_and_starts(config, capsys):
    assert cli.fit(["--config", str(config), "--resume", "--trainer.max_epochs=1"]) == 0
    assert "starting from the beginning" in capsys.readouterr().err


def test_options_changed_on_resume_count(config):
    run = config.parent / "run"
    argv = ["--config", str(config), "--resume", "--data.evaluate_episodes=0"]
    assert cli.fit([*argv, "--trainer.max_epochs=1"]) == 0
    changed = {"learning_rate": 0.001, "critic_learning_rate": 0.002, "adam_eps": 0.003, "weight_decay": 0.004}
    assert cli.fit([*argv, "--trainer.max_epochs=2", *(f"--model.ppo.{k}={v}" for k, v in changed.items())]) == 0
    actor, critic = torch.load(run / "checkpoints/last.ckpt", weights_only=True)["optimizer_states"][0]["param_groups"]
    for group, lr in ((actor, 0.001), (critic, 0.002)):
        assert (group["lr"], group["eps"], group["weight_decay"]) == (lr, 0.003, 0.004)


def test_a_failed_start_leaves_nothing_behind(config, capsys):
    run = config.parent / "run"
    assert cli.fit(["--config", str(config), "--model.warm_start=nowhere.ckpt"]) == 1
    assert "nowhere.ckpt' does not exist" in capsys.readouterr().err
    assert not run.exists()


def test_a_finished_run_says_so(whole, capsys):
    before = {p: p.stat().st_mtime_ns for p in whole.rglob("*")}
    assert cli.fit(["--resume", str(whole)]) == 0
    assert "is finished: 4 of 4 iterations; raise --trainer.max_epochs" in capsys.readouterr().err
    assert {p: p.stat().st_mtime_ns for p in whole.rglob("*")} == before


def test_a_damaged_checkpoint_is_named_and_the_one_before_taken_when_told(whole, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(whole, run, symlinks=True)
    newest = run / "checkpoints/epoch-00003.ckpt"
    newest.write_bytes(newest.read_bytes()[:-1000])
    argv = ["--resume", str(run), "--trainer.max_epochs=5"]
    assert cli.fit(argv) == 2
    err = capsys.readouterr().err
    before = run / "checkpoints/epoch-00002.ckpt"
    assert "is damaged or was cut off" in err and f"--ckpt_path {before}" in err
    assert cli.fit([*argv, f"--trainer.default_root_dir={run}", f"--ckpt_path={before}", "--trainer.max_epochs=4"]) == 0
    assert_same_run(whole, run)
    assert cli.fit(["--config", str(run / "config.yaml"), "--ckpt_path=x"]) == 2
    assert "--ckpt_path goes with --resume" in capsys.readouterr().err


def test_points_of_a_killed_iteration_are_not_drawn_twice(whole, config, monkeypatch):
    """Killed between the metrics and the checkpoint of the third iteration."""
    from structrl.rl.module import PPO

    original = PPO.write

    def write(self, metrics):
        original(self, metrics)
        if self.trainer.current_epoch == 2 and "charts/chunks" in metrics:
            raise KeyError("killed")

    monkeypatch.setattr(PPO, "write", write)
    with pytest.raises(KeyError, match="killed"):
        cli.fit(["--config", str(config)])
    monkeypatch.undo()
    run = config.parent / "run"
    assert cli.fit(["--resume", str(run)]) == 0
    assert_same_run(whole, run)


def test_validate(whole, capsys):
    before = {p: p.stat().st_mtime_ns for p in whole.rglob("*")}
    assert cli.validate(["--config", str(whole / "config.yaml")]) == 0
    out = capsys.readouterr().out
    last = curves(whole)["evaluate/task/chain/return"][-1][1]
    line = next(line for line in out.splitlines() if line.startswith("evaluate/task/chain/return"))
    assert float(line.split()[1]) == pytest.approx(last, rel=1e-4)
    assert {p: p.stat().st_mtime_ns for p in whole.rglob("*")} == before


def test_mistakes_of_validate(whole, tmp_path, capsys):
    argv = ["--config", str(whole / "config.yaml")]
    supervised = tmp_path / "sft.ckpt"
    torch.save({"state_dict": {}, "pytorch-lightning_version": "2.6.6"}, supervised)
    for more, code, wanted in (
        (["--ckpt_path=nowhere.ckpt"], 2, "nowhere.ckpt: there is no such file"),
        (["--data.evaluate_episodes=0"], 2, "data.evaluate_episodes is 0"),
        ([f"--ckpt_path={supervised}"], 1, "not of a PPO or GRPO run"),
    ):
        assert cli.validate([*argv, *more]) == code
        assert wanted in capsys.readouterr().err


MISTAKES = {
    "a nested key": (
        "critic_warmup: 1",
        "critic_warmpu: 1",
        ["ppo", "'critic_warmpu'", "did you mean 'critic_warmup'"],
    ),
    "a trainer key": ("max_epochs", "max_epoch", ["trainer", "'max_epoch'", "did you mean 'max_epochs'"]),
    "a data key": ("num_envs", "num_env", ["ToyData", "'num_env'", "did you mean 'num_envs'"]),
    "a policy key": ("width", "widht", ["policy", "'widht'", "did you mean 'width'"]),
    "a top-level key": ("\ndata:", "\ndta:", ["'dta", "did you mean 'data'"]),
    "a value out of range": ("critic_warmup: 1", "critic_warmup: -1", ["ppo.critic_warmup must be 0 or more, not -1"]),
    "a KL never reached": ("critic_warmup: 1", "target_kl: -1", ["ppo.target_kl must be above 0 (or null), not -1"]),
    "a clip below 0": ("critic_warmup: 1", "value_clip: -1", ["ppo.value_clip must be above 0 (or null), not -1"]),
    "a negative seed": ("num_envs: 4", "seed: -1", ["data.seed must be 0 or more, not -1"]),
    "no environments": ("num_envs: 4", "num_envs: 0", ["env.num_envs must be at least 1, not 0"]),
    "a wrong type": ("critic_warmup: 1", "critic_warmup: some", ["ppo.critic_warmup", "int", "some"]),
    "a wrong class": ("module.PPO", "module.PPOO", ["module 'structrl.rl.module' has no attribute 'PPOO'"]),
    "no run folder": ("default_root_dir: RUN, ", "", ["set trainer.default_root_dir"]),
    "a trainer key without effect": (
        "max_epochs: 4",
        "max_epochs: 4, log_every_n_steps: 5",
        ["trainer.log_every_n_steps has no effect with PPO: RL writes its metrics every iteration"],
    ),
    "clipping twice": ("max_epochs: 4", "max_epochs: 4, gradient_clip_val: 1.0", ["max_grad_norm"]),
    "another precision": ("max_epochs: 4", "max_epochs: 4, precision: bf16-mixed", ["use model.flow.precision"]),
    "a sampler's option": ("ppo:", "flow: {sampler: cps, mode: joint}\n    ppo:", ["flow.sampler 'cps'", "'early'"]),
    "broken YAML": ("num_envs: 4", "num_envs: [4", ["line 11"]),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_are_short_and_say_what_to_do(what, config, capsys):
    old, new, wanted = MISTAKES[what]
    run = str(config.parent / "run")
    text = CONFIG.replace(old, new)
    assert text != CONFIG
    config.write_text(text.replace("RUN", run))
    assert cli.fit(["--config", str(config)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("structrl fit: error: ")
    assert len(err.splitlines()) <= 5
    assert not [part for part in wanted if part not in err], err
    assert not Path(run).exists()


@pytest.mark.parametrize(
    ("argv", "code", "wanted"),
    [
        (["--model.ppo.epoch=3"], 2, "unknown option '--model.ppo.epoch'; did you mean '--model.ppo.epochs'"),
        (["--model.warm_start=nowhere.ckpt"], 1, "warm start 'nowhere.ckpt' does not exist"),
        (["--model.ppo.gama=0.9"], 2, "--ppo.gama=0.9; did you mean 'gamma'"),
        (["--resume", "nowhere"], 2, "no config.yaml"),
        (["--config", "nowhere.yaml"], 2, "nowhere.yaml"),
    ],
)
def test_mistakes_on_the_command_line(argv, code, wanted, config, capsys):
    assert cli.fit(["--config", str(config), *argv]) == code
    assert wanted in capsys.readouterr().err


def test_overrides(config):
    folder = config.parent / "elsewhere"
    argv = ["--config", str(config), "--trainer.max_epochs=1", f"--trainer.default_root_dir={folder}", "--threads=1"]
    nulls = ["--model.ppo.value_clip=null", "--model.ppo.target_kl", "null", "--model.warm_start=null"]
    assert (
        cli.fit([*argv, *nulls, "--model.ppo.epochs", "1", "--model.policy.width=16", "--data.evaluate_episodes=0"])
        == 0
    )
    resolved = yaml.safe_load((folder / "config.yaml").read_text())
    ppo = resolved["model"]["init_args"]["ppo"]
    assert (ppo["epochs"], ppo["value_clip"], ppo["target_kl"], ppo["learning_rate"]) == (1, None, None, 3e-4)
    assert resolved["model"]["init_args"]["policy"]["init_args"]["width"] == 16


def test_handlers_are_restored(config):
    before = signal.getsignal(signal.SIGTERM)
    cli.fit(["--config", "nowhere.yaml"])
    assert signal.getsignal(signal.SIGTERM) is before


def test_differences():
    old, new = {"a": {"b": 1, "c": [1]}, "d": 2}, {"a": {"b": 1, "c": [2]}, "e": 3}
    assert list(differences(old, new)) == ["a.c: [1] -> [2]", "d: 2 -> None", "e: None -> 3"]
