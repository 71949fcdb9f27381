"""What the page of a single run or batch shows besides the index: curves, command, machine, digests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from runcatalog.model.project import Operation
from runcatalog.model.run_record import Metric, RunRecord
from runcatalog.numbers import is_number
from runcatalog.pages import rerun_command
from runcatalog.site import columns

DIGITS = 5  # significant digits of a curve's values; a chart shows fewer


def run_page(
    declared: Mapping[str, Operation],
    record: RunRecord,
    trials: Sequence[RunRecord],
    digits: int = DIGITS,
) -> dict[str, Any]:
    """Return the content of a run's page.

    Args:
        declared: Operations by name.
        record: The run or batch.
        trials: Trials of the batch; none for a run.
        digits: Significant digits of the curves' values.
    """
    again = rerun_command.rerun(declared, record, trials)
    content = {
        "command": again.command,
        "no_command": again.note,
        "parents": list(record.parents),
        "versions": record.versions,
        "environment": record.environment,
        "digest": record.digest,
        "reproduced": list(record.reproduced),
        "result": _rest(record),
    }
    return {
        **{name: value for name, value in content.items() if value},
        "curves": _curves(record.metrics, digits),
    }


def _rest(record: RunRecord) -> dict[str, Any]:
    """Return the texts and numbers of a result besides its objective."""
    result = record.result or {}
    return {
        name: columns.number(value) if is_number(value) else value
        for name, value in sorted(result.items())
        if name != "summary" and isinstance(value, str | int | float) and value != ""
    }


def _curves(metrics: Mapping[str, Metric], digits: int) -> dict[str, Any]:
    """Return the curves; those with the same steps share them."""
    steps: dict[tuple[int, ...], int] = {}
    curves = {}
    for name, metric in metrics.items():
        shared = steps.setdefault(metric.steps, len(steps))
        curves[name] = [shared, *(_short(value, digits) for value in metric.values)]
    return {"steps": [_differences(each) for each in steps], "values": curves}


def _differences(steps: Sequence[int]) -> list[Any]:
    """Return the first step and the differences between the next, which have fewer digits."""
    return [columns.number(n) for n in (steps[0], *(b - a for a, b in pairwise(steps)))]


def _short(value: float, digits: int) -> Any:
    if value == 0 or not math.isfinite(value):
        return columns.number(value)
    return columns.number(float(f"{value:.{digits}g}"))
