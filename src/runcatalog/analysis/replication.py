"""Whether a measured result falls short of the number that a source reported."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from runcatalog.model import statistics, values
from runcatalog.model.project import Reported


def falls_short(
    bounds: tuple[float, float] | None, reported: Sequence[float], *, share: bool, maximize: bool
) -> bool:
    """Return whether a 95 % interval lies wholly on the worse side of a reported number, beyond its rounding.

    Args:
        bounds: The interval of the measured result; a result without one never falls short.
        reported: The reported number, or those of several seeds, whose mean counts; at least one.
        share: Whether the number is a share, which sources write in per cent: 0.9 is 90 % and known to 0.005.
        maximize: Whether larger is better.
    """
    if bounds is None:
        return False
    least = _least(reported, share=share, maximize=maximize)
    return bounds[1] < least if maximize else bounds[0] > least


def reaches(value: float, reported: Sequence[float], *, share: bool, maximize: bool) -> bool:
    """Return whether a measured number is at least as good as a reported one, within its rounding.

    Args:
        value: The measured number.
        reported: As for :func:`falls_short`.
        share: As for :func:`falls_short`.
        maximize: As for :func:`falls_short`.
    """
    least = _least(reported, share=share, maximize=maximize)
    return value >= least if maximize else value <= least


def _least(reported: Sequence[float], *, share: bool, maximize: bool) -> float:
    """Return the worst number that the source may have rounded to the one that it reported."""
    # The mean of several numbers is known as well as the coarsest of them.
    rounding = max(_half_unit(number, 2 if share else 0) for number in reported)
    number = statistics.mean(reported)
    return number - rounding if maximize else number + rounding


def _half_unit(number: float, least_digits: int) -> float:
    """Return half a unit of the last decimal of a number, of which it has at least so many."""
    decimals = len(f"{Decimal(repr(number)):f}".rstrip("0").partition(".")[2])
    return 0.5 * 10.0 ** -max(decimals, least_digits)


def reported_numbers(report: Reported | None, objective: dict[str, Any]) -> list[float]:
    """Return the numbers that a source reported for an objective, one or one per seed; [] without any."""
    stated = report.numbers.get(str(objective["name"])) if report else None
    try:
        return [values.number(n) for n in (stated if isinstance(stated, list) else [stated])]
    except ValueError:
        return []
