"""The flow SDE: one Gaussian transition, used by sampling and by log-probability; the flow-matching loss.

Shapes: B batch, K denoising steps, S scored steps, M model rows (action horizon), D model dims; k is a step number.
Two conventions of time, both of released policies:
    "noise_to_data" (GR00T):  t runs 0 = noise -> 1 = data, v ~ data - noise
    "data_to_noise" (openpi): t runs 1 = noise -> 0 = data, v ~ noise - data
The maths below is written in the *noise level* tau = 1 - k/K and u ~ noise - data, which serve both.

Reference: Flow-GRPO (arXiv 2505.05470) for the SDE with the marginals of the ODE, ReinFlow (arXiv 2505.22094) for
learned noise, Flow-CPS (arXiv 2509.05952) for coefficient-preserving sampling.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import torch
from tensordict import TensorDictBase
from torch import Tensor

from structrl.policies.protocol import VLA, Direction

# velocity(x [R, M, D], t [R]) -> v [R, M, D]
Velocity = Callable[[Tensor, Tensor], Tensor]
# std(t [R]) -> [R, M, D], of the sampler `learned`
LearnedStd = Callable[[Tensor], Tensor]
Variant = Literal["sde", "cps", "learned"]

_U_SIGN = {"noise_to_data": -1.0, "data_to_noise": 1.0}  # u = sign * v


@dataclass(frozen=True)
class FlowOptions:
    """How an action chunk is drawn from the flow during training (evaluation always integrates the ODE).

    Raises:
        ValueError: for values outside the ranges given below.
    """

    steps: int = 4
    """K, denoising steps, at least 1 (at least 2 for `early` and for `cps`)."""
    noise: float = 0.5
    """Noise level a, above 0. With `sde` the standard deviation of the first step is exactly a; with `cps` it is
    (1 - 1/K) sin(pi a / 2), and a is at most 1. `learned` does not read it."""
    mode: Literal["one", "joint", "early"] = "early"
    """Which steps are stochastic and scored: `one` (drawn per sample), `joint` (all), `early` (all but the last)."""
    sampler: Variant = "sde"
    """How a stochastic step adds its noise: the SDE with the marginals of the ODE (`sde`), coefficient-preserving
    sampling (`cps`, whose last step has no noise: use it with `early` or `one`), or a standard deviation that a small
    head of the policy learns (`learned`, around the step of the ODE)."""
    noise_end: float | None = None
    """Level to which `noise` moves linearly over `noise_iterations`, then stays; null: it does not move."""
    noise_iterations: int = 400
    """Iterations over which `noise` moves to `noise_end` (as in RLinf's recipes); read with `noise_end` only."""
    learned_range: tuple[float, float] = (0.08, 0.16)
    """Least and largest standard deviation of `learned` (ReinFlow's bounds as RLinf sets them)."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """What the network computes in while it acts and while its likelihood is taken. Weights, chain, mean, standard
    deviation and likelihood are fp32 either way."""

    def __post_init__(self) -> None:
        if self.mode not in ("one", "joint", "early"):
            raise ValueError(f"flow.mode is 'one', 'joint' or 'early', not {self.mode!r}")
        if self.sampler not in get_args(Variant):
            raise ValueError(f"flow.sampler is {', '.join(map(repr, get_args(Variant)))}, not {self.sampler!r}")
        if self.precision not in ("fp32", "bf16"):
            raise ValueError(f"flow.precision is 'fp32' or 'bf16', not {self.precision!r}")
        if self.sampler == "cps" and self.mode == "joint":
            raise ValueError("flow.sampler 'cps' has no noise in the last step: use flow.mode 'early' (or 'one')")
        least = 2 if self.mode == "early" or self.sampler == "cps" else 1
        if self.steps < least:
            raise ValueError(f"flow.steps must be at least {least} for {self.mode}, {self.sampler}, not {self.steps}")
        self._check_level("noise", self.noise)
        if self.noise_end is not None:
            self._check_level("noise_end", self.noise_end)
            if self.sampler == "learned":
                raise ValueError("flow.noise_end has no effect with flow.sampler 'learned'; remove it")
        if self.noise_iterations < 1:
            raise ValueError(f"flow.noise_iterations must be at least 1, not {self.noise_iterations}")
        low, high = self.learned_range
        if not 0 < low <= high:
            raise ValueError(f"flow.learned_range must be two values with 0 < low <= high, not {self.learned_range}")

    def _check_level(self, key: str, level: float) -> None:
        if not level > 0:
            raise ValueError(f"flow.{key} must be above 0, not {level} (a deterministic policy has no likelihood)")
        if self.sampler == "cps" and level > 1:
            raise ValueError(f"flow.{key} must be at most 1 with flow.sampler 'cps', not {level}")

    @property
    def scored_steps(self) -> int:
        """S, the number of stochastic steps of a chain."""
        return {"one": 1, "joint": self.steps, "early": self.steps - 1}[self.mode]

    @property
    def drawable_steps(self) -> int:
        """Mode `one` draws from the first so many steps: all that have noise."""
        return self.steps - (self.sampler == "cps")

    def at(self, iteration: int) -> "FlowOptions":
        """These options with the noise level of an iteration, and no further movement."""
        if self.noise_end is None:
            return self
        level = anneal(self.noise, self.noise_end, iteration, self.noise_iterations)
        return replace(self, noise=level, noise_end=None)


def flow_time(k_B: Tensor, steps: int, direction: Direction, dtype: torch.dtype = torch.float32) -> Tensor:
    """The model's t at step k of K, in its own direction, [B]."""
    t_B = k_B.to(dtype) / steps
    return t_B if _sign(direction) < 0 else 1 - t_B


def transition(
    x_BMD: Tensor,
    v_BMD: Tensor,
    k_B: Tensor,
    *,
    steps: int,
    direction: Direction,
    noise: float | Tensor,
    gate: Tensor | None = None,
    variant: Variant = "sde",
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of x_{k+1} given x_k, both [B, M, D] in the dtype of x.

    With data estimate d = x - tau u and noise estimate n = x + (1 - tau) u, every variant is
    mean = (1 - s) d + (s - shrink) n at the next level s = tau - 1/K, that is x - u / K - shrink n.
        ODE      shrink = 0, std = 0: `noise=0.0`
        sde      std = sigma sqrt(1/K), shrink = std^2 / (2 tau); sigma = noise sqrt(tau / (1 - tau)), whose singular
                 first step takes 1/K for 1 - tau
        cps      shrink = s (1 - cos(pi noise / 2)), std = s sin(pi noise / 2)
        learned  shrink = 0, std = noise, a tensor broadcastable to [B, M, D]

    Args:
        x_BMD: the noisy chunk at step k; fp32 (or wider) keeps the likelihood out of bf16 whatever the network runs in.
        v_BMD: velocity in the model's own direction.
        k_B: step numbers, int64.
        steps: K.
        direction: of the model.
        noise: a, see above.
        gate: bool, broadcastable to [B, M, D]: which entries are stochastic; the others follow the ODE.
        variant: see above.
    """
    u_BMD = _sign(direction) * v_BMD.to(x_BMD.dtype)
    k_B11 = k_B.to(x_BMD.dtype)[:, None, None]
    tau, s = 1 - k_B11 / steps, 1 - (k_B11 + 1) / steps
    if variant == "sde":
        # sigma^2 / K with 1 - tau = k / K (1 / K at k = 0): the K's cancel
        shrink = noise * noise / (2 * k_B11.clamp(min=1))
        std = noise * (tau / k_B11.clamp(min=1)).sqrt()
    elif variant == "cps":
        angle = torch.as_tensor(noise, dtype=x_BMD.dtype) * (math.pi / 2)
        shrink, std = s * (1 - angle.cos()), s * angle.sin()
    elif variant == "learned":
        shrink, std = torch.zeros_like(s), torch.as_tensor(noise, dtype=x_BMD.dtype)
    else:
        raise ValueError(f"variant is 'sde', 'cps' or 'learned', not {variant!r}")
    if gate is not None:
        shrink, std = shrink * gate, std * gate
    noise_BMD = x_BMD + (1 - tau) * u_BMD
    return x_BMD - u_BMD / steps - shrink * noise_BMD, std.expand_as(x_BMD)


def log_density(y_BMD: Tensor, mean_BMD: Tensor, std_BMD: Tensor) -> Tensor:
    """Elementwise Gaussian log density [B, M, D]; 0 where std is 0 (those entries are deterministic)."""
    stochastic = std_BMD > 0
    safe = torch.where(stochastic, std_BMD, 1.0)  # keeps the masked branch finite, hence its gradient 0 and not NaN
    density = -0.5 * ((y_BMD - mean_BMD) / safe).square() - safe.log() - 0.5 * math.log(2 * math.pi)
    return torch.where(stochastic, density, 0.0)


def entropy(std_BMD: Tensor) -> Tensor:
    """Elementwise differential entropy of a Gaussian, [B, M, D]."""
    return 0.5 * (2 * math.pi * math.e * std_BMD.square()).log()


def gaussian_kl(mean_BMD: Tensor, std_BMD: Tensor, other_mean_BMD: Tensor, other_std_BMD: Tensor) -> Tensor:
    """Elementwise KL of one Gaussian to another, exact, [B, M, D]; 0 where std is 0 (deterministic in both)."""
    stochastic = std_BMD > 0
    std, other = (torch.where(stochastic, x, 1.0) for x in (std_BMD, other_std_BMD))
    shift = torch.where(stochastic, mean_BMD - other_mean_BMD, 0.0)
    return (other / std).log() + (std.square() + shift.square()) / (2 * other.square()) - 0.5


def learned_std(u: Tensor, low: float, high: float) -> Tensor:
    """Standard deviation between `low` and `high` from a network output of any shape: geometric in tanh(u)."""
    share = (u.tanh() + 1) / 2
    return low * (high / low) ** share


def anneal(start: float, end: float, iteration: int, iterations: int) -> float:
    """A noise level that moves linearly from `start` to `end` over `iterations` and then stays."""
    return start + (end - start) * min(iteration, iterations) / iterations


def sample(
    velocity: Velocity,
    noise_BKMD: Tensor,
    index_B: Tensor,
    options: FlowOptions,
    direction: Direction,
    scored_MD: Tensor,
    learned: LearnedStd | None = None,
) -> tuple[Tensor, Tensor]:
    """Integrate the SDE from given noise.

    Args:
        velocity: called K times with all B rows.
        noise_BKMD: standard normal [B, K+1, M, D]; row 0 is x_0, row k+1 drives step k.
        index_B: int64, the stochastic step of each sample in mode `one`; not read in the others.
        options: steps, noise level, mode and sampler.
        direction: of the model.
        scored_MD: bool, entries that take noise and are scored (executed rows x real action dims).
        learned: the standard deviation of sampler `learned`.

    Returns:
        chain [B, K+1, M, D], and log-probability per step [B, K] summed over the scored entries (0 for ODE steps).
    """
    x_BMD = noise_BKMD[:, 0]
    chain, log_probs = [x_BMD], []
    for k in range(options.steps):
        k_B = torch.full_like(index_B, k)
        stochastic_B = {"one": index_B == k, "joint": k_B >= 0, "early": k_B < options.steps - 1}[options.mode]
        gate = stochastic_B[:, None, None] & scored_MD
        mean_BMD, std_BMD = _step(velocity, learned, x_BMD, k_B, options, direction, gate)
        x_BMD = mean_BMD + std_BMD * noise_BKMD[:, k + 1]
        chain.append(x_BMD)
        log_probs.append(log_density(x_BMD, mean_BMD, std_BMD).sum((1, 2)))
    return torch.stack(chain, 1), torch.stack(log_probs, 1)


class Replay(NamedTuple):
    """Likelihood of a stored chain, and the Gaussians behind it."""

    log_prob: Tensor  # [B, K], summed over the scored entries; 0 at ODE steps
    mean: Tensor  # [B, S, M, D]
    std: Tensor  # [B, S, M, D], 0 at entries that are not scored


def replay(
    velocity: Velocity,
    chain_BKMD: Tensor,
    index_B: Tensor,
    options: FlowOptions,
    direction: Direction,
    scored_MD: Tensor,
    learned: LearnedStd | None = None,
) -> Replay:
    """The scored steps of a stored chain [B, K+1, M, D] under this policy; arguments as in `sample`.

    Only scored steps are evaluated, in one call of `velocity` with R = B S rows: rows b S ... b S + S - 1 belong to
    sample b (S = `options.scored_steps`). Nothing is drawn again.
    """
    S = options.scored_steps
    if options.mode == "one":
        k_BS = index_B[:, None]
    else:
        k_BS = torch.arange(S, device=chain_BKMD.device).expand(len(chain_BKMD), S)
    row_BS = torch.arange(len(chain_BKMD), device=chain_BKMD.device)[:, None]
    x_RMD, y_RMD = chain_BKMD[row_BS, k_BS].flatten(0, 1), chain_BKMD[row_BS, k_BS + 1].flatten(0, 1)
    mean_RMD, std_RMD = _step(velocity, learned, x_RMD, k_BS.flatten(), options, direction, scored_MD)
    log_prob_BS = log_density(y_RMD, mean_RMD, std_RMD).sum((1, 2)).view_as(k_BS)
    log_prob_BK = log_prob_BS.new_zeros(len(k_BS), options.steps).scatter(1, k_BS, log_prob_BS)
    return Replay(log_prob_BK, *(x.unflatten(0, tuple(k_BS.shape)) for x in (mean_RMD, std_RMD)))


def _step(
    velocity: Velocity,
    learned: LearnedStd | None,
    x_BMD: Tensor,
    k_B: Tensor,
    options: FlowOptions,
    direction: Direction,
    gate: Tensor,
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the next x under the policy's network."""
    t_B = flow_time(k_B, options.steps, direction, x_BMD.dtype)
    if (learned is None) == (options.sampler == "learned"):
        raise ValueError("flow.sampler 'learned' and a learned standard deviation go together")
    return transition(
        x_BMD,
        velocity(x_BMD, t_B),
        k_B,
        steps=options.steps,
        direction=direction,
        noise=options.noise if learned is None else learned(t_B),
        gate=gate,
        variant=options.sampler,
    )


def integrate(velocity: Velocity, x_BMD: Tensor, steps: int, direction: Direction) -> Tensor:
    """Integrate the ODE from noise x_0 [B, M, D] to a clean chunk [B, M, D] in `steps` Euler steps."""
    for k in range(steps):
        k_B = torch.full((len(x_BMD),), k, device=x_BMD.device)
        v_BMD = velocity(x_BMD, flow_time(k_B, steps, direction, x_BMD.dtype))
        x_BMD, _ = transition(x_BMD, v_BMD, k_B, steps=steps, direction=direction, noise=0.0)
    return x_BMD


def flow_matching_loss(
    vla: VLA,
    observation: TensorDictBase,
    task_B: Tensor,
    action_BHA: Tensor,
    pad_BH: Tensor,
    noise_BMD: Tensor,
    time_B: Tensor,
) -> Tensor:
    """Supervised loss, a scalar: mean of ((v - v*) tau)^2 over unpadded rows and real action dims.

    The weight tau (the noise level) turns the velocity error into the error of the clean chunk, so that times near the
    data do not dominate.

    Args:
        vla: the policy.
        observation: batch [B].
        task_B: int64, rows of the task list.
        action_BHA: demonstrated chunk in environment units, H at most M rows.
        pad_BH: bool, True where a row lies beyond the end of its demonstration and does not count.
        noise_BMD: standard normal.
        time_B: t in [0, 1], in the model's own direction.
    """
    data_BMD = vla.from_env(action_BHA)
    tau_B11 = (1 - time_B if vla.direction == "noise_to_data" else time_B)[:, None, None]
    x_BMD = tau_B11 * noise_BMD + (1 - tau_B11) * data_BMD
    target_BMD = _sign(vla.direction) * (noise_BMD - data_BMD)
    context = vla("encode", observation, task_B)
    error_BMD = (vla("velocity", context, x_BMD, time_B).to(x_BMD.dtype) - target_BMD) * tau_B11
    H, A = action_BHA.shape[1:]
    valid_BH1 = ~pad_BH[..., None]
    return (error_BMD[:, :H, :A].square() * valid_BH1).sum() / (valid_BH1.sum() * A).clamp(min=1)


def _sign(direction: Direction) -> float:
    if direction not in _U_SIGN:
        raise ValueError(f"direction is 'noise_to_data' or 'data_to_noise', not {direction!r}")
    return _U_SIGN[direction]
