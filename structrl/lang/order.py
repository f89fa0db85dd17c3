"""The order of a plan in a sentence, as an outline of text, and as a Mermaid graph."""

from collections.abc import Callable, Collection, Sequence

from structrl.lang.spec import TaskSpec


def spoken(names: list[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return f" {last} ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def order_sentence(task: TaskSpec) -> str:
    """The order of the plan in one sentence, from the prerequisites alone."""
    labels = [subtask.label for subtask in task.subtasks]
    before = [set(subtask.prerequisites) for subtask in task.subtasks]
    stages: list[list[int]] = []
    while (earlier := {i for stage in stages for i in stage}) != set(range(len(labels))):
        stages.append([i for i in range(len(labels)) if i not in earlier and before[i] <= earlier])
        if any(before[i] != earlier for i in stages[-1]):
            return "Partial order: each subtask says what must come before it."
    parts = [spoken([labels[i] for i in stage]) + (" in any order" if len(stage) > 1 else "") for stage in stages]
    return "Order: " + ", then ".join(parts) + "."


def direct_prerequisites(before: Sequence[Collection[int]]) -> list[set[int]]:
    """Of the prerequisites of each subtask (all of them, as a plan stores) those that no other one implies."""
    most_first = sorted(range(len(before)), key=lambda j: -len(before[j]))
    found = []
    for mine in map(set, before):
        direct: set[int] = set()
        implied: set[int] = set()
        for j in most_first:  # one that implies another has more before it
            if j in mine and j not in implied:
                direct.add(j)
                implied.update(before[j])
        found.append(direct)
    return found


def direct(task: TaskSpec, i: int) -> list[str]:
    """Labels of the prerequisites of subtask i that are not implied by others, in the order of the file."""
    return [task.subtasks[j].label for j in _direct(task)[i]]


def _direct(task: TaskSpec) -> list[list[int]]:
    return [sorted(each) for each in direct_prerequisites([each.prerequisites for each in task.subtasks])]


def mermaid(task: TaskSpec) -> str:
    """The order as a Mermaid flowchart, which GitHub and most editors draw: one node for each subtask."""
    lines = ["flowchart LR"]
    for i, subtask in enumerate(task.subtasks):
        lines.append(f'  s{i}["{_escape(subtask.label)}<br/>{_escape(subtask.condition)}"]')
    for i, earlier in enumerate(_direct(task)):
        lines += [f"  s{j} --> s{i}" for j in earlier]
    return "\n".join(lines)


def _escape(text: str) -> str:
    """Text inside a quoted Mermaid label: its entities have # in place of &."""
    return "".join(char if char.isalnum() or char in " _(),=.%-" else f"#{ord(char)};" for char in text)


def outline(task: TaskSpec) -> list[str]:
    """The order from top to bottom: `+-` begins each of several parts in any order, `v` stands between ordered parts.

        +- add_apple_box
        +- grasp_drink
        |  v
        |  add_drink_box
        v
        close_box

    What no such nesting can say is a list of parts with `after`.
    """
    return _outline(task, list(range(len(task.subtasks))))


def _outline(task: TaskSpec, members: Sequence[int]) -> list[str]:
    if len(members) == 1:
        return [task.subtasks[members[0]].label]
    before = {i: set(task.subtasks[i].prerequisites) for i in members}

    def ordered(i: int, j: int) -> bool:
        return i in before[j] or j in before[i]

    parallel = _components(members, ordered)
    if len(parallel) > 1:
        return [line for part in parallel for line in _branch(_outline(task, part), part is parallel[-1])]
    series = _components(members, lambda i, j: not ordered(i, j))
    if len(series) > 1:
        series.sort(key=lambda part: len(before[part[0]] & set(members)))
        lines: list[str] = []
        for part in series:
            lines += ["v"] * bool(lines) + _outline(task, part)
        return lines
    lines, earlier = [], _direct(task)
    for i in sorted(members, key=lambda i: len(before[i])):  # one that comes later waits for more
        needed = [task.subtasks[j].label for j in earlier[i] if j in before]
        lines.append(f"+- {task.subtasks[i].label}" + (f"  (after {spoken(needed)})" if needed else ""))
    return lines


def _branch(lines: list[str], last: bool) -> list[str]:
    bar = "   " if last else "|  "
    return [f"+- {lines[0]}", *(f"{bar}{line}" for line in lines[1:])]


def _components(members: Sequence[int], linked: Callable[[int, int], bool]) -> list[list[int]]:
    """Connected parts, each in the order of the file, and by their first member."""
    left, parts = set(members), []
    for first in members:
        if first in left:
            left.remove(first)
            part = [first]
            for i in part:
                near = sorted(j for j in left if linked(i, j))
                left.difference_update(near)
                part += near
            parts.append(sorted(part))
    return parts
