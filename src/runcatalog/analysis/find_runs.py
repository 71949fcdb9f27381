"""Runs that match a query, as a table, JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from runcatalog.model import values
from runcatalog.model.run_record import FINISHED, RunRecord
from runcatalog.numbers import is_number
from runcatalog.query.fields import (
    MISSING,
    KnownNames,
    Predicate,
    ResolvedName,
    predicate,
    run_value,
    suggestion,
)
from runcatalog.query.language import Comparison, Term, Truth, comparisons, evaluate, parse
from runcatalog.record.untrusted import printable
from runcatalog.store.run_rows import Reader, StoredRun, by_id
from runcatalog.text import sentences, terminal

_FIXED = ("run", "operation", "label", "status")
_FACTS = ("run", "batch", "operation", "label", "study", "status", "reason", "seed", "started")
_MORE_FACTS = ("wall_seconds", "machine", "commit", "dirty", "superseded_by", "retracted", "split")


@dataclass
class QueryResult:
    """Runs that match a query.

    Attributes:
        reader: Source of the runs.
        stored: The matching runs, the oldest first.
        columns: Resolved names of the query without duplicates, in their order.
        total: Number of all runs.
        hint: A possible misspelling, if no run matches.
        records: Records with metrics that had to be read, by run.
    """

    reader: Reader
    stored: list[StoredRun]
    columns: list[ResolvedName]
    total: int
    hint: str = ""
    records: dict[str, RunRecord] = field(default_factory=dict)

    def value(self, stored: StoredRun, column: ResolvedName) -> Any:
        """Return a run's value of a name in the query; MISSING if it has none."""
        if column.kind != "best":
            return run_value(stored, column)
        metric = self.records[stored.run].metrics.get(column.key)
        return MISSING if metric is None else metric.best

    def read(self, stored: Iterable[StoredRun]) -> None:
        """Read the metrics of runs whose metrics have not been read yet."""
        unread = [run for run in stored if run.run not in self.records]
        self.records |= {record.run: record for record in self.reader.with_points(unread)}


def find_runs(
    reader: Reader, query: str, by_run: Mapping[str, StoredRun] | None = None
) -> QueryResult:
    """Return the runs that match a query.

    Curves are read only for `best:`, and only for runs that the rest of the query does not decide.

    Args:
        reader: The runs.
        query: See :mod:`runcatalog.query.language`.
        by_run: All runs of the reader by id, where they have been read.

    Raises:
        QueryError: The query is not valid, or a name in it is unknown.
    """
    term = parse(query)
    if by_run is None:
        by_run = by_id(reader.runs(on_demand=("tags", "params", "metrics")))
    if not by_run:
        return QueryResult(reader, [], [], 0)
    known = KnownNames(*map(frozenset, reader.names(by_run.values())))
    tests: dict[Comparison, tuple[ResolvedName, Predicate]] = {}
    for comparison in comparisons(term):
        column = known.resolve(comparison.name, query)
        tests[comparison] = column, predicate(comparison, column, query)
    columns = list(dict.fromkeys(column for column, _ in tests.values()))
    result = QueryResult(reader, [], columns, len(by_run))

    def test(stored: StoredRun, comparison: Comparison) -> Truth:
        column, matches = tests[comparison]
        if column.kind == "best" and stored.run not in result.records:
            return False if stored.last_value(column.key) is None else None
        value = result.value(stored, column)
        return value is not MISSING and matches(value)

    first = {run: evaluate(term, partial(test, stored)) for run, stored in by_run.items()}
    result.read(by_run[run] for run, truth in first.items() if truth is None)
    result.stored = [s for s in by_run.values() if _decided(term, first[s.run], partial(test, s))]
    if not result.stored:
        positive = {
            comparison: tests[comparison] for comparison in comparisons(term, under_not=False)
        }
        result.hint = _hint(by_run.values(), positive)
    return result


def _decided(term: Term, first: Truth, test: Any) -> bool:
    return bool(evaluate(term, test) if first is None else first)


def _hint(
    stored: Collection[StoredRun], tests: Mapping[Comparison, tuple[ResolvedName, Predicate]]
) -> str:
    """Return a suggestion for the first text value that no run has; "" if every value occurs."""
    for comparison, (column, matches) in tests.items():
        if comparison.operator != "=" or column.kind in ("last", "best"):
            continue
        actual = [v for run in stored if (v := run_value(run, column)) is not MISSING]
        if not any(map(matches, actual)):
            texts = {v for v in actual if isinstance(v, str)} - {comparison.value}
            hint = suggestion(comparison.value, texts)
            return f"{column.title} is never {comparison.value}{hint}"
    return ""


def as_table(result: QueryResult, limit: int, cells: int | None) -> list[str]:
    """Return the newest runs as lines of a table, the newest last.

    Args:
        result: The runs.
        limit: Largest number of rows; 0 for all.
        cells: Width of the lines in terminal cells; None for no limit.
    """
    shown = result.stored[-limit:] if limit else result.stored
    columns = [c for c in result.columns if c.kind != "field" or c.key not in _FIXED]
    has_best = any(column.kind == "best" for column in columns)
    result.read(s for s in shown if has_best or s.record.status != FINISHED)
    rows = []
    for stored in shown:
        record = result.records.get(stored.run, stored.record)
        queried = [_shown(result.value(stored, column), column) for column in columns]
        fixed = [record.id8, record.operation, record.label, record.status]
        rows.append([*fixed, *queried, _result(record)])
    titles = [column.title for column in columns]
    right = {c.title for c in columns if all(_numeric(result.value(s, c)) for s in shown)}
    lines = terminal.table([*_FIXED, *titles, "result"], rows, right=right, cells=cells)
    summary = f"{len(result.stored)} of {result.total} runs"
    if len(shown) < len(result.stored):
        summary += f", the newest {len(shown)} are shown (-n 0 shows all)"
    return [*lines, summary]


def as_json(result: QueryResult) -> str:
    """Return the runs as a JSON array with an object per run."""
    lines = []
    for run in _facts(result):
        run["values"] = {name: _plain(value) for name, value in run["values"].items()}
        run["flags"] = {k: values.to_json(v) for k, v in run["flags"].items()}
        run["metrics"] = {k: values.json_number(v) for k, v in sorted(run["metrics"].items())}
        lines.append(_escaped(json.dumps(run, ensure_ascii=False, allow_nan=False)))
    return "[\n" + ",\n".join(lines) + "\n]" if lines else "[]"


def as_csv(result: QueryResult) -> str:
    """Return the runs as CSV: facts, the values of the query's names, the objective; without control characters."""
    names = (*_FACTS, *_MORE_FACTS)
    titles = [c.title for c in result.columns if c.kind != "field" or c.key not in names]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    header = [*names, *titles, "objective", "value"]
    writer.writerow([printable(name) for name in header])
    for run in _facts(result):
        facts = ["" if run[name] is None else run[name] for name in names]
        queried = [_plain(run["values"][title]) for title in titles]
        objective = run["objective"] or {"name": "", "value": ""}
        row = [*facts, *("" if v is None else v for v in queried), *objective.values()]
        writer.writerow([printable(cell) if isinstance(cell, str) else cell for cell in row])
    return file.getvalue().rstrip("\n")


def _facts(result: QueryResult) -> Iterator[dict[str, Any]]:
    if any(column.kind == "best" for column in result.columns):
        result.read(result.stored)
    for stored in result.stored:
        record = stored.record
        run: dict[str, Any] = {name: getattr(record, name) for name in (*_FACTS, *_MORE_FACTS)}
        objective = record.objective
        run["objective"] = objective and {
            "name": objective["name"],
            "value": values.json_number(objective["value"]),
        }
        run["values"] = {c.title: result.value(stored, c) for c in result.columns}
        yield run | {"flags": dict(record.flags), "metrics": stored.last}


def _escaped(line: str) -> str:
    """Return a line of JSON in which characters that could command a terminal are escaped."""
    if line == printable(line):
        return line
    return "".join(c if printable(c) else json.dumps(c)[1:-1] for c in line)


def _plain(value: Any) -> Any:
    return None if value is MISSING else values.to_json(value)


def _shown(value: Any, column: ResolvedName) -> str:
    if value is MISSING:
        return ""
    if column.kind == "field" and column.key == "started":
        return terminal.when(value)
    if column.kind == "field" and column.key in ("batch", "commit", "dirty", "superseded_by"):
        return str(value)[:8]
    return terminal.value(value)


def _numeric(value: Any) -> bool:
    return value is MISSING or is_number(value)


def _result(record: RunRecord) -> str:
    result, mark = record.result or {}, sentences.mark(record)
    shown = sentences.sentence(record)
    if result.get("batch") and record.status == FINISHED:
        shown = f"batch ({result.get('method') or 'grid'})"
    return terminal.plain(f"{mark}; {shown}" if mark else shown)
