"""Scores a recorded episode with the functions that pay the reward in training.

Shapes: T environment steps, N subtasks, C = ceil(T / chunk) action chunks.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from structrl.lang.spec import TaskSpec
from structrl.plan.plan import Plan, PlanRows, compile_plan
from structrl.rewards import functional
from structrl.rewards.options import Clock, Gate, Pace, RewardOptions, Since


@dataclass(frozen=True, eq=False)
class EpisodeScore:
    """What an episode earned.

    Attributes:
        rewards: float32 [C], subtask pay and terminal bonus of each chunk; 0 after the first success.
        credits: bool [T, N], row t-1 for step t.
        unpaid: bool [N], completed unpaid because the condition had held since reset.
        complete: bool [N], credited or unpaid.
        pay: float32 [N], pay of each subtask.
        terminal: terminal bonus paid.
        credited_at: int64 [N], step of the credit, -1 without.
        eligible: int64 [N], first step at which the subtask's gate was open, -1 without.
        interval: float32 [N], the T that priced the credit, in steps (chunks with `clock: chunk`); NaN without.
        undone: bool [N], credited but no longer true at the end.
        bunched: number of credits with T < 0.2 T_d.
    """

    rewards: Tensor
    credits: Tensor
    unpaid: Tensor
    complete: Tensor
    pay: Tensor
    terminal: float
    credited_at: Tensor
    eligible: Tensor
    interval: Tensor
    undone: Tensor
    bunched: int


def score_episode(
    plan: Plan | TaskSpec | Path | str,
    holds: Any,
    success: Any,
    *,
    holds_at_reset: Any = None,
    chunk: int = 1,
    beta: float = 0.6,
    terminal: float = 2.0,
    gate: Gate = "latched",
    pace: Pace = "dynamic",
    since: Since = "credit",
    clock: Clock = "step",
    preset: Any = None,
) -> EpisodeScore:
    """Score one episode, see `RewardOptions` for the options.

    Args:
        plan: a plan, or anything `compile_plan` takes.
        holds: bool [T, N] array or tensor, conditions after each step.
        success: bool [T], the whole-task check after each step; what follows the first success is ignored.
        holds_at_reset: bool [N], conditions at reset after settling. None: nothing held there.
        chunk: environment steps per action chunk.

    Raises:
        ValueError: wrong shapes, unknown options, or `pace: dynamic` with a missing duration.
        NotImplementedError: the presets `release_robocasa` and `release_libero`.
    """
    if preset in ("release_robocasa", "release_libero"):
        raise NotImplementedError(
            f"preset '{preset}' (the released code's rank-indexed medians and clocks) is not there yet; it comes with "
            "the issue that reproduces the published RoboCasa365 and LIBERO numbers"
        )
    options = RewardOptions(beta, terminal, gate, pace, since, clock, preset).resolved()
    plan = plan if isinstance(plan, Plan) else compile_plan(plan)
    require_durations(options, plan.path, plan.names, plan.durations)
    holds_TN, success_T, reset_N = _checked(plan, holds, success, holds_at_reset, chunk)

    hits = success_T.nonzero()
    steps = int(hits[0]) + 1 if len(hits) else len(success_T)
    own = (plan.prerequisites, plan.durations, plan.worth, plan.newly, plan.pulse, torch.ones_like(plan.newly))
    rows = PlanRows(*(x[None] for x in own))
    state, pay_EN, terminal_E1 = functional.advance(
        rows,
        functional.reset(rows, reset_N[None], options),
        holds_TN[None],
        torch.tensor([[steps]]),
        torch.tensor([[len(hits) > 0]]),
        torch.tensor([[0]]),
        options,
        chunk,
    )
    at_N, credited = state.credited_at[0], state.credited_at[0] > 0
    credits_TN = torch.zeros_like(holds_TN)
    credits_TN[at_N[credited] - 1, credited.nonzero()[:, 0]] = True
    rewards = torch.zeros(-(-len(success_T) // chunk), dtype=torch.float64)
    rewards.index_add_(0, (at_N[credited] - 1) // chunk, pay_EN[0][credited])
    if len(hits):
        rewards[(steps - 1) // chunk] += terminal_E1[0, 0]
    return EpisodeScore(
        rewards=rewards.float(),
        credits=credits_TN,
        unpaid=state.unpaid[0],
        complete=state.complete[0],
        pay=pay_EN[0].float(),
        terminal=float(terminal_E1),
        credited_at=at_N,
        eligible=state.eligible[0],
        interval=state.interval[0],
        undone=state.undone[0],
        bunched=int(state.bunched),
    )


def require_durations(options: RewardOptions, path: str, names: tuple[str, ...], durations: Tensor) -> None:
    """Check that pay can be computed.

    Raises:
        ValueError: `pace: dynamic` and a subtask without T_d; names the file and the command that measures it.
    """
    missing = [name for name, value in zip(names, durations.tolist(), strict=False) if value != value]
    if options.pace == "dynamic" and missing:
        file = "FILE.task" if path.startswith("<") else path
        raise ValueError(
            f"{path}: no duration (T_d) for {', '.join(missing)}, which `reward.pace: dynamic` needs; measure it with "
            f"`structrl calibrate {file} --demos FILE.h5 --write`, write `@ STEPS` after the subtask, "
            "or set `reward.pace: fixed`"
        )


def _checked(plan: Plan, holds: Any, success: Any, holds_at_reset: Any, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs as bool tensors [T, N], [T] and [N]; a ValueError states what has the wrong shape."""
    num_subtasks = len(plan.names)
    holds_TN = torch.as_tensor(holds).bool()
    success_T = torch.as_tensor(success).bool()
    reset_N = torch.zeros(num_subtasks).bool() if holds_at_reset is None else torch.as_tensor(holds_at_reset).bool()
    if holds_TN.ndim != 2 or holds_TN.shape[1] != num_subtasks or len(holds_TN) == 0:
        raise ValueError(f"holds has shape {list(holds_TN.shape)}; expected [T, {num_subtasks}] with T > 0")
    if success_T.shape != holds_TN.shape[:1]:
        raise ValueError(f"success has shape {list(success_T.shape)}; expected [{len(holds_TN)}], one per row of holds")
    if reset_N.shape != (num_subtasks,):
        raise ValueError(f"holds_at_reset has shape {list(reset_N.shape)}; expected [{num_subtasks}]")
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}; expected at least 1 environment step")
    return holds_TN, success_T, reset_N
