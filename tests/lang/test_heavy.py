"""The properties of printer and formatter over 12,000 generated cases: `pytest -m heavy tests/lang`."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from structrl.lang.format import _Layout, format_source
from structrl.lang.parser import Parsed, parse
from structrl.lang.printer import show
from tests.lang.toy import documents, expressions

pytestmark = pytest.mark.heavy


def many(cases: int) -> settings:
    phases = [Phase.explicit, Phase.generate, Phase.shrink]  # explaining prints trees for hours
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=cases, deadline=None, phases=phases, suppress_health_check=checks, database=None)


@many(10_000)
@given(expressions)
def test_expressions(expr):
    """parse(print(x)) == x, the formatter is idempotent and keeps the tree."""
    text = show(expr)
    document = parse(text).document
    assert document.bare and document.items[0].body == expr
    once = format_source(text)
    assert format_source(once) == once
    assert parse(once).document == document


@many(2_000)
@given(documents)
def test_documents(document):
    text = _Layout(Parsed(document, "", [], []), {}).document(document)
    assert parse(text).document == document
    assert format_source(text) == text
