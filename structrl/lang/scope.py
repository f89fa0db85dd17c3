"""What the names of a file mean: `let`, parameters, entities of the scene, verbs and predicates, units of time."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from structrl.lang import tree
from structrl.lang.diagnostics import Diagnostic, listing, suggest
from structrl.lang.spec import AtomSpec
from structrl.lang.tree import Call, Define, Quantity, Span, Text, Value, Word
from structrl.lang.units import UNITS, si_unit, to_si
from structrl.sims.vocabulary import Predicate, Vocabulary

# Values of parameters and `each` variables; None where a definition is checked without being used.
Binding: TypeAlias = Mapping[str, Value | None]
BROKEN = -1  # the atom of a call that has an error
MAX_ERRORS = 100


class TooMuchError(Exception):
    """The file is beyond the bounds; reported."""


@dataclass
class Report:
    """Collects diagnostics; the same one is kept once, however often a definition is expanded."""

    found: dict[tuple[str, Span, str], Diagnostic] = field(default_factory=dict)
    errors: int = 0

    def error(self, code: str, message: str, span: Span, help_: str | None = None, severity: str = "error") -> None:
        """Add one.

        Raises:
            TooMuchError: after `MAX_ERRORS`; to look for names close to thousands of unknown ones would take long.
        """
        if (code, span, message) in self.found:
            return
        self.found[code, span, message] = Diagnostic(code, message, span, help_, severity)
        self.errors += severity == "error"
        if self.errors >= MAX_ERRORS:
            message = f"{MAX_ERRORS} errors; the rest of the file was not checked"
            self.found["T003", span, message] = Diagnostic("T003", message, span, "correct these first")
            raise TooMuchError

    def warning(self, code: str, message: str, span: Span, help_: str | None = None) -> None:
        """Add one that does not stop the task."""
        self.error(code, message, span, help_, "warning")

    def note(self, code: str, message: str, span: Span, help_: str | None = None) -> None:
        """Add one that says what was not checked."""
        self.error(code, message, span, help_, "note")

    @property
    def failed(self) -> bool:
        """Whether there is an error."""
        return self.errors > 0


def substitute(node: Any, binding: Binding) -> Any:
    """`node` with parameters replaced by their values, in arguments and keyword arguments."""
    if not binding:
        return node
    if isinstance(node, Call):
        return replace(
            node,
            args=tuple(_value(arg, binding) for arg in node.args),
            keywords=tuple(replace(each, value=_value(each.value, binding)) for each in node.keywords),
        )
    if hasattr(node, "operand"):
        return replace(node, operand=substitute(node.operand, binding))
    if hasattr(node, "operands"):
        return replace(node, operands=tuple(substitute(each, binding) for each in node.operands))
    return node


def _value(value: Value, binding: Binding) -> Value:
    given = binding.get(value.text) if isinstance(value, Word) else None
    return value if given is None else given


def slug(value: Value) -> str:
    """A value as part of a label."""
    match value:
        case Word(text) | Text(text):
            return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") or "_"
        case Quantity(number):
            return re.sub(r"[^A-Za-z0-9]+", "_", str(number))


@dataclass
class Scope:
    """Names of one file. Without a vocabulary any verb and entity is accepted, and atoms keep the words as written."""

    report: Report
    vocabulary: Vocabulary | None
    entities: Mapping[str, tuple[str, ...]] | None  # of the scene, with their kinds
    lets: dict[str, str]
    defines: dict[str, Define]
    atoms: dict[AtomSpec, int] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)  # definitions with an error: their uses are passed over
    variables: set[str] = field(default_factory=set)  # of all `each`

    @cached_property
    def _numbered(self) -> dict[str, list[str]]:
        """Entities `name_1`, `name_2`, ... of the scene under `name`."""
        found: dict[str, list[str]] = {}
        for entity in self.entities or ():
            name, _, number = entity.rpartition("_")
            if number.isascii() and number.isdigit():
                found.setdefault(name, []).append(entity)
        return found

    # -- calls ---------------------------------------------------------------------------------------------------------
    def atom(self, call: Call, binding: Binding) -> int:
        """The number of the atom that `call` stands for; equal atoms share one. `BROKEN` after an error."""
        before = len(self.report.found)
        word = call.name.text
        if word in self.broken:
            return BROKEN
        predicate: Predicate | None = None
        kinds: tuple[str, ...] = ()
        if self.vocabulary is not None:
            predicate = self.vocabulary.predicate(word)
            if predicate is None:
                known = [*self.vocabulary.words, *self.defines]
                help_ = suggest(word, known) or f"{self.vocabulary.sim} has: {listing(known, 30)}"
                self.report.error("T010", f"unknown verb or predicate `{word}`", call.name.span, help_)
                return BROKEN
            kinds = self.vocabulary.kinds(word)
            if len(call.args) != len(kinds):
                self.arity(call, kinds)
                return BROKEN
        args = [self._entity(arg, binding, call, kinds[i] if predicate else "any") for i, arg in enumerate(call.args)]
        params = self._params(call, binding, predicate)
        if None in args or len(self.report.found) > before:
            return BROKEN
        name, pulse = (predicate.name, predicate.pulse) if predicate else (word, False)
        spec = AtomSpec(name, tuple(arg for arg in args if arg is not None), params, pulse)
        return self.atoms.setdefault(spec, len(self.atoms))

    def arity(self, call: Call, wanted: Iterable[str]) -> None:
        """Report a wrong number of arguments."""
        names = tuple(wanted)
        plural = "" if len(names) == 1 else "s"
        message = f"`{call.name.text}` takes {len(names)} argument{plural}, {len(call.args)} given"
        self.report.error("T011", message, call.span, f"write `{call.name.text}({', '.join(names)})`")

    def _entity(self, arg: Value, binding: Binding, call: Call, kind: str) -> str | None:
        if isinstance(arg, Word) and arg.text in binding:
            bound = binding[arg.text]
            if bound is None:
                return None
            arg = bound
        if isinstance(arg, Quantity):
            help_ = "give thresholds by keyword: `near(a, b, dist=5cm)`"
            self.report.error("T013", "a number where an object is expected", arg.span, help_)
            return None
        name = self.entity(arg)
        if name is None or self.entities is None or kind == "any":
            return name
        if not set(kind.split("|")) & set(self.entities[name]):
            fitting = [each for each, kinds in self.entities.items() if set(kind.split("|")) & set(kinds)]
            shown = arg.text if isinstance(arg, Word) else name
            message = f"`{shown}` is no {kind.replace('|', ' or ')}, and `{call.name.text}` needs one here"
            help_ = f"it could be {listing(fitting)}" if fitting else f"the scene has no {kind}"
            self.report.error("T013", message, arg.span, help_)
            return None
        return name

    def entity(self, arg: Word | Text) -> str | None:
        """The simulator's name of an entity: by `let`, as written, or the only `name_1` of the scene."""
        name = self.lets.get(arg.text, arg.text) if isinstance(arg, Word) else arg.value
        if isinstance(arg, Word) and arg.text in self.variables and name not in (self.entities or self.lets):
            help_ = "its body is what follows the colon up to `then` or `;`: put more than that in parentheses"
            self.report.error("T012", f"`{name}` belongs to an `each`, and stands outside it", arg.span, help_)
            return None
        if self.entities is None or name in self.entities:
            return name
        numbered = self._numbered.get(name, [])
        if isinstance(arg, Word) and arg.text not in self.lets and len(numbered) == 1:
            return numbered[0]
        if isinstance(arg, Word) and arg.text in self.lets:
            return None  # reported where it was let
        if numbered and isinstance(arg, Word):
            message = f"`{name}` may be {' or '.join(f'`{each}`' for each in sorted(numbered))}"
            help_ = f'say which: let {name} = "{sorted(numbered)[0]}"'
        else:
            message = f"unknown object `{name}`"
            known = [*self.entities, *self.lets]
            if isinstance(arg, Word):
                known += [re.sub(r"_[0-9]+$", "", each) for each in self.entities]
            help_ = suggest(name, known) or f"the scene has: {listing(self.entities, 30)}"
        self.report.error("T012", message, arg.span, help_)
        return None

    def _params(self, call: Call, binding: Binding, predicate: Predicate | None) -> tuple[tuple[str, float], ...]:
        given: dict[str, float] = {}
        for keyword in call.keywords:
            name, value = keyword.name.text, keyword.value
            if name in given:
                self.report.error("T014", f"`{name}` is given twice", keyword.span)
                continue
            given[name] = 0.0
            param = predicate.params.get(name) if predicate else None
            if predicate and param is None:
                help_ = suggest(name, predicate.params)
                if not help_:
                    help_ = f"it has: {listing(predicate.params)}" if predicate.params else "it has none"
                message = f"`{call.name.text}` has no keyword argument `{name}`"
                self.report.error("T014", message, keyword.name.span, help_)
                continue
            if isinstance(value, Word) and value.text in binding:
                bound = binding[value.text]
                if bound is None:
                    continue
                value = bound
            if not isinstance(value, Quantity):
                self.report.error("T015", f"`{name}` needs a number", value.span, f"for example {name}=5cm")
            elif self._known_unit(value):
                unit = si_unit(value.unit)
                if param and unit != param.unit:
                    fitting = [str(each or "no unit") for each in (*UNITS, None) if si_unit(each) == param.unit]
                    message = f"`{name}` {'needs a unit' if value.unit is None else f'cannot be in {value.unit}'}"
                    self.report.error("T015", message, value.span, f"one of: {', '.join(fitting)}")
                else:
                    given[name] = to_si(value)
        return tuple(sorted(given.items()))

    # -- time ----------------------------------------------------------------------------------------------------------
    def _known_unit(self, quantity: Quantity) -> bool:
        if si_unit(quantity.unit) is not None:
            return True
        help_ = suggest(str(quantity.unit), UNITS) or f"the units are {' '.join(UNITS)}"
        self.report.error("T015", f"unknown unit `{quantity.unit}`", quantity.span, help_)
        return False

    def steps(self, quantity: Quantity, *, whole: bool) -> float | None:
        """A positive length of time in environment steps, None after an error. `whole`: it must be a whole number."""
        if not self._known_unit(quantity):
            return None
        if quantity.unit not in (None, "steps", "s"):
            self.report.error("T015", f"a time cannot be in {quantity.unit}", quantity.span, "steps or s")
            return None
        steps = float(quantity.value)
        if quantity.unit == "s":
            if self.vocabulary is None:
                message = "seconds need a simulator, whose control rate says how many steps they are"
                self.report.error("T044", message, quantity.span, "name it with `sim`, or write steps")
                return None
            steps = to_si(quantity) * self.vocabulary.control_hz
        if steps <= 0:
            self.report.error("T034", "a time must be positive", quantity.span)
            return None
        if whole and abs(steps - round(steps)) > 1e-6:
            message = "not a whole number of environment steps"
            help_ = f"write {max(1, round(steps))} steps"
            if quantity.unit == "s" and self.vocabulary:
                message = f"{quantity.value:g} s are {steps:g} steps at {self.vocabulary.control_hz:g} Hz, {message}"
            self.report.error("T034", message, quantity.span, help_)
            return None
        return float(round(steps)) if whole else steps

    # -- definitions ---------------------------------------------------------------------------------------------------
    def is_plan(self, expr: tree.Node) -> bool:
        """Whether an expression is a plan: it orders, groups or annotates, or calls a definition that does."""
        while isinstance(expr, Call) and expr.name.text in self.defines:
            expr = self.defines[expr.name.text].body
        return isinstance(expr, tree.PLAN_ONLY)

    def bind(self, call: Call, binding: Binding) -> dict[str, Value | None] | None:
        """Parameters of a defined name with the values of this call, None after an error."""
        define = self.defines[call.name.text]
        if call.keywords:
            help_ = "give the arguments in order"
            self.report.error("T014", "a defined name takes no keyword arguments", call.keywords[0].span, help_)
            return None
        if len(call.args) != len(define.params):
            self.arity(call, [param.text for param in define.params])
            return None
        values = [binding[arg.text] if isinstance(arg, Word) and arg.text in binding else arg for arg in call.args]
        return {param.text: value for param, value in zip(define.params, values, strict=True)}
