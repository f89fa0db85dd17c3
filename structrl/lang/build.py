"""lark's parse tree to our syntax tree, one method per rule of the grammar.

The tree keeps all tokens, from which the spans are found here: with lark's own positions, and its transformers, parsing
takes twice as long. Runs without recursion, so depth is the parser's concern, not Python's.
"""

import math
import re
from collections.abc import Callable
from typing import Any

from lark import Token, Tree

from structrl.lang import tree
from structrl.lang.diagnostics import Diagnostic
from structrl.lang.tree import Span

_CONTENT = ("NAME", "STRING", "INT", "NUMBER", "QUANTITY")  # tokens that mean something besides their place
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


def build(raw: Tree[Token]) -> tuple[tree.Document, list[Diagnostic]]:
    """The document of a parse tree, and problems that only the text as written shows."""
    builder = _Builder()
    rules: dict[str, Callable[[Span, list[Any]], Any]] = {}
    todo, order = [raw], []
    while todo:
        node = todo.pop()
        order.append(node)
        todo += [child for child in node.children if isinstance(child, Tree)]
    built: list[tuple[Any, Span]] = []  # a stack; `order` from behind has children before parents, first to last
    for node in reversed(order):
        start = len(built) - sum(isinstance(child, Tree) for child in node.children)
        inner = iter(built[start:])
        del built[start:]
        parts, spans = [], []
        for child in node.children:
            if isinstance(child, Tree):
                part, span = next(inner)
                parts.append(part)
            else:
                span = _span(child)
                if child.type in _CONTENT:
                    parts.append(child)
            spans.append(span)
        whole = spans[0]._replace(end=spans[-1].end) if spans else tree.NOWHERE
        rule = rules.get(node.data) or rules.setdefault(node.data, getattr(builder, node.data))
        built.append((rule(whole, parts), whole))
    return built[0][0], builder.diagnostics


class _Paren:
    """Parentheses: needed only to see whether `for` had them."""

    def __init__(self, inner: tree.Expr) -> None:
        self.inner = inner


def _bare(node: Any) -> Any:
    return node.inner if isinstance(node, _Paren) else node


def _span(at: Token) -> Span:
    return Span(at.start_pos or 0, at.end_pos or 0, at.line or 1, at.column or 1)


def _word(token: Token) -> tree.Word:
    return tree.Word(str(token), span=_span(token))


def _text(token: Token) -> tree.Text:
    return tree.Text(re.sub(r"\\(.)", r"\1", token[1:-1]), span=_span(token))


class _Builder:
    """Problems that need the parentheses as written go to `diagnostics`."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []

    def _quantity(self, token: Token) -> tree.Quantity:
        number = _NUMBER.match(token)
        assert number is not None, "the lexer matched a number"
        unit = token[number.end() :].strip() or None
        span = _span(token)
        if len(number[0]) > 30 or not math.isfinite(float(number[0])):
            self.diagnostics.append(Diagnostic("T034", "this number is too long or too large", span))
            return tree.Quantity(1, unit, span=span)
        value = float(number[0]) if re.search(r"[.eE]", number[0]) else int(number[0])
        return tree.Quantity(value, "steps" if unit == "step" else unit, span=span)

    def _value(self, token: Token) -> tree.Value:
        if token.type == "NAME":
            return _word(token)
        return _text(token) if token.type == "STRING" else self._quantity(token)

    def _operand(self, node: Any, operator: str, examples: str) -> Any:
        """An operand behind its operator, where a `for` without parentheses could be read in two ways."""
        if isinstance(node, tree.HeldFor):
            message = f"`for` after `{operator}` can be read in two ways"
            self.diagnostics.append(Diagnostic("T032", message, node.span, f"add parentheses: {examples}"))
        return _bare(node)

    def _operands(self, parts: list[Any], operator: str) -> tuple[tree.Expr, ...]:
        examples = f"`(a {operator} b) for 10 steps` or `a {operator} (b for 10 steps)`"
        return (_bare(parts[0]), *(self._operand(part, operator, examples) for part in parts[1:]))

    # -- the file ------------------------------------------------------------------------------------------------------
    def bare(self, span: Span, parts: list[Any]) -> tree.Document:
        plan = tree.PlanItem(_bare(parts[0]), span=span)
        return tree.Document((plan,), bare=True, span=span)

    def document(self, span: Span, parts: list[Any]) -> tree.Document:
        return tree.Document(tuple(parts), span=span)

    def task(self, span: Span, parts: list[Any]) -> tree.TaskName:
        return tree.TaskName(_word(parts[0]), span=span)

    def command(self, span: Span, parts: list[Any]) -> tree.Command:
        return tree.Command(_text(parts[0]), span=span)

    def sim(self, span: Span, parts: list[Any]) -> tree.Sim:
        return tree.Sim(_word(parts[0]), tuple(parts[1:]), span=span)

    def horizon(self, span: Span, parts: list[Any]) -> tree.Horizon:
        return tree.Horizon(self._quantity(parts[0]), span=span)

    def let(self, span: Span, parts: list[Any]) -> tree.Let:
        return tree.Let(_word(parts[0]), _text(parts[1]), span=span)

    def define(self, span: Span, parts: list[Any]) -> tree.Define:
        params = parts[1] if len(parts) == 3 else ()
        return tree.Define(_word(parts[0]), params, _bare(parts[-1]), span=span)

    def params(self, span: Span, parts: list[Any]) -> tuple[tree.Word, ...]:
        return tuple(_word(part) for part in parts)

    def success(self, span: Span, parts: list[Any]) -> tree.Success:
        return tree.Success(_bare(parts[0]), span=span)

    def fail(self, span: Span, parts: list[Any]) -> tree.Fail:
        return tree.Fail(_bare(parts[0]), span=span)

    def plan(self, span: Span, parts: list[Any]) -> tree.PlanItem:
        return tree.PlanItem(_bare(parts[0]), span=span)

    # -- plans ---------------------------------------------------------------------------------------------------------
    def then(self, span: Span, parts: list[Any]) -> tree.Then:
        return tree.Then(tuple(map(_bare, parts)), span=span)

    def group(self, span: Span, parts: list[Any]) -> tree.Group:
        return tree.Group(tuple(map(_bare, parts)), span=span)

    def each(self, span: Span, parts: list[Any]) -> tree.Each:
        return tree.Each(_word(parts[0]), parts[1], _bare(parts[2]), span=span)

    def values(self, span: Span, parts: list[Any]) -> tuple[tree.Value, ...]:
        return tuple(self._value(part) for part in parts)

    def step(self, span: Span, parts: list[Any]) -> tree.Step:
        given: dict[str, Any] = {}
        for name, value, place in parts[1:]:
            if name in given:
                self.diagnostics.append(Diagnostic("T033", f"`{_SIGN[name]}` is given twice for one subtask", place))
            given[name] = value
        return tree.Step(_bare(parts[0]), span=span, **given)

    def duration(self, span: Span, parts: list[Any]) -> tuple[str, Any, Span]:
        return "duration", self._quantity(parts[0]), span

    def label(self, span: Span, parts: list[Any]) -> tuple[str, Any, Span]:
        return "label", _word(parts[0]), span

    def worth(self, span: Span, parts: list[Any]) -> tuple[str, Any, Span]:
        return "worth", self._quantity(parts[0]), span

    def after(self, span: Span, parts: list[Any]) -> tuple[str, Any, Span]:
        return "after", tuple(_word(part) for part in parts), span

    # -- conditions ----------------------------------------------------------------------------------------------------
    def either(self, span: Span, parts: list[Any]) -> tree.Or:
        return tree.Or(self._operands(parts, "or"), span=span)

    def both(self, span: Span, parts: list[Any]) -> tree.And:
        return tree.And(self._operands(parts, "and"), span=span)

    def negation(self, span: Span, parts: list[Any]) -> tree.Not:
        examples = "`(not a) for 10 steps` or `not (a for 10 steps)`"
        return tree.Not(self._operand(parts[0], "not", examples), span=span)

    def newly(self, span: Span, parts: list[Any]) -> tree.Newly:
        return tree.Newly(_bare(parts[0]), span=span)

    def steps_of(self, span: Span, parts: list[Any]) -> tree.StepsOf:
        examples = "`(5 steps of a) for 10 steps` or `5 steps of (a for 10 steps)`"
        return tree.StepsOf(self._quantity(parts[0]), self._operand(parts[1], "of", examples), span=span)

    def held(self, span: Span, parts: list[Any]) -> tree.HeldFor:
        return tree.HeldFor(_bare(parts[0]), self._quantity(parts[1]), span=span)

    def call(self, span: Span, parts: list[Any]) -> tree.Call:
        args = tuple(self._value(part) for part in parts[1:] if isinstance(part, Token))
        keywords = tuple(part for part in parts[1:] if isinstance(part, tree.Keyword))
        return tree.Call(_word(parts[0]), args, keywords, span=span)

    def keyword(self, span: Span, parts: list[Any]) -> tree.Keyword:
        return tree.Keyword(_word(parts[0]), self._value(parts[1]), span=span)

    setting = keyword

    def at_least(self, span: Span, parts: list[Any]) -> tree.AtLeast:
        return tree.AtLeast(self._quantity(parts[0]), tuple(map(_bare, parts[1:])), span=span)

    def paren(self, span: Span, parts: list[Any]) -> _Paren:
        return _Paren(_bare(parts[0]))


_SIGN = {"duration": "@", "label": "as", "worth": "worth", "after": "after"}
