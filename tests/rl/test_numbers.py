"""NaN and infinity, wherever they come from, are named or counted, and never learned from."""

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from structrl import keys
from structrl.policies.actor_critic import ActorCritic
from structrl.rl.losses import clipped_policy_loss
from structrl.rl.rollout import NonFiniteError
from tests.rl.test_module import train
from tests.rl.toy_data import TASKS, ToyData, toy_env
from tests.toy import ToySimulator

BAD = (float("nan"), float("inf"), -float("inf"))


class Weights(Callback):
    """The weights when training starts and when it breaks off."""

    def on_train_start(self, trainer, pl_module):
        self.before = {k: v.clone() for k, v in pl_module.policy.state_dict().items()}

    def on_exception(self, trainer, pl_module, exception):
        self.after = pl_module.policy.state_dict()
        self.finite = all(bool(torch.isfinite(v).all()) for v in self.after.values() if v.is_floating_point())


@pytest.mark.parametrize("bad", BAD)
def test_observations(monkeypatch, bad):
    original = ToySimulator.observe

    def observe(self, ids):
        seen = original(self, ids)
        late = [i for i, env in enumerate(ids) if self.time[env] >= 8 and self.starts[env].seed[3] == 3]
        seen["tokens"][late, 1, 0] = bad
        return seen

    monkeypatch.setattr(ToySimulator, "observe", observe)
    wanted = rf"observation 'tokens' is not finite in task 'chain', episode 3 .*chunk 2: .*{bad}"
    weights = Weights()
    with pytest.raises(NonFiniteError, match=wanted):
        train(1, hooks=[weights])
    assert all(torch.equal(weights.before[k], v) for k, v in weights.after.items())


@pytest.mark.parametrize("bad", BAD)
def test_actions(monkeypatch, bad):
    original = ActorCritic.act

    def act(self, td, *noise):
        out = original(self, td, *noise)
        out[keys.ACTION][-1, 0, 0] = bad
        return out

    monkeypatch.setattr(ActorCritic, "act", act)
    with pytest.raises(NonFiniteError, match=r"action is not finite in task '(pair|chain)', episode \d+ .*chunk 0"):
        train(1)


def test_unstable_physics_is_counted_and_not_learned_from_as_success():
    class Shaky(ToyData):
        def make_environment(self):
            env = toy_env(self.env.num_envs, TASKS)
            env.simulator._unstable_at = lambda start: 5 if start.seed[3] == 1 else None
            return env

    _, history = train(1, data=Shaky(seed=4))
    (metrics,) = history.metrics
    assert metrics["env/unstable"] == metrics["env/failed"] == 1
    assert metrics["task/chain/failed"] == pytest.approx(1 / 8)  # 16 episodes, two tasks in turn
    assert all(np.isfinite(v) for v in metrics.values())


@pytest.mark.parametrize("bad", BAD)
def test_log_ratios(monkeypatch, bad):
    original = ActorCritic.act

    def act(self, td, *noise):
        out = original(self, td, *noise)
        out[keys.LOG_PROB][0] = bad
        return out

    monkeypatch.setattr(ActorCritic, "act", act)
    weights = Weights()
    wanted = r"the log-probability of the rollout is .* in task 'pair', episode 0 of this rank, chunk 0"
    with pytest.raises(NonFiniteError, match=wanted):
        train(1, critic_warmup=0, minibatches=1, hooks=[weights])
    assert all(torch.equal(weights.before[k], v) for k, v in weights.after.items())


@pytest.mark.parametrize("who", ["actor", "critic"])
@pytest.mark.parametrize("bad", BAD[:2])
def test_gradients(who, bad):
    class Poison(Weights):
        def on_train_start(self, trainer, pl_module):
            super().on_train_start(trainer, pl_module)
            named = [p for n, p in pl_module.policy.named_parameters() if ("critic" in n) == (who == "critic")]
            named[0].register_hook(lambda grad: torch.full_like(grad, bad))

    poison = Poison()
    with pytest.raises(NonFiniteError, match=f"gradient of the {who} is not finite .*iteration 0, step 0"):
        train(1, critic_warmup=0, hooks=[poison])
    assert poison.finite


def test_so_many_steps_may_be_left_out():
    """Of an update with 4 steps: one bad gradient is skipped, counted and said; a second ends the run."""

    class Poison(Weights):
        def __init__(self, bad):
            self.left = bad

        def on_train_start(self, trainer, pl_module):
            super().on_train_start(trainer, pl_module)
            first = next(p for n, p in pl_module.policy.named_parameters() if "critic" not in n)
            first.register_hook(self.spoil)

        def spoil(self, grad):
            self.left -= 1
            return torch.full_like(grad, torch.nan) if self.left >= 0 else grad

    options = {"critic_warmup": 0, "epochs": 1, "minibatches": 4, "max_skipped_steps": 1}
    with pytest.warns(UserWarning, match="this step is left out: the gradient of the actor is not finite"):
        module, history = train(1, hooks=[Poison(1)], **options)
    assert (history.metrics[0]["ppo/skipped_steps"], history.metrics[0]["ppo/steps"]) == (1, 3)
    assert all(torch.isfinite(v).all() for v in module.policy.state_dict().values() if v.is_floating_point())
    with pytest.raises(NonFiniteError, match="gradient of the actor"), pytest.warns(UserWarning, match="left out"):
        train(1, hooks=[Poison(2)], **options)


def test_losses(monkeypatch):
    """A value that is NaN for one row only, and off the graph, so that no gradient tells: no step is taken."""
    original = ActorCritic.evaluate

    def evaluate(self, td):
        out = original(self, td)
        value = out.value.clone()
        value[0] = torch.nan
        return out._replace(value=value)

    monkeypatch.setattr(ActorCritic, "evaluate", evaluate)
    weights = Weights()
    wanted = r"losses/value_loss not finite in iteration 0, step 0 .*: the value is nan in task '(pair|chain)', episode"
    with pytest.raises(NonFiniteError, match=wanted):
        train(1, critic_warmup=0, hooks=[weights])
    assert all(torch.equal(weights.before[k], v) for k, v in weights.after.items())


def test_a_masked_overflow_does_not_poison_the_step():
    """Of a row that counts for nothing, exp(200) may not reach the gradient (select after exp gives 0 * inf)."""
    for overflow in (200.0, float("inf"), float("nan")):
        log_prob = torch.tensor([0.1, overflow], requires_grad=True)
        loss = clipped_policy_loss(
            log_prob, torch.zeros(2), torch.ones(2), torch.tensor([True, False]),
            clip_low=0.2, clip_high=0.2, dual_clip=None, log_ratio_clamp=1e6,
        ).loss  # fmt: skip
        loss.sum().backward()
        assert torch.isfinite(log_prob.grad).all() and log_prob.grad[1] == 0 and log_prob.grad[0] != 0
