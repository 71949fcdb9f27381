"""Comparison of the committed pages with a rendering of the records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from runcatalog.model.errors import CatalogError
from runcatalog.model.project import CATALOG_FILE, Project
from runcatalog.model.run_record import RunRecord
from runcatalog.pages import render

# The wording of text.sentences for a running run, and of pages.tables.batch_summary for a running batch.
_RUNS = re.compile(r"(?:^|; |\d of \d+ still )running(?:$|[,;])")
_CONFLICT = re.compile("^<{7} ", re.MULTILINE)
# Links to MLflow depend on the server.
_MLFLOW = re.compile(r" \[MLflow\]\([a-z]+://[^()\s]*/runs/[^()\s]*\)")


def difference(project: Project, records: Sequence[RunRecord]) -> list[str]:
    """Return the differences between the pages and a rendering of the records, a line per difference.

    Raises:
        CatalogError: The front page is missing, or a page cannot be rendered.
    """
    if not project.catalog.is_file():
        raise CatalogError(f"{project.catalog}: missing; `catalog render` writes it")
    catalog = render.Catalog(project, records)
    pages = catalog.pages
    committed = {path: _content(project.root / path) for path in pages}
    missing = [f"{path} is missing" for path in pages if committed[path] is None]
    problems = [f"figure {p} is missing" for p in sorted(catalog.figures) if not p.is_file()]
    old = render.outdated(project, pages, render.CATALOG_FOLDER)
    problems += [f"{p.relative_to(project.root)} has no study any more" for p in old]
    different = [path for path in pages if committed[path] not in (None, pages[path])]
    if not different:
        return missing + problems
    conflicts = [path for path in different if _CONFLICT.search(committed[path] or "")]
    if conflicts:
        first = f"{', '.join(conflicts)}: a merge conflict; `catalog render` writes the page again"
    else:
        first = _first_difference(different[0], committed[different[0]] or "", pages[different[0]])
        if len(different) > 1:
            first += f"; {len(different) - 1} more pages differ"
    for running, advice in (
        (False, "without a record (`catalog export` writes it)"),
        (True, "still running, without a record yet (`catalog render` leaves it out)"),
    ):
        if unknown := _without_record(project, records, running):
            problems.append(f"{CATALOG_FILE} shows {_run_list(unknown)}, {advice}")
    return [first, *missing, *problems]


def lost_rows(project: Project, records: Sequence[RunRecord]) -> str:
    """Return a sentence that names the runs of the pages whose records were removed; "" if there are none.

    Running runs do not count, since they had no record.
    """
    unknown = _without_record(project, records, running=False)
    return f"{CATALOG_FILE} shows {_run_list(unknown)}" if unknown else ""


def _content(path: Path) -> str | None:
    """Return a page without links to MLflow; None without the page."""
    try:
        content = path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    return _MLFLOW.sub("", content)


def _without_record(project: Project, records: Sequence[RunRecord], running: bool) -> list[str]:
    """Return the ids in the pages of runs without a record, either of running runs and batches or of all others."""
    # A batch without a record of its own has an entry if its trials have records.
    recorded = {record.id8 for record in records} | {record.batch[:8] for record in records}
    folder = project.root / render.CATALOG_FOLDER
    pages = [*folder.glob("*_runs.md"), *folder.glob("*_runs/*.md")]
    ids = {
        id8: is_running for page in pages for id8, is_running in _ids(_content(page) or "").items()
    }
    return sorted(i for i, is_running in ids.items() if is_running == running and i not in recorded)


def _run_list(ids: Sequence[str]) -> str:
    shown = ", ".join(ids[:12]) + (f" and {len(ids) - 12} more" if len(ids) > 12 else "")
    return f"run {shown}" if len(ids) == 1 else f"runs {shown}"


def _first_difference(page: str, committed: str, expected: str) -> str:
    left, right = committed.splitlines(), expected.splitlines()
    for number, (old, new) in enumerate(zip(left, right, strict=False), 1):
        if old != new:
            return f"{page}:{number}: {_quoted(old)}, the records give {_quoted(new)}"
    number = min(len(left), len(right)) + 1
    if len(left) > len(right):
        return f"{page}:{number}: {_quoted(left[number - 1])}, the records end before it"
    if len(right) > len(left):
        return f"{page}:{number}: the file ends, the records give {_quoted(right[number - 1])}"
    return f"{page}: line endings or the last line break differ"


def _quoted(line: str) -> str:
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    shown = " | ".join(cells) if cells else line.strip()
    shown = shown if len(shown) <= 160 else shown[:159] + "…"
    return f"row “{shown}”" if cells else f"“{shown}”"


def _ids(content: str) -> dict[str, bool]:
    """Map the ids of the entries of a page of runs to whether they are of a running run."""
    ids: dict[str, bool] = {}
    for line in content.splitlines():
        if entry := re.match(r'\| <a id="([0-9a-f]{8})"></a>', line):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
            ids[entry[1]] = any(map(_RUNS.search, cells[2:]))
    return ids
