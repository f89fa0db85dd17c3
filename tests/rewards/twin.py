"""Brute-force twin of the reward: the rules as sentences, in plain Python loops over steps and subtasks.

It is written from the rules alone and shares no code with `structrl.rewards`.
"""

from dataclasses import dataclass, field
from math import ceil


@dataclass
class TwinPlan:
    prerequisites: list[set[int]]  # transitively closed
    durations: list[float]
    worth: list[float]
    newly: list[bool]
    pulse: list[bool]


@dataclass
class TwinResult:
    credited_at: dict[int, int] = field(default_factory=dict)
    unpaid: set[int] = field(default_factory=set)
    unpaid_at: dict[int, int] = field(default_factory=dict)
    eligible: dict[int, int] = field(default_factory=dict)
    interval: dict[int, int] = field(default_factory=dict)
    pay: dict[int, float] = field(default_factory=dict)
    undone: set[int] = field(default_factory=set)
    holding: set[int] = field(default_factory=set)
    lapsed: set[int] = field(default_factory=set)
    out_of_order: set[int] = field(default_factory=set)
    at_reset: set[int] = field(default_factory=set)
    bunched: int = 0
    last_credit: int = 0
    success_at: int | None = None
    chunk_rewards: list[float] = field(default_factory=list)


def twin(
    plan: TwinPlan,
    holds: list[list[bool]],  # holds[0] is at reset, holds[t] after step t
    success: list[bool],  # success[t]; success[0] is not read
    *,
    chunk: int = 1,
    beta: float = 0.6,
    terminal: float = 2.0,
    gate: str = "latched",
    pace: str = "dynamic",
    since: str = "credit",
    clock: str = "step",
) -> TwinResult:
    """Score one episode."""
    everyone = range(len(plan.worth))
    out = TwinResult()
    last_step = len(holds) - 1
    out.chunk_rewards = [0.0] * ceil(last_step / chunk)

    def complete(i: int) -> bool:
        return i in out.credited_at or i in out.unpaid

    def gate_is_open(i: int, t: int) -> bool:
        if gate == "none":
            return True
        for j in plan.prerequisites[i]:
            if not complete(j):
                return False
            if gate == "held" and not plan.pulse[j] and not holds[t][j]:
                return False
        return True

    def has_held_since_reset(i: int, t: int) -> bool:
        return not plan.newly[i] and all(holds[u][i] for u in range(t + 1))

    def counts(i: int, t: int) -> bool:
        if not plan.newly[i]:
            return holds[t][i]
        return holds[t][i] and any(not holds[u][i] for u in range(out.eligible[i], t))

    def reading(t: int) -> int:
        return ceil(t / chunk) if clock == "chunk" else t

    t = 0
    for t in range(last_step + 1):
        earlier = dict(out.credited_at)  # credits of steps before t
        moved = True
        while moved:
            moved = False
            for i in everyone:
                if not gate_is_open(i, t):
                    continue
                if i not in out.eligible:
                    out.eligible[i] = t
                    moved = True
                if complete(i) or not counts(i, t):
                    continue
                if has_held_since_reset(i, t):
                    out.unpaid.add(i)
                    out.unpaid_at[i] = t
                else:
                    out.credited_at[i] = t
                moved = True
        if t == 0:
            out.at_reset = {i for i in everyone if complete(i)}
        for i in everyone:
            untouched = all(holds[u][i] for u in range(t + 1))
            if holds[t][i] and not untouched and not all(complete(j) for j in plan.prerequisites[i]):
                out.out_of_order.add(i)
        reward = 0.0
        for i in everyone:
            if out.credited_at.get(i) != t:
                continue
            last = 0
            for j, s in earlier.items():
                mine = since == "credit" or j in plan.prerequisites[i]
                if mine and reading(s) < reading(t):
                    last = max(last, reading(s))
            elapsed = reading(t) - last
            budget = plan.durations[i] / chunk if clock == "chunk" else plan.durations[i]
            if pace == "fixed":
                out.pay[i] = plan.worth[i] * beta / 2
            else:
                out.pay[i] = plan.worth[i] * beta / (1 + elapsed / max(budget, 1.0))
            if elapsed < 0.2 * budget:
                out.bunched += 1
            out.interval[i] = elapsed
            out.last_credit = t
            reward += out.pay[i]
        if t > 0 and success[t]:
            reward += terminal
            out.success_at = t
        if t > 0:
            out.chunk_rewards[ceil(t / chunk) - 1] += reward
        if out.success_at is not None:
            break
    out.undone = {i for i in out.credited_at if not plan.pulse[i] and not holds[t][i]}
    out.holding = {i for i in everyone if all(holds[u][i] for u in range(t + 1))}
    out.lapsed = {i for i, start in out.eligible.items() if any(not holds[u][i] for u in range(start, t + 1))}
    return out
