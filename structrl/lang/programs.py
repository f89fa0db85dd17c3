"""Postfix programs (structrl.lang.spec.Program) as trees and as text."""

from collections.abc import Sequence
from dataclasses import dataclass

from structrl.lang.spec import AtomSpec, Program


@dataclass(frozen=True)
class Node:
    """One operation: `kind` atom | not | and | or | at_least | for | steps_of; `number` is its atom, k or steps."""

    kind: str
    number: int = 0
    parts: tuple["Node", ...] = ()


def tree(program: Program) -> Node:
    """The tree of a postfix program."""
    stack: list[Node] = []
    for op in program:
        match op:
            case ("atom", int(i)):
                stack.append(Node("atom", i))
                continue
            case ("at_least", int(k), int(n)):
                node = Node("at_least", k, tuple(stack[-n:]))
            case ("and" | "or" as kind, int(n)):
                node = Node(kind, 0, tuple(stack[-n:]))
            case ("for" | "steps_of" as kind, int(steps)):
                node = Node(kind, steps, (stack[-1],))
            case ("not",):
                node = Node("not", 0, (stack[-1],))
            case _:
                raise ValueError(f"unknown operation {op!r} in a program")
        del stack[-len(node.parts) :]
        stack.append(node)
    if len(stack) != 1:
        raise ValueError(f"a program must leave one truth value, this leaves {len(stack)}: {program}")
    return stack[0]


def text(node: Node, atoms: Sequence[AtomSpec | str]) -> str:
    """The condition in the words of the language, `in(apple_1, box_1) and not grasped(apple_1)`."""

    def inner(part: Node) -> str:
        return f"({text(part, atoms)})" if part.parts and part.kind not in ("not", "at_least") else text(part, atoms)

    match node.kind:
        case "atom":
            return str(atoms[node.number])
        case "not":
            return f"not {inner(node.parts[0])}"
        case "and" | "or":
            return f" {node.kind} ".join(inner(part) for part in node.parts)
        case "at_least":
            return f"at least {node.number} of ({', '.join(text(part, atoms) for part in node.parts)})"
        case "for":
            return f"{inner(node.parts[0])} for {node.number} steps"
        case _:
            return f"{node.number} steps of {inner(node.parts[0])}"


def leaves(node: Node, positive: bool = True) -> list[tuple[int, bool]]:
    """(atom, whether it must be true) of every leaf in order, without repetitions."""
    if node.kind == "atom":
        return [(node.number, positive)]
    flip = node.kind == "not"
    return list(dict.fromkeys(leaf for part in node.parts for leaf in leaves(part, positive != flip)))
