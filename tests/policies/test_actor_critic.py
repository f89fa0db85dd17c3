"""ActorCritic: purity, replay in other minibatches, and seeded draws."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from structrl import keys
from structrl.policies.actor_critic import ActorCritic
from structrl.policies.flow import FlowOptions
from tests.policies.test_compact import Padded, make_observation, make_spec, make_vla, normal

MODES = ["one", "joint", "early"]


def make_td(batch: int) -> TensorDict:
    return TensorDict(
        {
            "observation": make_observation(batch),
            "task": torch.arange(batch)[:, None] % 2,
            "reward_state": normal(batch, 6, seed=7),
        },
        [batch],
    )


def counters(batch: int) -> np.ndarray:
    return np.stack([np.arange(5) * 0 + i for i in range(batch)])


def act(policy: ActorCritic, batch: int):
    return policy("act", make_td(batch), *policy.draw(counters(batch)))


@pytest.mark.parametrize("mode", MODES)
def test_act_writes_the_documented_keys(mode):
    policy = ActorCritic(make_vla(), FlowOptions(mode=mode))
    td = make_td(6)
    out = policy("act", td, *policy.draw(counters(6)))
    assert out[keys.ACTION].shape == (6, 4, 2)
    assert out[keys.CHAIN].shape == (6, 5, 4, 2)
    assert out[keys.LOG_PROB].shape == (6,)
    assert out[keys.VALUE].shape == (6, 1)
    assert out[keys.INDEX].shape == (6,)
    assert all(out[k].dtype == torch.float32 for k in (keys.ACTION, keys.CHAIN, keys.LOG_PROB, keys.VALUE))
    assert (out[keys.INDEX] >= 0).all() if mode == "one" else (out[keys.INDEX] == -1).all()
    low, high = torch.tensor([-0.5, 0.0]), torch.tensor([0.5, 0.1])
    assert ((out[keys.ACTION] >= low) & (out[keys.ACTION] <= high)).all()
    assert keys.ACTION not in td.keys()  # noqa: SIM118 - a TensorDict
    torch.testing.assert_close(out[keys.ACTION], policy.vla.to_env(out[keys.CHAIN][:, -1]))


@pytest.mark.parametrize("mode", MODES)
def test_ratio_is_one_before_the_first_update_whatever_the_minibatch(mode, record_property):
    policy = ActorCritic(make_vla(width=256, depth=3), FlowOptions(mode=mode))
    data, worst = act(policy, 256), 0.0
    for size, seed in ((256, 0), (64, 1), (7, 2), (1, 3)):
        order = torch.randperm(256, generator=torch.Generator().manual_seed(seed))
        for rows in order.split(size)[:16]:
            result = policy("evaluate", data[rows])
            ratio = (result.log_prob - data[keys.LOG_PROB][rows]).exp()
            worst = max(worst, (ratio - 1).abs().max().item())
            torch.testing.assert_close(result.value, data[keys.VALUE][rows], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(result.step_log_probs.sum(1), result.log_prob)
    record_property("max_ratio_error", worst)
    print(f"\nmode {mode}: max |ratio - 1| = {worst:.2e}")
    assert worst < 1e-3  # fp32 sums of up to K H A terms
    with torch.no_grad():  # and the test can fail: another policy has another ratio
        policy.vla.chunk_out[-1].bias += 0.01
    assert (policy.evaluate(data).log_prob - data[keys.LOG_PROB]).abs().max() > 1e-2


def test_train_and_eval_mode_are_the_same_policy():
    policy = ActorCritic(make_vla(), FlowOptions())
    a = act(policy.train(), 8)
    b = act(policy.eval(), 8)
    assert torch.equal(a[keys.CHAIN], b[keys.CHAIN])
    assert torch.equal(policy.train().vla.text().detach(), policy.eval().vla.text().detach())
    with torch.no_grad():
        assert torch.equal(policy.vla.text(), policy.train().vla.text())


@pytest.mark.parametrize("mode", MODES)
def test_gradient_reaches_the_actor_but_not_through_value(mode):
    policy = ActorCritic(make_vla(), FlowOptions(mode=mode))
    result = policy("evaluate", act(policy, 8))
    result.log_prob.sum().backward(retain_graph=True)
    reached = {n for n, p in policy.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert reached == {n for n, _ in policy.named_parameters() if "critic" not in n}
    policy.zero_grad()
    result.value.sum().backward()
    reached = {n for n, p in policy.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert reached == {n for n, _ in policy.named_parameters() if "critic" in n}


def test_draws_are_functions_of_their_counters():
    policy = ActorCritic(make_vla(), FlowOptions(mode="one"))
    noise, index = policy.draw(counters(64))
    again, index_again = policy.draw(counters(64)[[5, 9]])
    assert torch.equal(noise[[5, 9]], again)
    assert torch.equal(index[[5, 9]], index_again)
    assert set(index.tolist()) == {0, 1, 2, 3}


def test_ode_is_the_sde_without_noise():
    policy = ActorCritic(make_vla(), FlowOptions(noise=1e-8))
    noise, index = policy.draw(counters(6))
    a = policy("act", make_td(6), noise, index)[keys.ACTION]
    b = policy("act_ode", make_td(6), noise[:, 0])[keys.ACTION]
    torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


@pytest.mark.parametrize("mode", MODES)
def test_padded_model_scores_only_what_is_executed(mode):
    torch.manual_seed(0)
    policy = ActorCritic(Padded(make_spec()), FlowOptions(mode=mode))
    data = act(policy, 8)
    assert data[keys.CHAIN].shape == (8, 5, 6, 3)
    assert data[keys.ACTION].shape == (8, 4, 2)
    torch.testing.assert_close(policy.evaluate(data).log_prob, data[keys.LOG_PROB], atol=1e-4, rtol=1e-5)
    moved = data.clone()
    moved[keys.CHAIN][:, 1:, 4:] += 1.0  # rows that are not executed
    with torch.no_grad():
        policy.vla.inner.chunk_in.weight[:, 12:] = 0
    torch.testing.assert_close(policy.evaluate(moved).log_prob, policy.evaluate(data).log_prob, atol=0, rtol=0)


def test_learned_noise_is_replayed_and_learns():
    policy = ActorCritic(make_vla(), FlowOptions(sampler="learned", learned_range=(0.05, 0.2)))
    torch.nn.init.normal_(policy.noise_head.mlp[-1].weight, std=1.0)
    data = act(policy, 8)
    result = policy("evaluate", data)
    torch.testing.assert_close(result.log_prob, data[keys.LOG_PROB], atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(result.step_log_probs, data[keys.STEP_LOG_PROB], atol=1e-4, rtol=1e-5)
    assert result.std.min() >= 0.05 and result.std.max() <= 0.2 and result.std.std() > 0.01, "depends on what it sees"
    for loss in (result.log_prob.sum(), result.entropy.sum()):
        policy.zero_grad()
        loss.backward(retain_graph=True)
        assert all(p.grad.abs().sum() > 0 for p in policy.noise_head.parameters())
    mean_entropy = torch.distributions.Normal(0, result.std).entropy().mean((1, 2, 3))
    torch.testing.assert_close(result.entropy, mean_entropy)
    without = make_vla()
    without.feature_width = 0
    with pytest.raises(ValueError, match="CompactVLA has none"):
        ActorCritic(without, FlowOptions(sampler="learned"))


def test_bf16_network_with_fp32_likelihood():
    """The network's rounding is seen in the action, and hardly in the ratio: chain and likelihood are fp32."""
    exact, rounded = (ActorCritic(make_vla(width=128), FlowOptions(precision=p)) for p in ("fp32", "bf16"))
    a, b = act(exact, 64), act(rounded, 64)
    difference = (a[keys.ACTION] - b[keys.ACTION]).abs().max()
    assert 0 < difference < 0.05
    assert all(b[k].dtype == torch.float32 for k in (keys.CHAIN, keys.LOG_PROB, keys.VALUE, keys.ACTION))
    result = rounded.evaluate(b[torch.randperm(64)[:7]].clone())
    result.log_prob.sum().backward()
    assert all(p.dtype == torch.float32 for p in rounded.parameters())
    ratio = (rounded.evaluate(b).log_prob - b[keys.LOG_PROB]).exp()
    assert (ratio - 1).abs().max() < 0.05
    mixed = (exact.evaluate(b).log_prob - b[keys.LOG_PROB]).abs().max()
    assert mixed > 3 * (ratio - 1).abs().max(), "a learner in another precision would be seen"


def test_without_a_critic_no_value_is_computed():
    policy = ActorCritic(make_vla(), FlowOptions(), critic=False)
    data = act(policy, 3)
    assert keys.VALUE not in data.keys()  # noqa: SIM118 - a TensorDict
    assert policy.evaluate(data).value is None


def test_missing_index_and_unknown_mode():
    policy = ActorCritic(make_vla(), FlowOptions(mode="one"))
    noise, index = policy.draw(counters(2))
    with pytest.raises(ValueError, match="index"):
        policy.act(make_td(2), noise, torch.full_like(index, -1))
    with pytest.raises(ValueError, match="mode"):
        policy("sample", make_td(2))


def test_autocast_keeps_the_likelihood_in_fp32():
    policy = ActorCritic(make_vla(), FlowOptions())
    with torch.autocast("cpu", torch.bfloat16):
        data = act(policy, 8)
        result = policy.evaluate(data)
    assert data[keys.CHAIN].dtype == data[keys.LOG_PROB].dtype == result.log_prob.dtype == torch.float32
