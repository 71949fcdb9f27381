"""Tables of the generated page: the rows of operations, and their Markdown."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runcatalog.analysis import groups, searches
from runcatalog.model import marks
from runcatalog.model.project import Operation, Reported
from runcatalog.model.run_record import RunRecord
from runcatalog.pages import batch_summary, evaluation_marks
from runcatalog.pages import links as page_links
from runcatalog.text import markdown, sentences

COLUMNS = ("Name", "batch id", "machine", "task id", "seed", "result", "reported")
SHOWN = 10  # rows of an operation that a table shows; earlier rows are folded
LONG = 140  # characters; a longer result may be broken into lines


_MLFLOW = re.compile(r" \[MLflow\]\([a-z]+://[^()\s]*/runs/[^()\s]*\)")


@dataclass(frozen=True)
class Row:
    """A row of Markdown cells.

    Attributes:
        cells: Text by column of COLUMNS.
        heads: The row's single runs, or its batch.
        folded: Whether the row is folded below the table, as an earlier row of its operation.
    """

    cells: dict[str, str]
    heads: tuple[RunRecord, ...] = ()
    folded: bool = False


@dataclass
class PageData:
    """Records of a page, with their batches, trials and declared operations.

    Attributes:
        records: All records.
        operations: Declared operations by name.
        reported: Results of the sources by operation.
        pending: Reason why an operation has not been run yet, by operation.
        links: Addresses of the runs' pages in MLflow, by run id.
        local: Ids of the runs and batches that are marked as not exported.
        missing_commits: Commits of runs that are not in the project's git history.
        addresses: Path and anchor of the entries in the pages of runs, by run id.
        by_id: Current records by id, in order of their start: neither superseded nor retracted. Tables, figures and
            counts are of these alone.
        trials: Current trials by the id of their batch.
        opened: The runs that opened test sets, see `evaluation_marks.openings`; by default those of `records`.
        marked: The superseded and retracted records by id, in order of their start.
        cpus: Kinds of CPU of a machine, in order of the first run on each; bits may differ between them.
    """

    records: Sequence[RunRecord]
    operations: Mapping[str, Operation]
    reported: Mapping[str, Reported]
    pending: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    local: Collection[str] = ()
    missing_commits: Collection[str] = ()
    addresses: dict[str, str] = field(default_factory=dict)
    opened: evaluation_marks.Openings = field(default_factory=dict)
    by_id: dict[str, RunRecord] = field(init=False)
    trials: dict[str, list[RunRecord]] = field(init=False)
    marked: dict[str, RunRecord] = field(init=False)
    cpus: dict[str, list[str]] = field(init=False)
    _by_operation: dict[str, list[RunRecord]] = field(init=False)

    def __post_init__(self) -> None:
        ordered = sorted(self.records, key=groups.order)
        self.opened = self.opened or evaluation_marks.openings(ordered)
        self.by_id = {record.run: record for record in marks.current(ordered)}
        self.marked = {r.run: r for r in ordered if r.run not in self.by_id}
        self.cpus = {}
        for record in ordered:
            kinds = self.cpus.setdefault(record.machine, [])
            if record.host_cpu and record.host_cpu not in kinds:
                kinds.append(record.host_cpu)
        self.trials, self._by_operation = {}, {}
        for record in self.by_id.values():
            self._by_operation.setdefault(record.operation, []).append(record)
            if record.batch:
                self.trials.setdefault(record.batch, []).append(record)

    def is_batch(self, record: RunRecord) -> bool:
        """Return whether a record is of a batch."""
        return record.run in self.trials or bool((record.result or {}).get("batch"))

    def operation_of(self, record: RunRecord) -> str:
        """Return a record's operation; that of its batch for a trial."""
        batch = self.by_id.get(record.batch) or self.marked.get(record.batch)
        return batch.operation if batch else record.operation

    def marked_of(self, operation: str) -> list[RunRecord]:
        """Return the superseded and retracted runs and batches of an operation, with their trials."""
        return [record for record in self.marked.values() if self.operation_of(record) == operation]

    def heads(self, operation: str) -> list[RunRecord]:
        """Return the batches and single runs of an operation, by start; no trials.

        A batch without a record of its own is represented by its first trial.
        """
        batches: set[str] = set()
        heads = []
        for record in self._by_operation.get(operation, ()):
            if record.batch in self.by_id or (record.batch and record.batch in batches):
                continue
            batches.add(record.batch)
            heads.append(record)
        return heads

    def id_cell(self, run: str) -> str:
        """Return a run's first 8 digits, linked to its entry in the pages of runs, and marked if it is local."""
        shown = (
            f"[{run[:8]}]({page_links.to(self.addresses[run])})"
            if run in self.addresses
            else run[:8]
        )
        return f"{shown} *local*" if run in self.local else shown

    def machine(self, record: RunRecord) -> str:
        """Return a run's machine, with the number of its kind of CPU if the machine has had several."""
        kinds = self.cpus.get(record.machine, [])
        if len(kinds) < 2 or record.host_cpu not in kinds:
            return record.machine
        return f"{record.machine} (CPU {kinds.index(record.host_cpu) + 1})"

    def members(self, head: RunRecord) -> list[RunRecord]:
        """Return the trials of a head; none for a single run."""
        return self.trials.get(head.batch or head.run, [])


def rows(
    data: PageData,
    operations: Sequence[str],
    *,
    group: bool = False,
    flags: Sequence[str] | None = None,
    reused: Mapping[str, str] | None = None,
    hidden: Mapping[str, Sequence[Any]] | None = None,
) -> list[Row]:
    """Return the rows of a table.

    Args:
        data: All records.
        operations: Names, in the table's order.
        group: Put single runs that differ only in their seed into the same row.
        flags: Flags to show with the names; by default all in which single runs differ.
        reused: Series by operation, for operations whose run is reused from that series.
        hidden: Values by flag that are not shown.
    """
    table: list[Row] = []
    for operation in operations:
        heads = data.heads(operation)
        single = [head for head in heads if not data.members(head) and not data.is_batch(head)]
        shown = groups.varying(single) if flags is None else flags
        groups_of_runs = _by_flags(data, single) if group else [[head] for head in single]
        by_first = {members[0].run: members for members in groups_of_runs}
        single_ids = {head.run for head in single}
        name = short_name(operation, operations)
        new: list[Row] = []
        for head in heads:
            if head.run in by_first:
                new.append(single_row(data, by_first[head.run], name, shown, hidden))
            elif head.run not in single_ids:
                new.append(_batch_row(data, head, name))
        if reused and operation in reused:
            note = f"reused from {markdown.escape(reused[operation])}"
            new = [replace(row, cells={**row.cells, "result": note}) for row in new]
        new = new or [_missing_row(data, operation, name)]
        earlier = len(new) - SHOWN
        new = [replace(row, folded=i < earlier) for i, row in enumerate(new)]
        table += _with_report(new, data, operation)
    return table


def as_markdown(rows: Sequence[Row], *, breaks: bool = False) -> str:
    """Return rows as a Markdown table; a column that is empty in all rows is left out.

    Folded rows follow below the table.

    Args:
        rows: The rows.
        breaks: Whether the parts of a long result are on separate lines.
    """
    names = [c for c in COLUMNS if c in ("Name", "result") or any(r.cells.get(c) for r in rows)]

    def cell(row: Row, name: str) -> str:
        shown = row.cells.get(name, "")
        long = breaks and name == "result" and len(shown) > LONG
        # Not at the semicolon of an HTML entity: `value &lt; mean`.
        broken = re.sub(r"(&#?\w+;)|; ", lambda m: m[1] or ";<br>", shown)
        return broken if long else shown

    def table(part: Sequence[Row]) -> str:
        return pipes(names, [[cell(row, name) for name in names] for row in part])

    shown = table([row for row in rows if not row.folded])
    folded = [row for row in rows if row.folded]
    if not folded:
        return shown
    return f"{shown}\n\n{fold(f'{len(folded)} earlier rows', table(folded))}"


def without_links(content: str) -> str:
    """Return a page without links to MLflow, which depend on the server."""
    return _MLFLOW.sub("", content)


def pipes(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table of Markdown cells."""
    table = [list(columns), ["---"] * len(columns), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in table)


def more(count: int, hint: str = "") -> str:
    """Return a line that says how many rows a table leaves out, to be put behind it; "" for none."""
    if count <= 0:
        return ""
    return f"\n\n{count} more{f'; {hint}' if hint else ''}."


def fold(summary: str, content: str) -> str:
    """Return folded content; the summary is HTML."""
    return f"<details><summary>{summary}</summary>\n\n{content}\n\n</details>"


def _by_flags(data: PageData, single: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Group runs that differ only in their seed, and whose parents differ only in their seed; members by start."""
    by_lineage: dict[str, list[RunRecord]] = {}
    for record in single:
        parents = [_lineage(data, record, parent) for parent in record.parents]
        by_lineage.setdefault(repr((_group_key(record), parents)), []).append(record)
    # Runs with the same parent belong together too, although the parent has the same seed as only some of them.
    merged: dict[str, list[RunRecord]] = {}
    for key, members in by_lineage.items():
        same_parents = len({member.parents for member in members}) == 1
        merged.setdefault(
            repr((_group_key(members[0]), members[0].parents)) if same_parents else key, []
        ).extend(members)
    return [sorted(members, key=groups.order) for members in merged.values()]


def _group_key(record: RunRecord) -> tuple[object, ...]:
    return _flags_without_seed(record), _label(record), record.reported_by


def _flags_without_seed(record: RunRecord) -> dict[str, Any]:
    return {k: v for k, v in record.flags.items() if k not in ("seed", "resume")}


def _lineage(data: PageData, record: RunRecord, parent: str) -> object:
    """Return the identity of a parent: operation and flags if its seed is the record's, else its id."""
    known = data.by_id.get(parent) or data.marked.get(parent)
    if known is None or known.seed != record.seed:
        return parent
    return known.operation, _flags_without_seed(known), known.reported_by


def single_row(
    data: PageData,
    members: Sequence[RunRecord],
    name: str,
    shown: Sequence[str],
    hidden: Mapping[str, Sequence[Any]] | None = None,
) -> Row:
    """Return the row of a run, or of runs that differ only in their seed; see :func:`rows`."""
    first = members[0]
    if len(members) == 1:
        result = sentences.sentence(first)
    else:
        result = batch_summary.summary(None, members)
        imported = [m for m in members if m.reported_by]
        if imported:
            result += f"; imported: {markdown.escape(imported[0].reported_by)}"
    label = _label(first) if len(members) > 1 else first.label
    title = _title(name, label)
    words = set(label.split())
    hidden = hidden or {}
    visible = {n: v for n, v in first.flags.items() if n in shown and v not in hidden.get(n, ())}
    # Flags that are part of the label are not repeated.
    flags = {n: v for n, v in visible.items() if not {f"{n}={v}", str(v)} & words}
    if flags:
        title += " " + sentences.point_text(flags, list(flags), named=True)
    result += evaluation_marks.mark(data.opened, None, members)
    return _row(data, title, [data.id_cell(m.run) for m in members], members, result, members)


def _batch_row(data: PageData, head: RunRecord, name: str) -> Row:
    members = data.members(head)
    batch = None if head.batch else head
    id_cell = data.id_cell(head.batch or head.run)
    result = batch_summary.summary(batch, members)
    if comparison := _against_random(data, batch, members):
        result += f"; {comparison}"
    result += evaluation_marks.mark(data.opened, batch, members)
    if method := _method(batch):
        name = f"{name} ({method})"
    return _row(data, _title(name, head.label), [id_cell], members or [head], result, [head])


def _against_random(data: PageData, batch: RunRecord | None, members: Sequence[RunRecord]) -> str:
    """Return the comparison of a Gaussian-process search with the random search of the same name; "" without one."""
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
    """Return the optimizer, unless the operation's name contains it."""
    method = ((batch.result if batch else None) or {}).get("method")
    own = batch is None or "@" in batch.operation or method in (None, "", "grid", "imported")
    return "" if own else markdown.escape(method)


def _row(
    data: PageData,
    title: str,
    ids: Sequence[str],
    members: Sequence[RunRecord],
    result: str,
    heads: Sequence[RunRecord],
) -> Row:
    if any(m.dirty for m in members):
        result += "; uncommitted code"
    if any(m.commit in data.missing_commits for m in members):
        result += "; commit not in git"
    cells = {
        "Name": title,
        "batch id": ", ".join(ids),
        "machine": distinct(data.machine(m) for m in members),
        "task id": distinct(_task_id(m) for m in members),
        "seed": distinct(seed for m in members for seed in seeds(m)),
        "result": result,
    }
    return Row(cells, tuple(heads))


def _missing_row(data: PageData, operation: str, name: str) -> Row:
    if marked := data.marked_of(operation):
        result = f"no current run: {len(marked)} superseded or retracted"
    elif operation in data.operations:
        reason = data.pending.get(operation)
        note = f" ({markdown.escape(reason)})" if reason else ""
        result = f"declared, not run{note}: {markdown.code(f'guild run {operation} -y')}"
    elif operation in data.reported:
        result = "reported by the source, not declared here"
    else:
        result = "neither declared nor run"
    return Row({"Name": name, "result": result})


def _with_report(rows: list[Row], data: PageData, operation: str) -> list[Row]:
    """Add the source's result to the first visible row; the other rows are further runs of the operation."""
    report = data.reported.get(operation)
    if report is None:
        return rows
    shown = report_text(report)
    first = next(i for i, row in enumerate(rows) if not row.folded)
    with_report = replace(rows[first], cells={**rows[first].cells, "reported": shown})
    return [*rows[:first], with_report, *rows[first + 1 :]]


def report_text(report: Reported) -> str:
    """Return what a source reported, with the source."""
    shown = markdown.escape(report.text, markdown.MAX_RESULT)
    return f"{shown} ({markdown.escape(report.source)})" if report.source else shown


def short_name(operation: str, operations: Sequence[str]) -> str:
    """Return an operation's name without its model, unless another operation of the table has the same short name."""
    _, _, short = operation.rpartition(":")
    clash = sum(other.rpartition(":")[2] == short for other in operations) > 1
    return markdown.escape(operation if clash else short)


def _title(name: str, label: str) -> str:
    return f"{name} “{markdown.escape(label)}”" if label else name


def _label(record: RunRecord) -> str:
    """Return the label without the seed, which differs between the runs of a row."""
    return re.sub(rf"[ ,;]*\bseed[ =:]*{record.seed}\b", "", record.label).strip()


def _task_id(record: RunRecord) -> str:
    for source in (record.result or {}, record.flags):
        for key in ("task_id", "task-id"):
            # -1 stands for the next free id, which only the result knows.
            if str(source.get(key, "")) not in ("", "None", "-1"):
                return markdown.escape(source[key], 20)
    return ""


def seeds(record: RunRecord) -> list[str]:
    """Return the seeds of a run: one, or as many consecutive seeds as its flag `seeds` says."""
    count = record.flags.get("seeds")
    several = isinstance(count, int) and not isinstance(count, bool) and 1 < count <= 1000
    if record.seed is None:
        return []
    return [str(record.seed + i) for i in range(count if several else 1)]  # type: ignore[arg-type]


def distinct(items: Iterable[object]) -> str:
    """Return the distinct non-empty values, numbers in order; many consecutive integers as a range."""
    values = {str(v) for v in items if str(v)}
    if values and all(v.isdigit() for v in values):
        numbers = sorted(int(v) for v in values)
        if len(numbers) > 3 and numbers[-1] - numbers[0] == len(numbers) - 1:
            return f"{numbers[0]}–{numbers[-1]}"
        return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
    shown = [markdown.escape(v) for v in sorted(values)]
    return ", ".join(shown[:4]) + (", …" if len(shown) > 4 else "")
