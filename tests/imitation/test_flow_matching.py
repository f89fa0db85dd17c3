"""Demonstrations as training data, and the warm start: what is cut, what a step sees, exact resuming."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from structrl import keys
from structrl.envs import EnvConfig, make_env
from structrl.evaluate.episodes import EpisodeFile, EpisodeFileError, EpisodeWriter
from structrl.imitation import demos
from structrl.imitation.data import DemoData, DemoTensors
from structrl.imitation.flow_matching import FlowMatching, SFTOptions
from structrl.policies.actor_critic import ActorCritic
from structrl.policies.compact import CompactVLA
from structrl.policies.flow import FlowOptions
from structrl.policies.protocol import VLASpec, env_spec
from structrl.rl.warm_start import load_actor
from structrl.seeding import Stream
from tests.evaluate.example import TASK as PACK
from tests.evaluate.example import episode

SPEC = VLASpec({"state": (3,)}, 2, (-1.0, -1.0), (1.0, 1.0), 4, 0, ("do",))


def coded(number, steps, obs_at=None):
    """An episode whose actions say (episode, step) and whose observations say (episode, step of the observation)."""
    one = episode([[1, 1, 0, 1]] * (steps + 1), obs_at=obs_at)
    one.actions = np.stack([np.full(steps, number), np.arange(steps)], 1).astype(np.float32)
    at = one.obs_at.astype(np.float32)
    one.observation = {"state": np.stack([np.full(len(at), number), at, at], 1).astype(np.float32)}
    return one


@pytest.mark.parametrize("obs_at", [None, [0, 4, 6]])
def test_every_observation_starts_the_chunk_that_followed_it(obs_at):
    chunks = DemoTensors([coded(0, 6, obs_at), coded(1, 9)], (PACK,), SPEC)
    begins = (range(6) if obs_at is None else [0, 4], range(9))
    assert len(chunks) == sum(map(len, begins))
    td = chunks.batch(torch.arange(len(chunks)))
    wanted = [(number, t) for number in (0, 1) for t in begins[number]]
    for row, (number, t) in enumerate(wanted):
        assert td[keys.STATE][row].tolist() == [number, t, t]
        last = (6, 9)[number] - 1
        assert td[keys.ACTION][row].tolist() == [[number, min(t + h, last)] for h in range(4)]
        assert td["pad"][row].tolist() == [t + h > last for h in range(4)]
    assert td[keys.TASK].tolist() == [[0]] * len(wanted)


@pytest.mark.parametrize(
    ("tasks", "spec", "message"),
    [
        ((dataclasses.replace(PACK, name="other"),), SPEC, "of task 'pack', the config lists other"),
        ((PACK, dataclasses.replace(PACK, name="other")), SPEC, "no demonstration of task 'other'"),
        ((dataclasses.replace(PACK, sim_args={"scene": "x"}),), SPEC, "record demonstrations again"),
        ((PACK,), dataclasses.replace(SPEC, observation={"state": (4,)}), "record demonstrations again"),
        (
            (PACK,),
            dataclasses.replace(SPEC, action_dim=3, action_low=(-1,) * 3, action_high=(1,) * 3),
            "2 action dims",
        ),
    ],
)
def test_demonstrations_that_do_not_belong(tasks, spec, message):
    with pytest.raises(ValueError, match=message):
        DemoTensors([coded(0, 5)], tasks, spec)


@pytest.fixture
def recorded(toy, tmp_path):
    """A config and a file of toy demonstrations."""
    path = tmp_path / "d.h5"
    assert demos.main(["climb", "--episodes", "6", "--slop", "0", "--out", str(path)]) == 0
    return EnvConfig(["climb"], num_envs=2, chunk=4, sim={"dims": 2}), str(path)


def data(recorded, **kwargs):
    return DemoData(recorded[0], [recorded[1]], **{"batch_size": 12, "steps_per_epoch": 5, "seed": 3, **kwargs})


def test_batches_are_a_function_of_the_step_and_split_over_ranks(recorded):
    whole = data(recorded)
    whole.setup("fit")
    batch = whole.step_batch(7)
    again = data(recorded)
    again.setup("fit")
    again.step_batch(1)
    assert (again.step_batch(7) == batch).all(), "depends on what was drawn before"
    assert not torch.equal(whole.step_batch(8)[keys.STATE], batch[keys.STATE])
    assert batch["counter"].unique(dim=0).tolist() == [[3, 6, 7]]

    class Ranks:
        world_size = 3

    for rank in range(3):
        part = data(recorded)
        part.setup("fit")
        part.trainer = Ranks()
        part.trainer.global_rank = rank
        assert (part.step_batch(7) == batch[rank::3]).all()


def test_spec_is_that_of_the_rl_environment(recorded):
    one = data(recorded)
    one.setup("fit")
    assert one.spec == env_spec(make_env(recorded[0]))


def test_missing_demonstrations(recorded):
    with pytest.raises(EpisodeFileError, match="record them first: structrl demos"):
        DemoData(recorded[0], ["none.h5"]).setup("fit")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"succeeded": False}, r"1 of 2 episodes did not succeed \(first: 1\)"),
        ({"stream": Stream.EVALUATE}, "evaluation episodes of a policy"),
    ],
)
def test_what_is_no_demonstration_is_rejected(recorded, tmp_path, changes, message):
    with EpisodeFile(recorded[1]) as file:
        good, other = file[0], file[1]
    if not changes.get("succeeded", True):
        other.success[:] = False
    other.start[3] = changes.get("stream", other.start[3])
    with EpisodeWriter(tmp_path / "mixed.h5") as out:
        out.append(good)
        out.append(other)
    with pytest.raises(EpisodeFileError, match=message):
        DemoData(recorded[0], [str(tmp_path / "mixed.h5")]).setup("fit")


def train(recorded, folder, epochs, resume=None):
    checkpoint = ModelCheckpoint(dirpath=folder, save_last=True, save_on_train_epoch_end=True)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        default_root_dir=folder,
        logger=False,
        callbacks=[checkpoint],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = FlowMatching(
        policy=lambda spec: CompactVLA(spec, width=32, depth=1), sft=SFTOptions(lr=0.01, warmup=3, final=0.05)
    )
    trainer.fit(module, datamodule=data(recorded), ckpt_path=resume)
    return module, trainer


def test_learns_and_leaves_the_critic_alone(recorded, tmp_path):
    start, _ = train(recorded, tmp_path / "0", 0)
    module, trainer = train(recorded, tmp_path / "30", 30)
    assert trainer.callback_metrics["losses/flow_matching"] < 0.1  # the expert's action is constant
    before, after = start.policy.state_dict(), module.policy.state_dict()
    for name in before:
        assert torch.equal(before[name], after[name]) == ("critic" in name), name
    lr = trainer.optimizers[0].param_groups[0]["lr"]
    assert lr == pytest.approx(0.01 * 0.05)


def test_checkpoint_warm_starts_a_policy(recorded, tmp_path):
    module, _ = train(recorded, tmp_path, 1)
    torch.manual_seed(5)
    fresh = ActorCritic(CompactVLA(module.policy.vla.spec, width=32, depth=1), FlowOptions())
    load_actor(fresh, str(tmp_path / "last.ckpt"))
    for name, value in module.policy.state_dict().items():
        assert torch.equal(value, fresh.state_dict()[name]) == ("critic" not in name), name


def test_stopped_and_resumed_is_never_stopped(recorded, tmp_path):
    whole, _ = train(recorded, tmp_path / "whole", 4)

    class Stop(Callback):
        def on_train_epoch_end(self, trainer, module):
            trainer.should_stop = trainer.current_epoch == 1

    checkpoint = ModelCheckpoint(dirpath=tmp_path / "part", save_last=True, save_on_train_epoch_end=True)
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    first = Trainer(max_epochs=4, callbacks=[Stop(), checkpoint], default_root_dir=tmp_path, **options)
    make = lambda: FlowMatching(  # noqa: E731
        policy=lambda spec: CompactVLA(spec, width=32, depth=1), sft=SFTOptions(lr=0.01, warmup=3, final=0.05)
    )
    first.fit(make(), datamodule=data(recorded))
    assert first.current_epoch == 2
    resumed, trainer = train(recorded, tmp_path / "part", 4, resume=str(tmp_path / "part/last.ckpt"))
    assert trainer.global_step == 20
    for name, value in whole.policy.state_dict().items():
        assert torch.equal(value, resumed.policy.state_dict()[name]), name


def test_options_changed_on_resume_count(recorded, tmp_path):
    train(recorded, tmp_path, 4)
    trainer = Trainer(
        max_epochs=6, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        accelerator="cpu", default_root_dir=tmp_path,
    )  # fmt: skip
    module = FlowMatching(
        policy=lambda spec: CompactVLA(spec, width=32, depth=1),
        sft=SFTOptions(lr=0.002, warmup=3, final=0.5, weight_decay=0.25),
    )
    seen = []
    module.on_train_batch_start = lambda *_: seen.append(trainer.optimizers[0].param_groups[0]["lr"])
    trainer.fit(module, datamodule=data(recorded), ckpt_path=str(tmp_path / "last.ckpt"))
    assert seen == pytest.approx([0.002 * module.sft.factor(step, 30) for step in range(20, 30)])
    assert trainer.optimizers[0].param_groups[0]["weight_decay"] == 0.25


def test_noise_of_a_row_does_not_depend_on_the_split(recorded, tmp_path, monkeypatch):
    module, trainer = train(recorded, tmp_path, 1)
    seen = []
    monkeypatch.setattr(
        "structrl.imitation.flow_matching.flow_matching_loss",
        lambda vla, obs, task, action, pad, noise, time: seen.append((noise, time)) or torch.zeros(()),
    )
    monkeypatch.setattr(module, "log", lambda *a, **k: None)
    batch = trainer.datamodule.step_batch(2)
    for part in (batch, batch[0::2], batch[1::2]):
        module.training_step(part, 0)
    (noise, time), (even_noise, even_time), (odd_noise, odd_time) = seen
    assert torch.equal(noise[0::2], even_noise) and torch.equal(noise[1::2], odd_noise)
    assert torch.equal(time[0::2], even_time) and torch.equal(time[1::2], odd_time)
    assert noise.shape == (12, 4, 2) and len(noise.unique()) == noise.numel()
    assert ((time >= 0) & (time < 1)).all() and len(time.unique()) == 12


@pytest.mark.parametrize(
    ("key", "value"), [("lr", 0.0), ("warmup", -1), ("final", 7.0), ("weight_decay", -0.1), ("clip", 0.0)]
)
def test_options_out_of_range(key, value):
    with pytest.raises(ValueError, match=rf"sft\.{key} must be .*, not {value}"):
        SFTOptions(**{key: value})


def test_schedule():
    sft = SFTOptions(warmup=100, final=0.05)
    factor = [sft.factor(step, 3000) for step in range(3001)]
    assert factor[0] == 0.01 and factor[99] == 1.0 and max(factor) == 1.0
    assert factor[1550] == pytest.approx(0.05 + 0.95 / 2)  # half-way down the cosine
    assert factor[3000] == pytest.approx(0.05)
    assert all(a < b for a, b in itertools.pairwise(factor[:100]))
    assert all(a >= b for a, b in itertools.pairwise(factor[100:]))
    assert math.isfinite(SFTOptions(warmup=0).factor(0, 0))
