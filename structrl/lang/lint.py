"""What is legal in a task file and hardly what its author meant: warnings, and errors for what can never be true."""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from structrl.lang import tree
from structrl.lang.diagnostics import listing
from structrl.lang.logic import Claim, Logic
from structrl.lang.lower import BROKEN, Lowering
from structrl.lang.order import direct_prerequisites
from structrl.lang.programs import Node, text
from structrl.lang.programs import tree as tree_of
from structrl.lang.spec import AtomSpec, Program, SubtaskSpec
from structrl.lang.tree import Document


def lint(
    document: Document,
    lowering: Lowering,
    subtasks: Sequence[SubtaskSpec],
    ends: Mapping[str, Program | None],
    horizon: float | None,
) -> None:
    """Report findings on a lowered file.

    Args:
        document: the file.
        lowering: as finished; its subtasks give the places of `subtasks`.
        subtasks: of the plan.
        ends: the programs of `success` (the simulator's own check, if that is known and the file has none) and `fail`.
        horizon: environment steps, None where there is none.
    """
    scope, report = lowering.scope, lowering.report
    atoms = tuple(scope.atoms)
    logic = Logic(atoms, scope.vocabulary)
    _never(document, lowering, subtasks, ends, logic)
    if report.failed:  # of a file with errors little is certain, and these would hide them
        return
    _unused(document, lowering)
    plan = _Plan(lowering, subtasks, logic, atoms, any(isinstance(item, tree.Success) for item in document.items))
    plan.pairs()
    plan.together()
    plan.too_long(horizon, document)
    conditions = {name: None if program is None else tree_of(program) for name, program in ends.items()}
    # Without a vocabulary `close(box)` in the plan and `closed(box)` in `success` are not known to be the same.
    if conditions["success"] is not None and scope.vocabulary is not None:
        plan.success(conditions["success"])
    if conditions["fail"] is not None:
        plan.fail(conditions["fail"], conditions["success"], document)


def _never(
    document: Document,
    lowering: Lowering,
    subtasks: Sequence[SubtaskSpec],
    ends: Mapping[str, Program | None],
    logic: Logic,
) -> None:
    words = _words(lowering)
    places = [(each.program, found.source.span) for each, found in zip(subtasks, lowering.subtasks, strict=True)]
    for item in document.items:
        if isinstance(item, tree.Success | tree.Fail):
            program = ends["success" if isinstance(item, tree.Success) else "fail"]
            places += [(program, item.condition.span)] if program else []
    for program, span in places:
        broken = any(op == ("atom", BROKEN) or (op[0] == "at_least" and not 1 <= op[1] <= op[2]) for op in program)
        if not broken and not logic.possible((tree_of(program), True)):
            help_ = "it asks for things that exclude each other; are they alternatives, `or`, or one `then` the other?"
            lowering.report.error("T050", f"`{text(tree_of(program), words)}` can never be true", span, help_)


def _unused(document: Document, lowering: Lowering) -> None:
    words = Counter(node.text for node in document.nodes if isinstance(node, tree.Word))
    for item in document.items:
        if isinstance(item, tree.Let) and words[item.name.text] == 1:  # there
            help_ = "leave it out, or use it in place of the simulator's name"
            lowering.report.warning("T025", f"`{item.name.text}` is never used", item.name.span, help_)
    called = {node.name.text for node in document.nodes if isinstance(node, tree.Call)}
    for item in document.items:
        if isinstance(item, tree.Define) and item.name.text not in called:
            example = f"{item.name.text}({', '.join(param.text for param in item.params)})"
            message = f"`{item.name.text}` is never used"
            lowering.report.warning("T025", message, item.name.span, f"leave it out, or use it: `{example}`")


def _words(lowering: Lowering) -> tuple[str, ...]:
    """The atoms as they may be written in the file: thresholds in SI units, which `AtomSpec` leaves out."""
    words = []
    for atom in lowering.scope.atoms:
        predicate = lowering.scope.vocabulary and lowering.scope.vocabulary.predicate(atom.predicate)
        units = {name: param.unit for name, param in predicate.params.items()} if predicate else {}
        params = [f"{name}={value:g}{units.get(name, '').strip('1')}" for name, value in atom.params]
        words.append(f"{atom.predicate}({', '.join([*atom.args, *params])})")
    return tuple(words)


class _Plan:
    """The checks of subtasks against each other and against what ends the episode."""

    def __init__(
        self,
        lowering: Lowering,
        subtasks: Sequence[SubtaskSpec],
        logic: Logic,
        atoms: tuple[AtomSpec, ...],
        own_line: bool,
    ) -> None:
        self.report = lowering.report
        self.subtasks = subtasks
        self.logic = logic
        self.atoms = atoms
        self.words = _words(lowering)
        self.spans = [each.source.span for each in lowering.subtasks]
        self.conditions = [tree_of(each.program) for each in subtasks]
        before = [frozenset(each.prerequisites) for each in subtasks]
        self.direct = direct_prerequisites(before)
        self.last = sorted(set(range(len(subtasks))).difference(*before))
        self.told: set[int] = set()  # subtasks with a finding about how they end
        vocabulary = lowering.scope.vocabulary
        self.own = "" if own_line or vocabulary is None else f"{vocabulary.sim}'s own check of success"

    def _label(self, i: int) -> str:
        return f"`{self.subtasks[i].label}`"

    def pairs(self) -> None:
        """Subtasks without an order whose turn comes at the same time: equal, or excluding each other."""
        related = [self.logic.related(condition) for condition in self.conditions]
        for i, mine in enumerate(self.subtasks):
            for j in range(i):
                other = self.subtasks[j]
                if mine.prerequisites != other.prerequisites or not related[i] & related[j]:
                    continue
                a, b = self.conditions[j], self.conditions[i]
                if a == b or (self.logic.implies(a, b) and self.logic.implies(b, a)):
                    if mine.newly == other.newly:
                        message = (
                            f"{self._label(i)} asks for the same as {self._label(j)}: both complete in the same step"
                        )
                        self.report.warning("T051", message, self.spans[i], "leave one of them out")
                elif not self.logic.possible((a, True), (b, True)):
                    message = f"{self._label(j)} and {self._label(i)} exclude each other, and neither has to come first"
                    help_ = f"if one does, order them: `{other.condition} then {mine.condition}`"
                    self.report.warning("T052", message, self.spans[i], help_)

    def together(self) -> None:
        """A subtask that is true at the very step in which the last of its prerequisites completes."""
        for i, subtask in enumerate(self.subtasks):
            implied = all(self.logic.implies(self.conditions[j], self.conditions[i]) for j in self.direct[i])
            if self.direct[i] and not subtask.newly and implied:
                names = listing(self.subtasks[j].label for j in self.direct[i])
                message = f"{self._label(i)} completes in the same step as what comes before it ({names})"
                help_ = f"if it has to happen again: `newly {_inside(subtask)}`; if not, leave it out"
                self.report.warning("T053", message, self.spans[i], help_)

    def too_long(self, horizon: float | None, document: Document) -> None:
        """The longest chain of durations against the horizon."""
        if horizon is None:
            return
        reach: dict[int, float] = {}
        for i in sorted(range(len(self.subtasks)), key=lambda i: len(self.subtasks[i].prerequisites)):
            start = max((reach[j] for j in self.direct[i]), default=0.0)
            reach[i] = start + (self.subtasks[i].duration or 0.0)
        longest = max(reach.values(), default=0.0)
        if longest > horizon:
            span = next(item.length.span for item in document.items if isinstance(item, tree.Horizon))
            message = f"the horizon is {horizon:g} steps, and subtasks that must follow each other take {longest:g}"
            more = math.ceil(0.15 * longest) * 10
            help_ = f"for example `horizon {more} steps`, which leaves time for slower episodes"
            self.report.warning("T046", message, span, help_)

    def success(self, success: Node) -> None:
        """Subtasks that success does not wait for."""
        for j, condition in enumerate(self.conditions):
            if self.logic.implies(condition, success):
                self._cut(j)
        named = set(_parts(success, True))
        for i in self.last:
            claims = [self._lasting(claim) for claim in _claims(self.conditions[i])]
            missing = [
                self._words(claim)
                for claim in claims
                if claim not in named and self.logic.possible((success, True), (claim[0], not claim[1]))
            ]
            if missing and i not in self.told:
                who = self.own or "success"
                message = f"{who} does not ask for {self._label(i)}, which is forfeited if success comes first"
                help_ = f"unless that is meant, add to `success`: `{' and '.join(missing)}`"
                if self.own:
                    stated = text(success, self.words)
                    help_ = (
                        f"it is `{stated}`; a line `success ...` replaces it, and could add `{' and '.join(missing)}`"
                    )
                if not self.logic.possible((success, True), (self.conditions[i], True)):
                    help_ = "it cannot be true at success: order it before another subtask, with `then`"
                self.report.warning("T054", message, self.spans[i], help_)

    def fail(self, fail: Node, success: Node | None, document: Document) -> None:
        """Subtasks, and success, that are true only where `fail` is, which comes first."""
        if success is not None and self.logic.implies(success, fail):
            kind = tree.Fail if self.own else tree.Success
            span = next(item.condition.span for item in document.items if isinstance(item, kind))
            message = "`fail` is true wherever `success` is, and an episode with both has failed"
            self.report.warning("T055", message, span, "let `fail` exclude it: `fail ... and not (...)`")
        for j, condition in enumerate(self.conditions):
            if self.logic.implies(condition, fail):
                message = f"`fail` is true wherever {self._label(j)} is, and ends the episode"
                self.report.warning("T055", message, self.spans[j], "one of the two is not what is meant")

    def _cut(self, j: int) -> None:
        """Success ends the episode with subtask j: what comes after it."""
        for i, subtask in enumerate(self.subtasks):
            known = j not in subtask.prerequisites or i in self.told
            if not known and not self.logic.implies(self.conditions[j], self.conditions[i]):
                self.told.add(i)
                message = f"{self._label(i)} comes too late: success is reached with {self._label(j)}, and is the end"
                help_ = f"let `success` ask for {self._label(i)} too, or leave {self._label(i)} out"
                if self.own:
                    help_ = f"a line `success ...` that asks for more would replace {self.own}"
                self.report.warning("T055", message, self.spans[i], help_)

    def _lasting(self, claim: Claim) -> Claim:
        """In place of a momentary event, that it has happened: what `success` can ask for."""
        node, truth = claim
        if node.kind == "atom" and truth and self.atoms[node.number].pulse:
            atom = self.atoms[node.number]
            twin = dataclasses.replace(atom, predicate=f"was_{atom.predicate}", pulse=False)
            if twin in self.atoms:
                return Node("atom", self.atoms.index(twin)), True
        return claim

    def _words(self, claim: Claim) -> str:
        node, truth = claim
        words = text(node, self.words)
        if node.kind == "atom" and self.atoms[node.number].pulse:
            words = f"was_{words}"
        if node.kind in ("and", "or", "for"):
            words = f"({words})"
        return words if truth else f"not {words}"


def _inside(subtask: SubtaskSpec) -> str:
    """The condition as it may stand behind `newly`."""
    return subtask.condition if subtask.program[-1][0] in ("atom", "at_least") else f"({subtask.condition})"


def _claims(node: Node, truth: bool = True) -> list[Claim]:
    """A condition as claims that all have to be true."""
    if node.kind == "not":
        return _claims(node.parts[0], not truth)
    if node.kind == ("and" if truth else "or"):
        return [claim for part in node.parts for claim in _claims(part, truth)]
    return [(node, truth)]


def _parts(node: Node, truth: bool) -> list[Claim]:
    """All parts of a condition with the truth that helps to make it true."""
    if node.kind == "not":
        return _parts(node.parts[0], not truth)
    inner = node.parts if node.kind in ("and", "or", "at_least") else ()
    return [(node, truth), *(claim for part in inner for claim in _parts(part, truth))]
