"""Numbers in README.md and docs/ that cite a record, compared with that record.

A comment directly behind a number names its source, as in `79.6 %<!-- =success; run: 3bf9dfdd -->`. docs/catalog.md has
all forms.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from runcatalog.analysis import groups, headline_numbers, headlines, record_numbers
from runcatalog.model import marks, statistics
from runcatalog.model.errors import CatalogError
from runcatalog.model.project import Project, with_added_flags
from runcatalog.model.record_files import write_text
from runcatalog.model.run_record import FINISHED, RunRecord

_UNIT = r"(?:\s?(?:%|percentage points\b|M\b|k\b|ms\b|s\b|min\b|minutes\b|h\b|hours\b))?"
_INTERVAL = rf"(?:\s*\[(?P<low>{record_numbers.WRITTEN}),\s*(?P<high>{record_numbers.WRITTEN})\])?"
_CITED = re.compile(
    rf"(?<![\d.])(?<!\d,)(?P<value>{record_numbers.WRITTEN})[*_]*(?P<unit>{_UNIT}){_INTERVAL}(?P<unit_after>{_UNIT})[*_`)]*<!--\s*=(?P<source>.*?)-->",
    re.DOTALL,
)
_FENCE = re.compile(r"^\s*(?:```|~~~)", re.MULTILINE)
_COMMENT = re.compile(r"<!--\s*=(?P<source>.*?)-->", re.DOTALL)
_RUNS = r"[\w\s,-]+?"  # ids and names of runs
_NAMED = re.compile(rf"<!--\s*runs\s+(?P<name>[\w-]+):\s*(?P<runs>{_RUNS})\s*-->")
_ID = re.compile(r"[0-9a-f]+")
_BETWEEN = r"[\s,]+"
_SOURCE = re.compile(rf"\s*(?P<key>.+?)\s*;\s*runs?:\s*(?P<runs>{_RUNS})\s*$", re.DOTALL)
_DIFFERENCE = re.compile(
    rf"\s*difference(?:\s+by\s+(?P<by>[\w-]+))?\s+of\s+(?P<key>.+?)\s*;\s*runs?:\s*(?P<runs>{_RUNS})\s*;"
    rf"\s*minus\s+(?P<other>.+?)\s*;\s*runs?:\s*(?P<other_runs>{_RUNS})\s*$",
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
        numbers: The number as written, and the bounds of its interval if it has one.
        places: Start and end of each of these in the page.
        unit: Unit behind the number; "" without.
        statistic: Statistic over the runs; "" for the value of a single run.
        key: Metric or field of the record; STUDY/NAME of a headline.
        ids: First digits of the runs or batches; empty for a headline.
        minus: Of a difference the key and ids of what is subtracted; None for any other number.
        by: Flag; the statistic or difference is of the means over runs with the same value of it. "" where it is of the
            runs.
    """

    where: str
    numbers: tuple[str, ...]
    places: tuple[tuple[int, int], ...]
    unit: str
    statistic: str
    key: str
    ids: tuple[str, ...]
    minus: tuple[str, tuple[str, ...]] | None = None
    by: str = ""


@dataclass(frozen=True)
class _Expected:
    """What the records give for a citation.

    Attributes:
        source: What was cited, in words.
        values: The number and the bounds of its interval, where the citation has one; None for what the records lack.
        scales: Factors that the number may be written with.
    """

    source: str
    values: tuple[float | None, ...]
    scales: tuple[float, ...]


@dataclass(frozen=True)
class _Difference:
    """A citation that the records do not confirm.

    Attributes:
        line: File, line and what differs.
        page: The page.
        new: Numbers to write by their places in the page; None where no number would mend it.
    """

    line: str
    page: Path
    new: dict[tuple[int, int], str] | None = None


def problems(project: Project, records: Sequence[RunRecord]) -> list[str]:
    """Return a line per cited number of the project's pages that differs from its record.

    Args:
        project: The project; its README.md and Markdown files in docs/ are read.
        records: The committed records.
    """
    return [difference.line for difference in _differences(project, records)]


def fix(project: Project, records: Sequence[RunRecord]) -> tuple[list[str], list[str]]:
    """Write the numbers of the records into the pages, with as many decimals as those they replace.

    Args:
        project: The project; its README.md and Markdown files in docs/ are read and written.
        records: The committed records.

    Returns:
        A line per number that was written, and a line per number that still differs.

    Raises:
        CatalogError: A page with such a number is not UTF-8, or cannot be written.
    """
    new: dict[Path, dict[tuple[int, int], str]] = {}
    written, left = [], []
    for difference in _differences(project, records):
        if difference.new is None:
            left.append(difference.line)
        else:
            new.setdefault(difference.page, {}).update(difference.new)
            written.append(difference.line)
    for page, numbers in new.items():
        try:
            text = page.read_bytes().decode()
        except UnicodeDecodeError:
            raise CatalogError(f"{page}: not UTF-8") from None
        for (start, end), number in sorted(numbers.items(), reverse=True):
            text = text[:start] + number + text[end:]
        write_text(page, text)
    return written, left


def _differences(project: Project, records: Sequence[RunRecord]) -> Iterator[_Difference]:
    operations = project.operations()
    records = with_added_flags(records, operations)
    index = _Index(records)
    declared = headlines.declared(project)
    runs = headline_numbers.Runs(marks.current(records), operations)
    for path in _pages(project.root):
        where = path.relative_to(project.root).as_posix()
        for item in citations(_text(path), where):
            if isinstance(item, str):
                yield _Difference(item, path)
                continue
            try:
                if item.minus:
                    expected = _difference(item, item.minus, index)
                elif item.ids:
                    expected = _number(item, index)
                else:
                    expected = _headline(item, declared, runs)
            except LookupError as error:
                yield _Difference(f"{item.where}: {error}", path)
                continue
            if not _agrees(item, expected):
                line, new = _disagreement(item, expected)
                yield _Difference(line, path, new)


def _text(page: Path) -> str:
    return page.read_bytes().decode(errors="replace")


def _pages(root: Path) -> list[Path]:
    pages = [root / "README.md", *sorted(root.glob("docs/**/*.md"))]
    return [path for path in pages if path.is_file()]


def citations(text: str, where: str) -> Iterator[Citation | str]:
    """Yield the citations of a page; a line of text instead of a citation that cannot be parsed."""
    read = {match.end(): match for match in _CITED.finditer(text)}
    fences = [match.end() for match in _FENCE.finditer(text)]
    named: dict[str, tuple[str, ...]] = {}
    for comment in _NAMED.finditer(text):
        if _in_code(text, comment.start(), fences):
            continue
        if _ID.fullmatch(comment["name"]) or comment["name"] in named:
            reason = "is named twice" if comment["name"] in named else "could be an id"
            yield f"{_place(text, comment, where)}: “runs {comment['name']}” {reason}"
        named[comment["name"]] = tuple(re.split(_BETWEEN, comment["runs"].strip()))
    for comment in _COMMENT.finditer(text):
        if _in_code(text, comment.start(), fences):
            continue
        place = _place(text, comment, where)
        number = read.get(comment.end())
        headline = _HEADLINE.match(comment["source"])
        difference = _DIFFERENCE.match(comment["source"])
        source = headline or difference or _SOURCE.match(comment["source"])
        if number is None or source is None:
            yield f"{place}: “{comment[0]}” is not NUMBER<!-- =[STATISTIC of ]METRIC; run: ID … -->"
            continue
        try:
            ids = () if headline else _ids(source["runs"], named)
            minus = (
                (difference["other"], _ids(difference["other_runs"], named)) if difference else None
            )
        except LookupError as error:
            yield f"{place}: {error.args[0]}"
            continue
        statistic = None if headline or difference else _STATISTIC.match(source["key"])
        grouping = statistic or difference
        parts = ("value", "low", "high") if number["low"] else ("value",)
        yield Citation(
            place,
            tuple(number[part] for part in parts),
            tuple(number.span(part) for part in parts),
            (number["unit"] or number["unit_after"]).strip(),
            statistic["name"] if statistic else "",
            (statistic["key"] if statistic else source["key"]).strip(),
            ids,
            minus,
            (grouping and grouping["by"]) or "",
        )


def _place(text: str, match: re.Match[str], where: str) -> str:
    return f"{where}:{text.count(chr(10), 0, match.start()) + 1}"


def _ids(text: str, named: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the first digits of runs of a citation, those of its names included.

    Raises:
        LookupError: The page names no such runs.
    """
    ids: list[str] = []
    for word in re.split(_BETWEEN, text.strip()):
        if word in named:
            ids += named[word]
        elif _ID.fullmatch(word):
            ids.append(word)
        else:
            raise LookupError(f"no <!-- runs {word}: ID … --> in this page")
    return tuple(ids)


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


def _number(citation: Citation, index: _Index) -> _Expected:
    """Return what the records give for a number or a statistic.

    Raises:
        LookupError: The records have no such number, or several.
    """
    runs, numbers = _numbers(citation.key, citation.ids, index)
    grouped = groups.by_flag(runs, citation.by, index.by_id) if citation.by else {}
    means = record_numbers.mean_objectives(grouped.values(), citation.key)
    if means:
        numbers = [objective["value"] for objective in means]
    if not citation.statistic and len(numbers) > 1:
        raise LookupError(f"{len(numbers)} runs, and no statistic (mean of …)")
    is_bound = citation.statistic in ("low", "high")
    bounds = None
    has_interval = citation.statistic in ("", "mean") or len(runs) == 1  # a median of runs has none
    if is_bound or (len(citation.numbers) > 1 and has_interval):
        bounds = statistics.bounds(means) if means else record_numbers.bounds(runs, citation.key)
        if bounds and citation.unit == "%":
            bounds = record_numbers.of_share(bounds, numbers)
    if is_bound:
        value = bounds and bounds[citation.statistic == "high"]
    elif citation.statistic == "count":
        value = len(numbers)
    else:
        value = statistics.statistic(citation.statistic or "mean", numbers)
    scales = _SCALES[citation.unit] if citation.statistic != "count" else (1.0,)
    if citation.unit and not citation.key.startswith("table "):
        scales = scales[:1]
    by = f" by {citation.by}" if citation.by else ""
    statistic = f"{citation.statistic}{by} of " if citation.statistic else ""
    source = f"{statistic}{citation.key} of {' '.join(citation.ids)}"
    return _Expected(source, (value, *(bounds or (None, None))), scales)


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


def _difference(citation: Citation, minus: tuple[str, tuple[str, ...]], index: _Index) -> _Expected:
    """Return what the records give for a difference.

    Raises:
        LookupError: The records have no such number.
    """
    in_percent = citation.unit in ("%", "percentage points")
    sides, means = [], []
    for key, ids in (minus, (citation.key, citation.ids)):
        runs, numbers = _numbers(key, ids, index)
        # Records hold shares; the cells of their tables are in per cent.
        scale = 100.0 if in_percent and not key.startswith(record_numbers.TABLE) else 1.0
        sides.append(record_numbers.Side(runs, key, scale))
        means.append(scale * statistics.mean(numbers))
    if citation.by:
        value, bounds = record_numbers.difference_by_flag(
            sides[0], sides[1], citation.by, index.by_id
        )
    else:
        value, bounds = means[1] - means[0], record_numbers.bounds_of_difference(*sides)
    by = f" by {citation.by}" if citation.by else ""
    source = f"difference{by} of {citation.key} of {' '.join(citation.ids)} minus {minus[0]} of {' '.join(minus[1])}"
    scales = (1.0,) if in_percent else _SCALES[citation.unit]
    return _Expected(source, (value, *(bounds or (None, None))), scales)


def _headline(
    citation: Citation, declared: headlines.Declared, runs: headline_numbers.Runs
) -> _Expected:
    """Return what the records give for a headline.

    Raises:
        LookupError: There is no such headline, or it has no runs.
    """
    headline = declared.named(citation.key)
    if headline is None:
        raise LookupError(f"no headline {citation.key} is declared")
    number = runs.measured(headline).number
    if number is None:
        raise LookupError(f"headline {citation.key} has no runs")
    values = (number.value, *(number.bounds or (None, None)))
    return _Expected(f"headline {citation.key}", values, _SCALES[citation.unit][:1])


def _agrees(citation: Citation, expected: _Expected) -> bool:
    pairs = list(zip(citation.numbers, expected.values, strict=False))
    return any(
        all(_equal(text, value, scale) for text, value in pairs) for scale in expected.scales
    )


def _disagreement(
    citation: Citation, expected: _Expected
) -> tuple[str, dict[tuple[int, int], str] | None]:
    """Return the difference between a citation and the records as a line, and the numbers to write, by place."""
    values = expected.values[: len(citation.numbers)]
    shown = _with_interval([record_numbers.plain(number) for number in citation.numbers])
    given = _with_interval(
        ["none" if v is None else f"{v * expected.scales[0]:.6g}" for v in values]
    )
    unit = f" {citation.unit}" if citation.unit else ""
    line = f"{citation.where}: {shown}{unit}, but {expected.source} is {given}"
    found = [value for value in values if value is not None]
    if len(found) < len(values):
        return line, None
    old = float(record_numbers.plain(citation.numbers[0]))
    scale = min(expected.scales, key=lambda scale: abs(found[0] * scale - old))
    texts = map(_rewritten, citation.numbers, [value * scale for value in found])
    return line, dict(zip(citation.places, texts, strict=True))


def _with_interval(texts: Sequence[str]) -> str:
    return texts[0] + (f" [{', '.join(texts[1:])}]" if texts[1:] else "")


def _rewritten(old: str, value: float) -> str:
    """Return a number with the decimals, thousands separators and minus of the text that it replaces."""
    decimals = len(old.partition(".")[2])
    is_separated = "," in old or abs(float(record_numbers.plain(old))) < 1000
    text = f"{value:{',' if is_separated else ''}.{decimals}f}"
    if not float(record_numbers.plain(text)):
        text = text.removeprefix("-")
    return text if "-" in old else text.replace("-", "−")


def _equal(text: str, value: float | None, scale: float) -> bool:
    """Whether a written number is a value, rounded to the digits of the text."""
    if value is None:
        return False
    exponent = Decimal(record_numbers.plain(text)).as_tuple().exponent
    half = 0.5 * 10.0 ** int(exponent)
    return abs(float(record_numbers.plain(text)) - value * scale) <= half * (1 + 1e-6)
