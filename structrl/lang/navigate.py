"""What an editor asks about a task file: what stands here, what may come here, where a name comes from.

Works on offsets into the text, also while it does not parse: names are found by the words that bring them in.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from lark.exceptions import UnexpectedInput

from structrl.lang.check import check
from structrl.lang.diagnostics import TaskError
from structrl.lang.parser import grammar, keywords, parse
from structrl.lang.scene import next_values
from structrl.lang.source import comments, refuse
from structrl.sims.vocabulary import Predicate, Vocabulary, load_vocabulary, simulators

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
WORDS = {
    "task": "`task NAME`: the task's name",
    "command": '`command "..."`: the instruction given to the policy',
    "sim": "`sim NAME(argument=value)`: the simulator and its arguments",
    "horizon": "`horizon 240 steps`: when an episode is cut off",
    "let": '`let name = "entity"`: a name for an entity of the simulator',
    "define": "`define name(parameters) = ...`: a name for a condition or a part of a plan",
    "success": "`success CONDITION`: when the task is done; judged at the moment",
    "fail": "`fail CONDITION`: ends an episode as failed",
    "plan": "`plan ...`: the subtasks",
    "then": "`a then b`: every subtask of `a` before every subtask of `b`",
    "group": "`group < a; b >`: no order among the members",
    "each": "`each x in (a, b): ...`: a group with one member for each value",
    "in": "`each x in (a, b): ...`: a group with one member for each value",
    "as": "`CONDITION as LABEL`: the subtask's name",
    "worth": "`CONDITION worth 2`: multiplies the subtask's pay",
    "after": "`CONDITION after LABEL, LABEL`: further subtasks that must come first",
    "or": "`a or b`: at least one holds",
    "and": "`a and b`: both hold at the same time",
    "not": "`not a`: does not hold",
    "newly": "`newly a`: must become true after its turn has come",
    "for": "`a for 10 steps`: held so long without a break",
    "of": "`10 steps of a`: held so long in all; `at least 2 of (a, b, c)`: so many at the same time",
    "at least": "`at least 2 of (a, b, c)`: so many at the same time",
}


class Place(NamedTuple):
    """A stretch of the text, [start, end)."""

    start: int
    end: int


class Name(NamedTuple):
    """A name that the file brings in. `kind`: let, define, label or subtask (one without a label of its own)."""

    text: str
    kind: str
    place: Place
    detail: str


class Proposal(NamedTuple):
    """A completion. `kind`: keyword, verb, predicate, define, entity, let, label, simulator or scene."""

    text: str
    kind: str
    detail: str


@dataclass(frozen=True)
class Outline:
    """Names of a file, and the vocabulary and scene that it speaks of (None where there is none)."""

    names: list[Name]
    vocabulary: Vocabulary | None
    scene: str | None

    @property
    def entities(self) -> dict[str, tuple[str, ...]]:
        """Of the scene; of all scenes where the file names none."""
        scenes = self.vocabulary.scenes if self.vocabulary else {}
        chosen = [scenes[self.scene]] if self.scene and self.scene in scenes else list(scenes.values())
        return {entity: kinds for scene in chosen for entity, kinds in scene.items()}

    def find(self, text: str, *kinds: str) -> Name | None:
        """The first name of one of these kinds."""
        return next((name for name in self.names if name.text == text and name.kind in kinds), None)


def outline(text: str) -> Outline:
    """Read the names of a file."""
    code = _without_comments(text)
    names = []
    for match in re.finditer(rf'\blet\s+({_NAME})\s*=\s*"([^"\n]*)"', code):
        names.append(Name(match[1], "let", Place(*match.span(1)), match[2]))
    for match in re.finditer(rf"\bdefine\s+({_NAME})\s*\(([^)]*)\)", code):
        names.append(Name(match[1], "define", Place(*match.span(1)), f"({', '.join(re.findall(_NAME, match[2]))})"))
    for match in re.finditer(rf"\bas\s+({_NAME})", code):
        names.append(Name(match[1], "label", Place(*match.span(1)), ""))
    names += _subtasks(text)
    sim = re.search(rf"\bsim\s+({_NAME})\s*(?:\(([^)]*)\))?", code)
    vocabulary = _vocabulary(sim[1]) if sim else None
    values = _scene_values(vocabulary, (sim and sim[2]) or "")
    return Outline(names, vocabulary, "/".join(values) if values else None)


def _scene_values(vocabulary: Vocabulary | None, arguments: str) -> list[str]:
    """Values of the arguments that make up the key of a scene, up to the first that is not given."""
    given = dict(re.findall(rf'({_NAME})\s*=\s*"?([A-Za-z0-9_]+)', arguments))
    wanted = vocabulary.scene_args if vocabulary else ()
    return list(takewhile(bool, (given.get(name, "") for name in wanted)))


def _subtasks(text: str) -> Iterator[Name]:
    """Subtasks of a plan that can be lowered: their labels are names too, written or not."""
    try:
        subtasks = check(parse(text), "").lowering.subtasks
    except TaskError:
        return
    for each in subtasks:
        yield Name(each.label, "subtask", Place(*each.source.span[:2]), each.text)


def _vocabulary(sim: str) -> Vocabulary | None:
    try:
        return load_vocabulary(sim)
    except ValueError:  # a diagnostic says so
        return None


def _simulators() -> list[str]:
    try:
        return simulators()
    except ValueError:  # likewise
        return []


def _without_comments(text: str) -> str:
    parts, done = [], 0
    for each in comments(text):
        parts += [text[done : each.span.start], " " * (each.span.end - each.span.start)]
        done = each.span.end
    return "".join([*parts, text[done:]])


def word_at(text: str, offset: int) -> Place | None:
    """The name or keyword at `offset`, or just before it; None in comments."""
    start = offset - len(re.search(r"[A-Za-z0-9_]*$", text[:offset])[0])  # type: ignore[index]
    match = re.compile(_NAME).match(text, start)
    if match is None or _in_comment(text, offset):
        return None
    return Place(*match.span())


def _in_comment(text: str, offset: int) -> bool:
    return any(each.span.start < offset and "\n" not in text[each.span.start : offset] for each in comments(text))


def definition(text: str, offset: int) -> Place | None:
    """Where the name at `offset` is brought in: by `let`, `define`, `as`, or a subtask that `after` waits for."""
    place = word_at(text, offset)
    if place is None:
        return None
    word = text[place.start : place.end]
    kinds: tuple[str, ...] = ("let", "label", "subtask")
    if re.match(r"\s*\(", text[place.end :]):
        kinds = ("define",)
    elif _behind_after(text[: place.start]):
        kinds = ("label", "subtask")
    found = outline(text).find(word, *kinds)
    return found.place if found else None


def _behind_after(before: str) -> bool:
    return re.search(rf"\bafter\s+(?:{_NAME}\s*,\s*)*$", before) is not None


def hover(text: str, offset: int) -> tuple[str, Place] | None:
    """Markdown about the word at `offset`, and the word's place."""
    place = word_at(text, offset)
    if place is None:
        return None
    word, about = text[place.start : place.end], outline(text)
    is_call = re.match(r"\s*\(", text[place.end :]) is not None
    if is_call and about.vocabulary and about.vocabulary.predicate(word):
        return _describe(word, about.vocabulary), place
    if is_call and (define := about.find(word, "define")):
        return f"`{word}{define.detail}`: defined in this file", place
    if word in keywords() and not (is_call and word == "in" and not _behind_each(text[: place.start])):
        return WORDS[word], place
    if named := about.find(word, "let"):
        kinds = ", ".join(about.entities.get(named.detail, ()))
        return f'`{word}` is the entity `"{named.detail}"`{f": {kinds}" if kinds else ""}', place
    if word in about.entities:
        return f"`{word}`: {', '.join(about.entities[word])}", place
    if subtask := about.find(word, "subtask"):
        return f"subtask `{word}`: `{subtask.detail}`", place
    return None


def _behind_each(before: str) -> bool:
    return re.search(rf"\beach\s+{_NAME}\s+$", before) is not None


def _describe(word: str, vocabulary: Vocabulary) -> str:
    predicate = vocabulary.predicate(word)
    assert predicate is not None
    parts = [f"**{word}({', '.join(vocabulary.kinds(word))})**"]
    if word in vocabulary.verbs:
        parts.append(f"{vocabulary.verbs[word].meaning}; tests `{predicate.name}`")
    parts.append(predicate.meaning + (" (a pulse: only in the step in which it happens)" if predicate.pulse else ""))
    return "\n\n".join([*parts, *predicate.tests()])


# -- completion -------------------------------------------------------------------------------------------------------
def proposals(text: str, offset: int) -> list[Proposal]:
    """What may stand at `offset`, where a word may already be begun."""
    before = text[:offset]
    if _in_comment(text, offset):
        return []
    quoted = re.search(r'"([^"\n]*)$', before) if before[before.rfind("\n") + 1 :].count('"') % 2 else None
    start = quoted.start() if quoted else re.search(r"[A-Za-z0-9_]*$", before).start()  # type: ignore[union-attr]
    accepts, last = _accepts(before[:start])
    # With some word in place of the one that is being written the rest can often be parsed.
    about = outline(f"{before[:start]}_{text[offset:]}" if not quoted else text)
    if last == "_SIM":
        return [Proposal(name, "simulator", "") for name in _simulators()]
    setting = re.search(rf"\bsim\s+{_NAME}\s*\(([^()]*?)({_NAME})\s*=\s*$", before[:start])
    if setting:
        return _scenes(about.vocabulary, setting[1], setting[2], quoted is not None)
    if quoted:
        return [Proposal(*each) for each in _entities(about)] if "STRING" in accepts else []
    found = []
    if "NAME" in accepts and _behind_after(before[:start]):
        labels = {name.text: name.detail for name in about.names if name.kind in ("label", "subtask")}
        found = [Proposal(label, "label", detail) for label, detail in labels.items()]
    elif {"NAME", "STRING"} <= accepts:  # an argument, or a value of `each`
        found = [Proposal(name.text, "let", name.detail) for name in about.names if name.kind == "let"]
        found += [Proposal(*each) for each in _entities(about)]
    elif {"NAME", "LPAR"} <= accepts:  # a condition begins
        found = list(_calls(about))
    found += [Proposal(word, "keyword", _plain(WORDS[word])) for word in sorted(_keywords(accepts))]
    return found


def _scenes(vocabulary: Vocabulary | None, before: str, name: str, quoted: bool) -> list[Proposal]:
    """What an argument of the simulator may be if it says which scene it is; `before`: the arguments before it."""
    if vocabulary is None or name not in vocabulary.scene_args:
        return []
    place = vocabulary.scene_args.index(name)
    values = _scene_values(vocabulary, before)[:place]
    found: list[Proposal] = []
    if len(values) < place:
        return found
    for value in next_values(vocabulary, values):
        title = vocabulary.title("/".join([*values, value]))
        found.append(Proposal(value if quoted or value.isdigit() else f'"{value}"', "scene", title))
    return found


def _entities(about: Outline) -> list[tuple[str, str, str]]:
    return [(entity, "entity", ", ".join(kinds)) for entity, kinds in about.entities.items()]


def _calls(about: Outline) -> Iterator[Proposal]:
    for name in about.names:
        if name.kind == "define":
            yield Proposal(name.text, "define", name.detail)
    if about.vocabulary:
        for word in about.vocabulary.words:
            kind = "verb" if word in about.vocabulary.verbs else "predicate"
            predicate: Predicate | None = about.vocabulary.predicate(word)
            meaning = predicate.meaning if predicate else ""
            yield Proposal(word, kind, f"({', '.join(about.vocabulary.kinds(word))}) {meaning}")


def _keywords(accepts: frozenset[str]) -> set[str]:
    return {"at least" if each == "_AT_LEAST" else each[1:].lower() for each in accepts if each.startswith("_")}


def _plain(markdown: str) -> str:
    return markdown.replace("`", "")


def _accepts(before: str) -> tuple[frozenset[str], str]:
    """Terminals that the grammar takes behind this text, and the last terminal in it; all where it has an error."""
    last = ""
    try:
        refuse(before, "")
        state = grammar().parse_interactive(before)
        for token in state.iter_parse():
            last = token.type
        return frozenset(state.accepts()), last
    except (UnexpectedInput, TaskError):
        return frozenset(terminal.name for terminal in grammar().terminals) - {"STRING"}, last
