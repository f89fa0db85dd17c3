"""Whether one condition implies another, or excludes it: what `check` knows about a plan without running it.

A claim (condition, truth) is refuted by following it to its atoms and trying every way that an `or` leaves open. What
the vocabulary says about atoms is used: which exclude each other, and that a stricter threshold implies a looser one.
Whatever cannot be decided within the bounds counts as possible, so that no finding is a guess.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from structrl.lang.programs import Node
from structrl.lang.spec import AtomSpec
from structrl.sims.vocabulary import Predicate, Vocabulary

Claim: TypeAlias = tuple[Node, bool]
Choice: TypeAlias = tuple[int, tuple[Node, ...], bool]  # at least so many of these parts have that truth
State: TypeAlias = tuple[list[Claim], dict[Node, bool], list[Choice]]

MAX_CLAIMS = 4_000  # followed for one question
MAX_ALIKE = 50  # atoms on the same objects; their relations are learned pair by pair
MAX_TOTAL = 200_000  # followed for one file, a fraction of a second


class _UndecidedError(Exception):
    """Beyond the bounds."""


class Logic:
    """Answers questions about conditions on `atoms`, the atoms of one file.

    Without a vocabulary atoms are unrelated.
    """

    def __init__(self, atoms: Sequence[AtomSpec], vocabulary: Vocabulary | None = None) -> None:
        self._follows: dict[Claim, list[Claim]] = defaultdict(list)  # from one atom's truth to another's
        self._related = [{i} for i in range(len(atoms))]
        self._left = MAX_TOTAL
        if vocabulary is not None:
            self._learn(atoms, vocabulary)

    def possible(self, *claims: Claim) -> bool:
        """False if the claims can never be true together at one moment."""
        self._claims = MAX_CLAIMS
        states: list[State] = [(list(claims), {}, [])]
        try:
            while states:
                todo, known, choices = states.pop()
                if self._follow(todo, known, choices):
                    if not choices:
                        return True
                    states += self._ways(known, choices)
        except _UndecidedError:
            return True
        return False

    def implies(self, condition: Node, other: Node) -> bool:
        """Whether `other` is true at every moment at which `condition` is."""
        return not self.possible((condition, True), (other, False))

    def related(self, condition: Node) -> frozenset[int]:
        """The atoms of a condition, and those that they say something about."""
        return frozenset(j for i in _atoms(condition) for j in self._related[i])

    # -- atoms ---------------------------------------------------------------------------------------------------------
    def _learn(self, atoms: Sequence[AtomSpec], vocabulary: Vocabulary) -> None:
        alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for i, atom in enumerate(atoms):
            alike[atom.args].append(i)
        for numbers in alike.values():
            for i in numbers if len(numbers) <= MAX_ALIKE else ():
                for j in numbers:
                    one, other = (vocabulary.predicates.get(atoms[k].predicate) for k in (i, j))
                    if i == j or one is None or other is None:
                        continue
                    if _excludes(one, atoms[i], other, atoms[j]):
                        self._add((i, True), (j, False))
                    elif (one is other and _stricter(one, atoms[i], atoms[j])) or (
                        one.pulse and other.name == f"was_{one.name}"
                    ):
                        self._add((i, True), (j, True))

    def _add(self, one: tuple[int, bool], other: tuple[int, bool]) -> None:
        (i, truth), (j, follows) = one, other
        self._follows[Node("atom", i), truth].append((Node("atom", j), follows))
        self._follows[Node("atom", j), not follows].append((Node("atom", i), not truth))
        self._related[i].add(j)
        self._related[j].add(i)

    # -- claims --------------------------------------------------------------------------------------------------------
    def _follow(self, todo: list[Claim], known: dict[Node, bool], choices: list[Choice]) -> bool:
        """Follow claims down to `known` and `choices`; False if they contradict each other."""
        while todo:
            self._spend()
            node, truth = todo.pop()
            if node.kind == "not":
                todo.append((node.parts[0], not truth))
            elif node.kind in ("and", "or", "at_least"):
                count = {"and": len(node.parts), "or": 1}.get(node.kind, node.number)
                count = count if truth else len(node.parts) - count + 1
                if count == len(node.parts):
                    todo += [(part, truth) for part in node.parts]
                else:
                    choices.append((count, node.parts, truth))
            elif node not in known:
                known[node] = truth
                todo += self._follows.get((node, truth), ())
                if node.kind != "atom":
                    if (truth and node.kind == "for") or (not truth and node.number == 1):
                        todo.append((node.parts[0], truth))
                    self._spend(len(known))
                    if any(_clash(known, node, other) or _clash(known, other, node) for other in known):
                        return False
            elif known[node] != truth:
                return False
        return True

    def _ways(self, known: dict[Node, bool], choices: list[Choice]) -> Iterable[State]:
        """What the last choice leaves open, given what is known."""
        *others, (count, parts, truth) = choices
        self._spend(len(parts) + len(others) + len(known) // 8)  # the last: copies of what is known
        values = [known.get(part) for part in parts]
        rest = tuple(part for part, value in zip(parts, values, strict=True) if value is None)
        count -= sum(value == truth for value in values)
        if count <= 0:
            yield [], known, others
        elif count == len(rest):
            yield [(part, truth) for part in rest], known, others
        elif count < len(rest):
            yield [(rest[0], truth)], dict(known), [*others, (count - 1, rest[1:], truth)]
            yield [(rest[0], not truth)], dict(known), [*others, (count, rest[1:], truth)]

    def _spend(self, claims: int = 1) -> None:
        self._claims -= claims
        self._left -= claims
        if self._claims < 0 or self._left < 0:
            raise _UndecidedError


def _atoms(node: Node) -> Iterable[int]:
    if node.kind == "atom":
        yield node.number
    for part in node.parts:
        yield from _atoms(part)


def _clash(known: Mapping[Node, bool], one: Node, other: Node) -> bool:
    """`a for 10 steps` is known to be true, and `a for 5 steps`, or `5 steps of a`, to be false."""
    return (
        one.kind in (other.kind, "for")
        and other.kind != "atom"
        and one.number >= other.number
        and known[one]
        and not known[other]
        and one.parts == other.parts
    )


def _limit(predicate: Predicate, atom: AtomSpec) -> float | None:
    """The threshold of an atom; None where a parameter other than the threshold is given."""
    if not atom.params:
        return predicate.threshold
    meant = [name for name, param in predicate.params.items() if param.default == predicate.threshold]
    return atom.params[0][1] if [name for name, _ in atom.params] == meant else None


def _stricter(predicate: Predicate, one: AtomSpec, other: AtomSpec) -> bool:
    a, b = _limit(predicate, one), _limit(predicate, other)
    if a is None or b is None:
        return False
    return a <= b if predicate.op in ("<", "<=") else predicate.op in (">", ">=") and a >= b


def _excludes(one: Predicate, a: AtomSpec, other: Predicate, b: AtomSpec) -> bool:
    if other.name not in one.excludes and one.name not in other.excludes:
        return False
    if not a.params and not b.params:
        return True
    limits = _limit(one, a), _limit(other, b)
    if one.measure != other.measure or {one.op[:1], other.op[:1]} != {"<", ">"} or None in limits:
        return False
    below, above = limits if one.op[0] == "<" else reversed(limits)
    if below is None or above is None:
        return False
    return below < above or (below == above and {one.op, other.op} != {"<=", ">="})
