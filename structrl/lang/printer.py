"""The canonical text of a syntax tree, on one line per item: `parse(print(x)) == x`."""

import re
from functools import singledispatch

from structrl.lang import tree
from structrl.lang.tree import RUNG, HeldFor, Node


def _inside(child: Node, rung: int) -> str:
    """`child` where the grammar wants at least `rung`, in parentheses if it is looser."""
    text = show(child)
    return text if RUNG[type(child)] >= rung else f"({text})"


def _operand(child: Node, rung: int) -> str:
    """As `_inside`; `for` beside another operator is always in parentheses."""
    return f"({show(child)})" if isinstance(child, HeldFor) else _inside(child, rung)


@singledispatch
def show(node: Node) -> str:
    """Canonical text of any node but a document."""
    raise TypeError(f"no canonical text for {type(node).__name__}")


@show.register
def _(node: tree.Word) -> str:
    return node.text


@show.register
def _(node: tree.Text) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", node.value) + '"'


@show.register
def _(node: tree.Quantity) -> str:
    if node.unit == "steps":
        return f"{node.value!r} step{'' if node.value == 1 else 's'}"
    return f"{node.value!r}{node.unit or ''}"


@show.register
def _(node: tree.Keyword) -> str:
    return f"{node.name.text}={show(node.value)}"


@show.register
def _(node: tree.Call) -> str:
    return f"{node.name.text}({', '.join(show(each) for each in (*node.args, *node.keywords))})"


@show.register
def _(node: tree.Not) -> str:
    return f"not {_operand(node.operand, 4)}"


@show.register
def _(node: tree.Newly) -> str:
    return f"newly {_inside(node.operand, 4)}"


@show.register
def _(node: tree.StepsOf) -> str:
    return f"{show(node.length)} of {_operand(node.operand, 4)}"


@show.register
def _(node: tree.HeldFor) -> str:
    return f"{_inside(node.operand, 5)} for {show(node.length)}"


@show.register
def _(node: tree.And) -> str:
    return " and ".join(_operand(each, 4) for each in node.operands)


@show.register
def _(node: tree.Or) -> str:
    return " or ".join(_operand(each, 3) for each in node.operands)


@show.register
def _(node: tree.AtLeast) -> str:
    return f"at least {show(node.count)} of ({', '.join(_inside(each, 2) for each in node.operands)})"


def annotations(node: tree.Step) -> str:
    """The annotations of a subtask, each with a space before it."""
    text = ""
    if node.duration is not None:
        text += f" @ {show(node.duration)}"
    if node.label is not None:
        text += f" as {node.label.text}"
    if node.worth is not None:
        text += f" worth {show(node.worth)}"
    if node.after:
        text += f" after {', '.join(word.text for word in node.after)}"
    return text


@show.register
def _(node: tree.Step) -> str:
    return _inside(node.condition, 2) + annotations(node)


@show.register
def _(node: tree.Then) -> str:
    return " then ".join(_inside(each, 1) for each in node.members)


@show.register
def _(node: tree.Group) -> str:
    return f"group < {'; '.join(map(show, node.members))} >"


def each_head(node: tree.Each) -> str:
    """`each x in (a, b):`."""
    return f"each {node.variable.text} in ({', '.join(map(show, node.values))}):"


@show.register
def _(node: tree.Each) -> str:
    return f"{each_head(node)} {_inside(node.body, 1)}"


# -- the file ---------------------------------------------------------------------------------------------------------
def head(item: Node) -> tuple[str, str]:
    """The first word of a line, and what follows it up to an expression."""
    match item:
        case tree.TaskName(name):
            return "task", name.text
        case tree.Command(text):
            return "command", show(text)
        case tree.Sim(name, args):
            return "sim", name.text + (f"({', '.join(map(show, args))})" if args else "")
        case tree.Horizon(length):
            return "horizon", show(length)
        case tree.Let(name, entity):
            return "let", f"{name.text} = {show(entity)}"
        case tree.Define(name, params, _):
            return "define", f"{name.text}({', '.join(word.text for word in params)}) ="
    return ("success" if isinstance(item, tree.Success) else "fail" if isinstance(item, tree.Fail) else "plan"), ""


def body(item: Node) -> tree.Expr | None:
    """The expression of a line, None where it has none."""
    match item:
        case tree.Define(body=expression) | tree.PlanItem(body=expression):
            return expression
        case tree.Success(condition=expression) | tree.Fail(condition=expression):
            return expression
    return None
