"""Cells of the tables: values with units, intervals, numbers of seeds, outcomes, reports."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from runcatalog import numbers
from runcatalog.analysis import groups, replication
from runcatalog.model import statistics
from runcatalog.model.project import Reported
from runcatalog.model.run_record import (
    FAILED,
    FINISHED,
    KILLED,
    RUNNING,
    RunRecord,
    is_maximized,
)
from runcatalog.pages.tables import evaluation_marks
from runcatalog.pages.tables.page_data import PageData
from runcatalog.pages.tables.settings import Setting
from runcatalog.record.output import outcome as outcome_text
from runcatalog.text import markdown, sentences, terminal

WIDEST = 100  # characters of a cell; the entry of the run has the rest
_IDS = 3  # links in a cell


def interval(objectives: Sequence[dict[str, Any]]) -> str:
    """Return the 95 % interval of objectives, "[86, 97]"; "" without one."""
    bounds = interval_of(objectives)
    if bounds is None:
        return ""
    if objectives[0].get("kind") == "rate":
        low, high = map(numbers.share if _is_narrow(bounds) else _percent, bounds)
        return f"[{low}, {high}]"
    low, high = (numbers.thousands(markdown.number(bound)) for bound in bounds)
    return f"[{low}, {high}]"


def _is_narrow(bounds: tuple[float, float] | None) -> bool:
    """Return whether the interval of a rate is so narrow that whole per cent would not show it."""
    return bounds is not None and bounds[1] - bounds[0] < outcome_text.NARROW


def _percent(rate: float) -> str:
    if not math.isfinite(rate):
        return markdown.number(rate)
    return markdown.minus(str(math.floor(100 * rate + 0.5)))


def interval_of(objectives: Sequence[dict[str, Any]]) -> tuple[float, float] | None:
    """Return the 95 % interval of objectives; for a single run, also one that the script computed."""
    if bounds := statistics.bounds(objectives):
        return bounds
    if len(objectives) != 1:
        return None
    # A script that runs several seeds itself writes the bounds as further numbers of its objective.
    further, name = sentences.further(objectives[0]), str(objectives[0]["name"])
    low, high = (further.get(f"{name}_{end}", {}).get("value") for end in ("low", "high"))
    return None if low is None or high is None else (low, high)


def further(setting: Setting) -> dict[str, list[dict[str, Any]]]:
    """Return the further numbers of a setting's objectives by name, a list over its runs."""
    numbers = [sentences.further(objective) for objective in setting.objectives]
    names = [
        name for name in (numbers[0] if numbers else ()) if not re.search(r"_(low|high)$", name)
    ]
    return {
        name: [each[name] for each in numbers] for name in names if all(name in n for n in numbers)
    }


def mean_text(objectives: Sequence[dict[str, Any]]) -> str:
    """Return the mean of objectives with its unit, "93 %" or "7696"."""
    mean = statistics.mean([o["value"] for o in objectives])
    shown = numbers.thousands(sentences.value_text(objectives[0], mean))
    if objectives[0].get("kind") == "rate" and _is_narrow(interval_of(objectives)):
        shown = f"{numbers.share(mean)} %"
    too_high = objectives[0].get("kind") == "rate" and mean > 1
    return f"{shown} (above 100 %: counted wrongly in the source)" if too_high else shown


def count(setting: Setting) -> str:
    """Return the number of seeds, "2 of 3" where runs have no result, "4 runs" where seeds are repeated."""
    finished, total = setting.finished, len(setting.members)
    if total > len(finished):
        return f"{len(finished)} of {total}"
    all_seeds = [seed for member in finished for seed in seeds(member)]
    if len(set(all_seeds)) < len(all_seeds):
        return f"{total} runs"
    return str(max(len(all_seeds), total))


def after(objectives: Sequence[dict[str, Any]]) -> str:
    """Return "20 updates", or "18–24 updates" where the runs differ."""
    ats = sorted({o["at"] for o in objectives if numbers.is_finite(o.get("at"))})
    if not ats:
        return ""
    last = markdown.count(ats[-1], str(objectives[0].get("axis") or "step"))
    return f"{numbers.thousands(markdown.amount(ats[0]))}–{last}" if len(ats) > 1 else last


def outcome(data: PageData, setting: Setting, summary: bool = True) -> str:
    """Return what the value of a setting does not say: failures, a replication that failed, the evaluation set.

    Args:
        data: All records.
        setting: The setting.
        summary: Whether the script's own sentence is part of it.
    """
    members, parts = setting.members, []
    lost = [m for m in members if m.status in (FAILED, KILLED)]
    running = sum(m.status == RUNNING for m in members)
    if len(members) == 1 and (lost or running):
        parts.append(sentences.state(members[0]))
    elif lost:
        kinds = Counter(sentences.failure_kind(m) for m in lost)
        why = kinds.most_common(1)[0][0] + (", …" if len(kinds) > 1 else "")
        if len(lost) == 1:
            why = sentences.failure_kind(lost[0]) + sentences.failure_place(lost[0])
        parts.append(f"{len(lost)} of {len(members)} failed: {why}")
    if running and len(members) > 1:
        parts.append(f"{running} of {len(members)} still running")
    for batch in setting.batches:
        if batch.status == KILLED:
            parts.append(f"the batch was {sentences.killed(batch)}")
        elif batch.status == FAILED:
            parts.append(f"the batch {sentences.failure(batch)}")
    if verdict := not_replicated(data.reported.get(setting.operation), setting):
        parts.append(verdict)
    sentence = (members[0].result or {}).get("summary") if len(members) == 1 else ""
    if sentence and members[0].status == FINISHED and (summary or not setting.objectives):
        parts.append(markdown.escape(sentence, WIDEST))
    elif not sentence and any(m.status == FINISHED and not m.objective for m in members):
        parts.append("finished, with no result")
    only_batch = setting.batches[0] if len(setting.batches) == 1 else None
    parts.append(evaluation_marks.mark(data.opened, only_batch, members).removeprefix("; "))
    if setting.repeated:
        runs = numbers.count(setting.repeated, "older run")
        same = "result, without a seed," if members[0].seed is None else "seed"
        parts.append(f"{runs} of the same {same} left out")
    parts += provenance(data, members)
    return joined(parts)


def provenance(data: PageData, members: Sequence[RunRecord]) -> list[str]:
    """Return what limits the trust in runs: imported, uncommitted code, a commit that git does not have."""
    imported = next((m.reported_by for m in members if m.reported_by), "")
    parts = [f"imported: {markdown.escape(imported)}"] if imported else []
    if any(m.dirty for m in members):
        parts.append("uncommitted code")
    if any(m.commit in data.missing_commits for m in members):
        parts.append("commit not in git")
    return parts


def not_replicated(report: Reported | None, setting: Setting) -> str:
    """Return "**not replicated**: reported 90 %" of a setting that falls short of the reported number; "" else."""
    if not falls_short(report, setting):
        return ""
    objective = setting.objectives[0]
    number = statistics.mean(replication.reported_numbers(report, objective))
    return f"**not replicated**: reported {sentences.value_text(objective, number)}"


def falls_short(report: Reported | None, setting: Setting) -> bool:
    """Return whether a setting's interval lies on the worse side of what its source reported for the objective."""
    return _compared(replication.falls_short, interval_of(setting.objectives), report, setting)


def reaches(report: Reported | None, setting: Setting) -> bool:
    """Return whether a setting's mean is at least as good as what its source reported for the objective."""
    return _compared(replication.reaches, setting.value, report, setting)


def _compared(
    verdict: Callable[..., bool], measured: Any, report: Reported | None, setting: Setting
) -> bool:
    """Return the verdict on a setting's measured value or interval; False without one, or without a reported number."""
    objective = setting.objectives[0] if setting.objectives else None
    reported = replication.reported_numbers(report, objective) if objective else []
    if objective is None or not reported or measured is None:
        return False
    return verdict(
        measured,
        reported,
        share=objective.get("kind") == "rate",
        maximize=is_maximized(str(objective["name"]), objective),
    )


def report(reported: Reported) -> str:
    """Return what a source reported, cut to a cell; the page of runs has the whole."""
    source = f" ({markdown.escape(reported.source)})" if reported.source else ""
    room = max(40, WIDEST - len(terminal.plain(source)))
    if len(reported.text) + len(source) <= WIDEST:
        return markdown.escape(reported.text, room) + source
    return markdown.escape(reported.text, WIDEST - 10)


def whole_report(reported: Reported) -> str:
    """Return what a source reported, with the source."""
    shown = markdown.escape(reported.text, markdown.MAX_RESULT)
    return f"{shown} ({markdown.escape(reported.source)})" if reported.source else shown


def ids(data: PageData, setting: Setting) -> str:
    """Return links to the entries of a setting's batches and runs, the first three of them."""
    runs = list(dict.fromkeys(m.batch or m.run for m in setting.members))
    return id_links(data, runs)


def id_links(data: PageData, runs: Sequence[str]) -> str:
    """Return links to the entries of runs, the first three of them."""
    shown = ", ".join(data.id_cell(run) for run in runs[:_IDS])
    more = len(runs) - _IDS
    return f"{shown} and {data.section_link(runs[0], f'{more} more')}" if more > 0 else shown


def day(milliseconds: int | None) -> str:
    """Return the UTC day of a time, "2026-11-22"; "" for None."""
    return terminal.when(milliseconds)[: len("2026-11-22")]


def joined(parts: Iterable[str], separator: str = "; ", most: int | None = None) -> str:
    """Return the first parts that fit into a cell, at most `most` of them, joined, "…" for the others."""
    kept: list[str] = []
    present = [part for part in parts if part]
    for part in present:
        is_wide = len(terminal.plain(separator.join([*kept, part]))) > WIDEST - 3
        if kept and (is_wide or len(kept) == most):
            return separator.join([*kept, "…"])
        kept.append(part)
    return separator.join(kept)


def seeds(record: RunRecord) -> list[str]:
    """Return the seeds of a run: one, or as many consecutive seeds as its flag `seeds` says.

    A flag of text such as "1 2 3", which lists seeds, may be a single whole number too: the run's variant says so.
    """
    number = record.flags.get("seeds")
    several = isinstance(number, int) and not isinstance(number, bool) and 1 < number <= 1000
    variant = (record.result or {}).get("variant")
    several = several and not (isinstance(variant, dict) and isinstance(variant.get("seeds"), str))
    if record.seed is None:
        return []
    return [str(record.seed + i) for i in range(number if several else 1)]  # type: ignore[arg-type]


def distinct(items: Iterable[object]) -> str:
    """Return the distinct non-empty values, numbers in order; many consecutive integers as a range."""
    values = {str(v) for v in items if str(v)}
    if values and all(v.isdigit() for v in values):
        numbers = sorted(int(v) for v in values)
        if len(numbers) > 3 and numbers[-1] - numbers[0] == len(numbers) - 1:
            return f"{numbers[0]}–{numbers[-1]}"
        return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
    return joined(map(markdown.escape, sorted(values)), separator=", ", most=4)


def order(runs: Iterable[RunRecord]) -> list[RunRecord]:
    """Return runs by start."""
    return sorted(runs, key=groups.order)
