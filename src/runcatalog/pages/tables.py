"""Tables: which rows an operation has, and how they are written."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runcatalog.analysis import groups, searches
from runcatalog.model.project import Operation, Reported
from runcatalog.model.run_record import RunRecord
from runcatalog.pages import batch_summary
from runcatalog.text import markdown, sentences

COLUMNS = ("Name", "batch id", "machine", "task id", "seed", "result", "reported")
SHOWN = 10  # rows of an operation that a table shows; earlier ones are folded
LONG = 140  # characters of a result that is shown in lines


_LINK = re.compile(r"\[([0-9a-f]{8})\]\([a-z]+://[^()\s]*/runs/[^()\s]*\)")


@dataclass(frozen=True)
class Row:
    """One row; every cell is Markdown.

    Attributes:
        cells: Text by column of COLUMNS.
        heads: The single runs that it is about, or its batch.
        folded: Whether it is one of many earlier ones.
    """

    cells: dict[str, str]
    heads: tuple[RunRecord, ...] = ()
    folded: bool = False


@dataclass
class PageData:
    """All records, and who belongs to whom.

    Attributes:
        records: All.
        operations: What is declared, by name.
        reported: What the sources reported, by operation.
        pending: Why an operation was not run yet, by operation.
        links: Address of a run's page in MLflow, by its id.
        local: Runs and batches that are marked as not exported, by id.
        by_id: The records by id, by start.
        trials: Those of each batch, by its id.
    """

    records: Sequence[RunRecord]
    operations: Mapping[str, Operation]
    reported: Mapping[str, Reported]
    pending: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    local: Collection[str] = ()
    by_id: dict[str, RunRecord] = field(init=False)
    trials: dict[str, list[RunRecord]] = field(init=False)
    _by_operation: dict[str, list[RunRecord]] = field(init=False)

    def __post_init__(self) -> None:
        ordered = sorted(self.records, key=groups.order)
        self.by_id = {record.run: record for record in ordered}
        self.trials, self._by_operation = {}, {}
        for record in ordered:
            self._by_operation.setdefault(record.operation, []).append(record)
            if record.batch:
                self.trials.setdefault(record.batch, []).append(record)

    def is_batch(self, record: RunRecord) -> bool:
        """Whether a record stands for a batch."""
        return record.run in self.trials or bool((record.result or {}).get("batch"))

    def heads(self, operation: str) -> list[RunRecord]:
        """Batches and single runs of an operation, by start; trials are in their batch.

        A batch that has no record of its own is stood for by its first trial.
        """
        seen: set[str] = set()
        heads = []
        for record in self._by_operation.get(operation, ()):
            if record.batch in self.by_id or (record.batch and record.batch in seen):
                continue
            seen.add(record.batch)
            heads.append(record)
        return heads

    def id_cell(self, run: str) -> str:
        """The 8 digits of a run, a link to its page in MLflow where there is one, and whether it is local."""
        shown = f"[{run[:8]}]({self.links[run]})" if run in self.links else run[:8]
        return f"{shown} *local*" if run in self.local else shown

    def members(self, head: RunRecord) -> list[RunRecord]:
        """The trials that a head stands for; none for a single run."""
        return self.trials.get(head.batch or head.run, [])


def rows(
    data: PageData,
    operations: Sequence[str],
    *,
    group: bool = False,
    flags: Sequence[str] | None = None,
    reused: Mapping[str, str] | None = None,
    unsaid: Mapping[str, Sequence[Any]] | None = None,
) -> list[Row]:
    """Returns the rows of a table.

    Args:
        data: All records.
        operations: Names, in the table's order.
        group: Put single runs that differ in their seed alone into one row.
        flags: Flags to show with the names; by default all in which single runs differ.
        reused: Operation to the series whose run is used again here.
        unsaid: Values of a flag that are not shown.
    """
    made: list[Row] = []
    for operation in operations:
        heads = data.heads(operation)
        single = [head for head in heads if not data.members(head) and not data.is_batch(head)]
        shown = groups.varying(single) if flags is None else flags
        many = _by_flags(data, single) if group else [[head] for head in single]
        own = {members[0].run: members for members in many}
        among = {head.run for head in single}
        name = short_name(operation, operations)
        new: list[Row] = []
        for head in heads:
            if head.run in own:
                new.append(single_row(data, own[head.run], name, shown, unsaid))
            elif head.run not in among:
                new.append(_batch_row(data, head, name))
        if reused and operation in reused:
            note = f"reused from {markdown.escape(reused[operation])}"
            new = [replace(row, cells={**row.cells, "result": note}) for row in new]
        new = new or [_missing_row(data, operation, name)]
        earlier = len(new) - SHOWN
        new = [replace(row, folded=i < earlier) for i, row in enumerate(new)]
        made += _with_report(new, data, operation)
    return made


def as_markdown(made: Sequence[Row], *, breaks: bool = False) -> str:
    """Returns rows as a Markdown table; a column that is empty in all rows is left out.

    Of many rows of one operation the last are shown, the others folded below.

    Args:
        made: The rows.
        breaks: Whether each part of a long result gets a line of its own.
    """
    names = [c for c in COLUMNS if c in ("Name", "result") or any(r.cells.get(c) for r in made)]

    def cell(row: Row, name: str) -> str:
        shown = row.cells.get(name, "")
        long = breaks and name == "result" and len(shown) > LONG
        # The end of an entity is no end of a part: `value &lt; mean`.
        broken = re.sub(r"(&#?\w+;)|; ", lambda m: m[1] or ";<br>", shown)
        return broken if long else shown

    def table(some: Sequence[Row]) -> str:
        return pipes(names, [[cell(row, name) for name in names] for row in some])

    shown = table([row for row in made if not row.folded])
    folded = [row for row in made if row.folded]
    if not folded:
        return shown
    return f"{shown}\n\n{fold(f'{len(folded)} earlier rows', table(folded))}"


def without_links(content: str) -> str:
    """Returns a file's content without the links to MLflow: who has another server has other ones."""
    return _LINK.sub(r"\1", content)


def pipes(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table of cells that are Markdown."""
    everything = [list(columns), ["---"] * len(columns), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in everything)


def fold(summary: str, content: str) -> str:
    """Returns content that a reader opens; the summary is HTML."""
    return f"<details><summary>{summary}</summary>\n\n{content}\n\n</details>"


def _by_flags(data: PageData, single: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Groups runs that differ, they and those that they began from, in their seed alone.

    The first of each by start.
    """
    grouped: dict[str, list[RunRecord]] = {}
    for record in single:
        began = [_lineage(data, record, parent) for parent in record.parents]
        grouped.setdefault(repr((_alike(record), began)), []).append(record)
    # What all began from one run, whose seed is that of some of them, belongs together as well.
    merged: dict[str, list[RunRecord]] = {}
    for key, members in grouped.items():
        alone = len({member.parents for member in members}) == 1
        merged.setdefault(
            repr((_alike(members[0]), members[0].parents)) if alone else key, []
        ).extend(members)
    return [sorted(each, key=groups.order) for each in merged.values()]


def _alike(record: RunRecord) -> tuple[object, ...]:
    return _but_seed(record), _label(record), record.reported_by


def _but_seed(record: RunRecord) -> dict[str, Any]:
    return {k: v for k, v in record.flags.items() if k not in ("seed", "resume")}


def _lineage(data: PageData, record: RunRecord, parent: str) -> object:
    """What a parent is: one of the record's own seed goes by its operation and flags, any other by its id."""
    known = data.by_id.get(parent)
    if known is None or known.seed != record.seed:
        return parent
    return known.operation, _but_seed(known), known.reported_by


def single_row(
    data: PageData,
    members: Sequence[RunRecord],
    name: str,
    shown: Sequence[str],
    unsaid: Mapping[str, Sequence[Any]] | None = None,
) -> Row:
    """The row of runs that differ in their seed alone, or of one; see :func:`rows`."""
    first = members[0]
    if len(members) == 1:
        result = sentences.sentence(first)
    else:
        result = batch_summary.summary(None, members)
        running = [m for m in members if m.reported_by]
        if running:
            result += f"; imported: {markdown.escape(running[0].reported_by)}"
    label = _label(first) if len(members) > 1 else first.label
    title = _title(name, label)
    # What the label says already is not said again.
    words = set(label.split())
    known = unsaid or {}
    told = {n: v for n, v in first.flags.items() if n in shown and v not in known.get(n, ())}
    flags = {n: v for n, v in told.items() if not {f"{n}={v}", str(v)} & words}
    if flags:
        title += " " + sentences.point_text(flags, list(flags), named=True)
    return _row(title, [data.id_cell(m.run) for m in members], members, result, members)


def _batch_row(data: PageData, head: RunRecord, name: str) -> Row:
    members = data.members(head)
    batch = None if head.batch else head
    own = data.id_cell(head.batch or head.run)
    result = batch_summary.summary(batch, members)
    if told := _against_random(data, batch, members):
        result += f"; {told}"
    if method := _method(batch):
        name = f"{name} ({method})"
    return _row(_title(name, head.label), [own], members or [head], result, [head])


def _against_random(data: PageData, batch: RunRecord | None, members: Sequence[RunRecord]) -> str:
    """How a Gaussian-process search compares with the random one of the same name; nothing without one."""
    if batch is None or not members or (batch.result or {}).get("method") != "gp":
        return ""
    heads = data.heads(batch.operation.partition("@")[0] + searches.RANDOM)
    others = {head.run: data.members(head) for head in heads if data.members(head)}
    peer = searches.peer_of(members, others)
    if not peer:
        return ""
    own, other = (
        [searches.as_searched(batch, t) for t in trials] for trials in (members, others[peer])
    )
    comparison = searches.against_random(own, other)
    return batch_summary.comparison_text(comparison, data.id_cell(peer))


def _method(batch: RunRecord | None) -> str:
    """The optimizer, where the operation's own name does not say it."""
    method = ((batch.result if batch else None) or {}).get("method")
    own = batch is None or "@" in batch.operation or method in (None, "", "grid", "imported")
    return "" if own else markdown.escape(method)


def _row(
    title: str,
    ids: Sequence[str],
    members: Sequence[RunRecord],
    result: str,
    heads: Sequence[RunRecord],
) -> Row:
    if any(m.dirty for m in members):
        result += "; uncommitted code"
    cells = {
        "Name": title,
        "batch id": ", ".join(ids),
        "machine": _distinct(m.machine for m in members),
        "task id": _distinct(_task_id(m) for m in members),
        "seed": _distinct(seed for m in members for seed in _seeds(m)),
        "result": result,
    }
    return Row(cells, tuple(heads))


def _missing_row(data: PageData, operation: str, name: str) -> Row:
    if operation in data.operations:
        why = data.pending.get(operation)
        told = f" ({markdown.escape(why)})" if why else ""
        result = f"declared, not run{told}: {markdown.code(f'guild run {operation} -y')}"
    elif operation in data.reported:
        result = "reported by the source, not declared here"
    else:
        result = "neither declared nor run"
    return Row({"Name": name, "result": result})


def _with_report(made: list[Row], data: PageData, operation: str) -> list[Row]:
    """The report beside the first row that is shown; the others are the same operation run again."""
    report = data.reported.get(operation)
    if report is None:
        return made
    shown = markdown.escape(report.text, markdown.MAX_RESULT)
    if report.source:
        shown += f" ({markdown.escape(report.source)})"
    first = next(i for i, row in enumerate(made) if not row.folded)
    with_it = replace(made[first], cells={**made[first].cells, "reported": shown})
    return [*made[:first], with_it, *made[first + 1 :]]


def short_name(operation: str, operations: Sequence[str]) -> str:
    """The operation without its model, unless that leaves two of the same name in a table."""
    _, _, short = operation.rpartition(":")
    clash = sum(each.rpartition(":")[2] == short for each in operations) > 1
    return markdown.escape(operation if clash else short)


def _title(name: str, label: str) -> str:
    return f"{name} “{markdown.escape(label)}”" if label else name


def _label(record: RunRecord) -> str:
    """The label without the seed, which differs between runs of one row."""
    return re.sub(rf"[ ,;]*\bseed[ =:]*{record.seed}\b", "", record.label).strip()


def _task_id(record: RunRecord) -> str:
    for source in (record.result or {}, record.flags):
        for key in ("task_id", "task-id"):
            # -1 asks the script for the next free one; until a result names it there is none to show.
            if str(source.get(key, "")) not in ("", "None", "-1"):
                return markdown.escape(source[key], 20)
    return ""


def _seeds(record: RunRecord) -> list[str]:
    """Its seed; where a flag says how many seeds it ran by itself, all of them, from that one on."""
    count = record.flags.get("seeds")
    several = isinstance(count, int) and not isinstance(count, bool) and 1 < count <= 1000
    if record.seed is None:
        return []
    return [str(record.seed + i) for i in range(count if several else 1)]  # type: ignore[arg-type]


def _distinct(found: object) -> str:
    """Distinct non-empty values, numbers by size; a long run of whole numbers as a range."""
    values = {str(v) for v in found if str(v)}  # type: ignore[attr-defined]
    if values and all(v.isdigit() for v in values):
        numbers = sorted(int(v) for v in values)
        if len(numbers) > 3 and numbers[-1] - numbers[0] == len(numbers) - 1:
            return f"{numbers[0]}–{numbers[-1]}"
        return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
    shown = [markdown.escape(v) for v in sorted(values)]
    return ", ".join(shown[:4]) + (", …" if len(shown) > 4 else "")
