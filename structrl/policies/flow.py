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
from dataclasses import dataclass
from typing import Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from structrl.policies.protocol import VLA, Direction

# velocity(x [R, M, D], t [R]) -> v [R, M, D]
Velocity = Callable[[Tensor, Tensor], Tensor]
Variant = Literal["sde", "cps", "learned"]

_U_SIGN = {"noise_to_data": -1.0, "data_to_noise": 1.0}  # u = sign * v


@dataclass(frozen=True)
class FlowOptions:
    """How an action chunk is drawn from the flow during training (evaluation always integrates the ODE).

    Raises:
        ValueError: for values outside the ranges given below.
    """

    steps: int = 4
    """K, denoising steps, at least 1 (at least 2 for `early`)."""
    noise: float = 0.5
    """Noise level a of the SDE, above 0; the standard deviation of the first step is exactly a."""
    mode: Literal["one", "joint", "early"] = "early"
    """Which steps are stochastic and scored: `one` (drawn per sample), `joint` (all), `early` (all but the last)."""

    def __post_init__(self) -> None:
        if self.mode not in ("one", "joint", "early"):
            raise ValueError(f"flow.mode is 'one', 'joint' or 'early', not {self.mode!r}")
        least = 2 if self.mode == "early" else 1
        if self.steps < least:
            raise ValueError(f"flow.steps must be at least {least} for mode '{self.mode}', not {self.steps}")
        if not self.noise > 0:
            raise ValueError(f"flow.noise must be above 0, not {self.noise} (a deterministic policy has no likelihood)")

    @property
    def scored_steps(self) -> int:
        """S, the number of stochastic steps of a chain."""
        return {"one": 1, "joint": self.steps, "early": self.steps - 1}[self.mode]


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
) -> tuple[Tensor, Tensor]:
    """Integrate the SDE from given noise.

    Args:
        velocity: called K times with all B rows.
        noise_BKMD: standard normal [B, K+1, M, D]; row 0 is x_0, row k+1 drives step k.
        index_B: int64, the stochastic step of each sample in mode `one`; not read in the others.
        options: steps, noise level and mode.
        direction: of the model.
        scored_MD: bool, entries that take noise and are scored (executed rows x real action dims).

    Returns:
        chain [B, K+1, M, D], and log-probability per step [B, K] summed over the scored entries (0 for ODE steps).
    """
    x_BMD = noise_BKMD[:, 0]
    chain, log_probs = [x_BMD], []
    for k in range(options.steps):
        k_B = torch.full_like(index_B, k)
        v_BMD = velocity(x_BMD, flow_time(k_B, options.steps, direction, x_BMD.dtype))
        stochastic_B = {"one": index_B == k, "joint": k_B >= 0, "early": k_B < options.steps - 1}[options.mode]
        mean_BMD, std_BMD = transition(
            x_BMD,
            v_BMD,
            k_B,
            steps=options.steps,
            direction=direction,
            noise=options.noise,
            gate=stochastic_B[:, None, None] & scored_MD,
        )
        x_BMD = mean_BMD + std_BMD * noise_BKMD[:, k + 1]
        chain.append(x_BMD)
        log_probs.append(log_density(x_BMD, mean_BMD, std_BMD).sum((1, 2)))
    return torch.stack(chain, 1), torch.stack(log_probs, 1)


def log_prob(
    velocity: Velocity,
    chain_BKMD: Tensor,
    index_B: Tensor,
    options: FlowOptions,
    direction: Direction,
    scored_MD: Tensor,
) -> Tensor:
    """Log-probability per step [B, K] of a stored chain [B, K+1, M, D]; arguments as in `sample`.

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
    k_R = k_BS.flatten()
    v_RMD = velocity(x_RMD, flow_time(k_R, options.steps, direction, x_RMD.dtype))
    mean_RMD, std_RMD = transition(
        x_RMD, v_RMD, k_R, steps=options.steps, direction=direction, noise=options.noise, gate=scored_MD
    )
    log_prob_BS = log_density(y_RMD, mean_RMD, std_RMD).sum((1, 2)).view_as(k_BS)
    return log_prob_BS.new_zeros(len(k_BS), options.steps).scatter(1, k_BS, log_prob_BS)


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
