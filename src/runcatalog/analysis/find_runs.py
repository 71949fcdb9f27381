"""Which runs a query finds."""

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
from runcatalog.query.fields import (
    MISSING,
    Column,
    KnownNames,
    Predicate,
    close_matches,
    predicate,
    run_value,
)
from runcatalog.query.language import Comparison, Term, Truth, comparisons, evaluate, parse
from runcatalog.store.run_rows import Reader, StoredRun
from runcatalog.text import sentences, terminal

_FIXED = ("run", "operation", "label", "status")
_FACTS = ("run", "batch", "operation", "label", "study", "status", "reason", "seed", "started")
_MORE_FACTS = ("wall_seconds", "machine", "commit", "dirty")


@dataclass
class Found:
    """What a query found.

    Attributes:
        reader: Where from.
        stored: The runs, the oldest first.
        columns: What the names in the query stand for, each once, in their order.
        total: How many runs there are.
        hint: What may be misspelt, if nothing was found.
        records: The records with metrics that had to be read, by run.
    """

    reader: Reader
    stored: list[StoredRun]
    columns: list[Column]
    total: int
    hint: str = ""
    records: dict[str, RunRecord] = field(default_factory=dict)

    def value(self, stored: StoredRun, column: Column) -> Any:
        """What a run has under a name of the query, MISSING without it."""
        if column.kind != "best":
            return run_value(stored, column)
        metric = self.records[stored.run].metrics.get(column.key)
        return MISSING if metric is None else metric.best

    def read(self, stored: Iterable[StoredRun]) -> None:
        """Reads the metrics of runs of which they were not read yet."""
        wanted = [each for each in stored if each.run not in self.records]
        self.records |= {each.run: each for each in self.reader.with_points(wanted)}


def search(reader: Reader, query: str) -> Found:
    """Returns the runs that a query finds.

    Curves are read for `best:` alone, and then of the runs for which the rest of the query leaves it open.

    Args:
        reader: The runs.
        query: See :mod:`runcatalog.query.language`.

    Raises:
        QueryError: It cannot be understood, or a name in it is unknown.
    """
    term = parse(query)
    by_run: dict[str, StoredRun] = {}
    for each in reader.runs(rarely=("tags", "params", "metrics")):
        by_run.setdefault(each.run, each)
    if not by_run:
        return Found(reader, [], [], 0)
    known = KnownNames(*map(frozenset, reader.names(by_run.values())))
    bound: dict[Comparison, tuple[Column, Predicate]] = {}
    for each in comparisons(term):
        column = known.column(each.name, query)
        bound[each] = column, predicate(each, column, query)
    columns = list(dict.fromkeys(column for column, _ in bound.values()))
    found = Found(reader, [], columns, len(by_run))

    def test(stored: StoredRun, comparison: Comparison) -> Truth:
        column, wanted = bound[comparison]
        if column.kind == "best" and stored.run not in found.records:
            return False if stored.last_of(column.key) is None else None
        value = found.value(stored, column)
        return value is not MISSING and wanted(value)

    first = {run: evaluate(term, partial(test, stored)) for run, stored in by_run.items()}
    found.read(by_run[run] for run, known in first.items() if known is None)
    found.stored = [s for s in by_run.values() if _decided(term, first[s.run], partial(test, s))]
    if not found.stored:
        asked = {each: bound[each] for each in comparisons(term, under_not=False)}
        found.hint = _hint(by_run.values(), asked)
    return found


def _decided(term: Term, first: Truth, test: Any) -> bool:
    return bool(evaluate(term, test) if first is None else first)


def _hint(
    stored: Collection[StoredRun], asked: Mapping[Comparison, tuple[Column, Predicate]]
) -> str:
    """Says of the first text that no run has what may have been meant; "" if all are somewhere."""
    for comparison, (column, wanted) in asked.items():
        if comparison.operator != "=" or column.kind in ("last", "best"):
            continue
        held = [v for each in stored if (v := run_value(each, column)) is not MISSING]
        if not any(map(wanted, held)):
            texts = {v for v in held if isinstance(v, str)} - {comparison.value}
            shown = "".join(
                f", did you mean {each}?" for each in close_matches(comparison.value, texts)[:1]
            )
            return f"{column.title} is never {comparison.value}{shown}"
    return ""


def as_table(found: Found, limit: int, cells: int | None) -> list[str]:
    """Returns the newest runs as lines of a table, the newest last.

    Args:
        found: The runs.
        limit: How many at most; 0 for all.
        cells: Width of the lines; None for any.
    """
    shown = found.stored[-limit:] if limit else found.stored
    columns = [c for c in found.columns if c.kind != "field" or c.key not in _FIXED]
    bests = any(column.kind == "best" for column in columns)
    found.read(s for s in shown if bests or s.record.status != FINISHED)
    rows = []
    for each in shown:
        record = found.records.get(each.run, each.record)
        cells_ = [_shown(found.value(each, column), column) for column in columns]
        fixed = [record.id8, record.operation, record.label, record.status]
        rows.append([*fixed, *cells_, _result(record)])
    titles = [column.title for column in columns]
    right = {c.title for c in columns if all(_numeric(found.value(s, c)) for s in shown)}
    lines = terminal.table([*_FIXED, *titles, "result"], rows, right=right, cells=cells)
    told = f"{len(found.stored)} of {found.total} runs"
    if len(shown) < len(found.stored):
        told += f", the newest {len(shown)} are shown (-n 0 shows all)"
    return [*lines, told]


def as_json(found: Found) -> str:
    """Returns the runs as a JSON array, an object each."""
    lines = []
    for run in _facts(found):
        run["values"] = {name: _plain(value) for name, value in run["values"].items()}
        run["flags"] = {k: values.to_json(v) for k, v in run["flags"].items()}
        run["metrics"] = {k: values.json_number(v) for k, v in sorted(run["metrics"].items())}
        lines.append(json.dumps(run, ensure_ascii=False, allow_nan=False))
    return "[\n" + ",\n".join(lines) + "\n]" if lines else "[]"


def as_csv(found: Found) -> str:
    """Returns the runs as CSV: facts, the names of the query, the objective."""
    titles = [c.title for c in found.columns if c.kind != "field" or c.key not in _FACTS]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*_FACTS, *_MORE_FACTS, *titles, "objective", "value"])
    for run in _facts(found):
        facts = ["" if run[name] is None else run[name] for name in (*_FACTS, *_MORE_FACTS)]
        told = [_plain(run["values"][title]) for title in titles]
        objective = run["objective"] or {"name": "", "value": ""}
        writer.writerow([*facts, *("" if v is None else v for v in told), *objective.values()])
    return file.getvalue().rstrip("\n")


def _facts(found: Found) -> Iterator[dict[str, Any]]:
    if any(column.kind == "best" for column in found.columns):
        found.read(found.stored)
    for each in found.stored:
        record = each.record
        run: dict[str, Any] = {name: getattr(record, name) for name in (*_FACTS, *_MORE_FACTS)}
        told = record.objective
        run["objective"] = told and {
            "name": told["name"],
            "value": values.json_number(told["value"]),
        }
        run["values"] = {c.title: found.value(each, c) for c in found.columns}
        yield run | {"flags": dict(record.flags), "metrics": each.last}


def _plain(value: Any) -> Any:
    return None if value is MISSING else values.to_json(value)


def _shown(value: Any, column: Column) -> str:
    if value is MISSING:
        return ""
    if column.kind == "field" and column.key == "started":
        return terminal.when(value)
    if column.kind == "field" and column.key in ("batch", "commit", "dirty"):
        return str(value)[:8]
    return terminal.value(value)


def _numeric(value: Any) -> bool:
    return value is MISSING or (isinstance(value, int | float) and not isinstance(value, bool))


def _result(record: RunRecord) -> str:
    result = record.result or {}
    if result.get("batch") and record.status == FINISHED:
        return f"batch ({result.get('method') or 'grid'})"
    return terminal.plain(sentences.sentence(record))
