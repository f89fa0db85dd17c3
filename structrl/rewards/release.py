"""The reward as the paper's public release computes it, offline, for comparison with published numbers.

It differs from `structrl.rewards.functional` (behaviour of amazon-science/StructRL 6caba1f, arXiv 2609.36352):

* T_d belongs to the order of completion inside a stage, not to the subtask: the first to complete uses the stage's
  first duration in source order, and so on.
* Credits of one step are given one after the other in source order, and each restarts the clock: the second has T = 0.
* RoboCasa: at most one stage closes per step; a condition true at reset is credited at step 1 with T = 1; a missing
  duration is the largest of its stage, or 100.
* LIBERO: stages close in cascade within a step; 15 idle steps of the reset are on the clock; a subtask true at reset is
  dropped, unpaid, before ranks are counted; a missing duration is the last known one of its stage, or 50.
"""

from dataclasses import dataclass, field
from math import isnan

from structrl.plan.plan import Plan
from structrl.rewards.options import ResolvedReward

LIBERO_IDLE_STEPS = 15
MISSING = {"robocasa": 100.0, "libero": 50.0}


@dataclass
class Released:
    """Per credited subtask: step, T on the release's clock and pay; what was dropped at reset; bunched credits."""

    at: dict[int, int] = field(default_factory=dict)
    elapsed: dict[int, int] = field(default_factory=dict)
    pay: dict[int, float] = field(default_factory=dict)
    opened: dict[int, int] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    bunched: int = 0


def stages_of(plan: Plan) -> list[list[int]]:
    """The plan as a chain of groups, each in source order.

    Raises:
        ValueError: the plan is no flat chain of groups, or uses `newly` or `worth`, which the release lacks.
    """
    if plan.newly.any() or (plan.worth != 1).any():
        raise ValueError(f"{plan.path}: the released reward knows neither `newly` nor `worth`")
    depth = plan.prerequisites.sum(1).tolist()
    stages = [[i for i, d in enumerate(depth) if d == level] for level in sorted(set(depth))]
    earlier: set[int] = set()
    for stage in stages:
        if any(set(plan.prerequisites[i].nonzero()[:, 0].tolist()) != earlier for i in stage):
            raise ValueError(
                f"{plan.path}: the released reward needs a flat chain of groups (a then group < b; c > ...)"
            )
        earlier.update(stage)
    return stages


def score_released(
    plan: Plan, holds: list[list[bool]], holds_at_reset: list[bool], benchmark: str, options: ResolvedReward
) -> Released:
    """Credits and pay of one episode.

    Args:
        plan: a flat chain of groups; durations in the order of the stage's completion ranks.
        holds: conditions after each step, up to the first success.
        holds_at_reset: conditions at reset.
        benchmark: `robocasa` or `libero`.
        options: resolved; beta, pace and gate (`latched` or `none`) are used.

    Raises:
        ValueError: a plan that `stages_of` rejects; options that the release does not have.
    """
    if options.gate == "held" or options.since != "credit" or options.clock != "step":
        raise ValueError("the released reward has gate latched or none, since credit and clock step only")
    if options.pace == "potential" or options.budget is not None:
        raise ValueError("the released reward has pace dynamic or fixed; its budget is beta = 4 B / (3 N)")
    out, stages = Released(), stages_of(plan)
    libero = benchmark == "libero"
    if libero:
        out.dropped = {i for stage in stages for i in stage if holds_at_reset[i]}
        stages = [kept for stage in stages if (kept := [i for i in stage if i not in out.dropped])]
    budgets = [_budgets([float(plan.durations[i]) for i in stage], benchmark) for stage in stages]
    last, current = 0, 0  # the clock at the last credit; the stage that is open
    out.opened = dict.fromkeys(
        [i for s, stage in enumerate(stages) if s == 0 or options.gate == "none" for i in stage], 0
    )

    for t, row in enumerate(holds, start=1):
        clock = t + LIBERO_IDLE_STEPS if libero else t
        for s, stage in enumerate(stages):
            if options.gate == "latched" and s != current:
                continue
            for i in stage:
                if i in out.at or not row[i]:
                    continue
                budget = budgets[s][sum(j in out.at for j in stage)]
                elapsed, last = clock - last, clock
                paced = options.beta / (1 + elapsed / max(budget, 1.0))
                out.at[i], out.elapsed[i] = t, elapsed
                out.pay[i] = paced if options.pace == "dynamic" else options.beta / 2
                out.bunched += elapsed < 0.2 * budget
            if options.gate == "latched" and all(i in out.at for i in stage):
                current += 1
                out.opened.update(dict.fromkeys(stages[current] if current < len(stages) else [], t))
                if not libero:
                    break  # the next stage is looked at from the next step on
    return out


def _budgets(durations: list[float], benchmark: str) -> list[float]:
    """The stage's durations by rank, with the release's stand-ins for missing ones."""
    known = [d for d in durations if not isnan(d)]
    if not known:
        return [MISSING[benchmark]] * len(durations)
    stand_in = known[-1] if benchmark == "libero" else max(known)
    return known + [stand_in] * (len(durations) - len(known))
