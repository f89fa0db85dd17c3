"""No option of the update is dead: each changes what two iterations learn, or is tested where it is named here."""

import dataclasses

import pytest
import torch

from structrl.policies.compact import CompactVLA
from structrl.policies.flow import FlowOptions
from structrl.rl.module import PPO
from structrl.rl.options import PPOOptions
from tests.rl.test_module import History, fit
from tests.rl.toy_data import ToyData

BASE = {"learning_rate": 3e-3, "critic_warmup": 1, "target_kl": None, "minibatches": 2, "epochs": 2}
KNOBS = {
    "average": "episodes", "clip_low": 0.01, "clip_high": 0.01, "dual_clip": 1.01, "log_ratio_clamp": 1e-3,
    "kl_weight": 1.0, "target_kl": 1e-6, "epochs": 1, "minibatches": 3, "learning_rate": 1e-3, "max_grad_norm": 1e-3,
    "adam_eps": 1.0, "weight_decay": 0.5, "reward_weights": {"subtask": 0.0}, "gamma": 0.5, "gamma_per": "step",
    "gae_lambda": 0.2, "time_limit": "bootstrap", "normalise_advantages": False, "value_clip": 1e-4,
    "huber_delta": 1e-3, "value_weight": 0.1, "critic_learning_rate": 1e-4, "critic_warmup": 0,
}  # fmt: skip
ELSEWHERE = {
    "micro_batch": "test_module.py: changes nothing but rounding",
    "entropy_weight": "below: with learned noise",
    "ratio_tolerance": "test_module.py: a warning, or the end",
    "max_skipped_steps": "test_numbers.py",
}


def policy(spec):
    return CompactVLA(spec, width=16, depth=1, critic_reads="prefix", critic_detached=False)


def weights(flow=None, **options):
    """After two iterations of a policy that shares parameters with its critic, so that all of the loss matters."""
    module = PPO(policy, flow or FlowOptions(noise=1.0), PPOOptions(**BASE | options))
    history = History()
    fit(module, 2, ToyData(num_envs=8, episodes_per_iteration=8, evaluate_episodes=0, seed=4), [history])
    return history.weights[-1]


@pytest.fixture(scope="module")
def base():
    return weights()


@pytest.mark.parametrize("knob", KNOBS)
def test_a_knob_changes_what_is_learned(base, knob):
    other = weights(**{knob: KNOBS[knob]})
    assert any(not torch.equal(base[name], other[name]) for name in base)


def test_entropy_weight():
    flow = FlowOptions(sampler="learned")
    one, other = weights(flow), weights(flow, entropy_weight=0.1)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_the_list_is_complete():
    options = {field.name for field in dataclasses.fields(PPOOptions)}
    assert options == KNOBS.keys() | ELSEWHERE.keys()
