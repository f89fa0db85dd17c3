"""One optimiser step on one minibatch, and the sums from which an update's metrics come.

Shapes: B chunks of a minibatch or of a part of it, K denoising steps.
"""

import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import Tensor

from structrl import keys
from structrl.policies.flow import gaussian_kl
from structrl.rl.batch import ADVANTAGE, VALUE_TARGET, WEIGHT
from structrl.rl.losses import clipped_policy_loss, value_loss
from structrl.rl.metrics import Metrics
from structrl.rl.nonfinite import first_not_finite
from structrl.rl.options import PPOOptions
from structrl.rl.rollout import NonFiniteError
from structrl.rl.sharding import whole

if TYPE_CHECKING:
    from structrl.rl.base import OnPolicy

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
        module: the PPO or GRPO module.
        warming_up: only the critic learns. The actor's loss is multiplied by 0, so that the graph, and with it what
            distributed strategies wait for, is that of every other update; its gradients are then dropped, so that
            not even a shared layer or the optimiser's state moves.
    """

    def __init__(self, module: "OnPolicy", warming_up: bool):
        self.module, self.warming_up = module, warming_up
        self.totals: dict[str, Tensor] = {}
        self.step_kl: Tensor | float = 0.0  # [2, K], sums and counts
        self.steps = self.skipped = 0
        self.first_ratio_error: float | None = None
        self.first_log_ratio_rms = math.nan
        self.worst = torch.zeros(())  # |ratio - 1| of this rank before the first step
        self.stopped = False
        self.blame: str | None = None  # the first quantity of this rank that is not finite
        self.grad_norm = [0.0, 0.0]  # actor, critic: sums over steps

    def step(self, chunks: TensorDict, rows: Tensor) -> bool:
        """One optimiser step on `chunks[rows]`; False if the KL stop came before it.

        Raises:
            RatioError: at the first step, if the ratio is far from 1.
            NonFiniteError: a loss, ratio or gradient is not finite, and no more steps may be left out; names the
                quantity, its task and episode.
        """
        module, options = self.module, self.module.options
        # the mean is over all ranks' rows, and distributed strategies average gradients over ranks
        count = module.sum(torch.tensor(len(rows), dtype=torch.float64))
        if not count:
            return True
        scale = module.trainer.world_size / count
        optimizer: Any = module.optimizers()
        optimizer.zero_grad()
        parts = self._parts(rows)
        done = []
        for i, part in enumerate(parts):
            with optimizer.toggle_model(sync_grad=i == len(parts) - 1):
                done.append(self._backward(chunks, part, scale))
        sums = {name: module.sum(torch.stack([d[name] for d in done]).sum(0)) for name in done[0]}
        broken = [name for name, x in sums.items() if not torch.isfinite(x).all()]
        if broken:  # on every rank
            return self._skip(
                f"{', '.join(broken)} not finite in iteration {module.trainer.current_epoch}, step {self.steps} of its "
                f"update: {self.blame or 'no quantity of this rank is; see the other ranks'}"
            )
        if self.first_ratio_error is None:
            worst: Any = module.trainer.strategy.reduce(self.worst, reduce_op="max")
            self._check_ratio(float(worst), float((sums["squares"] / count).sqrt()))
        self.step_kl = self.step_kl + sums.pop("step_kl")
        sums["count"] = count
        self.totals = {name: x + self.totals.get(name, 0.0) for name, x in sums.items()}
        if options.target_kl is not None and sums["losses/approx_kl"] / count > options.target_kl:
            self.stopped = True
            return False

        for i, group in enumerate(optimizer.param_groups):
            if i == 0 and self.warming_up:
                for parameter in group["params"]:
                    parameter.grad = None
                continue
            norm = whole(torch.nn.utils.clip_grad_norm_(group["params"], options.max_grad_norm))
            if not torch.isfinite(norm):
                return self._skip(
                    f"the gradient of the {('actor', 'critic')[i]} is not finite (norm {norm.item()}) in iteration "
                    f"{module.trainer.current_epoch}, step {self.steps} of its update"
                )
            self.grad_norm[i] += float(norm)
        optimizer.step()
        self.steps += 1
        return True

    def _skip(self, why: str) -> bool:
        """Leave out a step, on every rank alike.

        Raises:
            NonFiniteError: this was one too many.
        """
        if self.skipped >= self.module.options.max_skipped_steps:
            raise NonFiniteError(why)
        self.skipped += 1
        self.blame, self.worst = None, torch.zeros(())
        warnings.warn(f"this step is left out: {why}", stacklevel=2)
        return True

    def _parts(self, rows: Tensor) -> list[Tensor]:
        """`rows` in micro-batches, as many on every rank; some may be empty."""
        size = self.module.options.micro_batch
        if size is None:
            return [rows]
        most: Any = self.module.trainer.strategy.reduce(
            torch.tensor(float(len(rows)), device=self.module.device), reduce_op="max"
        )
        return [rows[i * size : (i + 1) * size] for i in range(math.ceil(float(most) / size))]

    def _backward(self, chunks: TensorDict, rows: Tensor, scale: Tensor) -> dict[str, Tensor]:
        """Add the gradients of `chunks[rows]`; sums over the rows of what is worth watching."""
        module, options = self.module, self.module.options
        valid = torch.ones(max(len(rows), 1), dtype=torch.bool, device=module.device)
        if not len(rows):  # none of this minibatch's chunks are here: take part with a row that counts for nothing
            rows, valid = torch.zeros(1, dtype=torch.int64), ~valid
        batch = chunks[rows].to(module.device)
        now = module.policy("evaluate", batch)
        policy = clipped_policy_loss(
            now.log_prob,
            batch[keys.LOG_PROB],
            batch[ADVANTAGE],
            valid,
            clip_low=options.clip_low,
            clip_high=options.clip_high,
            dual_clip=options.dual_clip,
            log_ratio_clamp=options.log_ratio_clamp,
        )
        weight = batch[WEIGHT] * scale
        actor_weight = 0.0 if self.warming_up else 1.0
        loss = actor_weight * (policy.loss * weight).sum()
        sums = {name: getattr(policy, attribute).detach().sum() for name, attribute in _POLICY.items()}
        if isinstance(options, PPOOptions):
            critic = value_loss(
                now.value.squeeze(-1),
                batch[VALUE_TARGET],
                batch[keys.VALUE].squeeze(-1),
                valid,
                value_clip=options.value_clip,
                huber_delta=options.huber_delta,
            )
            loss = loss + options.value_weight * (critic * weight).sum()
            sums["losses/value_loss"] = critic.detach().sum()
        if module.reference is not None:
            with torch.no_grad():
                then = module.reference.to(module.device).evaluate(batch)
            kl_B = torch.where(valid, gaussian_kl(now.mean, now.std, then.mean, then.std).sum((1, 2, 3)), 0.0)
            loss = loss + actor_weight * options.kl_weight * (kl_B * weight).sum()
            sums["losses/kl_reference"] = kl_B.detach().sum()
        if module.policy.flow.sampler == "learned":
            entropy_B = torch.where(valid, now.entropy, 0.0)
            loss = loss - actor_weight * options.entropy_weight * (entropy_B * weight).sum()
            sums["losses/entropy"] = entropy_B.detach().sum()
        module.manual_backward(loss)
        quantities = {"log-probability": now.log_prob, "log-probability of the rollout": batch[keys.LOG_PROB]}
        quantities["advantage"] = batch[ADVANTAGE]
        if isinstance(options, PPOOptions):
            quantities |= {"value": now.value, "value of the rollout": batch[keys.VALUE], "return": batch[VALUE_TARGET]}
        self.blame = self.blame or first_not_finite(quantities, batch, valid, module._data.plans.task_names)
        log_ratio_B = torch.where(valid, now.log_prob.detach() - batch[keys.LOG_PROB], 0.0)
        if self.first_ratio_error is None:
            error_B = torch.where(valid, (policy.ratio - 1).abs(), 0.0)
            self.worst = torch.maximum(self.worst.to(error_B), error_B.max())  # a NaN stays
        sums = {name: x.double() for name, x in sums.items()} | {"squares": log_ratio_B.double().square().sum()}
        return sums | {"step_kl": self._step_kl(now.step_log_probs.detach(), batch, valid)}

    def _step_kl(self, now_BK: Tensor, batch: TensorDict, valid_B: Tensor) -> Tensor:
        """KL (k3) to the sampling policy of each denoising step: sums over its rows and their number, [2, K]."""
        flow, index_B = self.module.policy.flow, batch[keys.INDEX]
        k_K = torch.arange(flow.steps, device=now_BK.device)
        scored_BK = k_K == index_B[:, None] if flow.mode == "one" else (k_K < flow.scored_steps).expand_as(now_BK)
        scored_BK = scored_BK & valid_B[:, None]
        clamp = self.module.options.log_ratio_clamp
        log_ratio_BK = torch.where(scored_BK, now_BK - batch[keys.STEP_LOG_PROB], 0.0).clamp(-clamp, clamp)
        kl_BK = log_ratio_BK.exp() - 1 - log_ratio_BK
        return torch.stack([kl_BK.sum(0), scored_BK.sum(0)]).double()

    def metrics(self) -> Metrics:
        """Means over the update, under CleanRL's names."""
        steps, count = max(self.steps, 1), self.totals.get("count", torch.ones(()))
        means = {n: (x / count).item() for n, x in self.totals.items() if n not in ("count", "squares")}
        norms = {
            f"losses/grad_norm_{name}": norm / steps
            for name, norm in zip(("actor", "critic"), self.grad_norm[: 1 + self.module.has_critic], strict=False)
        }
        step_kl = {}
        if isinstance(self.step_kl, Tensor):
            step_kl = {
                f"policy/kl_step_{k}": (total / n).item() for k, (total, n) in enumerate(self.step_kl.T) if n > 0
            }
        ratio = (
            {}
            if self.first_ratio_error is None
            else {
                "ppo/first_ratio_err": self.first_ratio_error,
                "ppo/first_log_ratio_rms": self.first_log_ratio_rms,
            }
        )
        return (
            means
            | norms
            | step_kl
            | ratio
            | {
                "ppo/steps": float(self.steps),
                "ppo/skipped_steps": float(self.skipped),
                "ppo/kl_stopped": float(self.stopped),
            }
        )

    def _check_ratio(self, worst: float, rms: float) -> None:
        """Before any step the ratio is 1, up to floating point."""
        options, bf16 = self.module.options, self.module.policy.flow.precision == "bf16"
        self.first_ratio_error, self.first_log_ratio_rms = worst, rms
        clip = min(options.clip_low, options.clip_high)
        iteration = f"before the update of iteration {self.module.trainer.current_epoch}"
        if bf16:
            # rounding of single chunks may be anything; the bulk of them must lie well inside the clip range
            what = (
                f"{iteration} the log-ratio is off 0 by {rms:.2g} (root mean square; ratios by up to {worst:.2g}), "
                f"and ratios are clipped at {clip:g}: bf16 rounding alone moves many chunks out of the clip range; use "
                "flow.precision fp32, fewer or earlier stochastic steps, or a wider clip"
            )
            wrong, fatal = not 4 * rms <= clip, not rms <= clip
        else:
            what = (
                f"{iteration} the ratio is off 1 by {worst:.2g} (tolerance {options.key}.ratio_tolerance = "
                f"{options.ratio_tolerance:g}): the policy that learns computes another likelihood than the one that "
                "acted (precision, dropout, or a policy with state?)"
            )
            wrong, fatal = not worst <= options.ratio_tolerance, not worst <= options.clip_low
        if fatal:  # NaN included
            raise RatioError(what)
        if wrong:
            warnings.warn(what, stacklevel=2)
