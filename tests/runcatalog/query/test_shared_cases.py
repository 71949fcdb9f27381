"""`catalog search` finds what the cases say; the site's own implementation: tests/runcatalog/site/test_query.py."""

import pytest

from memory_reader import MemoryReader
from query_cases import ERRORS, HINTS, MATCHES, RUNS
from runcatalog.analysis.find_runs import find_runs
from runcatalog.query.language import QueryError


@pytest.mark.parametrize(("query", "numbers"), MATCHES)
def test_runs_that_match(query, numbers):
    matches = find_runs(MemoryReader(RUNS), query).stored
    assert sorted(int(stored.run[:8], 16) for stored in matches) == numbers


@pytest.mark.parametrize(("query", "words"), ERRORS)
def test_errors(query, words):
    with pytest.raises(QueryError) as caught:
        find_runs(MemoryReader(RUNS), query)
    assert words in str(caught.value)


@pytest.mark.parametrize(("query", "hint"), HINTS)
def test_hints(query, hint):
    assert find_runs(MemoryReader(RUNS), query).hint == hint
