"""The language server: the Language Server Protocol around `structrl.lang`. Needs pygls (extra `lsp`)."""

import re
from bisect import bisect_right

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.workspace import PositionCodec, TextDocument

from structrl import __version__
from structrl.lang import navigate
from structrl.lang.check import check
from structrl.lang.diagnostics import Diagnostic, TaskError
from structrl.lang.format import format_source
from structrl.lang.parser import parse

SERVER = LanguageServer("structrl", __version__, text_document_sync_kind=types.TextDocumentSyncKind.Full)
_SEVERITY = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "note": types.DiagnosticSeverity.Information,
}
_COMPLETION = {
    "keyword": types.CompletionItemKind.Keyword,
    "verb": types.CompletionItemKind.Method,
    "predicate": types.CompletionItemKind.Function,
    "define": types.CompletionItemKind.Function,
    "entity": types.CompletionItemKind.Value,
    "let": types.CompletionItemKind.Variable,
    "label": types.CompletionItemKind.Reference,
    "simulator": types.CompletionItemKind.Module,
    "scene": types.CompletionItemKind.Enum,
}
_SYMBOL = {
    "let": types.SymbolKind.Variable,
    "define": types.SymbolKind.Function,
    "subtask": types.SymbolKind.Event,
}


class _Text:
    """A document with conversions between offsets and the client's lines and code units."""

    def __init__(self, document: TextDocument, codec: PositionCodec) -> None:
        # A mark at the start is no part of what is parsed; editors do not count it either.
        self.text = document.source.removeprefix("\ufeff")
        self.codec = codec
        self.starts = [0, *(match.end() for match in re.finditer(r"\r\n|\n|\r", self.text))]

    def position(self, offset: int) -> types.Position:
        offset = min(offset, len(self.text))
        line = bisect_right(self.starts, offset) - 1
        return types.Position(line, self.codec.client_num_units(self.text[self.starts[line] : offset]))

    def range(self, start: int, end: int) -> types.Range:
        return types.Range(self.position(start), self.position(end))

    def offset(self, position: types.Position) -> int:
        if position.line >= len(self.starts):
            return len(self.text)
        start = self.starts[position.line]
        end = self.starts[position.line + 1] if position.line + 1 < len(self.starts) else len(self.text)
        units = 0
        for offset in range(start, end):
            if units >= position.character or self.text[offset] in "\r\n":
                return offset
            units += self.codec.client_num_units(self.text[offset])
        return end


def _open(server: LanguageServer, uri: str) -> _Text:
    return _Text(server.workspace.get_text_document(uri), server.workspace.position_codec)


@SERVER.feature(types.TEXT_DOCUMENT_DID_OPEN)
@SERVER.feature(types.TEXT_DOCUMENT_DID_CHANGE)
@SERVER.feature(types.TEXT_DOCUMENT_DID_SAVE)
def _changed(
    server: LanguageServer,
    params: types.DidOpenTextDocumentParams | types.DidChangeTextDocumentParams | types.DidSaveTextDocumentParams,
) -> None:
    uri = params.text_document.uri
    text = _open(server, uri)
    path = server.workspace.get_text_document(uri).path or uri  # an unsaved document has none
    try:
        found = check(parse(text.text, path), path).diagnostics
    except TaskError as error:
        found = error.diagnostics
    items = [_diagnostic(text, each) for each in found]
    server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, items))


def _diagnostic(text: _Text, item: Diagnostic) -> types.Diagnostic:
    return types.Diagnostic(
        range=text.range(item.span.start, max(item.span.end, item.span.start + 1)),
        message=item.message + (f"\nhelp: {item.help}" if item.help else ""),
        severity=_SEVERITY[item.severity],
        code=item.code,
        source="structrl",
    )


@SERVER.feature(types.TEXT_DOCUMENT_DID_CLOSE)
def _closed(server: LanguageServer, params: types.DidCloseTextDocumentParams) -> None:
    server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(params.text_document.uri, []))


@SERVER.feature(types.TEXT_DOCUMENT_HOVER)
def _hover(server: LanguageServer, params: types.HoverParams) -> types.Hover | None:
    text = _open(server, params.text_document.uri)
    found = navigate.hover(text.text, text.offset(params.position))
    if found is None:
        return None
    return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, found[0]), text.range(*found[1]))


@SERVER.feature(types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=["(", " ", '"']))
def _completion(server: LanguageServer, params: types.CompletionParams) -> list[types.CompletionItem]:
    text = _open(server, params.text_document.uri)
    found = navigate.proposals(text.text, text.offset(params.position))
    return [types.CompletionItem(each.text, kind=_COMPLETION[each.kind], detail=each.detail) for each in found]


@SERVER.feature(types.TEXT_DOCUMENT_DEFINITION)
def _definition(server: LanguageServer, params: types.DefinitionParams) -> types.Location | None:
    text = _open(server, params.text_document.uri)
    place = navigate.definition(text.text, text.offset(params.position))
    return types.Location(params.text_document.uri, text.range(*place)) if place else None


@SERVER.feature(types.TEXT_DOCUMENT_FORMATTING)
def _formatting(server: LanguageServer, params: types.DocumentFormattingParams) -> list[types.TextEdit] | None:
    text = _open(server, params.text_document.uri)
    try:
        new = format_source(text.text)
    except TaskError:  # its diagnostics are shown already
        return None
    return [] if new == text.text else [types.TextEdit(text.range(0, len(text.text)), new)]


@SERVER.feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
def _symbols(server: LanguageServer, params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
    text = _open(server, params.text_document.uri)
    symbols = []
    for name in navigate.outline(text.text).names:
        if name.kind in _SYMBOL:
            place = text.range(*name.place)
            symbols.append(types.DocumentSymbol(name.text, _SYMBOL[name.kind], place, place, name.detail))
    return symbols
