"""Pages of a study's runs: for every run and batch the command that repeats it, its commit, hardware and checksums."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runcatalog.model.run_record import RUNNING, RunRecord
from runcatalog.pages import reproduced, rerun_command
from runcatalog.pages.tables import batch_summary, cells, evaluation_marks, search_table
from runcatalog.pages.tables.page_data import PageData
from runcatalog.text import links, markdown, sentences, terminal

COLUMNS = ("run", "started (UTC)", "result", "command", "commit, machine, duration, checksums")
MAX_BYTES = 400_000  # of a page; GitHub shows Markdown up to 512 kB
MAX_ENTRIES = 400  # of a page of one operation
SUPERSEDED = "superseded-and-retracted"  # anchor of the list
_COMMIT = 7  # digits of a commit
_LEGEND = """\
To run a row again: `catalog rerun ID` checks out its commit, runs the command there and compares the results. By hand:
check out the row's commit (`git worktree add DIRECTORY COMMIT`); there, paste the shell line that the command names
(`NAME=(…)` above the table is used as `"${NAME[@]:?}"`), then the command. A command has every flag of its record.
"Uncommitted code": the run's code differed from its commit. "Not in git": this repository's history lacks the commit.
"""


@dataclass(frozen=True)
class RunsPages:
    """The pages of a study's runs.

    Attributes:
        path: The first page.
        pages: Content by path from the project's folder; targets of links are written by `links.to`.
        addresses: Path and anchor of the entries, by run id and by operation.
    """

    path: str
    pages: Mapping[str, str]
    addresses: Mapping[str, str]


def runs_pages(data: PageData, study: str, operations: Sequence[str], folder: str) -> RunsPages:
    """Return the pages of a study's runs: one, or a page for each operation where it would be too long.

    Args:
        data: All records.
        study: The study.
        operations: Its operations, in order.
        folder: Folder of the pages, from the project's folder.
    """
    path = f"{folder}/{study}_runs.md"
    entries = {name: heads for name in operations if (heads := data.heads(name))}
    marked = [record for record in data.marked.values() if record.study == study]
    results = {head.run: _result(data, head) for heads in entries.values() for head in heads}
    sections = {name: _section(data, name, heads, results) for name, heads in entries.items()}
    rest = [_marked(data, marked), reproduced.section(_of_study(data, study))]
    head = (
        f"# Runs of {study}\n\n[Tables and figures]({links.to(f'{folder}/{study}.md')}). {_LEGEND}"
    )
    addresses = {record.run: f"{path}#{record.id8}" for record in marked}
    pages = {}
    if len("".join(sections.values()).encode()) <= MAX_BYTES:
        parts = [head]
        for name, heads in entries.items():
            title = markdown.escape(name) or "–"
            addresses |= _addresses(data, heads, path)
            addresses[name] = f"{path}#{links.anchor(title)}"
            parts.append(f"## {title}\n\n{sections[name]}")
    else:
        lines = []
        names = _file_names(list(entries))
        for name, heads in entries.items():
            addresses[name] = f"{folder}/{study}_runs/{names[name]}.md"
            addressed = []
            for start in range(0, len(heads), MAX_ENTRIES):
                number = f"_{start // MAX_ENTRIES + 1}" if start else ""
                page = f"{folder}/{study}_runs/{names[name]}{number}.md"
                part = heads[start : start + MAX_ENTRIES]
                addresses |= _addresses(data, part, page)
                title = f"# Runs of {markdown.escape(name)}\n\n"
                back = f"[Tables and figures]({links.to(f'{folder}/{study}.md')}). {_LEGEND}"
                pages[page] = f"{title}{back}\n{_section(data, name, part, results)}\n"
                addressed.append(f"[{len(part)} runs]({links.to(page)})")
            lines.append([markdown.escape(name), ", ".join(addressed)])
        parts = [head, markdown.table(["operation", "runs"], lines)]
    parts += rest
    pages[path] = "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"
    return RunsPages(path, pages, addresses)


def _file_names(operations: Sequence[str]) -> dict[str, str]:
    """Return a distinct file name for each operation."""
    names: dict[str, str] = {}
    for operation in operations:
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", operation).strip("-") or "operation"
        while name.lower() in {other.lower() for other in names.values()}:
            name += "-"
        names[operation] = name
    return names


def _of_study(data: PageData, study: str) -> list[RunRecord]:
    return [record for record in data.by_id.values() if record.study == study]


def _addresses(data: PageData, heads: Sequence[RunRecord], page: str) -> dict[str, str]:
    """Return the address of the entries of heads; the trials of a batch are in the batch's entry."""
    addresses = {}
    for head in heads:
        run = head.batch if head.batch and data.members(head) else head.run
        addresses[run] = f"{page}#{run[:8]}"
        addresses |= {trial.run: f"{page}#{run[:8]}" for trial in data.members(head)}
    return addresses


def _section(
    data: PageData, operation: str, heads: Sequence[RunRecord], results: Mapping[str, str]
) -> str:
    """Return the table of an operation's runs, and what its source reported."""
    reruns = [rerun_command.rerun(data.operations, head, data.members(head)) for head in heads]
    commands, shared = rerun_command.shortened(reruns)
    lines = [
        _line(data, head, results[head.run], command or again.note, bool(command))
        for head, again, command in zip(heads, reruns, commands, strict=True)
    ]
    table = markdown.filled_table(COLUMNS, lines, always=2)
    parts = ["\n".join(["```bash", *shared, "```"]) if shared else "", table]
    if report := data.reported.get(operation):
        parts.insert(0, f"Reported: {cells.whole_report(report)}.")
    return "\n\n".join(filter(None, parts))


def _result(data: PageData, head: RunRecord) -> str:
    """Return the whole result of a run or batch."""
    trials = data.members(head)
    batch = None if head.batch and trials else head
    if batch and not trials:
        result = sentences.sentence(batch)
    else:
        result = batch_summary.summary(batch, trials)
        comparison, peer = search_table.compared(data, batch, trials)
        if comparison is not None:
            result += f"; {batch_summary.comparison_text(comparison, data.id_cell(peer))}"
    return result + evaluation_marks.mark(data.opened, batch, trials)


def _line(data: PageData, head: RunRecord, result: str, again: str, is_command: bool) -> list[str]:
    trials = data.members(head)
    runs = trials or [head]
    batch = None if head.batch and trials else head
    run = batch.run if batch else head.batch
    seeds = cells.distinct(seed for r in runs for seed in cells.seeds(r))
    label = markdown.escape(head.label) if not trials or batch else ""
    machines = cells.distinct(data.machine(r) for r in runs)
    facts = (
        f"“{label}”" if label else "",
        f"seed{'s' * (not seeds.isdigit())} {seeds}" if seeds else "",
        _joined(_code(data, r) for r in runs),
        ", ".join(filter(None, (machines, _joined(_hardware(r) for r in runs)))),
        _duration(batch, trials),
        _checksums(head) if not trials else "",
    )
    return [
        f'<a id="{run[:8]}"></a>{record_link(data, batch, run)}',
        terminal.when(min((r.started for r in runs if r.started is not None), default=None)),
        result,
        markdown.code(again) if is_command else markdown.escape(again, 300),
        "; ".join(filter(None, facts)),
    ]


def record_link(data: PageData, record: RunRecord | None, run: str) -> str:
    """Return a run's first 8 digits, a link to its record and, where the address is known, to its page in MLflow.

    Args:
        data: All records.
        record: The run; None for a batch without a record.
        run: Its id.
    """
    shown = run[:8]
    # A batch without a record of its own has no file.
    if record is not None and record.status != RUNNING and run not in data.local:
        path = f"experiments/records/{record.study}/{shown}.json"
        shown = f"[{shown}]({links.to(path)})"
    if run in data.links:
        shown += f" [MLflow]({data.links[run]})"
    return f"{shown} *local*" if run in data.local else shown


def _marked(data: PageData, records: Sequence[RunRecord]) -> str:
    """Return the folded list of the superseded and retracted records; "" without any."""
    if not records:
        return ""
    columns = ("run", "operation", "label", "value", "superseded by", "why")
    lines = []
    for record in records:
        objective = record.objective
        batch = data.marked.get(record.batch)
        of = batch if batch is not None and record.is_current else record  # as its batch is
        lines.append(
            [
                f'<a id="{record.id8}"></a>{record_link(data, record, record.run)}',
                markdown.escape(record.operation),
                markdown.escape(record.label),
                sentences.objective_text(objective, objective["value"]) if objective else "",
                of.superseded_by[:8] or "retracted",
                markdown.escape("; ".join(filter(None, (of.superseded_why, of.retracted))), 300),
            ]
        )
    count = f"{len(records)} records count in no row, mean or figure:"
    return f"## Superseded and retracted\n\n{count}\n\n{markdown.table(columns, lines)}"


def _code(data: PageData, record: RunRecord) -> str:
    if not record.commit:
        return ""
    shown = markdown.code(record.commit[:_COMMIT])
    if record.commit in data.missing_commits:
        shown += " (not in git)"
    return (
        f"{shown} with uncommitted code {markdown.code(record.dirty[:8])}"
        if record.dirty
        else shown
    )


def _hardware(record: RunRecord) -> str:
    return ", ".join(markdown.escape(part) for part in (record.gpu, record.host_cpu) if part)


def _duration(batch: RunRecord | None, trials: Sequence[RunRecord]) -> str:
    if batch is not None and batch.wall_seconds is not None:
        return markdown.duration(batch.wall_seconds)
    seconds = [t.wall_seconds for t in trials if t.wall_seconds is not None]
    return f"{markdown.duration(sum(seconds))} in all" if seconds else ""


def _checksums(record: RunRecord) -> str:
    return ", ".join(
        f"{markdown.escape(name)} {markdown.code(digest[:8])}"
        for name, digest in sorted(record.digest.items())
    )


def _joined(values: object) -> str:
    distinct = list(dict.fromkeys(value for value in values if value))  # type: ignore[attr-defined]
    return ", ".join(distinct[:4]) + (", …" if len(distinct) > 4 else "")
