"""Structured reward as pure functions: which subtasks complete, which of them are paid, and how much.

The state is carried from one call to the next, so that a trace may be cut anywhere without changing a credit.

Shapes: E environments, L environment steps of one call, N padded subtasks.
Time: t = 1, 2, ... counts environment steps since reset; reset itself is the step that ends at t = 0.

No loop over steps. A call packs the L truth values of a condition into the bits of one integer, bit s for the call's
s-th step. "From the first step on at which x holds" is then the integer x | -x, whose bits are set from the lowest set
bit of x upwards. A subtask completes at the first step, from the latest completion of its prerequisites on, at which
its condition holds; following that rule from prerequisite to subtask until nothing changes gives the least fixpoint of
every step at once. Such "from s on" integers are -(2**s): the later, the smaller, and exact in float32.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from structrl.plan.plan import PlanRows
from structrl.rewards.options import ResolvedReward

WINDOW = 50  # steps packed into one integer: bits 1..50 (float64 sums them exactly), and one for "not in this window"
NEVER = -1  # in `eligible` and `credited_at`: not yet


class RewardState(NamedTuple):
    """What the reward remembers of each episode; padding is False, NEVER or NaN.

    Attributes:
        complete: bool [E, N], credited or completed unpaid. Never withdrawn.
        unpaid: bool [E, N], completed unpaid because the condition had held since reset.
        eligible: int64 [E, N], first step at which the gate was open, or NEVER.
        credited_at: int64 [E, N], step of the credit, or NEVER.
        interval: float32 [E, N], the T that priced the credit, in the clock's units (steps or chunks); NaN without.
        undone: bool [E, N], credited but not true after the last step (pulses never are).
        holding: bool [E, N], the condition has held at every step since reset.
        lapsed: bool [E, N], the condition was false at some step since the subtask became eligible.
        last_credit: int64 [E, 1], step of the latest credit, 0 at the start.
        bunched: int64 [E, 1], credits with T < 0.2 T_d.
        succeeded: bool [E, 1], the episode's success was paid; later steps are ignored.
        out_of_order: bool [E, N], for the audit: the condition turned true while some prerequisite was incomplete.
        at_reset: bool [E, N], for the audit: complete (unpaid) from the start.
    """

    complete: Tensor
    unpaid: Tensor
    eligible: Tensor
    credited_at: Tensor
    interval: Tensor
    undone: Tensor
    holding: Tensor
    lapsed: Tensor
    last_credit: Tensor
    bunched: Tensor
    succeeded: Tensor
    out_of_order: Tensor
    at_reset: Tensor


def reset(plan: PlanRows, holds_EN: Tensor, options: ResolvedReward) -> RewardState:
    """The state at t = 0, after the fixpoint of what holds at reset. Nothing is paid there.

    Args:
        plan: the plan of each environment.
        holds_EN: bool [E, N], conditions at reset, after settling.
        options: resolved options.
    """
    no, never = torch.zeros_like(plan.valid), torch.full_like(plan.valid, NEVER, dtype=torch.int64)
    zero, one = never.new_zeros(len(never), 1), never.new_ones(len(never), 1)
    start = RewardState(
        complete=no,
        unpaid=no,
        eligible=never,
        credited_at=never,
        interval=torch.full_like(plan.valid, torch.nan, dtype=torch.float32),
        undone=no,
        holding=plan.valid,
        lapsed=no,
        last_credit=zero,
        bunched=zero,
        succeeded=zero.bool(),
        out_of_order=no,
        at_reset=no,
    )
    # As every condition that holds has held since reset, what completes here completes unpaid.
    state, _ = _advance_window(plan, start, holds_EN[:, None], one, -one, options, chunk=1)
    return state._replace(at_reset=state.complete)


def advance(
    plan: PlanRows,
    state: RewardState,
    holds_ELN: Tensor,
    steps_E1: Tensor,
    success_E1: Tensor,
    t_E1: Tensor,
    options: ResolvedReward,
    chunk: int,
    ends_E1: Tensor | None = None,
) -> tuple[RewardState, Tensor, Tensor]:
    """Follow each episode over up to L environment steps.

    Args:
        plan: the plan of each environment.
        state: after step t.
        holds_ELN: bool [E, L, N], conditions after the steps t+1, ..., t+L.
        steps_E1: int64 [E, 1], how many of the L steps were executed; what comes after is not read.
        success_E1: bool [E, 1], success after the last executed step (and at none before it).
        t_E1: int64 [E, 1], steps of the episode before this call.
        options: resolved options.
        chunk: H, environment steps per action chunk; only `clock: chunk` reads it.
        ends_E1: bool [E, 1], the episode ends here without success; only `pace: potential` reads it.

    Returns:
        the new state; what each subtask was paid, float64 [E, N]; the terminal pay, float64 [E, 1].
    """
    steps_E1 = torch.where(state.succeeded, 0, steps_E1)
    success_E1 = success_E1 & (steps_E1 > 0)
    pay_EN, credited_EN = torch.zeros_like(plan.durations), state.credited_at >= 0
    for first in range(0, holds_ELN.shape[1], WINDOW):
        window = holds_ELN[:, first : first + WINDOW]
        executed = (steps_E1 - first).clamp(0, window.shape[1])
        state, paid_EN = _advance_window(plan, state, window, executed, t_E1 + first, options, chunk)
        pay_EN = pay_EN + paid_EN
    if options.pace == "potential":
        over_E1 = success_E1 if ends_E1 is None else success_E1 | ends_E1
        pay_EN = shaping(plan, credited_EN, state.credited_at >= 0, over_E1, options) * (steps_E1 > 0)
    state = state._replace(succeeded=state.succeeded | success_E1)
    return state, pay_EN, options.terminal * success_E1.double()


def _advance_window(
    plan: PlanRows,
    state: RewardState,
    holds_ELN: Tensor,
    steps_E1: Tensor,
    t_E1: Tensor,
    options: ResolvedReward,
    chunk: int,
) -> tuple[RewardState, Tensor]:
    """`advance` over at most WINDOW steps, without success."""
    never = 1 << (holds_ELN.shape[1] + 1)  # the step beyond this window, as a bit
    executed_E1 = (2 << steps_E1) - 2  # bits 1..steps
    true_EN = _pack(holds_ELN) * plan.valid & executed_E1
    false_EN = ~true_EN & executed_E1

    eligible_EN, done_EN = _fixpoint(plan, state, true_EN, false_EN, executed_E1, never, options.gate)

    # Rule 1: what has held since reset completes unpaid.
    new_EN = (done_EN > -never) & ~state.complete
    unpaid_EN = new_EN & state.holding & ~plan.newly & (_from_first(false_EN | never) < done_EN)
    credit_EN = new_EN & ~unpaid_EN
    credited_at_EN = torch.where(credit_EN, t_E1 + _step(done_EN), state.credited_at)

    interval_EN, bunched_E1, pay_EN = state.interval, state.bunched, torch.zeros_like(plan.durations)
    if credit_EN.any():
        elapsed_EN = elapsed(plan, credited_at_EN, options, chunk)
        pay_EN = torch.where(credit_EN, price(plan, elapsed_EN, options, chunk), 0.0)
        interval_EN = torch.where(credit_EN, elapsed_EN.float(), interval_EN)
        close_EN = credit_EN & (elapsed_EN < 0.2 * plan.durations / _unit(options, chunk))
        bunched_E1 = bunched_E1 + close_EN.sum(-1, keepdim=True)

    # Audit: true, but not since reset, before the latest completion of its prerequisites.
    prior_EN = (plan.prerequisites * done_EN.float()[:, None]).amin(-1).clamp(max=-1).long()
    since_reset_EN = torch.where(state.holding, ~_from_first(false_EN | never), 0)
    early_EN = true_EN & ~prior_EN & ~since_reset_EN > 0

    ends_true_EN = (true_EN >> steps_E1) & 1 > 0
    undone_EN = (credited_at_EN >= 0) & ~ends_true_EN & ~plan.pulse
    opens_EN = plan.valid & (state.eligible < 0) & (eligible_EN & executed_E1 > 0)
    after = RewardState(
        complete=state.complete | new_EN,
        unpaid=state.unpaid | unpaid_EN,
        eligible=torch.where(opens_EN, t_E1 + _step(eligible_EN), state.eligible),
        credited_at=credited_at_EN,
        interval=interval_EN,
        undone=torch.where(steps_E1 > 0, undone_EN, state.undone),
        holding=state.holding & (false_EN == 0),
        lapsed=state.lapsed | (plan.valid & (false_EN & eligible_EN > 0)),
        last_credit=credited_at_EN.amax(-1, keepdim=True).clamp(min=0),
        bunched=bunched_E1,
        succeeded=state.succeeded,
        out_of_order=state.out_of_order | early_EN,
        at_reset=state.at_reset,
    )
    return after, pay_EN


def _fixpoint(
    plan: PlanRows, state: RewardState, true_EN: Tensor, false_EN: Tensor, executed_E1: Tensor, never: int, gate: str
) -> tuple[Tensor, Tensor]:
    """From which step of the window on each subtask is eligible, and complete: int64 [E, N], -(2**s).

    Step 1 stands for eligible earlier, 0 for complete earlier, `never` for not in this window.
    """
    # Rule 7: at which steps the gate is open, given that the prerequisites are complete.
    if gate == "held":
        # Bits of the steps at which some prerequisite is false; a completed pulse counts as holding.
        dropped_EN = torch.where(plan.pulse, 0, false_EN)
        open_EN = executed_E1 & ~_either(plan.prerequisites * dropped_EN[:, None]) | never
        ready_EN = true_EN & open_EN | never
        open_EN = torch.where(state.eligible >= 0, -2, open_EN)
    else:
        ready_EN = true_EN | never
    gates_ENN = plan.prerequisites.view(torch.uint8).float() * (gate != "none")
    must_lapse_EN = plan.newly & ~state.lapsed
    some_must_lapse = bool(must_lapse_EN.any())

    # Rule 2, from prerequisite to subtask until nothing changes.
    done_EN = torch.where(state.complete, -1, -never)
    while True:
        eligible_EN = (gates_ENN * done_EN.float()[:, None]).amin(-1).clamp(max=-2).long()
        if gate == "held":
            eligible_EN = _from_first(open_EN & eligible_EN)
        start_EN = eligible_EN
        if some_must_lapse:
            start_EN = torch.where(must_lapse_EN, _from_first((false_EN | never) & eligible_EN), eligible_EN)
        now_EN = torch.where(state.complete, -1, _from_first(ready_EN & start_EN))
        if torch.equal(now_EN, done_EN):
            return eligible_EN, done_EN
        done_EN = now_EN


def elapsed(plan: PlanRows, credited_at_EN: Tensor, options: ResolvedReward, chunk: int) -> Tensor:
    """Rules 3 and 6: T of each credit, in the clock's units, float32 [E, N]; meaningless without a credit.

    Time runs from the latest credit before the step (with `clock: chunk`, before the chunk) of the credit, of any
    subtask or, with `since: eligible`, of the subtask's own prerequisites; from the start if there is none. float32 is
    exact: it counts steps, below 2**24.
    """
    at_EN = _tick(credited_at_EN.clamp(min=0), options, chunk).float()
    counts_ENN = at_EN[:, None, :] < at_EN[:, :, None]
    if options.since == "eligible":
        counts_ENN = counts_ENN & plan.prerequisites
    return at_EN - (at_EN[:, None, :] * counts_ENN).amax(-1)


def price(plan: PlanRows, elapsed_EN: Tensor, options: ResolvedReward, chunk: int) -> Tensor:
    """Rule 4: pay of a credit after T = `elapsed_EN`, float64 [E, N]."""
    beta_EN = _beta(plan, options)
    if options.pace != "dynamic":
        return beta_EN / 2
    duration_EN = (plan.durations / _unit(options, chunk)).clamp(min=1.0)
    return beta_EN / (1.0 + elapsed_EN.double() / duration_EN)


def shaping(plan: PlanRows, before_EN: Tensor, after_EN: Tensor, ends_E1: Tensor, options: ResolvedReward) -> Tensor:
    """Potential-based shaping of one chunk: gamma Phi(after) - Phi(before), by subtask, float64 [E, N].

    Phi is beta / 2 times the worth of what is credited, and 0 once the episode is over, so that the discounted sum over
    an episode is 0 whatever happened in it: the best policy stays that of the terminal bonus (Ng, Harada and Russell,
    ICML 1999).

    Args:
        plan: the plan of each environment.
        before_EN: bool, credited before the chunk.
        after_EN: bool, credited after it.
        ends_E1: bool, the episode ends with it.
        options: beta, budget and gamma, the discount per chunk.
    """
    assert options.gamma is not None
    after_EN = after_EN & ~ends_E1
    return _beta(plan, options) / 2 * (options.gamma * after_EN.double() - before_EN.double())


def _beta(plan: PlanRows, options: ResolvedReward) -> Tensor:
    """Upper bound of each subtask's pay, float64 [E, N]: worth times beta, kept within the budget."""
    beta_EN = plan.worth * options.beta
    if options.budget is None or options.beta == 0:
        return beta_EN
    return beta_EN * (options.budget / beta_EN.sum(-1, keepdim=True)).clamp(max=1.0)


# What `reward_state` consists of, in its order: blocks of N columns, then single columns; True where it tells the time.
BLOCKS = {"valid": False, "complete": False, "eligible": False, "unpaid": False, "payable": False, "pace": True}
COUNTERS = {"time": True, "since_credit": True, "credited": False, "bunched": False}


def reward_state_dim(num_subtasks: int) -> int:
    """R, width of `reward_state` for N padded subtasks."""
    return len(BLOCKS) * num_subtasks + len(COUNTERS)


def without_time(reward_state_ER: Tensor) -> Tensor:
    """A copy of `reward_state` with 0 in every column from which t could be read.

    Besides t / horizon these are the steps since the last credit and the running T, which equal t until something is
    credited: a critic without them knows what is done and what is open, but no pace.
    """
    num_subtasks = (reward_state_ER.shape[-1] - len(COUNTERS)) // len(BLOCKS)
    tells = [told for told in BLOCKS.values() for _ in range(num_subtasks)] + list(COUNTERS.values())
    return reward_state_ER.masked_fill(torch.tensor(tells, device=reward_state_ER.device), 0.0)


def reward_state(
    plan: PlanRows, state: RewardState, t_E1: Tensor, horizon_E1: Tensor, options: ResolvedReward, chunk: int
) -> Tensor:
    """What a critic may see of the reward before the next chunk, float32 [E, 6 N + 4].

    Six blocks of N: mask of real subtasks; complete; eligible and not complete; completed unpaid; would be paid (the
    condition has not held since reset, and if `newly` was false since eligible), for subtasks not complete;
    log(1 + T / max(T_d, 1)) of the running T, 0 where T_d is not given. Then t / horizon, steps since the last
    credit / horizon, share of subtasks credited, bunched credits / number of subtasks. Padding is 0.
    """
    eligible_EN = (state.eligible >= 0) & ~state.complete
    payable_EN = plan.valid & ~state.complete & torch.where(plan.newly, state.lapsed, ~state.holding)
    past = _tick(state.last_credit, options, chunk)
    if options.since == "eligible":
        past = _tick(state.credited_at.clamp(min=0), options, chunk).float()
        past = (plan.prerequisites * past[:, None]).amax(-1)
    elapsed_EN = _tick(t_E1, options, chunk) - past
    pace_EN = torch.log1p(elapsed_EN / (plan.durations / _unit(options, chunk)).clamp(min=1.0)).nan_to_num(nan=0.0)
    size_E1 = plan.valid.sum(-1, keepdim=True)
    columns = {
        "valid": plan.valid,
        "complete": state.complete,
        "eligible": eligible_EN,
        "unpaid": state.unpaid,
        "payable": payable_EN,
        "pace": pace_EN,
        "time": t_E1 / horizon_E1,
        "since_credit": (t_E1 - state.last_credit) / horizon_E1,
        "credited": (state.credited_at >= 0).sum(-1, keepdim=True) / size_E1,
        "bunched": state.bunched / size_E1,
    }
    return torch.cat([columns[name].float() for name in (*BLOCKS, *COUNTERS)], -1)


def _unit(options: ResolvedReward, chunk: int) -> int:
    """Environment steps per tick of the clock."""
    return chunk if options.clock == "chunk" else 1


def _tick(t: Tensor, options: ResolvedReward, chunk: int) -> Tensor:
    """Reading of the clock at step t: t itself, or the number of its chunk, ceil(t / H)."""
    unit = _unit(options, chunk)
    return t if unit == 1 else (t + unit - 1) // unit


def _pack(holds_ELN: Tensor) -> Tensor:
    """Bits s = 1..L of an int64 [E, N] are the truth values after the s-th step, bool [E, L, N]."""
    bits_L = 2.0 ** torch.arange(1, holds_ELN.shape[1] + 1, device=holds_ELN.device, dtype=torch.float64)
    # Seen as bytes, because torch converts bytes several times faster than bools.
    return (holds_ELN.view(torch.uint8).double() * bits_L[:, None]).sum(1).long()


def _either(bits: Tensor) -> Tensor:
    """Bitwise or over the last axis; its halves overlap by one where it is odd."""
    while (size := bits.shape[-1]) > 1:
        bits = bits[..., : (size + 1) // 2] | bits[..., size // 2 :]
    return bits[..., 0]


def _from_first(bits: Tensor) -> Tensor:
    """All bits from the lowest set bit on."""
    return bits | -bits


def _step(from_EN: Tensor) -> Tensor:
    """s of -(2**s), int64."""
    return torch.frexp(from_EN.float()).exponent - 1
