"""Random plans, traces and options for the property tests."""

import random

import torch
from hypothesis import strategies as st

from structrl.lang.spec import SubtaskSpec, TaskSpec
from structrl.plan import Plan
from tests.rewards.twin import TwinPlan

OPTIONS = st.fixed_dictionaries(
    {
        "beta": st.sampled_from([0.6, 1.0]),
        "terminal": st.sampled_from([2.0, 0.0]),
        "gate": st.sampled_from(["latched", "held", "none"]),
        "pace": st.sampled_from(["dynamic", "fixed"]),
        "since": st.sampled_from(["credit", "eligible"]),
        "clock": st.sampled_from(["step", "chunk"]),
    }
)


def series_parallel(rng: random.Random, size: int) -> list[set[int]]:
    """Prerequisites of a random nesting of `then` and `group` over `size` subtasks."""
    before: list[set[int]] = [set() for _ in range(size)]

    def nest(members: list[int]) -> None:
        if len(members) < 2:
            return
        cut = rng.randrange(1, len(members))
        left, right = members[:cut], members[cut:]
        if rng.random() < 0.6:
            for i in right:
                before[i].update(left)
        nest(left)
        nest(right)

    members = list(range(size))
    rng.shuffle(members)  # any listing order
    nest(members)
    return closed(before)


def arbitrary_order(rng: random.Random, size: int) -> list[set[int]]:
    """Prerequisites of a random partial order over `size` subtasks."""
    rank = list(range(size))
    rng.shuffle(rank)
    density = rng.choice([0.15, 0.4, 0.8])
    return closed([{j for j in range(size) if rank[j] < rank[i] and rng.random() < density} for i in range(size)])


def closed(before: list[set[int]]) -> list[set[int]]:
    """Transitive closure."""
    for _ in before:
        before = [set().union(own, *(before[j] for j in own)) for own in before]
    return before


def random_plan(rng: random.Random, max_size: int = 6) -> TwinPlan:
    size = rng.randint(1, max_size)
    order = rng.choice([series_parallel, arbitrary_order])(rng, size)
    return TwinPlan(
        prerequisites=order,
        durations=[rng.choice([0.3, 1.0, 7.5, 20.0, 61.0]) for _ in range(size)],
        worth=[rng.choice([1.0, 1.0, 0.5, 2.0]) for _ in range(size)],
        newly=[rng.random() < 0.3 for _ in range(size)],
        pulse=[rng.random() < 0.2 for _ in range(size)],
    )


def random_trace(rng: random.Random, size: int, length: int) -> tuple[list[list[bool]], list[bool]]:
    """Conditions and success at reset and after each of `length` steps: true, false, persistent or flickering."""
    columns = []
    for _ in range(size):
        kind = rng.choice(["flicker", "flicker", "persistent", "persistent", "true", "rare"])
        value = rng.random() < 0.5
        column = []
        for _ in range(length + 1):
            if kind == "flicker":
                value = rng.random() < 0.5
            elif kind == "persistent":
                value ^= rng.random() < 0.15
            elif kind == "true":
                value = rng.random() < 0.97 if column else True
            else:
                value = rng.random() < 0.04
            column.append(value)
        columns.append(column)
    success_rate = rng.choice([0.0, 0.0, 0.05])
    success = [False] + [rng.random() < success_rate for _ in range(length)]
    return [list(row) for row in zip(*columns, strict=True)], success


def spec_of(plan: TwinPlan, name: str = "toy", horizon: int | None = 100) -> TaskSpec:
    """The plan as a task file would lower it."""
    return TaskSpec(
        name=name,
        atoms=(),
        subtasks=tuple(
            SubtaskSpec(
                label=f"s{i}",
                condition=f"c{i}()",
                program=(("atom", i),),
                prerequisites=tuple(sorted(plan.prerequisites[i])),
                duration=plan.durations[i],
                worth=plan.worth[i],
                newly=plan.newly[i],
                pulse=plan.pulse[i],
            )
            for i in range(len(plan.worth))
        ),
        horizon=horizon,
        path=f"{name}.task",
    )


def tensors_of(plan: TwinPlan) -> Plan:
    return Plan.from_spec(spec_of(plan))


def as_bool(rows: list) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.bool)
