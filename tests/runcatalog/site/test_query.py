"""The query language in the browser: the cases of `catalog search`, and its answers to random queries."""

import random
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from memory_reader import MemoryReader
from query_cases import ERRORS, HINTS, MATCHES, RUNS
from runcatalog.analysis.find_runs import find_runs
from runcatalog.model.record_files import read
from runcatalog.query.language import QueryError

ROOT = Path(__file__).parents[3]
NOW = datetime(2026, 11, 22, 10, 30, tzinfo=UTC)  # some of the committed runs are of this day
FIND = """async texts => {
  const answers = [];
  for (const text of texts) {
    try {
      const { rows, hint } = await names.find(text);
      answers.push({ runs: rows.map((row) => runs.ids[row]), hint });
    } catch (error) {
      if (!(error instanceof QueryError)) throw error;
      answers.push({ error: error.message });
    }
  }
  return answers;
}"""


def answer(records, query: str) -> dict:
    """Return what `catalog search` answers, in the form of FIND."""
    try:
        matches = find_runs(MemoryReader(records), query)
    except QueryError as error:
        return {"error": str(error)}
    return {"runs": sorted(stored.run for stored in matches.stored), "hint": matches.hint}


def test_the_cases_of_catalog_search(browser, site_of):
    page = browser.open(site_of(RUNS))
    queries = [query for query, _ in [*MATCHES, *ERRORS, *HINTS]]
    shown = dict(zip(queries, page.evaluate(FIND, queries), strict=True))
    for query, numbers in MATCHES:
        assert sorted(int(run[:8], 16) for run in shown[query]["runs"]) == numbers, query
    for query, words in ERRORS:
        assert words in shown[query]["error"], query
    for query, hint in HINTS:
        assert shown[query]["hint"] == hint, query


@pytest.mark.parametrize("seed", range(2))
def test_random_queries_have_the_same_answers_and_messages(browser, site_of, seed, monkeypatch):
    draw = random.Random(seed)
    paths = draw.sample(sorted((ROOT / "experiments/records").glob("*/*.json")), 60)
    records = [*RUNS, *map(read, paths)]
    queries = [_query(draw, records, 3) for _ in range(150)]
    page = browser.open(site_of(records))
    page.clock.set_fixed_time(NOW)
    shown = page.evaluate(FIND, queries)
    monkeypatch.setattr(time, "time", NOW.timestamp)
    for query, result in zip(queries, shown, strict=True):
        result = {**result, **({"runs": sorted(result["runs"])} if "runs" in result else {})}
        assert result == answer(records, query), query
    assert sum("error" in result for result in shown) < 120
    assert sum(bool(result.get("runs")) for result in shown) > 20


def _query(draw: random.Random, records, depth: int) -> str:
    kind = draw.random()
    if depth and kind < 0.35:
        joined = f" {draw.choice(['and', 'or'])} ".join(
            _query(draw, records, depth - 1) for _ in range(draw.randint(2, 3))
        )
        return f"({joined})" if draw.random() < 0.5 else joined
    if depth and kind < 0.45:
        return f"not {_query(draw, records, depth - 1)}"
    return _comparison(draw, draw.choice(records))


def _comparison(draw: random.Random, record) -> str:
    names = [
        "run",
        "operation",
        "label",
        "study",
        "status",
        "seed",
        "started",
        "wall_seconds",
        "batch",
    ]
    names += [
        "dirty",
        "commit",
        "machine",
        "env_steps",
        "reason",
        "superseded_by",
        "retracted",
        "split",
    ]
    kind = draw.choice(["field", "flag", "last", "best"])
    named = {"field": names, "flag": list(record.flags), "last": list(record.metrics)}
    choices = named.get(kind, list(record.metrics)) or names
    name = draw.choice(choices)
    if draw.random() < 0.05:
        name = name[:-1] + draw.choice("xyz-_")  # misspelt
    value = _value(draw, record, kind, name)
    shown = f"'{name}'" if any(c in name for c in " '\"()=!<>~") else name
    prefix = f"{kind}:" if kind != "field" and draw.random() < 0.5 else ""
    operator = draw.choice(["=", "!=", "<", "<=", ">", ">=", "~", ""])
    return f"{prefix}{shown}{operator}{value if operator else ''}"


def _value(draw: random.Random, record, kind: str, name: str) -> str:
    if kind == "flag":
        actual = record.flags.get(name, "x")
    elif kind in ("last", "best"):
        actual = getattr(record.metrics[name], kind) if name in record.metrics else 1
    else:
        actual = getattr(record, name, None)
        if name == "started" and draw.random() < 0.8:
            actual = draw.choice(["2026-11-21", "2026-11", "2026", "'2026-11-22 10:30'", "today"])
            return actual
    text = str(actual) if draw.random() < 0.8 else str(actual)[: draw.randint(1, 6)]
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
