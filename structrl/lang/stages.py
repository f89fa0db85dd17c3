"""Stage tables, lists of lists of names, to task files: stages in order, the members of one stage in any order."""

import json
import re
from pathlib import PurePath

from structrl.lang import tree
from structrl.lang.diagnostics import TaskError
from structrl.lang.format import format_source
from structrl.lang.parser import RESERVED, keywords, parse
from structrl.lang.printer import show


class StagesError(ValueError):
    """A table that cannot be converted; the message says which entry, and why."""


def convert(text: str, path: str = "<string>") -> tuple[str, list[str]]:
    """The expression, in canonical layout, of a JSON stage table, and remarks for the user.

    An entry is a condition in the task language, `in(apple, box)`, or a bare name, which becomes a predicate without
    arguments: `apple_in_box` is `apple_in_box()`.

    Args:
        text: JSON, `[["apple_in_box", "drink_in_box"], ["box_closed"]]`.
        path: where it comes from.

    Raises:
        StagesError: for what is no list of lists of such entries, or has none.
    """
    try:
        table = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise StagesError(f"not JSON: {error}") from None
    if not isinstance(table, list) or not all(isinstance(stage, list) for stage in table):
        raise StagesError('a list of lists of names is expected: [["a", "b"], ["c"]]')
    stages, remarks, seen = [], [], dict[tree.Expr, str]()
    for i, stage in enumerate(table, 1):
        members = []
        for j, entry in enumerate(stage, 1):
            place = f"stage {i}, entry {j}"
            condition = _condition(entry, place)
            if condition in seen:
                raise StagesError(f"{place}: `{show(condition)}` is at {seen[condition]} already")
            seen[condition] = place
            members.append(condition)
        if not members:
            remarks.append(f"stage {i} is empty and was left out")
        else:
            stages.append(members[0] if len(members) == 1 else tree.Group(tuple(members)))
    if not stages:
        raise StagesError("the table has no entries")
    comment = f"# From {' '.join(PurePath(path).name.split())}: stages in order, the members of a stage in any order."
    plan = stages[0] if len(stages) == 1 else tree.Then(tuple(stages))
    return format_source(f"{comment}\n{show(plan)}\n", f"{path} (converted)"), remarks


def _condition(entry: object, place: str) -> tree.Expr:
    if not isinstance(entry, str):
        raise StagesError(f"{place}: {json.dumps(entry)} is not a name")
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", entry):
        if entry in keywords() | RESERVED:
            raise StagesError(f"{place}: `{entry}` is a word of the task language")
        return tree.Call(tree.Word(entry), ())
    try:
        parsed = parse(entry, place)
    except TaskError as error:
        raise StagesError(
            f"{place}: `{entry}` is neither a name nor a condition, {error.diagnostics[0].message}; "
            "free text must be put into predicates by hand"
        ) from None
    item = parsed.document.items[0] if parsed.document.bare else None
    if not isinstance(item, tree.PlanItem) or isinstance(item.body, tree.PLAN_ONLY):
        raise StagesError(f"{place}: `{entry}` is not a single condition")
    if parsed.diagnostics:
        raise StagesError(f"{place}: `{entry}`: {parsed.diagnostics[0].message}")
    if parsed.comments:
        raise StagesError(f"{place}: `{entry}` holds a comment")
    return item.body
