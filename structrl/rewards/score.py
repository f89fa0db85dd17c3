"""Scores a recorded episode with the functions that pay the reward in training.

Shapes: T environment steps, N subtasks, C = ceil(T / chunk) action chunks.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from structrl.lang.spec import TaskSpec
from structrl.plan.plan import Plan, PlanRows, compile_plan
from structrl.rewards import functional
from structrl.rewards.options import Clock, Gate, Pace, Preset, ResolvedReward, RewardOptions, Since
from structrl.rewards.release import score_released


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
        out_of_order: bool [N], the condition turned true while some prerequisite was incomplete.
        at_reset: bool [N], complete (unpaid) from the start.
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
    out_of_order: Tensor
    at_reset: Tensor


def score_episode(
    plan: Plan | TaskSpec | Path | str,
    holds: Any,
    success: Any,
    *,
    holds_at_reset: Any = None,
    chunk: int = 1,
    beta: float | None = None,
    terminal: float | None = None,
    gate: Gate | None = None,
    pace: Pace | None = None,
    since: Since | None = None,
    clock: Clock | None = None,
    gamma: float | None = None,
    budget: float | None = None,
    preset: str | None = None,
) -> EpisodeScore:
    """Score one episode, see `RewardOptions` for the options and their defaults.

    `preset="release_robocasa"` and `"release_libero"` score a flat chain of groups as the paper's public release does,
    with its stand-ins for missing durations; see `structrl.rewards.release`.

    Args:
        plan: a plan, or anything `compile_plan` takes.
        holds: bool [T, N] array or tensor, conditions after each step.
        success: bool [T], the whole-task check after each step; what follows the first success is ignored.
        holds_at_reset: bool [N], conditions at reset after settling. None: nothing held there.
        chunk: environment steps per action chunk.

    Raises:
        ValueError: wrong shapes, unknown options, `pace: dynamic` with a missing duration, or a plan or option that
            a release preset lacks.
    """
    released = preset.removeprefix("release_") if preset in ("release_robocasa", "release_libero") else None
    options = RewardOptions(
        beta, terminal, gate, pace, since, clock, gamma, budget, None if released else cast(Preset, preset)
    ).resolved()
    plan = plan if isinstance(plan, Plan) else compile_plan(plan)
    if not released:
        require_durations(options, plan.path, plan.names, plan.durations)
    holds_TN, success_T, reset_N = _checked(plan, holds, success, holds_at_reset, chunk)
    hits = success_T.nonzero()
    steps = int(hits[0]) + 1 if len(hits) else len(success_T)
    executed = holds_TN[:steps], reset_N
    result = (
        _score_released(plan, *executed, released, options) if released else _score(plan, *executed, options, chunk)
    )
    pay_N, at_N = result.pop("pay"), result["credited_at"]
    credited = at_N > 0
    credits_TN = torch.zeros_like(holds_TN)
    credits_TN[at_N[credited] - 1, credited.nonzero()[:, 0]] = True
    rewards = torch.zeros(-(-len(success_T) // chunk), dtype=torch.float64)
    if options.pace == "potential":
        shaped_CN = _shaped(plan, at_N, steps, options, chunk)
        pay_N, rewards[: len(shaped_CN)] = shaped_CN.sum(0), shaped_CN.sum(1)
    else:
        rewards.index_add_(0, (at_N[credited] - 1) // chunk, pay_N[credited])
    bonus = options.terminal if len(hits) else 0.0
    rewards[(steps - 1) // chunk] += bonus
    return EpisodeScore(rewards=rewards.float(), credits=credits_TN, pay=pay_N.float(), terminal=bonus, **result)


def _rows(plan: Plan) -> PlanRows:
    """The plan as a batch of one."""
    own = (plan.prerequisites, plan.durations, plan.worth, plan.newly, plan.pulse, torch.ones_like(plan.newly))
    return PlanRows(*(x[None] for x in own))


def _shaped(plan: Plan, at_N: Tensor, steps: int, options: ResolvedReward, chunk: int) -> Tensor:
    """Potential-based pay of each chunk of an episode of `steps` steps, [C, N]."""
    chunks = -(-steps // chunk)
    reached_CN = (at_N > 0) & (at_N <= chunk * torch.arange(chunks + 1)[:, None])
    last_C1 = (torch.arange(chunks) == chunks - 1)[:, None]
    return functional.shaping(_rows(plan), reached_CN[:-1], reached_CN[1:], last_C1, options)


def _score(plan: Plan, holds_TN: Tensor, reset_N: Tensor, options: ResolvedReward, chunk: int) -> dict[str, Any]:
    """The episode as a batch of one, in one call."""
    rows = _rows(plan)
    state, pay_EN, _ = functional.advance(
        rows,
        functional.reset(rows, reset_N[None], options),
        holds_TN[None],
        torch.tensor([[len(holds_TN)]]),
        torch.tensor([[False]]),
        torch.tensor([[0]]),
        options,
        chunk,
    )
    names = ("unpaid", "complete", "credited_at", "eligible", "interval", "undone", "out_of_order", "at_reset")
    return {"pay": pay_EN[0], "bunched": int(state.bunched), **{name: getattr(state, name)[0] for name in names}}


def _score_released(
    plan: Plan, holds_TN: Tensor, reset_N: Tensor, benchmark: str, options: ResolvedReward
) -> dict[str, Any]:
    """The same fields, as the paper's release computes them."""
    got = score_released(plan, holds_TN.tolist(), reset_N.tolist(), benchmark, options)
    subtasks = range(len(plan.names))
    at_N = torch.tensor([got.at.get(i, functional.NEVER) for i in subtasks])
    unpaid_N = torch.tensor([i in got.dropped for i in subtasks])
    return {
        "pay": torch.tensor([got.pay.get(i, 0.0) for i in subtasks], dtype=torch.float64),
        "bunched": got.bunched,
        "unpaid": unpaid_N,
        "complete": unpaid_N | (at_N > 0),
        "credited_at": at_N,
        "eligible": torch.tensor([got.opened.get(i, functional.NEVER) for i in subtasks]),
        "interval": torch.tensor([float(got.elapsed.get(i, torch.nan)) for i in subtasks]),
        "undone": (at_N > 0) & ~holds_TN[-1] & ~plan.pulse,
        **_audited(plan, holds_TN, reset_N),
    }


def _audited(plan: Plan, holds_TN: Tensor, reset_N: Tensor) -> dict[str, Tensor]:
    """What was out of order, or complete at reset, is no matter of pay: as our own reward sees it."""
    score = _score(plan, holds_TN, reset_N, RewardOptions(pace="fixed").resolved(), 1)
    return {name: score[name] for name in ("out_of_order", "at_reset")}


def require_durations(options: ResolvedReward, path: str, names: tuple[str, ...], durations: Tensor) -> None:
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
