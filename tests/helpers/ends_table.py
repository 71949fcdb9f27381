"""The table of run endings in docs/reliability.md, from which tests take the expected status and reason."""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"


class Row(NamedTuple):
    """One way to end.

    Attributes:
        case: Its name.
        how: How the test causes it.
        status: The recorded status.
        reason: Verbatim; `…` stands for what differs from run to run.
    """

    case: str
    how: str
    status: str
    reason: str

    def fits(self, status, reason):
        """Return whether status and reason are those of the row."""
        pattern = ".+".join(map(re.escape, self.reason.split("…")))
        return status == self.status and bool(re.fullmatch(pattern, reason))


@cache
def rows():
    """Return the rows of the table by case."""
    section = PAGE.read_text().split("\n## How a run ends\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    table = [Row(*(cell.strip("`") for cell in line)) for line in cells]
    assert len({row.case for row in table}) == len(table)
    return {row.case: row for row in table}


def check(case, status, reason):
    """Fail unless status and reason are those of the case's row."""
    row = rows()[case]
    assert row.fits(status, reason), f"{case}: {status} {reason!r}, not {row.status} {row.reason!r}"
