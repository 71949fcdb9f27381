"""Matrices: a sweep over two flags, and series of tasks that are learned one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runcatalog.analysis import differences, groups, record_numbers
from runcatalog.model import values
from runcatalog.model.errors import CatalogError
from runcatalog.model.run_record import FAILED, KILLED
from runcatalog.numbers import count, is_number
from runcatalog.pages.tables import cells, setting_table, settings
from runcatalog.pages.tables.page_data import PageData
from runcatalog.pages.tables.settings import Setting
from runcatalog.text import markdown


@dataclass(frozen=True)
class Line:
    """A line of a sweep: the settings of one value of a flag.

    Attributes:
        name: The value.
        settings: Setting by value of the other flag.
        best: The value with the best mean; None without a result.
        tied: Values that are indistinguishable from it.
        left_out: Number of further settings with the value, whose other flags are not those of the line.
    """

    name: Any
    settings: Mapping[Any, Setting]
    best: Any
    tied: tuple[Any, ...]
    left_out: int = 0

    @property
    def highest(self) -> list[Any]:
        """All values with the best mean."""
        if self.best is None:
            return []
        top = self.settings[self.best].value
        return [v for v in (self.best, *self.tied) if self.settings[v].value == top]

    @property
    def is_determined(self) -> bool:
        """Whether the best value is distinguishable from all others: at least one, with finite means of one metric."""
        done = [s.objectives[0]["name"] for s in self.settings.values() if s.value is not None]
        return len(done) > 1 and len(set(done)) == 1 and self.best is not None and not self.tied


def lines(data: PageData, operations: Sequence[str], x: str, y: str) -> list[Line]:
    """Return the lines of a sweep, in order of the operations and their runs.

    The settings of a line differ in `x` alone: those with the most values of it count, of these those with the most
    seeds, then the newest. So does the setting of a value that has several.

    Args:
        data: All records.
        operations: Names.
        x: Flag of the columns.
        y: Flag of the lines.
    """
    by_line: dict[Any, list[Setting]] = {}
    for operation in operations:
        for setting in settings.settings(data, operation):
            if x in setting.flags and (not y or y in setting.flags):
                by_line.setdefault(setting.flags[y] if y else "", []).append(setting)
    found = []
    for name, members in by_line.items():
        line = _comparable(members, x)
        columns = sorted(line, key=values.sort_key)
        first, tied = differences.best([line[c].objectives for c in columns])
        best = columns[first] if first >= 0 else None
        left_out = len(members) - len(line)
        found.append(Line(name, line, best, tuple(columns[i] for i in tied), left_out))
    return found


def _comparable(members: Sequence[Setting], x: str) -> dict[Any, Setting]:
    """Return settings by their value of a flag, whose other flags are the same; see :func:`lines`."""
    others = [n for n in groups.varying([s.members[0] for s in members], lacking=False) if n != x]
    parts: dict[str, dict[Any, Setting]] = {}
    for setting in sorted(members, key=_weight):
        of_others = repr([setting.flags.get(name) for name in others])
        parts.setdefault(of_others, {})[setting.flags[x]] = setting

    def weight(part: Mapping[Any, Setting]) -> tuple[int, int, int]:
        seeds, newest = zip(*map(_weight, part.values()), strict=True)
        return len(part), sum(seeds), max(newest)

    return max(parts.values(), key=weight)


def _weight(setting: Setting) -> tuple[int, int]:
    return len(setting.finished), setting.newest or 0


def sweep_table(data: PageData, operations: Sequence[str], x: str, y: str) -> str:
    """Return the matrix of a sweep as Markdown: mean and 95 % interval; "" without runs."""
    found = lines(data, operations, x, y)
    if not found:
        return ""
    columns = sorted({c for line in found for c in line.settings}, key=values.sort_key)
    objective = next(
        (s.objectives[0] for n in found for s in n.settings.values() if s.objectives), {}
    )
    rows, reports = [], _reports(data, found)
    for line in found:
        shown = [_cell(line, column) for column in columns]
        runs = dict.fromkeys(m.batch or m.run for s in line.settings.values() for m in s.members)
        row = [markdown.flag_value(line.name) if y else markdown.escape(x), *shown, _verdict(line)]
        rows.append([*row, *reports[id(line)], cells.id_links(data, list(runs))])
    names = [f"{markdown.escape(y)} \\ {markdown.escape(x)}" if y else ""]
    names += [markdown.flag_value(c) for c in columns]
    names += [f"best {markdown.escape(x)}", setting_table.REPORTED]
    table, reason = _table(names, rows)
    unit = ", %" if objective.get("kind") == "rate" else ""
    seeds = {len(s.finished) for line in found for s in line.settings.values() if s.finished}
    few, many = min(seeds, default=0), max(seeds, default=0)
    of = "1 seed" if many == 1 else f"{few if few == many else f'{few} to {many}'} seeds"
    name = markdown.words(str(objective.get("name", "objective"))).capitalize()
    caption = (
        f"*{name}{unit}, mean [95 %] of {of}. Bold: the highest mean where it is distinguishable from all "
        "others; elsewhere the best is undetermined.*"
    )
    if left_out := sum(line.left_out for line in found):
        caption = f"{caption[:-1]} {count(left_out, 'setting')} with other flags left out.*"
    if objective.get("goal") == "min":
        caption = caption.replace("highest", "lowest")
    return "\n\n".join(filter(None, (table, caption, reason)))


def _cell(line: Line, column: Any) -> str:
    setting = line.settings.get(column)
    if setting is None:
        return ""
    lost = sum(m.status in (FAILED, KILLED) for m in setting.members)
    failed = f" ({lost} of {len(setting.members)} failed)" if lost else ""
    if not setting.objectives:
        return failed.strip(" ()") or "no result"
    value = cells.mean_text(setting.objectives).removesuffix(" %")
    if line.is_determined and line.best == column:
        value = f"**{value}**"
    return f"{value} {cells.interval(setting.objectives)}".strip() + failed


def _verdict(line: Line) -> str:
    if line.best is None:
        return "no result"
    if not line.tied:
        return markdown.flag_value(line.best) if line.is_determined else ""
    tied = sorted([line.best, *line.tied], key=values.sort_key)
    return f"undetermined: {', '.join(map(markdown.flag_value, tied))}"


def _reports(data: PageData, found: Sequence[Line]) -> dict[int, list[str]]:
    reports = {}
    for line in found:
        operations = dict.fromkeys(s.operation for s in line.settings.values())
        known = [report for name in operations if (report := data.reported.get(name))]
        shown = ["", ""]
        if known:
            shown = [cells.report(known[0]), markdown.escape(known[0].same_setting, cells.WIDEST)]
        reports[id(line)] = shown
    return reports


def series_table(data: PageData, series: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> str:
    """Return a row for each series: the result of every task after its own training, then accuracy and remembering.

    Args:
        data: All records.
        series: For each: `name`; `steps`, the operations of its tasks in order ("" for a task without one); `metrics`,
            the operation that computes `accuracy` and `remembering` ("" without one); `reported`, the entry of
            reported.yml, by default `metrics`.
        tasks: Names of the columns.

    Raises:
        CatalogError: A series has more steps than there are tasks.
    """
    rows = []
    for entry in series:
        if len(entry["steps"]) > len(tasks):
            raise CatalogError(f"series {entry['name']!r}: more steps than tasks, {len(tasks)}")
        steps = [pooled(data, name) for name in entry["steps"]]
        computed = pooled(data, entry.get("metrics") or "")
        report = data.reported.get(entry.get("reported") or entry.get("metrics") or "")
        seeds = {len(step.finished) for step in steps if step}
        runs = [m.run for m in computed.members] if computed else []
        runs = runs or [s.members[-1].run for s in steps if s]
        rows.append(
            [
                markdown.escape(entry["name"]),
                *(_mean(step.objectives) if step else "not run" for step in steps),
                *[""] * (len(tasks) - len(steps)),
                *(_mean_share(computed, name) for name in ("accuracy", "remembering")),
                "–".join(map(str, sorted({min(seeds), max(seeds)}))) if seeds else "",
                markdown.escape(report.same_setting, cells.WIDEST) if report else "",
                cells.id_links(data, runs),
            ]
        )
        if report is not None and "after_training" in report.numbers:
            numbers = report.numbers
            after = [_percent(rate) for rate in numbers["after_training"]]
            rows.append(
                [
                    f"… reported{f' ({markdown.escape(report.source)})' if report.source else ''}",
                    *after,
                    *[""] * (len(tasks) - len(after)),
                    *(_percent(numbers.get(name)) for name in ("accuracy", "remembering")),
                    *[""] * 3,
                ]
            )
    table, reason = _table(["series", *tasks, "accuracy", "remembering", "seeds"], rows)
    return f"{table}\n\n{reason}".strip()


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[str, str]:
    """Return a table whose rows end with "same setting?" and ids, and what all rows say of the setting."""
    same, reason = setting_table.same_settings([row[-2] for row in rows])
    lines = [[*row[:-2], text, row[-1]] for row, text in zip(rows, same, strict=True)]
    names = [*names, setting_table.SAME, setting_table.ID]
    return markdown.filled_table(names, lines), reason


def pooled(data: PageData, operation: str) -> Setting | None:
    """Return the first of :func:`all_pooled`; None without a result."""
    return next(iter(all_pooled(data, operation)), None)


def all_pooled(data: PageData, operation: str) -> list[Setting]:
    """Return the finished runs of an operation as declared, of each seed the newest, by their flags.

    Of several objectives the one of the newest run counts. The values of the flags with the most seeds come first, of
    equally many the newest. Runs with a declared flag that somebody typed are of another series.
    """
    found = settings.settings(data, operation) if operation else []
    own = [m for s in found for m in s.finished if settings.is_as_declared(data, m)]
    parts = settings.by_objective(cells.order(own))
    newest = max(parts, key=lambda runs: groups.order(runs[-1]), default=[])
    alike = groups.groups(newest, groups.varying(newest, lacking=False))
    by_seed = [cells.order({m.seed: m for m in group.trials}.values()) for group in alike]
    by_seed.sort(key=lambda runs: (len(runs), groups.order(runs[-1])), reverse=True)
    return [Setting(operation, tuple(runs)) for runs in by_seed]


def _mean_share(setting: Setting | None, name: str) -> str:
    """Return the mean of a share over the runs of a setting, in percent; "" unless all have it."""
    runs = setting.finished if setting else ()
    found = record_numbers.shares(runs, name)
    return _mean(found) if found and len(found) == len(runs) else ""


def _percent(rate: Any) -> str:
    return markdown.number(round(100 * rate, 1)) if is_number(rate) else ""


def _mean(objectives: Sequence[dict[str, Any]]) -> str:
    return f"{cells.mean_text(objectives).removesuffix(' %')} {cells.interval(objectives)}".strip()
