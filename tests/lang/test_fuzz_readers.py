"""Whatever they are given, the importers, the readers of vocabularies and the language server answer or say why not."""

import copy
import json
import random

import pytest

from structrl.lang import bddl, stages
from structrl.lang.check import check
from structrl.lang.diagnostics import TaskError, render
from structrl.lang.format import format_source
from structrl.lang.navigate import definition, hover, outline, proposals
from structrl.lang.parser import parse
from structrl.sims.manifest import parse_manifest
from structrl.sims.vocabulary import load_vocabulary, parse_vocabulary
from tests.lang.fuzz import Mutator
from tests.lang.test_import import POTS, PROBLEM
from tests.lang.toy import FULL, VOCABULARY_JSON
from tests.sims.test_manifest import MANIFEST

ROUNDS = 250
LIBERO = load_vocabulary("libero")
ODD = [None, True, 0, -1, 1e999, float("nan"), 10**400, "", "x" * 200, "\ud800", "a b", [], [[]], {}, {"": {}}, "in"]
TABLE = [["apple_in_box", "in(drink, box) and not grasped(drink)"], ["at least 1 of (closed(box), open(box))"]]


def break_json(data, rng: random.Random):
    """A copy with up to four values, keys or entries replaced, removed or doubled somewhere."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        place = data
        while isinstance(place, dict | list) and place:
            key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
            inside = place[key]
            if isinstance(inside, dict | list) and inside and rng.random() < 0.8:
                place = inside
                continue
            action = rng.randrange(4)
            if action == 0:
                del place[key]
            elif action == 1 and isinstance(place, dict):
                place[rng.choice(["x", "", "name", "derived", "manifest", "args", "in/x", "\ud800"])] = inside
            else:
                place[key] = rng.choice(ODD)
            break
    return data


def break_text(text: str, rng: random.Random) -> str:
    """A copy with up to ten stretches removed, doubled or replaced."""
    signs = ["(", ")", ";", "\n", "-", " - ", "(:goal", "(:regions", "And", "\x00", "é", "\u2028", '"', "\\", "x" * 120]
    for _ in range(rng.choice([1, 1, 3, 10])):
        i = rng.randrange(len(text) + 1)
        j = min(len(text), i + rng.choice([0, 1, 5, 40]))
        text = text[:i] + rng.choice([rng.choice(signs), text[i:j] * 2, ""]) + text[j:]
    return text


@pytest.mark.parametrize("problem", [PROBLEM, POTS], ids=["tea", "pots"])
def test_bddl(problem):
    """A task file that parses and is laid out, or a reason."""
    rng, done = random.Random(3), 0
    for _ in range(ROUNDS):
        try:
            task, _ = bddl.convert(break_text(problem, rng), "a.bddl", LIBERO)
        except (bddl.BddlError, TaskError) as error:
            assert str(error)
            continue
        done += 1
        parse(task)
        assert format_source(task) == task
    assert ROUNDS // 10 < done < ROUNDS


def test_stages():
    rng, done = random.Random(4), 0
    for _ in range(ROUNDS):
        text = json.dumps(break_json(TABLE, rng))
        try:
            task, _ = stages.convert(break_text(text, rng) if rng.random() < 0.5 else text, "a.json")
        except (stages.StagesError, TaskError) as error:
            assert str(error)
            continue
        done += 1
        parse(task)
        assert format_source(task) == task
    assert ROUNDS // 20 < done < ROUNDS


@pytest.mark.parametrize(
    ("data", "read"), [(VOCABULARY_JSON, parse_vocabulary), (MANIFEST, parse_manifest)], ids=["vocabulary", "manifest"]
)
def test_vocabularies_and_manifests(data, read):
    """What is read can be used: every word has kinds, every scene entities; what is not has its file in the message."""
    rng, done = random.Random(5), 0
    for _ in range(2 * ROUNDS):
        text = json.dumps(break_json(data, rng))
        try:
            found = read(break_text(text, rng) if rng.random() < 0.3 else text, "w.json")
        except ValueError as error:
            assert type(error) is ValueError and str(error).startswith("w.json: ")
            str(error).encode("utf-8", "backslashreplace")
            continue
        done += 1
        if read is parse_vocabulary:
            checked = check(parse(FULL.replace("@ 61", "@ 3.0s")), "f.task", found)
            render(checked.diagnostics, FULL, "f.task")
        for word in getattr(found, "words", ()):
            predicate = found.predicate(word)
            assert predicate is not None and len(found.kinds(word)) == len(predicate.args)
            assert all(isinstance(line, str) for line in predicate.tests())
        for scene in found.scenes:
            assert all(isinstance(kind, str) for kinds in _entities(found, scene).values() for kind in kinds)
    assert ROUNDS // 20 < done < 2 * ROUNDS


def _entities(found, scene):
    return found.entities_of(scene) if hasattr(found, "entities_of") else found.scenes[scene]


def test_what_an_editor_asks():
    """At any place of any text, with a cursor in the middle of what is being written."""
    mutator, rng = Mutator(6), random.Random(6)
    answers = 0
    for count in range(ROUNDS // 2):
        text = mutator.draw("tokens" if count % 2 else "bytes").decode("utf-8", "replace")[:3_000]
        offset = rng.randrange(len(text) + 1)
        for place in [name.place for name in outline(text).names] + [
            found for found in [definition(text, offset)] if found
        ]:
            assert 0 <= place.start <= place.end <= len(text)
        found = hover(text, offset)
        if found is not None:
            answers += 1
            assert found[0] and text[found[1].start : found[1].end].strip()
        for each in proposals(text, offset):
            answers += 1
            assert each.text and each.kind and isinstance(each.detail, str)
    assert answers > ROUNDS


class Editor:
    """In place of pygls' server: one open document, and what is sent to the client."""

    def __init__(self, text: str, codec) -> None:
        self.text, self.workspace, self.position_codec = text, self, codec
        self.sent: list = []
        self.text_document_publish_diagnostics = self.sent.append

    def get_text_document(self, uri: str):
        return pytest.importorskip("pygls.workspace").TextDocument(uri, self.text)


def test_the_handlers_of_the_language_server():
    """Any text, any position (also outside of it), in all three units of position."""
    server = pytest.importorskip("structrl.lang.server", reason="extra `lsp` is not installed")
    types = pytest.importorskip("lsprotocol.types")
    codec = pytest.importorskip("pygls.workspace").PositionCodec
    mutator, rng = Mutator(8), random.Random(8)
    document = types.TextDocumentIdentifier("file:///a.task")
    encodings = [types.PositionEncodingKind.Utf8, types.PositionEncodingKind.Utf16, types.PositionEncodingKind.Utf32]
    for count in range(60):
        text = mutator.draw("tokens" if count % 2 else "bytes").decode("utf-8", "replace")[:2_000]
        text = text.replace("x", rng.choice(["x", "\U0001f34e", "\r\n", "\ufeff"]))
        editor = Editor(text, codec(encodings[count % 3]))
        lines = text.count("\n") + 2
        position = types.Position(rng.randrange(lines), rng.randrange(60))
        server._changed(editor, types.DidSaveTextDocumentParams(document))
        ranges = [each.range for each in editor.sent[0].diagnostics]
        hover = server._hover(editor, types.HoverParams(document, position))
        ranges += [hover.range] if hover else []
        server._completion(editor, types.CompletionParams(document, position))
        found = server._definition(editor, types.DefinitionParams(document, position))
        ranges += [found.range] if found else []
        ranges += [each.range for each in server._symbols(editor, types.DocumentSymbolParams(document))]
        options = types.FormattingOptions(2, True)
        edits = server._formatting(editor, types.DocumentFormattingParams(document, options))
        ranges += [edit.range for edit in edits or ()]
        for each in ranges:
            assert (each.start.line, each.start.character) <= (each.end.line, each.end.character)
            assert each.end.line <= text.count("\n") + text.count("\r") + 1
