"""PPO as a LightningModule on the toy simulator: two tasks with plans of different sizes."""

import dataclasses

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from structrl import keys
from structrl.policies.actor_critic import ActorCritic
from structrl.policies.flow import FlowOptions
from structrl.rl.actors import deterministic, hide_time, sampling
from structrl.rl.module import PPO
from structrl.rl.options import PPOOptions
from structrl.rl.rollout import run_episodes
from structrl.rl.update import RatioError
from structrl.seeding import Stream
from structrl.sims.base import Start
from tests.rl.toy_data import ToyData, small_policy, toy_env

TIMES = ("time/", "charts/SPS")  # what a clock measures is not reproducible


class History(Callback):
    """Metrics and weights after every iteration."""

    def __init__(self):
        self.metrics, self.weights = [], []

    def on_train_epoch_end(self, trainer, pl_module):
        kept = {k: v for k, v in pl_module.metrics.items() if not k.startswith(TIMES)}
        self.metrics.append(kept)
        self.weights.append({k: v.clone() for k, v in pl_module.policy.state_dict().items()})


def train(iterations, *, flow=None, data=None, hooks=(), reward_hook=None, **ppo):
    options = PPOOptions(**{"learning_rate": 2e-4, "critic_warmup": 1} | ppo)
    module = PPO(small_policy, flow or FlowOptions(), options, reward_hook=reward_hook)
    history = History()
    fit(module, iterations, data or ToyData(seed=4), [history, *hooks])
    return module, history


def fit(module, iterations, data, callbacks):
    torch.set_num_threads(1)
    trainer = pl.Trainer(
        max_epochs=iterations, accelerator="cpu", logger=False, enable_checkpointing=False, num_sanity_val_steps=0,
        enable_model_summary=False, enable_progress_bar=False, callbacks=callbacks, check_val_every_n_epoch=iterations,
    )  # fmt: skip
    trainer.fit(module, datamodule=data)


@pytest.fixture(scope="module")
def three():
    return train(3)


def test_same_seed_same_numbers_bit_for_bit(three):
    _, again = train(3)
    for one, two in zip(three[1].metrics, again.metrics, strict=True):
        assert one == pytest.approx(two, rel=0, abs=0, nan_ok=True)
    for one, two in zip(three[1].weights, again.weights, strict=True):
        assert all(torch.equal(one[k], two[k]) for k in one)
    _, other = train(1, data=ToyData(seed=5))
    assert other.metrics[0]["charts/episodic_return"] != three[1].metrics[0]["charts/episodic_return"]


def test_warm_up_moves_the_critic_only(three):
    _, history = three
    first = train(1, critic_warmup=0)[1].weights[0]
    one, two = history.weights[:2]
    module, _ = three
    names = [k for k, _ in module.policy.named_parameters()]
    start = fresh_weights()
    for name in names:
        moved = not torch.equal(start[name], one[name])
        assert moved == ("critic" in name), name
    assert any(not torch.equal(one[k], two[k]) for k in names if "critic" not in k)
    assert any(not torch.equal(first[k], one[k]) for k in names if "critic" not in k)
    assert history.metrics[0]["policy/ode_shift"] == 0 < history.metrics[1]["policy/ode_shift"]


def fresh_weights():
    """The weights before any update: a warm-up of an actor, and a critic that does not learn."""
    _, history = train(1, critic_learning_rate=1e-30)
    return history.weights[0]


def test_ratio_is_one_before_the_first_step(three):
    for metrics in three[1].metrics:
        assert metrics["ppo/first_ratio_err"] < 1e-4


def test_a_policy_that_learns_another_likelihood_ends_the_run(monkeypatch):
    original = ActorCritic.evaluate

    def wrong(self, td):
        out = original(self, td)
        return out._replace(log_prob=out.log_prob + 0.5)

    monkeypatch.setattr(ActorCritic, "evaluate", wrong)
    with pytest.raises(RatioError, match=r"iteration 0 the ratio is off 1 by 0\.65"):
        train(1)

    def slightly(self, td):
        out = original(self, td)
        return out._replace(log_prob=out.log_prob + 0.01)

    monkeypatch.setattr(ActorCritic, "evaluate", slightly)
    with pytest.warns(UserWarning, match="off 1 by 0.01"):
        train(1)


def test_kl_stop_ends_the_update_before_the_step(three):
    module, history = train(2, critic_warmup=0, target_kl=1e-6)
    assert [m["ppo/steps"] for m in history.metrics] == [1, 1]  # the first minibatch's KL is 0, the second's is not
    assert all(m["ppo/kl_stopped"] == 1 and m["losses/approx_kl"] > 0 for m in history.metrics)
    assert module.trainer.current_epoch == 2
    assert [m["ppo/steps"] for m in three[1].metrics] == [8, 8, 8]


def test_metrics_of_joint_training(three):
    metrics = three[1].metrics[-1]
    for name, labels in {"pair": ("s0", "s1"), "chain": ("s0", "s1", "s2")}.items():
        assert 0 <= metrics[f"task/{name}/success"] <= 1
        rates = {k for k in metrics if k.startswith(f"task/{name}/subtask/") and k.endswith("/rate")}
        assert rates == {f"task/{name}/subtask/{label}/rate" for label in labels}
    wanted = (
        "losses/policy_loss", "losses/value_loss", "losses/approx_kl", "losses/clipfrac", "losses/explained_variance",
        "charts/episodic_return", "charts/episodic_length", "reward/subtask", "reward/terminal", "reward/bunched",
        "reward/unpaid", "reward/undone", "policy/ode_shift", "evaluate/task/chain/success",
    )  # fmt: skip
    assert not [k for k in wanted if k not in metrics]
    assert {"time/simulate", "time/infer", "time/update", "time/evaluate", "charts/SPS"} <= three[0].metrics.keys()


def starts(n, stream=Stream.START):
    return [Start(e % 2, -1, (9, stream, 2, e)) for e in range(n)]


@pytest.mark.parametrize("mode", ["early", "one", "joint"])
def test_rollouts_do_not_depend_on_the_number_of_environments(mode):
    from structrl.policies.protocol import env_spec

    torch.manual_seed(0)
    policy = ActorCritic(small_policy(env_spec(toy_env(2))), FlowOptions(mode=mode))
    one, many = (run_episodes(toy_env(n), sampling(policy, starts(7)), starts(7)) for n in (1, 5))
    assert torch.equal(one.chunks["episode"], many.chunks["episode"])
    assert torch.equal(one.chunks[keys.INDEX], many.chunks[keys.INDEX])
    for key in (keys.CHAIN, keys.ACTION, keys.LOG_PROB, keys.VALUE, keys.STATE, keys.REWARD_STATE):
        torch.testing.assert_close(one.chunks[key], many.chunks[key], atol=2e-4, rtol=1e-4)
    assert torch.equal(one.table["length"], many.table["length"])
    noise = one.chunks[keys.CHAIN][:, 0]
    assert len(torch.unique(noise.flatten(1), dim=0)) == len(noise), "two chunks share their initial noise"


def test_evaluation_is_deterministic_and_has_noise_of_its_own():
    from structrl.policies.protocol import env_spec

    torch.manual_seed(0)
    policy = ActorCritic(small_policy(env_spec(toy_env(2))), FlowOptions())
    runs = [
        run_episodes(toy_env(3), deterministic(policy, starts(4, s)), starts(4, s))
        for s in (Stream.EVALUATE, Stream.EVALUATE, Stream.START)
    ]
    assert torch.equal(runs[0].chunks[keys.ACTION], runs[1].chunks[keys.ACTION])
    assert not torch.equal(runs[0].chunks[keys.ACTION][0], runs[2].chunks[keys.ACTION][0])
    assert keys.LOG_PROB not in runs[0].chunks.keys()  # noqa: SIM118 - a TensorDict


def test_bootstrap_hides_all_that_tells_the_time():
    """Episodes in which nothing happens but time: without it, all their reward states are one."""
    env = toy_env(2)
    stand_still = lambda td, chunk, episode: td.set(keys.ACTION, torch.zeros(len(td), 4, 3))  # noqa: E731
    out = run_episodes(env, stand_still, starts(2))
    seen, hidden = out.chunks[keys.REWARD_STATE], hide_time(out.chunks)[keys.REWARD_STATE]
    for episode in range(2):
        mine = out.chunks["episode"] == episode
        assert mine.sum() > 4
        assert len(seen[mine].unique(dim=0)) == mine.sum(), "the original tells every chunk's time"
        assert len(hidden[mine].unique(dim=0)) == 1
    kept = hidden != 0
    assert torch.equal(hidden[kept], seen[kept])
    assert kept.any(), "what is open and payable stays"


@pytest.mark.parametrize(
    "ppo",
    [
        {"time_limit": "bootstrap"},
        {"gamma_per": "step", "average": "episodes"},
        {"dual_clip": 3.0, "value_clip": None, "target_kl": None, "normalise_advantages": False},
        {"kl_weight": 1.0},
        {"flow": FlowOptions(sampler="cps")},
        {"flow": FlowOptions(mode="one")},
        {"flow": FlowOptions(noise_end=0.1, noise_iterations=1)},
    ],
)
def test_every_option_does_something(three, ppo):
    _, history = train(2, **ppo)
    assert any(not torch.equal(history.weights[-1][k], three[1].weights[1][k]) for k in history.weights[-1])


def test_micro_batches_change_no_more_than_floating_error(three):
    """Also a size that divides nothing; and the metrics are means over the whole minibatch."""
    _, history = train(2, micro_batch=7)
    for one, two in zip(three[1].weights[:2], history.weights, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(two[name], value, atol=2e-5, rtol=2e-4)
    for name, value in three[1].metrics[0].items():
        if name.startswith(("losses/", "policy/kl", "ppo/steps")):
            assert history.metrics[0][name] == pytest.approx(value, abs=1e-5, rel=1e-3), name


def test_kl_to_the_first_policy_holds_the_actor_back():
    far, near = (
        train(3, kl_weight=weight, critic_warmup=0, target_kl=None, learning_rate=2e-3) for weight in (1e-9, 30.0)
    )
    assert far[1].metrics[0]["losses/kl_reference"] > 0
    assert near[1].metrics[2]["losses/kl_reference"] < 0.5 * far[1].metrics[2]["losses/kl_reference"]
    start = fresh_weights()
    reference = near[0].reference.state_dict()
    assert all(torch.equal(reference[k], start[k]) for k in start if "critic" not in k), "it moved"
    assert not any("reference" in k for k in near[0].state_dict())


def test_entropy_of_learned_noise():
    flow = FlowOptions(sampler="learned", learned_range=(0.1, 1.0))
    low, high = (
        train(3, flow=flow, critic_warmup=0, entropy_weight=w, learning_rate=2e-3)[1].metrics for w in (0.0, 30.0)
    )
    assert high[2]["losses/entropy"] > low[2]["losses/entropy"] + 0.01
    with pytest.raises(ValueError, match=r"ppo.entropy_weight has no effect with flow.sampler 'sde'"):
        PPO(small_policy, FlowOptions(), PPOOptions(entropy_weight=0.1))


class LearnsInBf16(Callback):
    """The network of the update rounds where the network of the rollout did not."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        pl_module.policy.flow = dataclasses.replace(pl_module.policy.flow, precision="bf16")


def test_bf16_drift_is_measured_and_warned_of():
    hooks = [LearnsInBf16()]
    drift = train(1, hooks=hooks)[1].metrics[0]["ppo/first_log_ratio_rms"]
    assert 1e-4 < drift < 0.05
    with pytest.warns(UserWarning, match="bf16 rounding alone"):
        train(1, hooks=hooks, clip_low=drift * 2)
    with pytest.raises(RatioError, match="bf16 rounding alone"):
        train(1, hooks=hooks, clip_low=drift / 2)
    same = train(1, flow=FlowOptions(precision="bf16"))[1].metrics[0]["ppo/first_log_ratio_rms"]
    assert same < 0.1 * drift, "acting and learning in one precision drift apart by batch size only"


def test_noise_level_of_an_iteration_is_logged():
    _, history = train(3, flow=FlowOptions(noise=0.9, noise_end=0.3, noise_iterations=2))
    assert [m["policy/noise"] for m in history.metrics] == pytest.approx([0.9, 0.6, 0.3])
    assert all(m["ppo/first_ratio_err"] < 1e-3 for m in history.metrics)


def test_kl_of_each_denoising_step(three):
    last = three[1].metrics[-1]
    assert {k for k in last if k.startswith("policy/kl_step_")} == {f"policy/kl_step_{k}" for k in range(3)}
    _, history = train(2, flow=FlowOptions(mode="one"), critic_warmup=0)
    steps = [history.metrics[-1][f"policy/kl_step_{k}"] for k in range(4)]
    assert all(kl > 0 for kl in steps)
    # a chunk has one scored step here, so that the chunk's KL is a mean of the steps'
    assert min(steps) <= history.metrics[-1]["losses/approx_kl"] <= max(steps)


def with_bonus(episodes):
    parts = episodes.chunks["next", keys.REWARD_PARTS]
    return {"subtask": parts["subtask"], "bonus": torch.ones_like(parts["subtask"])}


def test_reward_hook_and_weights_decide_what_is_learned():
    def bad(episodes):
        return {"bonus": torch.zeros(len(episodes))}

    easy = {"data": ToyData(seed=1, easy=True), "flow": FlowOptions(noise=1.5)}  # something is earned
    _, history = train(1, **easy, reward_hook=with_bonus, reward_weights={"bonus": 0.5, "subtask": 3.0})
    metrics = history.metrics[0]
    assert metrics["reward/used/bonus"] == pytest.approx(0.5 * metrics["charts/chunks"] / 16)
    assert metrics["reward/used/subtask"] == pytest.approx(3 * metrics["reward/subtask"]) != 0
    assert "reward/used/terminal" not in metrics
    with pytest.raises(ValueError, match=r"reward_weights names terminl; the components are subtask, terminal"):
        train(1, reward_weights={"terminl": 1.0})
    with pytest.raises(ValueError, match=r"bonus must have shape \[\d+, 1\]"):
        train(1, reward_hook=bad)


def test_it_learns():
    """From one success in ten to nine in ten, in 18 iterations of 64 episodes."""
    data = ToyData(num_envs=32, episodes_per_iteration=64, evaluate_episodes=0, seed=1, easy=True)
    _, history = train(18, data=data, learning_rate=1e-3, flow=FlowOptions(noise=0.7))
    success = [m["task/reach/success"] for m in history.metrics]
    assert success[0] < 0.3, success
    assert sum(success[-3:]) / 3 > 0.8, success
