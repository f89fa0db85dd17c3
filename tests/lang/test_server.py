"""The language server through a client, over standard input and output, as an editor runs it."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pygls", reason="extra `lsp` is not installed")
from lsprotocol import types
from pygls.lsp.client import LanguageClient

ROOT = Path(__file__).parent.parent.parent
URI = "untitled:lunch.task"
GOOD = """\
sim tabletop(scene="lunch")
horizon 100 steps
let apple = "apple_1"   # 🍎
success in(apple, box) and closed(box)
plan add(apple, box) @ 10 as first then close(box) @ 5 after first
"""


class Client(LanguageClient):
    """Keeps the diagnostics that the server sends."""

    def __init__(self) -> None:
        super().__init__("test", "0")
        self.published: asyncio.Queue[types.PublishDiagnosticsParams] = asyncio.Queue()

        @self.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def _(params: types.PublishDiagnosticsParams) -> None:
            self.published.put_nowait(params)

    async def diagnostics(self) -> list[types.Diagnostic]:
        return list((await asyncio.wait_for(self.published.get(), 20)).diagnostics)

    def change(self, text: str, version: int) -> None:
        self.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(version, URI),
                [types.TextDocumentContentChangeWholeDocument(text)],
            )
        )


def serve(session, text=GOOD):
    """Run `session(client, first diagnostics)` on an open document, then end the server as an editor does."""

    async def run():
        client = Client()
        await client.start_io(sys.executable, "-m", "structrl.cli", "lsp", cwd=ROOT)
        try:
            capabilities = types.ClientCapabilities()
            result = await asyncio.wait_for(client.initialize_async(types.InitializeParams(capabilities)), 20)
            assert result.server_info and result.server_info.name == "structrl"
            client.initialized(types.InitializedParams())
            document = types.TextDocumentItem(URI, "structrl-task", 1, text)
            client.text_document_did_open(types.DidOpenTextDocumentParams(document))
            await session(client, await client.diagnostics())
        finally:
            await asyncio.wait_for(client.shutdown_async(None), 20)
            client.exit(None)
            await asyncio.wait_for(client.stop(), 20)

    asyncio.run(run())


def at(text: str, word: str) -> types.TextDocumentPositionParams:
    """The position of `word` in UTF-16 code units."""
    before = text[: text.index(word)]
    column = len(before[before.rfind("\n") + 1 :].encode("utf-16-le")) // 2
    return types.TextDocumentPositionParams(
        types.TextDocumentIdentifier(URI), types.Position(before.count("\n"), column)
    )


def test_diagnostics_come_and_go():
    async def session(client, found):
        assert found == []
        wrong = GOOD.replace("close(box)", "clse(box)")
        client.change(wrong, 2)
        (item,) = await client.diagnostics()
        assert item.code == "T010" and item.severity == types.DiagnosticSeverity.Error and item.source == "structrl"
        assert "did you mean `close`?" in item.message
        assert item.range == types.Range(types.Position(4, 40), types.Position(4, 44))
        client.change('command "🍎" plan clse(', 3)
        (item,) = await client.diagnostics()
        assert item.code == "T001" and item.range.start == types.Position(0, 22), "columns are UTF-16 units"
        client.change("plan a(x)\r\nthen b(x) after nothing\r\n", 4)
        (item,) = await client.diagnostics()
        assert item.range == types.Range(types.Position(1, 16), types.Position(1, 23))
        client.text_document_did_close(types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(URI)))
        assert await client.diagnostics() == []

    serve(session)


def test_questions():
    async def session(client, found):
        where = at(GOOD, "close(box)")
        hover = await client.text_document_hover_async(types.HoverParams(where.text_document, where.position))
        assert "the lid, drawer or cover is shut" in hover.contents.value and "< 0.05" in hover.contents.value
        assert hover.range == types.Range(types.Position(4, 40), types.Position(4, 45))

        where = at(GOOD, "first\n")
        location = await client.text_document_definition_async(types.DefinitionParams(*vars_of(where)))
        assert location.uri == URI and location.range.start == at(GOOD, "first then").position

        where = at(GOOD, "apple, box) @")
        items = await client.text_document_completion_async(types.CompletionParams(*vars_of(where)))
        kinds = {item.label: item.kind for item in items}
        assert kinds["apple"] == types.CompletionItemKind.Variable
        assert kinds["box_1"] == types.CompletionItemKind.Value and "close" not in kinds
        where = at(GOOD, "add(")
        items = await client.text_document_completion_async(types.CompletionParams(*vars_of(where)))
        kinds = {item.label: item.kind for item in items}
        assert kinds["close"] == types.CompletionItemKind.Method and "group" in kinds and "box_1" not in kinds

        symbols = await client.text_document_document_symbol_async(types.DocumentSymbolParams(where.text_document))
        assert [symbol.name for symbol in symbols] == ["apple", "first", "close_box"]

    serve(session)


def vars_of(where: types.TextDocumentPositionParams) -> tuple[types.TextDocumentIdentifier, types.Position]:
    return where.text_document, where.position


def test_formatting():
    async def session(client, found):
        options = types.FormattingOptions(tab_size=2, insert_spaces=True)
        params = types.DocumentFormattingParams(types.TextDocumentIdentifier(URI), options)
        (edit,) = await client.text_document_formatting_async(params)
        assert edit.new_text == "group < a(x); b(x) > then c(x)\n# 🍎\n"
        assert edit.range == types.Range(types.Position(0, 0), types.Position(2, 4))
        client.change(edit.new_text, 2)
        await client.diagnostics()
        assert list(await client.text_document_formatting_async(params)) == []
        client.change("a(", 3)
        await client.diagnostics()
        assert await client.text_document_formatting_async(params) is None

    serve(session, "group<a(x);\nb(x)>then c(x)\n# 🍎")


def test_without_pygls(tmp_path):
    (tmp_path / "pygls.py").write_text("raise ModuleNotFoundError(\"No module named 'pygls'\", name='pygls')")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-m", "structrl.cli", "lsp"], capture_output=True, text=True, env=env)
    assert done.returncode == 2 and 'pip install "structrl[lsp]"' in done.stderr and "Traceback" not in done.stderr
