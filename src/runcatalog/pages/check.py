"""Comparison of the committed runs_catalog.md with a rendering of the records."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runcatalog.model.errors import CatalogError
from runcatalog.model.project import CATALOG_FILE, Project
from runcatalog.model.run_record import RunRecord
from runcatalog.pages import tables
from runcatalog.pages.render import MACHINES, Catalog

# The wording of text.sentences for a running run, and of pages.batch_summary for a running batch.
_RUNS = re.compile(r"(?:^|; |\d of \d+ still )running(?:$|[,;])")


def difference(project: Project, records: Sequence[RunRecord]) -> list[str]:
    """Return the differences between the page and a rendering of the records, a line per difference.

    Raises:
        CatalogError: The page is missing, or cannot be rendered.
    """
    try:
        committed = tables.without_links(project.catalog.read_bytes().decode("utf-8", "replace"))
    except OSError:
        raise CatalogError(f"{project.catalog}: missing; `catalog render` writes it") from None
    catalog = Catalog(project, records)
    expected = catalog.markdown()
    problems = [f"figure {p} is missing" for p in sorted(catalog.figures) if not p.is_file()]
    if committed == expected:
        return problems
    for running, advice in (
        (False, "without a record (`catalog export` writes it)"),
        (True, "still running, without a record yet (`catalog render` leaves it out)"),
    ):
        if unknown := _without_record(committed, records, running):
            problems.append(f"{CATALOG_FILE} shows {_run_list(unknown)}, {advice}")
    return [_first_difference(committed, expected), *problems]


def lost_rows(project: Project, records: Sequence[RunRecord]) -> str:
    """Return a sentence that names the rows of the page whose records were removed; "" if there are none.

    Rows of running runs do not count, since they had no record.
    """
    try:
        committed = tables.without_links(project.catalog.read_bytes().decode("utf-8", "replace"))
    except OSError:
        return ""
    unknown = _without_record(committed, records, running=False)
    return f"{CATALOG_FILE} shows {_run_list(unknown)}" if unknown else ""


def _without_record(content: str, records: Sequence[RunRecord], running: bool) -> list[str]:
    """Return the ids in a page's tables without a record, either of running runs and batches or of all others."""
    # A batch without a record of its own has a row if its trials have records.
    recorded = {record.id8 for record in records} | {record.batch[:8] for record in records}
    return sorted(
        id8
        for id8, is_running in _ids(content).items()
        if is_running == running and id8 not in recorded
    )


def _run_list(ids: Sequence[str]) -> str:
    shown = ", ".join(ids[:12]) + (f" and {len(ids) - 12} more" if len(ids) > 12 else "")
    return f"run {shown}" if len(ids) == 1 else f"runs {shown}"


def _first_difference(committed: str, expected: str) -> str:
    left, right = committed.splitlines(), expected.splitlines()
    pairs = enumerate(zip(left, right, strict=False), 1)
    different = [(number, old, new) for number, (old, new) in pairs if old != new]
    # The numbers of runs change with every row; the row itself is more informative.
    start = left.index(MACHINES) + 1 if MACHINES in left else 0
    machines = range(
        start, next((i for i in range(start, len(left)) if left[i].startswith("#")), 0)
    )
    others = [
        (number, old, new)
        for number, old, new in different
        if number not in machines and not re.match(r"\d+ (?:run|batch)|No runs yet", old)
    ]
    for number, old, new in (others or different)[:1]:
        return f"{CATALOG_FILE}:{number}: {_quoted(old)}, the records give {_quoted(new)}"
    number = min(len(left), len(right)) + 1
    if len(left) > len(right):
        return f"{CATALOG_FILE}:{number}: {_quoted(left[number - 1])}, the records end before it"
    if len(right) > len(left):
        return (
            f"{CATALOG_FILE}:{number}: the file ends, the records give {_quoted(right[number - 1])}"
        )
    return f"{CATALOG_FILE}: line endings or the last line break differ"


def _quoted(line: str) -> str:
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    shown = " | ".join(cells) if cells else line.strip()
    shown = shown if len(shown) <= 160 else shown[:159] + "…"
    return f"row “{shown}”" if cells else f"“{shown}”"


def _ids(content: str) -> dict[str, bool]:
    """Map the ids in the second column of a page's tables to whether their row is of a running run."""
    ids: dict[str, bool] = {}
    for line in content.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
        if len(cells) > 3 and re.fullmatch(r"[0-9a-f]{8}(, [0-9a-f]{8})*", cells[2]):
            ids |= dict.fromkeys(cells[2].split(", "), any(map(_RUNS.search, cells[3:])))
    return ids
