"""Numbers in README.md and docs/ that cite a record, compared with that record.

A comment directly behind a number names its source and does not show in rendered Markdown:

    79.6 %<!-- =success; run: 3bf9dfdd -->
    79.1 [78.3, 79.6] %<!-- =mean of objective; run: 3bf9dfdd 023a72ab 7008d29f -->

where runs with one value of a flag, of theirs or of their parents, are not independent, such as trainings on one split
of the data, with the interval of the means of each:

    0.978 [0.973, 0.983]<!-- =mean by split of objective; run: e2fc0b18 95bf66fc 94699b6f -->

or the difference of two, with its interval, which excludes 0 where they differ:

    0.6 [−0.8, 2.1] percentage points<!-- =difference of success; run: 3bf9dfdd; minus success; run: 023a72ab -->

where both sides have runs with the same values of a flag, pairing the means of each value:

    0.010 [−0.005, 0.025]<!-- =difference by split of objective; runs: 3b216bb9 0943e3ee 24692845; minus objective;
    runs: e2fc0b18 7b63bcb4 0993d6f3 -->

or names a headline of experiments/STUDY/reported.yml, whose runs are those of the front page:

    99.2 [98.9, 99.6] %<!-- =headline door/accuracy -->
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from runcatalog.analysis import groups, headline_numbers, headlines, record_numbers
from runcatalog.model import marks, statistics
from runcatalog.model.project import Project, with_added_flags
from runcatalog.model.run_record import FINISHED, RunRecord

_UNIT = r"(?:\s?(?:%|percentage points\b|M\b|k\b|ms\b|s\b|min\b|minutes\b|h\b|hours\b))?"
_INTERVAL = rf"(?:\s*\[(?P<low>{record_numbers.WRITTEN}),\s*(?P<high>{record_numbers.WRITTEN})\])?"
_CITED = re.compile(
    rf"(?<![\d.])(?<!\d,)(?P<value>{record_numbers.WRITTEN})[*_]*(?P<unit>{_UNIT}){_INTERVAL}(?P<unit_after>{_UNIT})[*_`)]*<!--\s*=(?P<source>.*?)-->",
    re.DOTALL,
)
_FENCE = re.compile(r"^\s*(?:```|~~~)", re.MULTILINE)
_COMMENT = re.compile(r"<!--\s*=(?P<source>.*?)-->", re.DOTALL)
_SOURCE = re.compile(r"\s*(?P<key>.+?)\s*;\s*runs?:\s*(?P<ids>[0-9a-f\s,]+?)\s*$", re.DOTALL)
_DIFFERENCE = re.compile(
    r"\s*difference(?:\s+by\s+(?P<by>[\w-]+))?\s+of\s+(?P<key>.+?)\s*;\s*runs?:\s*(?P<ids>[0-9a-f\s,]+?)\s*;"
    r"\s*minus\s+(?P<other>.+?)\s*;\s*runs?:\s*(?P<other_ids>[0-9a-f\s,]+?)\s*$",
    re.DOTALL,
)
_HEADLINE = re.compile(r"\s*headline\s+(?P<key>[\w-]+/[\w-]+)\s*$")
_STATISTIC = re.compile(
    r"(?P<name>mean|min|max|median|low|high|count)(?:\s+by\s+(?P<by>[\w-]+))?\s+of\s+(?P<key>.+)$",
    re.DOTALL,
)
# What a record's number is multiplied by for the unit: records hold shares, steps and seconds. The second factor is for
# the tables of runs, which have any unit, and for numbers whose unit stands in a column's title.
_SCALES = {
    "%": (100.0, 1.0), "percentage points": (100.0, 1.0),
    "M": (1e-6, 1.0), "k": (1e-3, 1.0), "ms": (1e3, 1.0), "s": (1.0,), "min": (1 / 60, 1.0),
    "minutes": (1 / 60, 1.0), "h": (1 / 3600, 1 / 60), "hours": (1 / 3600, 1 / 60), "": (1.0, 100.0),
}  # fmt: skip


@dataclass(frozen=True)
class Citation:
    """A number of a page and what it cites.

    Attributes:
        where: File and line.
        shown: The number as written, without thousands separators.
        interval: (low, high) as written; None without.
        unit: Unit behind the number; "" without.
        statistic: Statistic over the runs; "" for the value of a single run.
        key: Metric or field of the record; STUDY/NAME of a headline.
        ids: First digits of the runs or batches; empty for a headline.
        minus: Of a difference the key and ids of what is subtracted; None for any other number.
        by: Flag; the statistic or difference is of the means over runs with the same value of it. "" where it is of the
            runs.
    """

    where: str
    shown: str
    interval: tuple[str, str] | None
    unit: str
    statistic: str
    key: str
    ids: tuple[str, ...]
    minus: tuple[str, tuple[str, ...]] | None = None
    by: str = ""


def problems(project: Project, records: Sequence[RunRecord]) -> list[str]:
    """Return a line per cited number of the project's pages that differs from its record.

    Args:
        project: The project; its README.md and Markdown files in docs/ are read.
        records: The committed records.
    """
    operations = project.operations()
    records = with_added_flags(records, operations)
    lines, index = [], _Index(records)
    declared = headlines.declared(project)
    runs = headline_numbers.Runs(marks.current(records), operations)
    for path in _pages(project.root):
        where = path.relative_to(project.root).as_posix()
        text = path.read_text(encoding="utf-8", errors="replace")
        for item in citations(text, where):
            if isinstance(item, str):
                problem = item
            elif item.minus:
                problem = _difference_problem(item, item.minus, index)
            elif item.ids:
                problem = _problem(item, index)
            else:
                problem = _headline_problem(item, declared, runs)
            if problem:
                lines.append(problem)
    return lines


def _pages(root: Path) -> list[Path]:
    pages = [root / "README.md", *sorted(root.glob("docs/**/*.md"))]
    return [path for path in pages if path.is_file()]


def citations(text: str, where: str) -> Iterator[Citation | str]:
    """Yield the citations of a page; a line of text instead of a citation that cannot be parsed."""
    read = {match.end(): match for match in _CITED.finditer(text)}
    fences = [match.end() for match in _FENCE.finditer(text)]
    for comment in _COMMENT.finditer(text):
        if _in_code(text, comment.start(), fences):
            continue
        place = f"{where}:{text.count(chr(10), 0, comment.start()) + 1}"
        number = read.get(comment.end())
        headline = _HEADLINE.match(comment["source"])
        difference = _DIFFERENCE.match(comment["source"])
        source = headline or difference or _SOURCE.match(comment["source"])
        if number is None or source is None:
            yield f"{place}: “{comment[0]}” is not NUMBER<!-- =[STATISTIC of ]METRIC; run: ID … -->"
            continue
        statistic = None if headline or difference else _STATISTIC.match(source["key"])
        grouping = statistic or difference
        interval = (number["low"], number["high"]) if number["low"] else None
        yield Citation(
            place,
            record_numbers.plain(number["value"]),
            interval and (record_numbers.plain(interval[0]), record_numbers.plain(interval[1])),
            (number["unit"] or number["unit_after"]).strip(),
            statistic["name"] if statistic else "",
            (statistic["key"] if statistic else source["key"]).strip(),
            () if headline else _ids(source["ids"]),
            (difference["other"], _ids(difference["other_ids"])) if difference else None,
            (grouping and grouping["by"]) or "",
        )


def _ids(text: str) -> tuple[str, ...]:
    return tuple(re.split(r"[\s,]+", text.strip()))


def _in_code(text: str, position: int, fences: Sequence[int]) -> bool:
    """Whether a position is inside a fenced or indented code block or between backticks, which show an example.

    Args:
        text: The page.
        position: The position.
        fences: Positions behind the fences of the page's code blocks, ascending.
    """
    line = text[text.rfind("\n", 0, position) + 1 : position]
    is_fenced = bisect_right(fences, position) % 2 == 1
    return is_fenced or line.startswith("    ") or line.count("`") % 2 == 1


class _Index:
    """Records by the first digits of their ids."""

    def __init__(self, records: Sequence[RunRecord]) -> None:
        self._records = records
        self.by_id = {record.run: record for record in records}
        self._marked = {record.run for record in records if not record.is_current}
        self._by_length: dict[int, tuple[dict[str, list[RunRecord]], ...]] = {}

    def __call__(self, id: str) -> tuple[list[RunRecord], list[RunRecord]]:
        """Return (the runs whose id begins so, the finished trials of the batches whose id begins so).

        Trials that are superseded or retracted count only in a batch that is so itself.
        """
        if len(id) not in self._by_length:
            runs: dict[str, list[RunRecord]] = {}
            trials: dict[str, list[RunRecord]] = {}
            for record in self._records:
                runs.setdefault(record.run[: len(id)], []).append(record)
                if record.batch and record.status == FINISHED and self._counts(record):
                    trials.setdefault(record.batch[: len(id)], []).append(record)
            self._by_length[len(id)] = runs, trials
        runs, trials = self._by_length[len(id)]
        return runs.get(id, []), trials.get(id, [])

    def _counts(self, trial: RunRecord) -> bool:
        return trial.is_current or trial.batch in self._marked


def _problem(citation: Citation, index: _Index) -> str:
    """Return the difference between a cited number and the records, as a line; "" if there is none."""
    try:
        runs, numbers = _numbers(citation.key, citation.ids, index)
        grouped = groups.by_flag(runs, citation.by, index.by_id) if citation.by else {}
    except LookupError as error:
        return f"{citation.where}: {error}"
    means = record_numbers.mean_objectives(grouped.values(), citation.key)
    if means:
        numbers = [objective["value"] for objective in means]
    if not citation.statistic and len(numbers) > 1:
        return f"{citation.where}: {len(numbers)} runs, and no statistic (mean of …)"
    is_bound = citation.statistic in ("low", "high")
    bounds = None
    if citation.interval or is_bound:
        bounds = statistics.bounds(means) if means else record_numbers.bounds(runs, citation.key)
        if bounds and citation.unit == "%" and all(0 <= number <= 1 for number in numbers):
            bounds = max(bounds[0], 0.0), min(bounds[1], 1.0)
    if is_bound:
        expected = bounds and bounds[citation.statistic == "high"]
    elif citation.statistic == "count":
        expected = len(numbers)
    else:
        expected = statistics.statistic(citation.statistic or "mean", numbers)
    scales = _SCALES[citation.unit] if citation.statistic != "count" else (1.0,)
    if citation.unit and not citation.key.startswith("table "):
        scales = scales[:1]
    by = f" by {citation.by}" if citation.by else ""
    statistic = f"{citation.statistic}{by} of " if citation.statistic else ""
    source = f"{statistic}{citation.key} of {' '.join(citation.ids)}"
    return _disagreement(citation, source, expected, bounds, scales)


def _numbers(key: str, ids: Sequence[str], index: _Index) -> tuple[list[RunRecord], list[float]]:
    """Return the runs with these ids and their numbers.

    Raises:
        LookupError: A run is not recorded, or has no such number.
    """
    runs: list[RunRecord] = []
    for id in ids:
        matches, trials = index(id)
        if not matches and not trials:
            raise LookupError(f"no record of run {id}")
        if len(matches) > 1:
            raise LookupError(f"{id} is the start of {len(matches)} ids")
        # The trials of a batch count, unless the batch has the number itself.
        own = [r for r in matches if record_numbers.values_of(r, key)]
        runs += own or trials or matches
    values = [record_numbers.value(run, key) for run in runs]
    if missing := [run.id8 for run, value in zip(runs, values, strict=True) if value is None]:
        raise LookupError(f"run {', '.join(missing)} has no {key}")
    return runs, [value for value in values if value is not None]


def _difference_problem(
    citation: Citation, minus: tuple[str, tuple[str, ...]], index: _Index
) -> str:
    in_percent = citation.unit in ("%", "percentage points")
    sides, means = [], []
    try:
        for key, ids in (minus, (citation.key, citation.ids)):
            runs, numbers = _numbers(key, ids, index)
            # Records hold shares; the cells of their tables are in per cent.
            scale = 100.0 if in_percent and not key.startswith(record_numbers.TABLE) else 1.0
            sides.append(record_numbers.Side(runs, key, scale))
            means.append(scale * statistics.mean(numbers))
        if citation.by:
            value, bounds = record_numbers.difference_by_flag(*sides, citation.by, index.by_id)
        else:
            value, bounds = means[1] - means[0], record_numbers.bounds_of_difference(*sides)
    except LookupError as error:
        return f"{citation.where}: {error}"
    scales = (1.0,) if in_percent else _SCALES[citation.unit]
    by = f" by {citation.by}" if citation.by else ""
    source = f"difference{by} of {citation.key} of {' '.join(citation.ids)} minus {minus[0]} of {' '.join(minus[1])}"
    return _disagreement(citation, source, value, bounds, scales)


def _headline_problem(
    citation: Citation, declared: headlines.Declared, runs: headline_numbers.Runs
) -> str:
    headline = declared.named(citation.key)
    if headline is None:
        return f"{citation.where}: no headline {citation.key} is declared"
    number = runs.measured(headline).number
    if number is None:
        return f"{citation.where}: headline {citation.key} has no runs"
    scales = _SCALES[citation.unit][:1]
    source = f"headline {citation.key}"
    return _disagreement(citation, source, number.value, number.bounds, scales)


def _disagreement(
    citation: Citation,
    source: str,
    expected: float | None,
    bounds: tuple[float, float] | None,
    scales: Sequence[float],
) -> str:
    """Return the difference between a cited number and the one of its source, as a line; "" if they agree."""
    pairs = [(citation.shown, expected)]
    if citation.interval:
        pairs += list(zip(citation.interval, bounds or (None, None), strict=True))
    if any(all(_equal(text, value, scale) for text, value in pairs) for scale in scales):
        return ""
    shown = citation.shown + (f" [{', '.join(citation.interval)}]" if citation.interval else "")
    given = _described([value for _, value in pairs], scales[0])
    unit = f" {citation.unit}" if citation.unit else ""
    return f"{citation.where}: {shown}{unit}, but {source} is {given}"


def _described(values: Sequence[float | None], scale: float) -> str:
    texts = ["none" if value is None else f"{value * scale:.6g}" for value in values]
    return texts[0] + (f" [{', '.join(texts[1:])}]" if texts[1:] else "")


def _equal(text: str, value: float | None, scale: float) -> bool:
    """Whether a text is a value, rounded to the digits of the text."""
    if value is None:
        return False
    exponent = Decimal(text).as_tuple().exponent
    half = 0.5 * 10.0 ** int(exponent)
    return abs(float(text) - value * scale) <= half * (1 + 1e-6)
