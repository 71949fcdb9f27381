"""Whether runs_catalog.md is what the records give."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runcatalog.model.errors import CatalogError
from runcatalog.model.project import CATALOG_FILE, Project
from runcatalog.model.run_record import RunRecord
from runcatalog.pages import tables
from runcatalog.pages.render import Catalog

# As text.sentences says it of a run, and pages.batch_summary of several.
_RUNS = re.compile(r"(?:^|; |\d of \d+ still )running(?:$|[,;])")


def difference(project: Project, records: Sequence[RunRecord]) -> list[str]:
    """Says, in one line each, how the file differs from what the records give; [] if it does not.

    Raises:
        CatalogError: There is no file, or it cannot be rendered.
    """
    try:
        there = tables.without_links(project.catalog.read_bytes().decode("utf-8", "replace"))
    except OSError:
        raise CatalogError(f"{project.catalog}: missing; `catalog render` writes it") from None
    catalog = Catalog(project, records)
    expected = catalog.markdown()
    told = [f"figure {p} is missing" for p in sorted(catalog.figures) if not p.is_file()]
    if there == expected:
        return told
    for going, advice in (
        (False, "of which no record is held (`catalog export`)"),
        (True, "still running: no record is written yet (`catalog render` leaves it out)"),
    ):
        if unknown := _without_record(there, records, going):
            told.append(f"{CATALOG_FILE} shows {_which(unknown)}, {advice}")
    return [_first_difference(there, expected), *told]


def lost_rows(project: Project, records: Sequence[RunRecord]) -> str:
    """Says which rows of the file the records do not give any more; "" if all.

    Rows of runs that were still going on are none of them: nothing was recorded of these.
    """
    try:
        there = tables.without_links(project.catalog.read_bytes().decode("utf-8", "replace"))
    except OSError:
        return ""
    unknown = _without_record(there, records, going=False)
    return f"{CATALOG_FILE} shows {_which(unknown)}" if unknown else ""


def _without_record(content: str, records: Sequence[RunRecord], going: bool) -> list[str]:
    """Ids in a file's tables of runs, or batches, that have no record; those of running ones or of the others."""
    # A batch without a record of its own is a row of its trials.
    held = {record.id8 for record in records} | {record.batch[:8] for record in records}
    return sorted(
        each for each, runs in _ids(content).items() if runs == going and each not in held
    )


def _which(ids: Sequence[str]) -> str:
    shown = ", ".join(ids[:12]) + (f" and {len(ids) - 12} more" if len(ids) > 12 else "")
    return f"run {shown}" if len(ids) == 1 else f"runs {shown}"


def _first_difference(there: str, expected: str) -> str:
    left, right = there.splitlines(), expected.splitlines()
    pairs = enumerate(zip(left, right, strict=False), 1)
    different = [(number, old, new) for number, (old, new) in pairs if old != new]
    # The line that counts all runs differs with any row; the row says more.
    others = [each for each in different if not re.match(r"\d+ runs: |No runs yet", each[1])]
    for number, old, new in (others or different)[:1]:
        return f"{CATALOG_FILE}:{number}: {_told(old)}, the records give {_told(new)}"
    number = min(len(left), len(right)) + 1
    if len(left) > len(right):
        return f"{CATALOG_FILE}:{number}: {_told(left[number - 1])}, the records end before it"
    if len(right) > len(left):
        return (
            f"{CATALOG_FILE}:{number}: the file ends, the records give {_told(right[number - 1])}"
        )
    return f"{CATALOG_FILE}: line endings or the last line break differ"


def _told(line: str) -> str:
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    shown = " | ".join(cells) if cells else line.strip()
    shown = shown if len(shown) <= 160 else shown[:159] + "…"
    return f"row “{shown}”" if cells else f"“{shown}”"


def _ids(content: str) -> dict[str, bool]:
    """Ids in the second column of the tables, and whether their row says that they still run."""
    found: dict[str, bool] = {}
    for line in content.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
        if len(cells) > 3 and re.fullmatch(r"[0-9a-f]{8}(, [0-9a-f]{8})*", cells[2]):
            found |= dict.fromkeys(cells[2].split(", "), any(map(_RUNS.search, cells[3:])))
    return found
