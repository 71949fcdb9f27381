"""Tables: which rows an operation has, and how they are written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from catalog import batches, sentences, text
from catalog.model import RunRecord
from catalog.project import Operation, Reported

COLUMNS = ("Name", "batch id", "machine", "task id", "seed", "result", "reported")


@dataclass(frozen=True)
class Row:
    """One row; every cell is Markdown.

    Attributes:
        cells: Text by column of COLUMNS.
        ids: Ids of the runs that the row is about.
    """

    cells: dict[str, str]
    ids: tuple[str, ...] = ()


@dataclass
class Store:
    """All records, and who belongs to whom."""

    records: Sequence[RunRecord]
    operations: Mapping[str, Operation]
    reported: Mapping[str, Reported]
    by_id: dict[str, RunRecord] = field(init=False)
    trials: dict[str, list[RunRecord]] = field(init=False)

    def __post_init__(self) -> None:
        ordered = sorted(self.records, key=batches.order)
        self.by_id = {record.run: record for record in ordered}
        self.trials = {}
        for record in ordered:
            if record.batch:
                self.trials.setdefault(record.batch, []).append(record)

    def is_batch(self, record: RunRecord) -> bool:
        """Whether a record stands for a batch."""
        return record.run in self.trials or bool((record.result or {}).get("batch"))

    def heads(self, operation: str) -> list[RunRecord]:
        """Batches and single runs of an operation, by start; trials are in their batch.

        A batch that has no record of its own is stood for by its first trial.
        """
        found = [
            record
            for record in self.by_id.values()
            if record.operation == operation and record.batch not in self.by_id
        ]
        seen: set[str] = set()
        heads = []
        for record in found:
            if record.batch and record.batch in seen:
                continue
            seen.add(record.batch)
            heads.append(record)
        return heads

    def members(self, head: RunRecord) -> list[RunRecord]:
        """The trials that a head stands for; none for a single run."""
        return self.trials.get(head.batch or head.run, [])


def rows(
    store: Store,
    operations: Sequence[str],
    *,
    group: bool = False,
    flags: Sequence[str] | None = None,
    reused: Mapping[str, str] | None = None,
) -> list[Row]:
    """Returns the rows of a table.

    Args:
        store: All records.
        operations: Names, in the table's order.
        group: Put single runs that differ in their seed alone into one row.
        flags: Flags to show with the names; by default all in which single runs differ.
        reused: Operation to the series whose run is used again here.
    """
    made: list[Row] = []
    for operation in operations:
        heads = store.heads(operation)
        single = [head for head in heads if not store.members(head) and not store.is_batch(head)]
        shown = batches.varying(single) if flags is None else flags
        many = _by_flags(single) if group else [[head] for head in single]
        own = {members[0].run: members for members in many}
        name = _name(operation, operations)
        new: list[Row] = []
        for head in heads:
            if head in single:
                if head.run in own:
                    new.append(_single_row(own[head.run], name, shown))
            else:
                new.append(_batch_row(store, head, name))
        if reused and operation in reused:
            new = [
                _with_result(row, f"reused from {text.escape(reused[operation])}") for row in new
            ]
        made += _with_report(new or [_missing_row(store, operation, name)], store, operation)
    return made


def markdown(made: Sequence[Row]) -> str:
    """Returns rows as a Markdown table; a column that is empty in all rows is left out."""
    names = [c for c in COLUMNS if c in ("Name", "result") or any(r.cells.get(c) for r in made)]
    lines = [list(names), ["---"] * len(names)]
    lines += [[row.cells.get(name, "") for name in names] for row in made]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def details(store: Store, operations: Sequence[str]) -> str:
    """Returns the tables that runs computed themselves, as Markdown; nothing without one.

    A result may hold a `table`: `columns`, a list of text, and `rows`, a list of lists of text. Tables of
    the same columns are put together, each row under its run's name and id.
    """
    by_columns: dict[tuple[str, ...], list[list[str]]] = {}
    for operation in operations:
        heads = store.heads(operation)
        shown = batches.varying(heads)
        for head in heads:
            told = (head.result or {}).get("table")
            if not isinstance(told, dict) or not told.get("columns"):
                continue
            columns = tuple(text.escape(column) for column in told["columns"])
            row = _single_row([head], _name(operation, operations), shown)
            first = [row.cells["Name"], row.cells["batch id"]]
            for line in told.get("rows", []):
                cells = [text.escape(cell) for cell in line][: len(columns)]
                cells += [""] * (len(columns) - len(cells))
                by_columns.setdefault(columns, []).append(first + cells)
    return "\n\n".join(
        "\n".join(
            "| " + " | ".join(line) + " |"
            for line in [["Name", "batch id", *columns], ["---"] * (len(columns) + 2), *lines]
        )
        for columns, lines in by_columns.items()
    )


def _by_flags(single: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Groups runs that differ in their seed alone; the first of each by start."""
    grouped: dict[str, list[RunRecord]] = {}
    for record in single:
        flags = {k: v for k, v in record.flags.items() if k not in ("seed", "resume")}
        key = repr((flags, _label(record), record.reported_by, record.parents))
        grouped.setdefault(key, []).append(record)
    return list(grouped.values())


def _single_row(members: Sequence[RunRecord], name: str, shown: Sequence[str]) -> Row:
    first = members[0]
    if len(members) == 1:
        result = sentences.sentence(first)
    else:
        result = batches.summary(None, members)
        running = [m for m in members if m.reported_by]
        if running:
            result += f"; imported: {text.escape(running[0].reported_by)}"
    label = _label(first) if len(members) > 1 else first.label
    title = _title(name, label)
    # What the label says already is not said again.
    told = {n: v for n, v in first.flags.items() if n in shown}
    flags = {n: v for n, v in told.items() if str(v) not in label.replace("=", " ").split()}
    if flags:
        title += " " + batches.point_text(flags, list(flags), named=True)
    return _row(title, [m.id8 for m in members], members, result)


def _batch_row(store: Store, head: RunRecord, name: str) -> Row:
    members = store.members(head)
    batch = None if head.batch else head
    id8 = (head.batch or head.run)[:8]
    result = batches.summary(batch, members)
    if method := _method(batch, members):
        name = f"{name} ({method})"
    made = _row(_title(name, head.label), [id8], members or [head], result)
    return Row(made.cells, (head.batch or head.run, *(m.run for m in members)))


def _method(batch: RunRecord | None, members: Sequence[RunRecord]) -> str:
    """The optimizer, where the operation's own name does not say it."""
    method = ((batch.result if batch else None) or {}).get("method")
    own = batch is None or "@" in batch.operation or method in (None, "", "grid", "imported")
    return "" if own else text.escape(method)


def _row(title: str, ids: Sequence[str], members: Sequence[RunRecord], result: str) -> Row:
    cells = {
        "Name": title,
        "batch id": ", ".join(ids),
        "machine": _distinct(m.machine for m in members),
        "task id": _distinct(_task_id(m) for m in members),
        "seed": _distinct("" if m.seed is None else str(m.seed) for m in members),
        "result": result,
    }
    return Row(cells, tuple(m.run for m in members))


def _missing_row(store: Store, operation: str, name: str) -> Row:
    if operation in store.operations:
        result = f"declared, not run: {text.code(f'guild run {operation} -y')}"
    elif operation in store.reported:
        result = "reported by the source, not declared here"
    else:
        result = "neither declared nor run"
    return Row({"Name": name, "result": result})


def _with_report(made: list[Row], store: Store, operation: str) -> list[Row]:
    """The reports beside the first row; the others are the same operation run again."""
    report = store.reported.get(operation)
    if report is None:
        return made
    shown = text.escape(report.text, text.MAX_RESULT)
    if report.source:
        shown += f" ({text.escape(report.source)})"
    first = Row({**made[0].cells, "reported": shown}, made[0].ids)
    return [first, *made[1:]]


def _with_result(row: Row, result: str) -> Row:
    return Row({**row.cells, "result": result}, row.ids)


def _name(operation: str, operations: Sequence[str]) -> str:
    """The operation without its model, unless that leaves two of the same name in a table."""
    _, _, short = operation.rpartition(":")
    clash = sum(each.rpartition(":")[2] == short for each in operations) > 1
    return text.escape(operation if clash else short)


def _title(name: str, label: str) -> str:
    return f"{name} “{text.escape(label)}”" if label else name


def _label(record: RunRecord) -> str:
    """The label without the seed, which differs between runs of one row."""
    return re.sub(rf"[ ,;]*\bseed[ =:]*{record.seed}\b", "", record.label).strip()


def _task_id(record: RunRecord) -> str:
    for source in (record.result or {}, record.flags):
        for key in ("task_id", "task-id"):
            # -1 asks the script for the next free one; until a result names it there is none to show.
            if str(source.get(key, "")) not in ("", "None", "-1"):
                return text.escape(source[key], 20)
    return ""


def _distinct(found: object) -> str:
    """Distinct non-empty values, numbers by size; a long run of whole numbers as a range."""
    values = {str(v) for v in found if str(v)}  # type: ignore[attr-defined]
    if values and all(v.isdigit() for v in values):
        numbers = sorted(int(v) for v in values)
        if len(numbers) > 3 and numbers[-1] - numbers[0] == len(numbers) - 1:
            return f"{numbers[0]}–{numbers[-1]}"
        return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
    shown = [text.escape(v) for v in sorted(values)]
    return ", ".join(shown[:4]) + (", …" if len(shown) > 4 else "")
