"""The formatter: one canonical layout, comments kept, and the same tree before and after.

A comment belongs to what it follows on its line, else to what comes next. Comments inside a condition move before it.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from structrl.lang import tree
from structrl.lang.check import check
from structrl.lang.diagnostics import TaskError
from structrl.lang.parser import Parsed, parse
from structrl.lang.printer import body, each_head, head, show
from structrl.lang.tree import RUNG, Document, Node, Quantity, Span, Step

WIDTH = 100
INDENT = "  "
NOTE = "# T_d: "  # begins the comments that `set_durations` writes, and replaces


def format_source(text: str, path: str = "<string>") -> str:
    """The canonical layout of a task file or a bare expression. Idempotent; comments are kept.

    Raises:
        TaskError: for text that does not parse.
    """
    parsed = _parse(text, path)
    result = _Layout(parsed, {}).document(parsed.document)
    again = parse(result, path)
    kept = [comment.text for comment in again.comments] == [comment.text for comment in parsed.comments]
    assert again.document == parsed.document and kept, "the formatter changed the meaning or lost a comment"
    return result


def set_durations(text: str, durations: Mapping[str, tuple[float, str]], path: str = "<string>") -> str:
    """The file with `@ T_d` of subtasks set, in canonical layout.

    Args:
        text: a task file or a bare expression.
        durations: label -> (environment steps, comment). The comment stands behind the subtask as `# T_d: ...` and
            replaces the one that an earlier call wrote there.
        path: for messages.

    Raises:
        TaskError: for text that does not parse.
        ValueError: for a label that the plan does not have, and where several subtasks with different durations come
            from one place, as inside `each`.
    """
    parsed = _parse(text, path)
    subtasks = {subtask.label: subtask for subtask in check(parsed, path).lowering.subtasks}
    unknown = sorted(set(durations) - set(subtasks))
    if unknown:
        raise ValueError(f"{path}: no subtask {', '.join(unknown)}; the plan has {', '.join(subtasks)}")
    places: dict[int, tuple[str, tuple[float, str]]] = {}
    notes: dict[tuple[int, int], str] = {}
    for label, (steps, comment) in durations.items():
        source = subtasks[label].source
        other, given = places.setdefault(id(source), (label, (steps, comment)))
        if given[0] != steps:
            raise ValueError(
                f"{path}:{source.span.line}: {other} and {label} come from one place and need two durations; "
                "write these subtasks out, without `each` or `define`"
            )
        notes[source.span[:2]] = NOTE + " ".join(comment.split()) if comment else ""
    values = {number: _quantity(steps) for number, (_, (steps, _)) in places.items()}
    return _Layout(parsed, notes).document(_with_durations(parsed.document, values))


def _parse(text: str, path: str) -> Parsed:
    parsed = parse(text, path)
    if parsed.diagnostics:  # to format it would be to choose one of its readings
        raise TaskError(parsed.diagnostics, parsed.text, path)
    return parsed


def _quantity(steps: float) -> Quantity:
    value = round(float(steps), 2)
    return Quantity(int(value) if value == int(value) else value)


def _with_durations(node: Any, values: Mapping[int, Quantity]) -> Any:
    """The tree with new durations on the nodes whose `id` is in `values`."""
    if isinstance(node, tuple):
        return tuple(_with_durations(each, values) for each in node) if not isinstance(node, Span) else node
    if not isinstance(node, Node):
        return node
    if id(node) in values:
        duration = values[id(node)]
        if isinstance(node, Step):
            return replace(node, duration=duration)
        return Step(node, duration, span=node.span)  # type: ignore[arg-type]
    inner = {name: value for name, value in vars(node).items() if isinstance(value, Node | tuple) and name != "span"}
    return replace(node, **{name: _with_durations(value, values) for name, value in inner.items()})


@dataclass
class _Line:
    text: str
    comment: str = ""

    def __str__(self) -> str:
        return f"{self.text}  {self.comment}" if self.comment else self.text


class _Layout:
    """Walks a document in source order and hands out its comments on the way."""

    def __init__(self, parsed: Parsed, notes: Mapping[tuple[int, int], str]) -> None:
        self.text = parsed.text
        self.comments = parsed.comments
        self.notes = notes
        self.starts = [0, *(i + 1 for i, char in enumerate(self.text) if char == "\n")]
        self.next = 0  # first comment not yet placed

    # -- comments ------------------------------------------------------------------------------------------------------
    def _before(self, offset: int, indent: str, apart: bool = False) -> list[_Line]:
        """The comments up to `offset` that are not placed yet, on lines of their own. `apart`: keep blank lines."""
        lines = []
        while self.next < len(self.comments) and self.comments[self.next].span.start < offset:
            comment = self.comments[self.next]
            if apart and self._blank_before(comment.span.start):
                lines.append(_Line(""))
            lines.append(_Line(indent + comment.text))
            self.next += 1
        return lines

    def _behind(self, end: int, limit: int) -> str:
        """The comment that follows `end` on the same line, before `limit`."""
        if self.next < len(self.comments):
            span = self.comments[self.next].span
            if end <= span.start < limit and span.line == bisect_right(self.starts, end - 1):
                self.next += 1
                return self.comments[self.next - 1].text
        return ""

    def _whole(self, node: Node) -> bool:
        """No comment, old or new, keeps `node` from standing on one line."""
        first, end = node.span.start, node.span.end
        noted = any(first <= start and stop <= end and (start, stop) != (first, end) for start, stop in self.notes)
        commented = self.next < len(self.comments) and self.comments[self.next].span.start < end
        return not noted and not commented

    def _blank_before(self, offset: int) -> bool:
        breaks = 0
        while offset and self.text[offset - 1].isspace():
            offset -= 1
            breaks += self.text[offset] == "\n"
        return breaks > 1

    # -- the file ------------------------------------------------------------------------------------------------------
    def document(self, document: Document) -> str:
        lines: list[_Line] = []
        for i, item in enumerate(document.items):
            limit = document.items[i + 1].span.start if i + 1 < len(document.items) else len(self.text)
            comments = self._before(item.span.start, "", apart=True)
            apart = isinstance(item, tree.PlanItem) and not document.bare and lines and not comments
            if apart or self._blank_before(item.span.start):
                comments.append(_Line(""))
            lines += comments + (self._bare(item, limit) if document.bare else self._item(item, limit))
        lines += self._before(len(self.text) + 1, "", apart=True)
        text = "\n".join(str(line).rstrip() for line in lines).strip("\n")
        return text + "\n" if text else ""

    def _bare(self, item: tree.Item, limit: int) -> list[_Line]:
        expression = body(item)
        assert expression is not None
        return self._expression(expression, "", 0, limit)

    def _item(self, item: tree.Item, limit: int) -> list[_Line]:
        word, rest = head(item)
        expression = body(item)
        if isinstance(item, tree.PlanItem):
            note = self._behind(item.span.start + len("plan"), item.body.span.start)
            return [_Line("plan", note), *self._expression(item.body, INDENT, 0, limit, split=True)]
        # The title stands by itself; the other lines share a column.
        first = f"{word} {rest}" if isinstance(item, tree.TaskName) else f"{word:<7} {rest}".rstrip()
        one_line = expression is None or (self._whole(item) and _fits(f"{first} {show(expression)}"))
        if expression is None:
            lines = [*self._before(item.span.end, ""), _Line(first)]
        elif isinstance(expression, tree.PLAN_ONLY) and not one_line:
            return [_Line(first), *self._expression(expression, INDENT, 0, limit)]
        else:
            parts = [show(expression)]
            start = f"{first} " if rest else f"{word:<8}"
            if isinstance(expression, tree.And | tree.Or) and not _fits(start + parts[0]):
                joint = "and" if isinstance(expression, tree.And) else "or"
                rung = RUNG[type(expression)] + 1
                parts = [_inside(operand, rung) for operand in expression.operands]
                parts[1:] = [f"{INDENT * 4}{joint} {part}" for part in parts[1:]]
            lines = [*self._before(item.span.end, ""), _Line(start + parts[0]), *map(_Line, parts[1:])]
        lines[-1].comment = self._behind(item.span.end, limit)
        return lines

    # -- plans ---------------------------------------------------------------------------------------------------------
    def _expression(self, node: Node, indent: str, rung: int, limit: int, split: bool = False) -> list[_Line]:
        """Lines of a plan or a subtask. `split`: put the members of a top-level `then` on lines of their own."""
        loose = RUNG[type(node)] < rung
        # What will stand before the first line belongs there from the start, or a second run would lay it out anew.
        lines = self._before(_first_line(node), indent)
        split = split and isinstance(node, tree.Then)
        plan = isinstance(node, tree.Then | tree.Group | tree.Each)
        broken = plan and (split or not self._whole(node) or _long(node))
        text = "" if broken else f"({show(node)})" if loose else show(node)
        if broken or (plan and not _fits(indent + text)):
            if loose:
                lines += [_Line(f"{indent}("), *self._broken(node, indent + INDENT, limit), _Line(f"{indent})")]
            else:
                lines += self._broken(node, indent, limit)
        else:
            lines += self._before(node.span.end, indent)
            lines.append(_Line(indent + text))
        self._note(node, lines, limit)
        return lines

    def _note(self, node: Node, lines: list[_Line], limit: int) -> None:
        """Put the comment behind the last line: the new one, if the subtask has one, else the one that was there."""
        comment = self._behind(node.span.end, limit)
        note = self.notes.get(node.span[:2])
        if note is not None and not isinstance(node, tree.Then | tree.Group | tree.Each):
            if comment and not comment.startswith(NOTE):
                text = lines[-1].text
                lines.insert(-1, _Line(text[: len(text) - len(text.lstrip())] + comment))
            comment = note
        lines[-1].comment = comment or lines[-1].comment

    def _broken(self, node: Node, indent: str, limit: int) -> list[_Line]:
        if isinstance(node, tree.Then):
            lines = []
            for i, member in enumerate(node.members):
                behind = node.members[i + 1].span.start if i + 1 < len(node.members) else limit
                part = self._expression(member, indent, 1, behind)
                if i:
                    first = next(line for line in part if not line.text.lstrip().startswith("#"))
                    first.text = f"{indent}then {first.text.removeprefix(indent)}"
                lines += part
            return lines
        if isinstance(node, tree.Group):
            lines = [_Line(f"{indent}group <")]
            for i, member in enumerate(node.members):
                last = i + 1 == len(node.members)
                behind = node.span.end - 1 if last else node.members[i + 1].span.start
                part = self._expression(member, indent + INDENT, 0, behind)
                part[-1].text += "" if last else ";"
                lines += part
            return [*lines, *self._before(node.span.end - 1, indent + INDENT), _Line(f"{indent}>")]
        assert isinstance(node, tree.Each)
        return [_Line(indent + each_head(node)), *self._expression(node.body, indent + INDENT, 1, limit)]


def _first_line(node: Node) -> int:
    """Comments up to here come before `node`: they stand in front of it, or inside its first condition."""
    while isinstance(node, tree.Then):
        node = node.members[0]
    return node.span.start if isinstance(node, tree.Then | tree.Group | tree.Each) else node.span.end


def _inside(node: Node, rung: int) -> str:
    loose = RUNG[type(node)] < rung or isinstance(node, tree.HeldFor)
    return f"({show(node)})" if loose else show(node)


def _long(node: Node) -> bool:
    """Too long for a line, told without `show`: every node is a character or more."""
    count, rest = 0, [node]
    while rest and count <= WIDTH:
        count += 1
        rest += rest.pop().children()
    return count > WIDTH


def _fits(text: str) -> bool:
    return len(text) <= WIDTH
