"""Folded details below a table: commands that repeat its rows, commits, hardware, times and digests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from runcatalog.model.run_record import RUNNING, RunRecord
from runcatalog.pages import rerun_command, tables
from runcatalog.text import markdown

COLUMNS = ("batch id", "command", "commit", "hardware", "time", "digests", "figure")
_COMMIT = 7  # digits of a commit


def folded(
    data: tables.PageData,
    rows: Sequence[tables.Row],
    figures: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Return the folded details of a table's rows; "" if no row has a run.

    Args:
        data: All records.
        rows: The table's rows.
        figures: Paths, relative to the project's folder, of the figures that show a run, by run id.
    """
    heads = [head for row in rows for head in row.heads]
    if not heads:
        return ""
    reruns = [rerun_command.rerun(data.operations, head, data.members(head)) for head in heads]
    commands, shared = rerun_command.shortened(reruns)
    lines = [
        _line(data, head, command or again.note, bool(command), figures or {})
        for head, again, command in zip(heads, reruns, commands, strict=True)
    ]
    kept = [i for i in range(len(COLUMNS)) if i < 2 or any(line[i] for line in lines)]
    names = [COLUMNS[i] for i in kept]
    table = tables.pipes(names, [[line[i] for i in kept] for line in lines])
    block = "\n".join(["```bash", *shared, "```", "", table]) if shared else table
    return tables.fold(f"{', '.join(names[1:])}".capitalize(), block)


def _line(
    data: tables.PageData,
    head: RunRecord,
    again: str,
    is_command: bool,
    figures: Mapping[str, Sequence[str]],
) -> list[str]:
    trials = data.members(head)
    runs = trials or [head]
    batch = None if head.batch and trials else head
    id8 = (batch.run if batch else head.batch)[:8]
    # A batch without a record of its own has no file.
    if batch is not None and batch.status != RUNNING and batch.run not in data.local:
        id8 = f"[{id8}](experiments/records/{batch.study}/{id8}.json)"
    paths = dict.fromkeys(p for r in [head, *trials] for p in figures.get(r.run, ()))
    return [
        id8,
        markdown.code(again) if is_command else markdown.escape(again, 300),
        _joined(_code(data, r) for r in runs),
        _joined(_hardware(r) for r in runs),
        _time(batch, trials),
        _digests(head) if not trials else "",
        ", ".join(f"[{markdown.escape(Path(path).stem)}]({path})" for path in paths),
    ]


def _code(data: tables.PageData, record: RunRecord) -> str:
    if not record.commit:
        return ""
    shown = markdown.code(record.commit[:_COMMIT])
    if record.commit in data.missing_commits:
        shown += " (not in git)"
    return f"{shown} with changes {markdown.code(record.dirty[:8])}" if record.dirty else shown


def _hardware(record: RunRecord) -> str:
    return ", ".join(markdown.escape(part) for part in (record.gpu, record.host_cpu) if part)


def _time(batch: RunRecord | None, trials: Sequence[RunRecord]) -> str:
    if batch is not None and batch.wall_seconds is not None:
        return markdown.duration(batch.wall_seconds)
    seconds = [t.wall_seconds for t in trials if t.wall_seconds is not None]
    return f"{markdown.duration(sum(seconds))} in all" if seconds else ""


def _digests(record: RunRecord) -> str:
    return ", ".join(
        f"{markdown.escape(name)} {markdown.code(digest[:8])}"
        for name, digest in sorted(record.digest.items())
    )


def _joined(values: object) -> str:
    distinct = list(dict.fromkeys(value for value in values if value))  # type: ignore[attr-defined]
    return ", ".join(distinct[:4]) + (", …" if len(distinct) > 4 else "")
