"""The syntax tree of a task file: frozen dataclasses that compare by meaning, not by where they stand.

Every node keeps its `Span`. The rungs of the ladder (grammar/task.lark) are in `RUNG`; the printer adds parentheses
where a child is looser than its place allows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias


class Span(NamedTuple):
    """A stretch of the source: offsets [start, end), and the 1-based line and column of `start`."""

    start: int
    end: int
    line: int
    col: int


NOWHERE = Span(0, 0, 1, 1)


@dataclass(frozen=True)
class Node:
    """What all nodes share."""

    span: Span = field(default=NOWHERE, compare=False, repr=False, kw_only=True)

    def children(self) -> list["Node"]:
        """The direct child nodes, in source order."""
        found: list[Node] = []
        for value in vars(self).values():
            if isinstance(value, Node):
                found.append(value)
            elif type(value) is tuple:  # not a Span
                found += [member for member in value if isinstance(member, Node)]
        return found


def walk(node: Node) -> Iterator[Node]:
    """A node and all below it, in source order."""
    todo = [node]
    while todo:
        node = todo.pop()
        yield node
        todo += reversed(node.children())


# -- leaves -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Word(Node):
    """A name as written: an entity, a `let` name, a parameter, a label."""

    text: str


@dataclass(frozen=True)
class Text(Node):
    """A string, without its quotes and escapes."""

    value: str


@dataclass(frozen=True)
class Quantity(Node):
    """A number with an optional unit. An integer stays an `int`."""

    value: int | float
    unit: str | None = None


Value: TypeAlias = Word | Text | Quantity


@dataclass(frozen=True)
class Keyword(Node):
    """`name=value`, of a call or of the simulator."""

    name: Word
    value: Value


# -- conditions -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Call(Node):
    """A verb, a predicate or a defined name on its arguments."""

    name: Word
    args: tuple[Value, ...]
    keywords: tuple[Keyword, ...] = ()


@dataclass(frozen=True)
class Not(Node):
    """`not operand`."""

    operand: "Expr"


@dataclass(frozen=True)
class And(Node):
    """`a and b and ...`, two or more."""

    operands: tuple["Expr", ...]


@dataclass(frozen=True)
class Or(Node):
    """`a or b or ...`, two or more."""

    operands: tuple["Expr", ...]


@dataclass(frozen=True)
class AtLeast(Node):
    """`at least count of (a, b, ...)`."""

    count: Quantity
    operands: tuple["Expr", ...]


@dataclass(frozen=True)
class HeldFor(Node):
    """`operand for 10 steps`: held so long without a break.."""

    operand: "Expr"
    length: Quantity


@dataclass(frozen=True)
class StepsOf(Node):
    """`10 steps of operand`: so many steps in all, breaks allowed."""

    length: Quantity
    operand: "Expr"


@dataclass(frozen=True)
class Newly(Node):
    """`newly operand`: must become true after its turn has come."""

    operand: "Expr"


# -- plans ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Step(Node):
    """A subtask with annotations: `condition @ 61 as label worth 2 after a, b`."""

    condition: "Expr"
    duration: Quantity | None = None
    label: Word | None = None
    worth: Quantity | None = None
    after: tuple[Word, ...] = ()


@dataclass(frozen=True)
class Then(Node):
    """`a then b then ...`, two or more: all of one before any of the next."""

    members: tuple["Expr", ...]


@dataclass(frozen=True)
class Group(Node):
    """`group < a; b >`: no order among the members."""

    members: tuple["Expr", ...]


@dataclass(frozen=True)
class Each(Node):
    """`each x in (a, b): body`: a group of the body, once for each value."""

    variable: Word
    values: tuple[Value, ...]
    body: "Expr"


Expr: TypeAlias = Call | Not | And | Or | AtLeast | HeldFor | StepsOf | Newly | Step | Then | Group | Each

RUNG: dict[type[Node], int] = {
    Then: 0,
    Each: 1,
    Step: 1,
    Or: 2,
    And: 3,
    Not: 4,
    Newly: 4,
    StepsOf: 4,
    HeldFor: 5,
    Call: 6,
    Group: 6,
    AtLeast: 6,
}
PLAN_ONLY = (Then, Group, Each, Step)


# -- the file ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TaskName(Node):
    """`task NAME`."""

    name: Word


@dataclass(frozen=True)
class Command(Node):
    """`command "..."`: the instruction given to the policy."""

    text: Text


@dataclass(frozen=True)
class Sim(Node):
    """`sim NAME(argument=value, ...)`."""

    name: Word
    args: tuple[Keyword, ...] = ()


@dataclass(frozen=True)
class Horizon(Node):
    """`horizon 240 steps`."""

    length: Quantity


@dataclass(frozen=True)
class Let(Node):
    """`let name = "entity"`."""

    name: Word
    entity: Text


@dataclass(frozen=True)
class Define(Node):
    """`define name(parameters) = body`."""

    name: Word
    params: tuple[Word, ...]
    body: Expr


@dataclass(frozen=True)
class Success(Node):
    """`success CONDITION`."""

    condition: Expr


@dataclass(frozen=True)
class Fail(Node):
    """`fail CONDITION`."""

    condition: Expr


@dataclass(frozen=True)
class PlanItem(Node):
    """`plan EXPRESSION`, or the whole of a file that holds only an expression."""

    body: Expr


Item: TypeAlias = TaskName | Command | Sim | Horizon | Let | Define | Success | Fail | PlanItem


@dataclass(frozen=True)
class Document(Node):
    """A file. `bare`: it holds only an expression."""

    items: tuple[Item, ...]
    bare: bool = False

    @cached_property
    def nodes(self) -> list[Node]:
        """The document and all nodes below it, in source order."""
        return list(walk(self))
