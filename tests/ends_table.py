"""The table of docs/reliability.md that says how each end is told; tests take what they expect from it."""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reliability.md"


class Row(NamedTuple):
    """One way to end.

    Attributes:
        case: Its name.
        how: How the test brings it about.
        test: `FILE::FUNCTION`, below tests/.
        status: What the catalog then says.
        reason: Verbatim; `…` stands for what differs from run to run.
    """

    case: str
    how: str
    test: str
    status: str
    reason: str

    def fits(self, status, reason):
        """Says whether a run was told as the table says."""
        pattern = ".+".join(map(re.escape, self.reason.split("…")))
        return status == self.status and bool(re.fullmatch(pattern, reason))


@cache
def rows():
    """Returns the rows of the table by case."""
    section = PAGE.read_text().split("\n## How a run ends\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    found = [Row(*(cell.strip("`") for cell in line)) for line in cells]
    assert len({row.case for row in found}) == len(found)
    return {row.case: row for row in found}


def check(case, status, reason):
    """Fails unless a run that ended as the case says was told as its row says."""
    row = rows()[case]
    assert row.fits(status, reason), f"{case}: {status} {reason!r}, not {row.status} {row.reason!r}"
