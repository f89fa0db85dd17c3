"""A warm start takes the actor, all of it, and nothing of the critic."""

from pathlib import Path

import pytest
import torch

from structrl.policies.actor_critic import ActorCritic
from structrl.policies.compact import CompactVLA
from structrl.policies.flow import FlowOptions
from structrl.policies.protocol import env_spec
from structrl.rl.warm_start import load_actor
from tests.rl.toy_data import toy_env


def make(seed, **kwargs):
    torch.manual_seed(seed)
    return ActorCritic(CompactVLA(env_spec(toy_env(1)), **{"width": 16, "depth": 1} | kwargs), FlowOptions())


def save(policy, path, **extra):
    torch.save({"state_dict": {f"policy.{k}": v for k, v in policy.state_dict().items()} | extra}, path)
    return str(path)


def test_actor_yes_critic_no(tmp_path):
    source, target = make(0), make(1)
    critic = {k: v.clone() for k, v in target.state_dict().items() if "critic" in k}
    load_actor(target, save(source, tmp_path / "a.ckpt", **{"other.weight": torch.zeros(3)}))
    assert critic
    for name, value in target.state_dict().items():
        assert torch.equal(value, critic[name] if "critic" in name else source.state_dict()[name]), name


def test_another_critic_is_fine(tmp_path):
    source, target = make(0, critic_sees="observation"), make(1)
    load_actor(target, save(source, tmp_path / "a.ckpt"))
    assert torch.equal(target.vla.chunk_in.weight, source.vla.chunk_in.weight)


def test_another_actor_is_refused(tmp_path):
    path = save(make(0, width=24, depth=2), tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match=r"another policy(.|\n)*is \(24, .*there and \(16, "):
        load_actor(make(1), path)
    with pytest.raises(ValueError, match=r"blocks\.1\..* is not in this policy"):
        load_actor(make(1, width=24), path)
    with pytest.raises(ValueError, match=r"blocks\.2\..* is missing"):
        load_actor(make(1, width=24, depth=3), path)


def test_a_file_that_is_no_checkpoint(tmp_path):
    path = tmp_path / "a.ckpt"
    whole = Path(save(make(0), tmp_path / "b.ckpt")).read_bytes()
    torch.save({"weights": {}}, tmp_path / "c.ckpt")
    for content in (b"", b"garbage", whole[:1000], (tmp_path / "c.ckpt").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.ckpt' is no checkpoint of structrl, or was cut off"):
            load_actor(make(1), str(path))


def test_no_such_file():
    with pytest.raises(FileNotFoundError, match="train it first"):
        load_actor(make(0), "nowhere.ckpt")
