"""Findings in a sentence, computed from the records: for the first line of a section."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from runcatalog import numbers
from runcatalog.analysis import groups, record_numbers
from runcatalog.analysis.differences import MIN_SEEDS, differ
from runcatalog.analysis.replication import reported_numbers
from runcatalog.analysis.searches import RANDOM, importance_of
from runcatalog.model import statistics, values
from runcatalog.model.errors import CatalogError
from runcatalog.model.run_record import FAILED, FINISHED, KILLED, RunRecord
from runcatalog.pages.tables import cells, matrices, search_table, setting_table, settings
from runcatalog.pages.tables.page_data import PageData
from runcatalog.pages.tables.settings import Setting
from runcatalog.query.fields import suggestion
from runcatalog.text import markdown, sentences

_FEW = 4  # names in a sentence


def measured(data: PageData, operation: str, metric: str = "", unit: str = "", **flags: Any) -> str:
    """Return "99 % [98, 100] (5 seeds)" of an operation's runs with these flags; "not run" without a result.

    Of several settings with these flags, without flags of several as declared, the one with most seeds counts; the
    text says how many runs the others have.

    Args:
        data: All records.
        operation: Its name.
        metric: The objective's name, a further number of it, or a metric, whose last value counts; by default the
            objective.
        unit: "%" shows a metric, which is a share, in percent; an objective says itself whether it is one.
        flags: Values that the runs have; `_` stands for `-`.

    Raises:
        CatalogError: No run of the operation has such a flag or metric.
    """
    found = [s for s in _with_flags(data, operation, flags) if s.objectives]
    if metric and found:
        finished = [run for s in found for run in s.finished]
        known = {n for run in finished for n in run.metrics} | {
            n for s in found for n in cells.further(s)
        }
        known |= {str(o["name"]) for s in found for o in s.objectives}
        _check_known(operation, "metric", metric, known)
    found.sort(key=lambda s: (len(s.finished), s.newest or 0), reverse=True)
    alike = found if flags else matrices.all_pooled(data, operation)
    if not alike:
        return "not run"
    setting, *others = alike
    numbers_of = record_numbers.shares if unit == "%" else record_numbers.objectives
    objectives = numbers_of(setting.finished, metric) if metric else setting.objectives
    if len(objectives) < len(setting.finished):
        return "not run"
    count = cells.count(setting)
    seeds = "1 run" if count == "1" else f"{count} seeds" if count.isdigit() else count
    if left_out := sum(len(s.finished) for s in others):
        seeds += f"; {numbers.count(left_out, 'run')} of other settings left out"
    return f"{cells.mean_text(objectives)} {cells.interval(objectives)} ({seeds})".replace(
        "  ", " "
    )


def cell(data: PageData, operation: str, row: str, column: str, **flags: Any) -> str:
    """Return a cell of a table that a run computed, of the operation's newest run with these flags.

    Args:
        data: All records.
        operation: Its name.
        row: First cell of the row, or its first two with a space between.
        column: Title of the column.
        flags: Values that the run has; `_` stands for `-`.
    """
    found = _cells(data, operation, [row], column, **flags)[0]
    return markdown.computed(found[1]) if found else "not run"


def _cells(
    data: PageData, operation: str, rows: Sequence[str], column: str, **flags: Any
) -> list[tuple[RunRecord, Any] | None]:
    """Return for each row a run that has its cell, and the cell: the newest run with all cells, else with this one."""
    runs = [m for setting in _with_flags(data, operation, flags) for m in setting.finished]
    known = [
        [(run, record_numbers.content(run, row, column)) for row in rows]
        for run in reversed(cells.order(runs))
    ]
    known.sort(key=lambda found: any(content is None for _, content in found))
    return [
        next((found[i] for found in known if found[i][1] is not None), None)
        for i in range(len(rows))
    ]


def difference(data: PageData, operation: str, row: str, other: str, column: str) -> str:
    """Return a cell minus the cell of another row with its 95 % interval, as a clause that says what it shows.

    Args:
        data: All records.
        operation: Its name; the newest run that has both cells counts, or of each cell the newest that has it.
        row: First cell of the row, or its first two with a space between.
        other: The same of the other row.
        column: Title of the column; its cells have the form "value [low, high]".
    """
    sides, numbers_ = [], []
    for name, found in zip(
        (other, row), _cells(data, operation, (other, row), column), strict=True
    ):
        key = f"{record_numbers.TABLE}{name} :: {column}"
        number = record_numbers.value(found[0], key) if found else None
        if found is None or number is None:
            return "the difference is undetermined: no value"
        numbers_.append(number)
        sides.append(record_numbers.Side([found[0]], key))
    bounds = record_numbers.bounds_of_difference(*sides)
    if bounds is None:
        return "the difference is undetermined: no interval"
    shown, *ends = _rounded(numbers_[1] - numbers_[0], *bounds)
    unit = " percentage points" if found and "%" in str(found[1]) else ""
    text = f"the difference is {shown} \\[{', '.join(ends)}\\]{unit}"
    return f"{text}: undetermined" if bounds[0] <= 0 <= bounds[1] else text


def above(data: PageData, study: str, metric: str, bound: float) -> str:
    """Return how many of a study's runs have a last value of a metric above a bound, and which, as a sentence.

    Args:
        data: All records.
        study: Its name.
        metric: Name of a metric or of a number of the result.
        bound: The bound, in the metric's unit.
    """
    runs = [r for r in data.by_id.values() if r.study == study and not data.is_batch(r)]
    known = [(number, r) for r in runs if (number := record_numbers.value(r, metric)) is not None]
    found = sorted(((n, r) for n, r in known if n > bound), key=lambda pair: -pair[0])
    unit = data.unit((r for _, r in known), metric)
    limit = f"{numbers.number(bound)} {unit}".strip()
    listed = ", ".join(f"{numbers.number(n, 3)} ({data.id_cell(r.run)})" for n, r in found)
    text = f"{len(found)} of {numbers.count(len(known), 'run')} with this number are above {limit}"
    return f"{text}: {listed}." if found else f"{text}."


def power(data: PageData, operations: Sequence[str]) -> str:
    """Return the smallest differences that comparisons of settings find with 80 % power, as a sentence.

    From the intervals of the differences of all pairs with the first one's objective; "" where no pair has one.

    Args:
        data: All records.
        operations: Names.
    """
    done = [s for name in operations for s in settings.settings(data, name) if s.objectives]
    same = [s for s in done if s.objectives[0]["name"] == done[0].objectives[0]["name"]]
    sizes, single = [], False
    for pair in itertools.combinations(same, 2):
        sides = (record_numbers.Side(setting.finished, "objective") for setting in pair)
        if bounds := record_numbers.bounds_of_difference(*sides):
            sizes.append(statistics.detectable(bounds))
            single |= any(len(setting.finished) == 1 for setting in pair)
    if not sizes:
        return ""
    is_rate = done[0].objectives[0].get("kind") == "rate"
    low, high = _rounded(*(100 * s if is_rate else s for s in (min(sizes), max(sizes))))
    shown = high if low == high else f"{low} to {high}"
    unit = " percentage points" if is_rate else ""
    text = f"Smallest difference of two settings that is found with 80 % power: {shown}{unit}"
    text += ", depending on the pair." if low != high else "."
    return text + " Single runs are compared over levels, not over seeds." * single


def _rounded(*values_: float) -> list[str]:
    """Return numbers with equally many decimals: 1, fewer of large and more of small ones."""
    largest = max((abs(v) for v in values_ if math.isfinite(v)), default=0.0)
    digits = 0 if largest >= 100 else 1
    while 0 < largest < 10 ** (1 - digits) and digits < 12:  # two digits of the largest
        digits += 1
    texts = [f"{v:.{digits}f}".replace("inf", "∞") for v in values_]
    return [numbers.thousands(numbers.minus(text)) for text in texts]


def _check_known(operation: str, kind: str, name: str, known: Collection[str]) -> None:
    """Raise a CatalogError if no run of an operation has a name that stands in a template."""
    if name not in known:
        raise CatalogError(f"no run of {operation} has a {kind} {name}{suggestion(name, known)}")


def _with_flags(data: PageData, operation: str, flags: dict[str, Any]) -> list[Setting]:
    grouped = settings.settings(data, operation)
    known = {
        name.replace("-", "_")
        for s in grouped
        for run in s.members
        for name in run.comparable_flags
    }
    for name in flags if grouped else ():
        _check_known(operation, "flag", name.replace("-", "_"), known)

    def fits(run: RunRecord) -> bool:
        own = run.comparable_flags
        return all(own.get(k.replace("_", "-"), own.get(k)) == v for k, v in flags.items())

    return [s for s in grouped if fits(s.members[0])]


def over_settings(data: PageData, operations: Sequence[str]) -> str:
    """Return the range of the settings' means, how many runs failed or were killed, and what was not replicated."""
    grouped = [s for name in operations for s in settings.settings(data, name)]
    done = [s for s in grouped if s.objectives]
    if not done:
        return _bold(_why_not(data, operations, grouped))
    by_name: dict[str, list[Setting]] = {}
    for setting in done:
        by_name.setdefault(str(setting.objectives[0]["name"]), []).append(setting)
    parts = []
    for name, same in list(by_name.items())[:2]:
        parts.append(f"{markdown.words(name)}: {_reach(same)}")
    text = "; ".join(parts)
    runs = [m for s in grouped for m in s.members]
    lost = sum(m.status in (FAILED, KILLED) for m in runs)
    text += f"; {lost} of {len(runs)} runs failed or killed" if lost else ""
    return f"{_bold(text)}{replication(data, operations)}"


def _reach(grouped: Sequence[Setting]) -> str:
    """Return the lowest and highest mean of settings, what these two differ in, and whether they do."""
    ordered = sorted((s for s in grouped if s.value is not None), key=lambda s: s.value or 0.0)
    if not ordered:
        return cells.mean_text(grouped[0].objectives)
    ends = ordered[0], ordered[-1]
    low, high = (f"{cells.mean_text(s.objectives)} {cells.interval(s.objectives)}" for s in ends)
    if len(ordered) == 1:
        return low.strip()
    if cells.mean_text(ends[0].objectives) == cells.mean_text(ends[1].objectives):
        return f"{cells.mean_text(ends[0].objectives)} in all {len(ordered)} settings"
    names = _difference(*ends)
    shown = [f"{text.strip()}{name}" for text, name in zip((low, high), names, strict=True)]
    text = f"{shown[0]} to {shown[1]} over {len(ordered)} settings"
    # The lowest and highest of many differ by chance alone more often than two that were not chosen so.
    if differ(*(s.objectives for s in ends), pairs=math.comb(len(ordered), 2)):
        return text
    few = min(len(s.objectives) for s in ends) < MIN_SEEDS
    why = f" (fewer than {MIN_SEEDS} seeds)" if few else ""
    return f"{text}; whether these two differ is undetermined{why}"


def _difference(first: Setting, second: Setting) -> list[str]:
    """Return in what two settings differ, for each of them: " (lr 5e-3)"; their operations, or the first two flags."""
    if first.operation != second.operation:
        return [
            f" ({setting_table.short_name(s.operation, [first.operation, second.operation])})"
            for s in (first, second)
        ]
    names = groups.varying([first.members[0], second.members[0]], lacking=False)
    labelled = [n for n in names if n in setting_table.label_flags(first.members[0])]
    names = [*labelled, *(n for n in names if n not in labelled)][:2]
    texts = [
        ", ".join(f"{markdown.escape(n)} {setting_table.flag_text(s.flags.get(n))}" for n in names)
        for s in (first, second)
    ]
    return [f" ({text})" if text else "" for text in texts]


def _why_not(data: PageData, operations: Sequence[str], grouped: Sequence[Setting]) -> str:
    """Return why operations have no result: the end of the last run, or why they were never run."""
    if runs := cells.order(m for s in grouped for m in s.members):
        return f"no run has a result: {sentences.state(runs[-1])}"
    reasons = dict.fromkeys(data.pending[name] for name in operations if name in data.pending)
    return (
        f"not run: {'; '.join(markdown.escape(reason) for reason in list(reasons)[:_FEW])}"
        if reasons
        else "not run"
    )


def replication(data: PageData, operations: Sequence[str]) -> str:
    """Return which reported numbers were not reached, and with which settings, as a sentence; "" if none was reported.

    A number is reached by a setting whose mean does; it is not replicated where the intervals of all settings exclude
    it, and undetermined otherwise.
    """
    compared = {
        name: (data.reported.get(name), done)
        for name in operations
        if (done := with_reported_number(data, name))
    }
    if not compared:
        return ""
    reached, missed, unclear = [], [], []
    for operation, (report, done) in compared.items():
        name = operation.rpartition(":")[2]
        count = sum(cells.reaches(report, setting) for setting in done)
        if count:
            reached += [f"{name} in {count} of {len(done)} settings"] if count < len(done) else []
        elif all(cells.falls_short(report, setting) for setting in done):
            missed.append(name)
        else:
            unclear.append(name)
    total = f"{len(compared)} reported numbers"
    parts = [f"**Not replicated**: {_listed(missed)} ({len(missed)} of {total})"] if missed else []
    if unclear:
        parts.append(f"undetermined: {_listed(unclear)} ({len(unclear)} of {total})")
    by = f"by {_listed(reached)}"
    if not parts:
        every = f"every reported number above 0 ({len(compared)}) was reached"
        parts = [f"{every}, {by}" if reached else every]
    elif reached:
        parts.append(f"reached {by}")
    text = "; ".join(parts)
    return f" {text[0].upper()}{text[1:]}."


def is_missed(data: PageData, operation: str) -> bool:
    """Return whether all settings of an operation fall short of the number reported for its objective."""
    report, done = data.reported.get(operation), with_reported_number(data, operation)
    return bool(done) and all(cells.falls_short(report, setting) for setting in done)


def with_reported_number(data: PageData, operation: str) -> list[Setting]:
    """Return the settings of an operation that have a result and a number that the source reported for its objective.

    Where a source reports that nothing was learned, there is nothing to reach: its number is 0.
    """
    report = data.reported.get(operation)
    found = [s for s in settings.settings(data, operation) if s.objectives]
    return [s for s in found if any(reported_numbers(report, s.objectives[0]))]


def sweep(data: PageData, operations: Sequence[str], x: str, y: str) -> str:
    """Return which value of a flag is best, on how many lines of a sweep it is so, and whether that is determined."""
    runs = [run for name in operations for s in settings.settings(data, name) for run in s.members]
    for flag in filter(None, (x, y) if runs else ()):
        _check_known(", ".join(operations), "flag", flag, {f for run in runs for f in run.flags})
    found = [line for line in matrices.lines(data, operations, x, y) if line.best is not None]
    if not found:
        return "**No run has finished.**"
    tops = Counter(values.flag_text(best) for line in found for best in line.highest)
    top, count = tops.most_common(1)[0]
    having = [line for line in found if top in map(values.flag_text, line.highest)]
    value = next(best for best in having[0].highest if values.flag_text(best) == top)
    shared = sum(len(line.highest) > 1 for line in having)
    determined = [line for line in found if line.is_determined]
    own = [line for line in determined if values.flag_text(line.best) == top]
    shown = f"{markdown.escape(x)} {markdown.flag_value(value)}"
    total = f"{count} of {len(found)} {markdown.escape(y)}s" if y else f"{count} of {len(found)}"
    sentence = f"{shown} has the best mean on {total}{f', shared on {shared}' if shared else ''}"
    if len(own) == count:
        return f"**{sentence}, and is distinguishable from all other values there.**"
    names = [markdown.flag_value(line.name) for line in own]
    if not names:
        return f"**{sentence}, but is nowhere distinguishable from all others: the best is undetermined.**"
    where = f"only on {_listed(names)}"
    return f"**{sentence}; it is distinguishable from all others {where}, elsewhere the best is undetermined.**"


def search(data: PageData, operations: Sequence[str]) -> str:
    """Return how often searches found a better setting than random search, and whose effects are determined."""
    finished = better = total = predicts = known = 0
    names: Counter[str] = Counter()
    for name in operations:
        for head in settings.search_heads(data, name)[-1:]:
            finished += head.status == FINISHED
            batch = settings.batch_of(head)
            comparison, _ = search_table.compared(data, batch, data.members(head))
            if comparison is not None:
                total += 1
                better += search_table.is_better(comparison)
            if (stored := importance_of(batch)) and not name.endswith(RANDOM):
                known += 1
                predicts += bool(stored.determined)
                names.update(share.name for share in stored.determined)
    parts = []
    if total:
        parts.append(
            f"the Gaussian process found a better setting than random search in {better} of {total} pairs; "
            "a pair is one search each, so which method is better is undetermined"
        )
    if known:
        what = (
            f" ({_listed([f'{markdown.escape(n)} in {c}' for n, c in names.most_common(3)])})"
            if names
            else ""
        )
        searches = numbers.count(known, "search")
        parts.append(f"the effect of a parameter is determined in {predicts} of {searches}{what}")
    text = "; ".join(parts)
    if finished and not text:
        text = "no search has a random search beside it, or enough trials to say what matters"
    return _bold(text or "no search has finished")


def _bold(text: str) -> str:
    """Return a bold sentence of its text."""
    return f"**{text[:1].upper()}{text[1:]}.**"


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:_FEW])
    if len(names) > _FEW:
        return f"{', '.join(shown)} and {len(names) - _FEW} more"
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1]))) if shown else ""
