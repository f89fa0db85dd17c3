"""LIBERO's BDDL problems to task files. A small reader of s-expressions; nothing in a problem is ever evaluated."""

import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import TypeAlias

from structrl.lang import tree
from structrl.lang.format import format_source
from structrl.lang.parser import RESERVED, keywords
from structrl.lang.printer import show
from structrl.lang.source import MAX_WORD
from structrl.sims.vocabulary import Vocabulary

MAX_CHARACTERS = 1_000_000
# BDDL's predicates as structrl calls them: states are adjectives, so that they read as conditions.
PREDICATES = {"close": "closed", "turnon": "turned_on", "turnoff": "turned_off"}
_CONNECTIVES = {"or", "not", "imply", "forall", "exists", "forn", "forpairs", "when"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(r"[()]|[^\s();]+")


class BddlError(ValueError):
    """A problem that cannot be converted; the message says on which line and why."""


@dataclass(frozen=True)
class Atom:
    """A word of a problem and its line."""

    text: str
    line: int


@dataclass(frozen=True)
class List:
    """What stands between parentheses; `line` is that of the opening one."""

    members: tuple["Expression", ...]
    line: int

    @property
    def head(self) -> str:
        """The first word in lower case, "" where there is none."""
        first = self.members[0] if self.members else None
        return first.text.lower() if isinstance(first, Atom) else ""


Expression: TypeAlias = Atom | List


def read(text: str) -> List:
    """Read one s-expression; `;` begins a comment.

    Raises:
        BddlError: for parentheses that do not match, text outside of them, and more than `MAX_CHARACTERS`.
    """
    if len(text) > MAX_CHARACTERS:
        raise BddlError(f"{len(text):,} characters; at most {MAX_CHARACTERS:,} are read")
    whole: list[Expression] = []
    open_lists: list[tuple[int, list[Expression]]] = [(1, whole)]
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        for token in _TOKEN.findall(line.partition(";")[0]):
            if token == "(":
                open_lists.append((number, []))
            elif token == ")":
                if len(open_lists) == 1:
                    raise BddlError(f"line {number}: a `)` without its `(`")
                start, members = open_lists.pop()
                open_lists[-1][1].append(List(tuple(members), start))
            else:
                open_lists[-1][1].append(Atom(token, number))
    if len(open_lists) > 1:
        raise BddlError(f"line {open_lists[-1][0]}: this `(` is never closed")
    if len(whole) != 1 or not isinstance(whole[0], List):
        raise BddlError("not a BDDL problem: it should be one `(define ...)`")
    return whole[0]


def convert(text: str, path: str = "<string>", libero: Vocabulary | None = None) -> tuple[str, list[str]]:
    """The task file, in canonical layout, of a BDDL problem, and remarks for the user.

    Its goal becomes one group, as BDDL has no order. Success stays LIBERO's own check of the same goal.

    Args:
        text: the problem.
        path: where it comes from; its stem names the task.
        libero: LIBERO's vocabulary, whose scenes say which suite and task the problem is.

    Raises:
        BddlError: for what is no problem, a goal that is not a conjunction of predicates, and text that a task file
            cannot hold.
        structrl.lang.diagnostics.TaskError: for characters that are not allowed in task files.
    """
    problem = read(text)
    if problem.head != "define":
        raise BddlError(f"line {problem.line}: not a BDDL problem: it should begin with `(define (problem ...)`")
    wanted = goals(problem)
    stem = PurePath(path).stem
    domain = _words(_section(problem, "problem"))
    lines = [f"# From {' '.join(PurePath(path).name.split())}, problem {domain}."]
    if len(wanted) > 1:
        lines.append("# BDDL has no order, so all goals form one group: write `then` between those that have one.")
    lines.append(f"task {_task_name(stem)}")
    language = _section(problem, ":language", required=False)
    if language is not None:
        lines.append(f"command {show(tree.Text(_words(language)))}")
    known = find_task(problem, stem, libero) if libero else []
    remarks = []
    if len(known) == 1:
        suite, task = known[0].split("/")
        lines.append(f'sim libero(suite="{suite}", task={task})')
    else:
        lines.append("sim libero")
        reason = (
            f"it could be {', '.join(known)}" if known else "LIBERO's five suites have no task of this name and goal"
        )
        remarks = [f'objects were not checked: {reason}; write sim libero(suite="...", task=...)']
    lines.append(f"plan {show(tree.Group(tuple(wanted)) if len(wanted) > 1 else wanted[0])}")
    return format_source("\n".join(lines), f"{path} (converted)"), remarks


def find_task(problem: List, stem: str, libero: Vocabulary) -> list[str]:
    """The scenes of LIBERO that a problem may be, by its goal and its entities; the one with its name, if there is one.

    A variant of a task, with its name but another goal or other things on the table, is not that task; one in which
    the same things stand elsewhere cannot be told from it.
    """
    success = " and ".join(show(goal) for goal in goals(problem))
    here = entities(problem)
    alike = [key for key in libero.scenes if libero.success(key) == success and libero.scenes[key] == here]
    return [key for key in alike if libero.title(key) == stem] or alike


def goals(problem: List) -> list[tree.Call]:
    """The predicates of a problem's goal, in structrl's words, each once.

    Raises:
        BddlError: for a goal that is not a conjunction of predicates on names.
    """
    return list(dict.fromkeys(_goal(_section(problem, ":goal"))))


# What LIBERO builds of a problem, found out once by asking its environments (all 130 tasks of five suites).
_ARENA = ("floor", "table", "kitchen_table", "living_room_table", "study_table", "coffee_table")  # part of the room
_OPENABLE = ("microwave", "white_cabinet", "wooden_cabinet", "short_cabinet", "short_fridge")
_DRAWERS = ("top_region", "middle_region", "bottom_region")  # of a cabinet; its other regions do not move
_SWITCH = ("flat_stove",)


def entities(problem: List) -> dict[str, tuple[str, ...]]:
    """What tasks may name in a LIBERO problem, with kinds: thing, object, fixture, region, place, openable, switch.

    The room itself is none; a region is, if it belongs to the room, to an object or to a fixture of the problem.
    `place` is what things can be `on`, `region` what they can be `in`.

    Raises:
        BddlError: for a section that is not as LIBERO writes it.
    """
    categories = {**_typed(problem, ":fixtures"), **_typed(problem, ":objects")}
    objects = _typed(problem, ":objects").keys()
    found: dict[str, tuple[str, ...]] = {}
    for name, category in categories.items():
        if category not in _ARENA:
            more = ("openable",) * (category in _OPENABLE) + ("switch",) * (category in _SWITCH)
            found[name] = ("object" if name in objects else "fixture", "place", *more, "thing")
    regions = _section(problem, ":regions", required=False)
    for region in regions.members[1:] if regions else ():
        if isinstance(region, Atom) or not region.members or not isinstance(first := region.members[0], Atom):
            raise BddlError(f"line {region.line}: `(name (:target ...) ...)` is expected in `(:regions ...)`")
        target = _words(_section(region, ":target"))
        category = categories.get(target.lower(), "")
        if category:
            drawer = category.endswith("_cabinet") and first.text in _DRAWERS
            more = ("openable",) * (drawer and category in _OPENABLE)
            found[f"{target}_{first.text}".lower()] = ("place", "region", *more, "thing")
    return found


def _typed(problem: List, head: str) -> dict[str, str]:
    """`a b - kind c - kind` as name -> kind, in lower case."""
    found: dict[str, str] = {}
    section = _section(problem, head, required=False)
    words = _words(section).lower().split() if section else []
    names: list[str] = []
    for i, word in enumerate(words):
        if i and words[i - 1] == "-":
            found.update(dict.fromkeys(names, word))
            names = []
        elif word != "-":
            names.append(word)
    return found


def _section(problem: List, head: str, required: bool = True) -> List:
    found = [each for each in problem.members if isinstance(each, List) and each.head == head]
    if len(found) > 1:
        raise BddlError(f"line {found[1].line}: a second `({head} ...)`; the first is on line {found[0].line}")
    if not found and required:
        raise BddlError(f"not a BDDL problem: it has no `({head} ...)`")
    return found[0] if found else None  # type: ignore[return-value]


def _words(section: List) -> str:
    for each in section.members:
        if isinstance(each, List):
            raise BddlError(f"line {each.line}: parentheses inside `({section.head} ...)`")
    return " ".join(each.text for each in section.members[1:] if isinstance(each, Atom))


def _goal(section: List) -> list[tree.Call]:
    """The predicates of `(:goal (And (On a b) (Open c)))`, or of one without `And`."""
    terms = section.members[1:]
    if len(terms) == 1 and isinstance(terms[0], List) and terms[0].head == "and":
        terms = terms[0].members[1:]
    if not terms:
        raise BddlError(f"line {section.line}: the goal is empty")
    return [_predicate(term) for term in terms]


def _predicate(term: Expression) -> tree.Call:
    if isinstance(term, Atom) or not term.head:
        raise BddlError(f"line {term.line}: a predicate such as `(On a b)` is expected in the goal")
    word = PREDICATES.get(term.head, term.head)
    if term.head in _CONNECTIVES | {"and"}:
        raise BddlError(f"line {term.line}: `{term.head}` in a goal; LIBERO's goals are one `(And ...)` of predicates")
    if not _is_name(word):
        raise BddlError(f"line {term.line}: `{word}` cannot name a predicate in a task file")
    args = []
    for each in term.members[1:]:
        if isinstance(each, List):
            raise BddlError(f"line {each.line}: `{term.head}` takes names, not another expression")
        name = each.text.lower()  # as LIBERO's own reader does
        args.append(tree.Word(name) if _is_name(name) and name != "in" else tree.Text(name))
    return tree.Call(tree.Word(word), tuple(args))


def _is_name(word: str) -> bool:
    return _NAME.fullmatch(word) is not None and (word == "in" or word not in keywords() | RESERVED)


def _task_name(stem: str) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "_", stem).strip("_") or "task"
    name = f"task_{name}" if name[0].isdigit() else name
    return name if len(name) <= MAX_WORD else name[: MAX_WORD + 1].rpartition("_")[0] or name[:MAX_WORD]
