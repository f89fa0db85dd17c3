"""Conditions to postfix programs, plans to subtasks with prerequisites. Definitions and `each` are expanded here."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from structrl.lang import tree
from structrl.lang.diagnostics import listing, suggest
from structrl.lang.printer import show
from structrl.lang.scope import BROKEN, Binding, Scope, TooMuchError, slug, substitute
from structrl.lang.spec import Op, SubtaskSpec
from structrl.lang.tree import Call, Node, Span, Step, Value, Word

MAX_SUBTASKS = 200
MAX_EXPANSION = 10_000  # nodes visited in all, so that definitions of definitions stay small
MAX_DEPTH = 150  # of expressions, through all definitions

_PLANS = {tree.Then: "`then`", tree.Group: "a group", tree.Each: "`each`", Step: "an annotated subtask"}


@dataclass
class Frame:
    """Labels written inside one use of a definition or one round of `each`, and the values that tell it from others."""

    parent: "Frame | None" = None
    values: tuple[str, ...] = ()
    labels: dict[str, int] = field(default_factory=dict)

    def inner(self, values: Sequence[Value | None]) -> "Frame":
        """A frame inside this one; a value that is already told apart by is not repeated."""
        fresh = [slug(value) for value in values if value is not None]
        return Frame(self, tuple(dict.fromkeys([*self.values, *fresh])))


@dataclass
class Subtask:
    """A subtask during lowering. `source` is the node of the file it comes from; several may share one."""

    source: Node
    text: str
    program: tuple[Op, ...]
    newly: bool
    frame: Frame
    step: Step | None
    label: str = ""
    duration: float | None = None
    worth: float = 1.0
    earlier: set[int] = field(default_factory=set)


class Lowering:
    """Lowers the conditions and the plan of one file into `subtasks`; errors go to the scope's report."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.report = scope.report
        self.subtasks: list[Subtask] = []
        self._visited = 0
        self._depth = 0
        self._newly = False
        self._where = ""

    # -- conditions ----------------------------------------------------------------------------------------------------
    def condition(self, expr: Node, binding: Binding, where: str = "") -> tuple[Op, ...]:
        """The program of a condition. `where`: the line it stands on, if not a subtask; `newly` is refused there."""
        self._newly, self._where = False, where
        return tuple(self._condition(expr, binding, top=not where))

    def _condition(self, expr: Any, binding: Binding, top: bool = False) -> list[Op]:
        with self._visit(expr):
            match expr:
                case Call():
                    return self._call(expr, binding, top)
                case tree.Not(operand):
                    return [*self._condition(operand, binding), ("not",)]
                case tree.And(operands) | tree.Or(operands):
                    name = "and" if isinstance(expr, tree.And) else "or"
                    return [*self._all(operands, binding), (name, len(operands))]
                case tree.AtLeast(count, operands):
                    if not 1 <= count.value <= len(operands):
                        message = f"at least {count.value} of {len(operands)} conditions"
                        self.report.error("T034", message, count.span, f"write 1 to {len(operands)}")
                    return [*self._all(operands, binding), ("at_least", count.value, len(operands))]
                case tree.HeldFor(operand, length) | tree.StepsOf(length, operand):
                    name = "for" if isinstance(expr, tree.HeldFor) else "steps_of"
                    steps = self.scope.steps(length, whole=True)
                    return [*self._condition(operand, binding), (name, int(steps or 1))]
                case tree.Newly(operand):
                    if not top:
                        where = f", not to `{self._where}`" if self._where else ""
                        message = f"`newly` belongs to a whole subtask{where}"
                        help_ = "write it first, before the whole condition: `newly (a and b)`"
                        if where:
                            help_ = f"leave it out: `{self._where}` looks at the moment only"
                        self.report.error("T031", message, expr.span, help_)
                    self._newly = True
                    return self._condition(operand, binding)
            self._plan_as_condition(_PLANS[type(expr)], expr.span)
            return [("atom", BROKEN)]

    def _all(self, operands: tuple[tree.Expr, ...], binding: Binding) -> list[Op]:
        return [op for operand in operands for op in self._condition(operand, binding)]

    def _call(self, call: Call, binding: Binding, top: bool) -> list[Op]:
        define = self.scope.defines.get(call.name.text)
        if define is None:
            return [("atom", self.scope.atom(call, binding))]
        if self.scope.is_plan(define.body):
            self._plan_as_condition(f"`{call.name.text}`, which is defined as a plan,", call.span)
            return [("atom", BROKEN)]
        inner = self.scope.bind(call, binding)
        return [("atom", BROKEN)] if inner is None else self._condition(define.body, inner, top)

    def _plan_as_condition(self, what: str, span: Span) -> None:
        help_ = "a condition is a verb or predicate, combined with `and`, `or`, `not`"
        self.report.error("T030", f"{what} stands where a condition is needed", span, help_)

    # -- plans ---------------------------------------------------------------------------------------------------------
    def plan(self, expr: Node, binding: Binding, frame: Frame) -> list[int]:
        """Append the subtasks of a plan; their numbers."""
        with self._visit(expr):
            match expr:
                case tree.Then(members):
                    numbers: list[int] = []
                    previous: list[int] = []
                    for member in members:
                        current = self.plan(member, binding, frame)
                        for number in current:
                            self.subtasks[number].earlier.update(previous)
                        previous = current or previous
                        numbers += current
                    return numbers
                case tree.Group(members):
                    return [number for member in members for number in self.plan(member, binding, frame)]
                case tree.Each(variable, values, body):
                    numbers = []
                    for value in values:
                        bound = binding.get(value.text, value) if isinstance(value, Word) else value
                        inside = {**binding, variable.text: bound}
                        numbers += self.plan(body, inside, frame.inner([bound]))
                    return numbers
                case Call() if self.scope.is_plan(expr):
                    inner = self.scope.bind(expr, binding)
                    if inner is None:
                        return []
                    body = self.scope.defines[expr.name.text].body
                    return self.plan(body, inner, frame.inner(list(inner.values())))
                case Step(condition=inside) if self.scope.is_plan(inside):
                    message = "annotations belong to one subtask, and this is a plan"
                    span = next(item.span for item in (expr.duration, expr.label, expr.worth, *expr.after) if item)
                    self.report.error("T033", message, span, "write them on the subtasks inside")
                    return self.plan(inside, binding, frame)
                case Step():
                    return [self._subtask(expr, expr.condition, expr, binding, frame)]
            return [self._subtask(expr, expr, None, binding, frame)]

    def _subtask(self, source: Node, condition: Node, step: Step | None, binding: Binding, frame: Frame) -> int:
        number = len(self.subtasks)
        if number >= MAX_SUBTASKS:
            self.report.error("T003", f"more than {MAX_SUBTASKS} subtasks", source.span, "split the task")
            raise TooMuchError
        program = self.condition(condition, binding)
        shown = substitute(condition.operand if isinstance(condition, tree.Newly) else condition, binding)
        subtask = Subtask(source, show(shown), program, self._newly, frame, step)
        self.subtasks.append(subtask)
        if step is not None:
            if step.duration is not None:
                subtask.duration = self.scope.steps(step.duration, whole=False)
            if step.worth is not None:
                subtask.worth = float(step.worth.value)
                if subtask.worth < 0:
                    help_ = "0 pays nothing; what must not happen is said with `fail`"
                    self.report.error("T034", "`worth` cannot be negative", step.worth.span, help_)
            if step.label is not None:
                frame.labels.setdefault(step.label.text, number)
                subtask.label = "_".join([step.label.text, *frame.values])
        if not subtask.label:
            call = _first_call(shown)
            subtask.label = "_".join([call.name.text, *map(slug, call.args)])
        return number

    @contextmanager
    def _visit(self, node: Node) -> Iterator[None]:
        self._visited += 1
        if self._visited > MAX_EXPANSION or self._depth > MAX_DEPTH:
            self.report.error("T003", "the definitions expand too far", node.span, "write the plan with fewer of them")
            raise TooMuchError
        self._depth += 1
        yield
        self._depth -= 1


def _first_call(node: Node) -> Call:
    while not isinstance(node, Call):
        node = next(child for child in node.children() if not isinstance(child, tree.Quantity))
    return node


def finish(lowering: Lowering) -> tuple[SubtaskSpec, ...]:
    """Unique labels, `after`, cycles and the transitive closure of the order."""
    subtasks, report = lowering.subtasks, lowering.report
    _name(lowering)
    waits = [(i, word) for i, subtask in enumerate(subtasks) if subtask.step for word in subtask.step.after]
    edges = [(i, _find(lowering, i, word), word) for i, word in waits]
    for i, other, _ in edges:
        if other is not None:
            subtasks[i].earlier.add(other)
    closed = [sum(1 << j for j in subtask.earlier) for subtask in subtasks]
    for k in range(len(closed)):
        closed = [row | closed[k] if row >> k & 1 else row for row in closed]
    circles: set[frozenset[int]] = set()
    for i, other, word in edges:
        if other is not None and (other == i or closed[other] >> i & 1):
            circle = _path(subtasks, other, i)
            if frozenset(circle) in circles:
                continue
            circles.add(frozenset(circle))
            chain = " after ".join(f"`{subtasks[j].label}`" for j in circle)
            message = f"`{subtasks[i].label}` would wait for itself" + (f": {chain}" if other != i else "")
            report.error("T022", message, word.span, "an order has no circles: leave one of these out")
    atoms = list(lowering.scope.atoms)
    return tuple(
        SubtaskSpec(
            label=each.label,
            condition=each.text,
            program=each.program,
            prerequisites=tuple(j for j in range(len(subtasks)) if row >> j & 1),
            duration=each.duration,
            worth=each.worth,
            newly=each.newly,
            pulse=any(op[0] == "atom" and op[1] != BROKEN and atoms[op[1]].pulse for op in each.program),
            line=each.source.span.line,
        )
        for each, row in zip(subtasks, closed, strict=True)
    )


def _name(lowering: Lowering) -> None:
    """Written labels must be unique; the others get a number where they are not."""
    used: set[str] = set()
    for subtask in lowering.subtasks:
        if subtask.step and subtask.step.label:
            if subtask.label in used:
                help_ = "a label names one subtask: choose another"
                lowering.report.error("T020", f"the label `{subtask.label}` is taken", subtask.step.label.span, help_)
            used.add(subtask.label)
    for subtask in lowering.subtasks:
        if not (subtask.step and subtask.step.label):
            name, number = subtask.label, 2
            while subtask.label in used:
                subtask.label, number = f"{name}_{number}", number + 1
            used.add(subtask.label)


def _find(lowering: Lowering, number: int, word: Word) -> int | None:
    frame: Frame | None = lowering.subtasks[number].frame
    while frame is not None:
        if word.text in frame.labels:
            return frame.labels[word.text]
        frame = frame.parent
    labels = [subtask.label for subtask in lowering.subtasks]
    if word.text in labels:
        return labels.index(word.text)
    help_ = suggest(word.text, labels) or f"the labels are: {listing(labels)}"
    lowering.report.error("T021", f"unknown label `{word.text}`", word.span, help_)
    return None


def _path(subtasks: Sequence[Subtask], start: int, goal: int) -> list[int]:
    """`goal`, then from `start` back to `goal` along the order: the circle in words."""
    paths, seen = [[start]], {start}
    for path in paths:
        if path[-1] == goal:
            return [goal, *path]
        for j in sorted(subtasks[path[-1]].earlier - seen):
            seen.add(j)
            paths.append([*path, j])
    return [goal, start]
