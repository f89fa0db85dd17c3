"""What a scripted expert of the tabletop pursues: the conditions of a task's success, in the order of its plan."""

from structrl.lang.spec import AtomSpec, TaskSpec

SKILLS = ("in", "on", "open", "closed", "turned_on", "turned_off", "was_pressed")  # what the expert can bring about


def goals(task: TaskSpec) -> tuple[AtomSpec, ...]:
    """The atoms that together make the task succeed, in the order in which the plan first speaks of them.

    Of alternatives the first ones: one of `or`, k of `at least k of`. What must *not* hold is nobody's goal.

    Raises:
        ValueError: no success condition, or one that asks for something the expert cannot do.
    """
    if task.success is None:
        raise ValueError(f"{task.path}: the expert needs `success`: it pursues its conditions")
    wanted = [task.atoms[i] for i in dict.fromkeys(_positive(task.success))]
    for atom in wanted:
        if atom.predicate not in SKILLS or "table_1" in atom.args:
            raise ValueError(f"{task.path}: the expert has no skill for {atom}; it has: {', '.join(SKILLS)}")
    planned: list[tuple[str, tuple[str, ...]]] = []
    for subtask in task.subtasks:
        for i in _positive(subtask.program):
            atom = task.atoms[i]
            planned.append(("was_pressed" if atom.predicate == "pressed" else atom.predicate, atom.args))

    def place(atom: AtomSpec) -> int:
        key = (atom.predicate, atom.args)
        return planned.index(key) if key in planned else len(planned)

    return tuple(sorted(wanted, key=place))


def _positive(program: tuple[tuple, ...]) -> list[int]:
    """Atoms that make a postfix program true."""
    stack: list[list[int]] = []
    for op in program:
        match op:
            case ("atom", i):
                stack.append([i])
            case ("not",):
                stack[-1] = []
            case ("and" | "or" | "at_least" as kind, *numbers):
                count = numbers[-1]
                parts, stack = stack[-count:], stack[:-count]
                enough = {"and": count, "or": 1, "at_least": numbers[0]}[kind]
                stack.append([i for part in parts[:enough] for i in part])
    return stack[0]
