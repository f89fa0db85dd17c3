"""One optimiser step on one minibatch, and the sums from which an update's metrics come.

Shapes: B chunks of a minibatch.
"""

import warnings
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import Tensor

from structrl import keys
from structrl.rl.batch import ADVANTAGE, VALUE_TARGET, WEIGHT
from structrl.rl.losses import clipped_policy_loss, value_loss
from structrl.rl.metrics import Metrics

if TYPE_CHECKING:
    from structrl.rl.module import PPO

# metric -> attribute of PolicyLoss; means over the chunks of all minibatches seen, that of a KL stop included
_POLICY = {
    "losses/policy_loss": "loss",
    "losses/clipfrac": "clipped",
    "losses/dual_clipfrac": "dual_clipped",
    "losses/old_approx_kl": "kl_k1",
    "losses/approx_kl": "kl_k3",
}


class RatioError(RuntimeError):
    """Before the first step of an update, the policy that learns is not the policy that acted."""


class Update:
    """The update of one iteration. Every rank takes the same steps, in the same order, with the same decisions.

    Args:
        module: the PPO module.
        warming_up: only the critic learns. The actor's loss is multiplied by 0, so that the graph, and with it what
            distributed strategies wait for, is that of every other update; its gradients are then dropped, so that
            not even a shared layer or the optimiser's state moves.
    """

    def __init__(self, module: "PPO", warming_up: bool):
        self.module, self.warming_up = module, warming_up
        self.totals: dict[str, Tensor] = {}
        self.steps = 0
        self.first_ratio_error: float | None = None
        self.stopped = False
        self.grad_norm = [0.0, 0.0]  # actor, critic: sums over steps

    def step(self, chunks: TensorDict, rows: Tensor) -> bool:
        """One optimiser step on `chunks[rows]`; False if the KL stop came before it.

        Raises:
            RatioError: at the first step, if the ratio is far from 1.
            RuntimeError: if a gradient is not finite.
        """
        module, ppo = self.module, self.module.ppo
        valid = torch.ones(max(len(rows), 1), dtype=torch.bool, device=module.device)
        if not len(rows):  # none of this minibatch's chunks are here: take part with a row that counts for nothing
            rows, valid = torch.zeros(1, dtype=torch.int64), ~valid
        batch = chunks[rows].to(module.device)
        # the mean is over all ranks' rows, and distributed strategies average gradients over ranks
        count = module.sum(valid.sum().double())
        scale = module.trainer.world_size / count

        log_prob, value, _ = module.policy("evaluate", batch)
        policy = clipped_policy_loss(
            log_prob,
            batch[keys.LOG_PROB],
            batch[ADVANTAGE],
            valid,
            clip_low=ppo.clip_low,
            clip_high=ppo.clip_high,
            dual_clip=ppo.dual_clip,
            log_ratio_clamp=ppo.log_ratio_clamp,
        )
        critic = value_loss(
            value.squeeze(-1),
            batch[VALUE_TARGET],
            batch[keys.VALUE].squeeze(-1),
            valid,
            value_clip=ppo.value_clip,
            huber_delta=ppo.huber_delta,
        )
        sums = {name: getattr(policy, attribute).detach().sum() for name, attribute in _POLICY.items()}
        sums["losses/value_loss"] = critic.detach().sum()
        sums = {name: module.sum(x.double()) for name, x in sums.items()}
        if self.first_ratio_error is None:
            self._check_ratio((policy.ratio - 1).abs()[valid])
        sums["count"] = count
        self.totals = {name: x + self.totals.get(name, 0.0) for name, x in sums.items()}
        if ppo.target_kl is not None and sums["losses/approx_kl"] / count > ppo.target_kl:
            self.stopped = True
            return False

        weight = batch[WEIGHT] * scale
        actor_weight = 0.0 if self.warming_up else 1.0
        loss = actor_weight * (policy.loss * weight).sum() + ppo.value_weight * (critic * weight).sum()
        optimizer: Any = module.optimizers()
        optimizer.zero_grad()
        module.manual_backward(loss)
        for i, group in enumerate(optimizer.param_groups):
            if i == 0 and self.warming_up:
                for parameter in group["params"]:
                    parameter.grad = None
                continue
            norm = torch.nn.utils.clip_grad_norm_(group["params"], ppo.max_grad_norm)
            if not torch.isfinite(norm):
                raise RuntimeError(
                    f"the gradient of the {('actor', 'critic')[i]} is not finite (norm {norm.item()}) in iteration "
                    f"{module.trainer.current_epoch}, step {self.steps} of its update"
                )
            self.grad_norm[i] += float(norm)
        optimizer.step()
        self.steps += 1
        return True

    def metrics(self) -> Metrics:
        """Means over the update, under CleanRL's names."""
        steps, count = max(self.steps, 1), self.totals.get("count", torch.ones(()))
        means = {name: (x / count).item() for name, x in self.totals.items() if name != "count"}
        return means | {
            "losses/grad_norm_actor": self.grad_norm[0] / steps,
            "losses/grad_norm_critic": self.grad_norm[1] / steps,
            "ppo/first_ratio_err": self.first_ratio_error if self.first_ratio_error is not None else float("nan"),
            "ppo/steps": float(self.steps),
            "ppo/kl_stopped": float(self.stopped),
        }

    def _check_ratio(self, error: Tensor) -> None:
        """Before any step the ratio is 1, up to floating point."""
        module, ppo = self.module, self.module.ppo
        local = error.max() if len(error) else error.new_zeros(())
        worst: Any = module.trainer.strategy.reduce(local, reduce_op="max")
        self.first_ratio_error = float(worst)
        if self.first_ratio_error <= ppo.ratio_tolerance:
            return
        what = (
            f"before the update of iteration {module.trainer.current_epoch} the ratio is off 1 by "
            f"{self.first_ratio_error:.2g} (tolerance ppo.ratio_tolerance = {ppo.ratio_tolerance:g}): the policy that "
            "learns computes another likelihood than the one that acted (precision, dropout, or a policy with state?)"
        )
        if not self.first_ratio_error <= ppo.clip_low:  # NaN included
            raise RatioError(what)
        warnings.warn(what, stacklevel=2)
