"""What a search or batch prints about its trials: the best so far, and the table at the end."""

from __future__ import annotations

from collections.abc import Sequence

from runcatalog.search.space import Point
from runcatalog.search.trials import Objective, Trial
from runcatalog.text import terminal


def ranked(ended: Sequence[Trial], objective: Objective) -> list[Trial]:
    """Return the trials with a value, the best first."""
    good = [(objective.to_minimize(t.value), t) for t in ended if t.value is not None]
    return [t for _, t in sorted(good, key=lambda pair: pair[0])]


def best_so_far(ended: Sequence[Trial], objective: Objective) -> str:
    """Return "; best so far 0.93 in trial 2"; "" before the first value."""
    good = ranked(ended, objective)
    return f"; best so far {good[0].value:.4g} in trial {good[0].number}" if good else ""


def table(ended: Sequence[Trial], objective: Objective, shown: int) -> list[str]:
    """Return the lines of a table of the best trials: number, objective and searched flags; [] without a value.

    Args:
        ended: The trials.
        objective: The objective.
        shown: Largest number of rows.
    """
    best = ranked(ended, objective)[:shown]
    if not best:
        return []
    rows = [["trial", objective.name, *best[0].point]]
    rows += [
        [str(t.number), f"{t.value:.4g}", *(_value(t.point.get(n)) for n in rows[0][2:])]
        for t in best
    ]
    return [f"  {line}" for line in terminal.table(rows[0], rows[1:])]


def flags_text(point: Point) -> str:
    """Return "lr 0.001, clip-coef 0.2"."""
    return ", ".join(f"{name} {value}" for name, value in point.items())


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
