"""The front page of the catalog: the studies with their pages, and the machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from runcatalog.model.project import Project
from runcatalog.model.run_record import FAILED, FINISHED, KILLED, RUNNING, RunRecord
from runcatalog.pages import evaluation_marks, links, machines, tables


_ENDS = (
    (FINISHED, "finished"),
    (FAILED, "failed"),
    (KILLED, "killed or lost"),
    (RUNNING, "running"),
)
_LEGEND = """\
## How to read

Brackets are 95 % intervals. For a single counted rate this is Wilson's interval. For several seeds it is a bootstrap
interval of the mean, never narrower than the Wilson interval of the pooled counts. An id leads to the command that
repeats the run, its commit, hardware, duration and checksums. "CPU 2" is the second kind of CPU in the table of
machines: equal seeds give equal bits on one kind.
"""


@dataclass(frozen=True)
class StudyPage:
    """A study with its pages, as the front page lists it.

    Attributes:
        name: The study.
        title: Heading of its page.
        path: Its page, from the project's folder.
        runs_path: The page with commands, commits and hardware of its runs.
        sections: Heading and address (path with anchor, from the project's folder) of the page's sections.
    """

    name: str
    title: str
    path: str
    runs_path: str
    sections: tuple[tuple[str, str], ...] = ()


def front_page(project: Project, data: tables.PageData, studies: Sequence[StudyPage]) -> str:
    """Return the front page as Markdown; targets of its links are written by `links.to`.

    Args:
        project: The project.
        data: All records; `data.id_cell(run)` is a link to a run's entry.
        studies: The studies, in the order of guild.yml.
    """
    parts = ["# Runs", _count(data), _studies(studies), machines.inventory(project, data)]
    return "\n\n".join(filter(None, [*parts, _LEGEND + evaluation_marks.LEGEND]))


def _studies(studies: Sequence[StudyPage]) -> str:
    lines = [
        [
            f"[{study.title}]({links.to(study.path)})",
            " · ".join(f"[{title}]({links.to(address)})" for title, address in study.sections),
        ]
        for study in studies
    ]
    return f"## Studies\n\n{tables.pipes(['study', 'sections'], lines)}" if lines else ""


def _count(data: tables.PageData) -> str:
    """Return the numbers of current runs and batches by status, of marked records, of operations never run."""
    parts = [
        _ends([r for r in data.by_id.values() if data.is_batch(r) == batch], word)
        for word, batch in ((("run", "runs"), False), (("batch", "batches"), True))
    ]
    counts = f"{'; '.join(filter(None, parts))}." if data.by_id else "No runs yet."
    if data.marked:
        counts += (
            f" Besides, {len(data.marked)} records are superseded or retracted: they count in no row and no "
            "figure, and are listed with the runs of their study."
        )
    ran = {r.operation for r in (*data.by_id.values(), *data.marked.values())}
    never = len(set(data.operations) - ran)
    return counts + (f" {never} declared operations were never run." if never else "")


def _ends(records: Sequence[RunRecord], words: tuple[str, str]) -> str:
    """Return "3 runs: 2 finished, 1 failed"; "" without records."""
    ends = Counter(record.status for record in records)
    parts = ", ".join(f"{ends[status]} {end}" for status, end in _ENDS if ends[status])
    return f"{len(records)} {words[len(records) != 1]}: {parts}" if records else ""
