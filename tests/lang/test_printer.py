"""parse(print(x)) == x, and the formatter is idempotent, keeps the tree and keeps the comments."""

import re

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from structrl.lang.format import _Layout, format_source
from structrl.lang.parser import Parsed, parse
from structrl.lang.printer import show
from structrl.lang.source import comments
from tests.lang.toy import documents, expressions

# Explaining a failure prints trees that hypothesis built in exponential time: the shrunk text is enough.
quick = settings(max_examples=150, deadline=None, phases=[Phase.explicit, Phase.generate, Phase.shrink])
TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|at least|-?[0-9][^\s,;()<>=]*(?: steps?)?|[A-Za-z_]\w*|[^\s\w]')


@quick
@given(expressions)
def test_printed_expressions_parse_back(expr):
    document = parse(show(expr)).document
    assert document.bare and document.items[0].body == expr


@quick
@given(documents)
def test_printed_documents_parse_back(document):
    text = _Layout(Parsed(document, "", [], []), {}).document(document)
    assert parse(text).document == document
    assert format_source(text) == text


@quick
@given(documents.map(lambda document: _Layout(Parsed(document, "", [], []), {}).document(document)), st.data())
def test_formatter_on_wild_layout(text, data):
    """Arbitrary white space and comments between any two tokens."""
    document = parse(text).document
    space = st.sampled_from([" ", "\n", "\n\n  ", "\t", " # note\n", "# a\n# b \n", "\r\n", "\n\n\n# far\n\n"])
    tokens = TOKENS.findall(text)
    wild = "".join(token + data.draw(space) for token in tokens)
    assert parse(wild).document == document, "the test's tokens are wrong"
    result = format_source(wild)
    assert format_source(result) == result
    assert parse(result).document == document
    assert [each.text for each in comments(result)] == [each.text for each in comments(wild)]
    assert not re.search(r"[ \t]\n|\n\n\n|\r", result)
