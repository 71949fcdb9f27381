"""The front page of the catalog: headline results, studies, newest runs, failures, what never ran, machines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from runcatalog import numbers
from runcatalog.analysis import groups, headline_numbers, headlines
from runcatalog.analysis.headline_numbers import Measured, Number
from runcatalog.analysis.headlines import Headline
from runcatalog.analysis.replication import reported_numbers
from runcatalog.model import statistics
from runcatalog.model.project import CATALOG_FILE, Project
from runcatalog.model.run_record import (
    FAILED,
    FINISHED,
    KILLED,
    RUNNING,
    RunRecord,
    is_maximized,
)
from runcatalog.pages import findings, machines
from runcatalog.pages.tables import cells, evaluation_marks
from runcatalog.pages.tables.page_data import PageData
from runcatalog.text import links, markdown, sentences, terminal

# With the comment above the page, it has at most 120 lines and 15 kB.
MAX_LINES, MAX_BYTES = 118, 14_850
# Headlines of a study, rows of the lists of failures and of what never ran, and of the other lists; a page that is too
# long shows fewer, headlines last.
_LENGTHS = (
    (20, 10, 10), (12, 6, 6), (12, 6, 4), (12, 6, 3), (12, 6, 2),
    (12, 4, 2), (8, 4, 2), (8, 2, 2), (4, 2, 2), (2, 1, 1),
)  # fmt: skip
_LEGEND = """\
- **Run it again**: `catalog rerun ID` checks out the run's commit, repeats it and compares. By hand: the id leads to \
its entry; check out its commit, paste the shell line `NAME=(…)` above the run's table, where there is one, then the \
command.
- **Brackets** are 95 % intervals: Wilson's for a counted rate; over seeds Student's interval of the mean, never \
narrower than Wilson's of all games; where the outcomes by level are kept, of the effective number of games; of a \
median, and of repetitions in groups such as the clones of an expert, percentiles of a bootstrap. Where all seeds \
agree, the interval is of their games alone: it does not show that another seed may fail.
- **Same setting?** says whether environment, budget and reward are the source's, else what differs.
- **Not replicated**: the interval is worse than the reported number, beyond its rounding.
- **Undetermined**: the interval of the difference contains 0, or a side has fewer than three seeds.
- **Seeds**: a × b are a groups with b repetitions each: experts with clones, splits of the data with seeds. The \
tables of the studies count runs.
- **CPU 2** is a machine's second kind of processor: equal seeds give equal bits on one kind.
"""
_LEGEND += f"- {' '.join(evaluation_marks.LEGEND.split())}"
_ENDS = (
    (FINISHED, "finished"),
    (FAILED, "failed"),
    (KILLED, "killed"),
    (RUNNING, "running"),
)


@dataclass(frozen=True)
class StudyPage:
    """A study with its pages, as the front page lists it.

    Attributes:
        name: The study.
        title: Heading of its page.
        path: Its page, from the project's folder.
        sections: Heading and address (path with anchor, from the project's folder) of the page's sections.
    """

    name: str
    title: str
    path: str
    sections: tuple[tuple[str, str], ...] = ()


def front_page(project: Project, data: PageData, studies: Sequence[StudyPage]) -> str:
    """Return the front page as Markdown; targets of its links are written by `links.to`.

    It has at most MAX_LINES lines and MAX_BYTES bytes, whatever the number of runs: the lists are shortened.

    Args:
        project: The project.
        data: All records; `data.id_cell(run)` is a link to a run's entry.
        studies: The studies, in the order of guild.yml.

    Raises:
        CatalogError: A declared headline is invalid; the message names its file and entry.
    """
    results = Results(project, data)
    content = ""
    for headlines_shown, failures, length in _LENGTHS:
        sections = {
            "Results": _results(results, data, studies, headlines_shown),
            "Studies": _studies(data, studies, length),
            "Newest": _newest(data, length),
            "Failures": _failures(results, data, failures),
            "Never run": _never_run(data, failures),
            "Machines": machines.inventory(project, data, length),
            "How to read": _LEGEND,
        }
        shown = {title: text for title, text in sections.items() if text}
        contents = " · ".join(f"[{title}](#{links.anchor(title)})" for title in shown)
        parts = [f"## {title}\n\n{text}" for title, text in shown.items()]
        content = "\n\n".join(["# Runs", _summary(data), contents, *parts])
        size = len(links.relative(content, CATALOG_FILE).encode())
        if content.count("\n") < MAX_LINES and size <= MAX_BYTES:
            break
    return content


class Results:
    """The declared headlines of a project with their numbers.

    Args:
        project: The project.
        data: All records.

    Raises:
        CatalogError: A headline is invalid.
    """

    def __init__(self, project: Project, data: PageData) -> None:
        self.declared = headlines.declared(project)
        self.runs = headline_numbers.Runs(data.by_id.values(), data.operations)
        self.measured: dict[str, dict[str, Measured]] = {
            study: {headline.name: self.runs.measured(headline) for headline in entries}
            for study, entries in self.declared.headlines.items()
        }
        self._data = data

    def finding(self, study: str) -> str:
        """Return the sentence of what a study has shown; "" without one.

        If the records do not support a condition of the sentence, the line says so in its place.
        """
        finding = self.declared.findings.get(study)
        if finding is None:
            return ""
        measured = self.measured.get(study, {})
        if failed := headline_numbers.unsupported(finding, measured):
            shown = ", ".join(f"`{condition}`" for condition in failed)
            return f"No finding: the records do not support {shown}."
        text = finding.text
        for name, entry in measured.items():
            shown = number_text(entry.headline, entry.number) if entry.number else "not run yet"
            text = text.replace(f"{{{name}}}", shown)
        return text

    def not_replicated(self) -> list[Measured]:
        """Return the headlines and operations whose interval lies on the worse side of the reported number."""
        short = [m for by_name in self.measured.values() for m in by_name.values() if m.falls_short]
        named = {measured.headline.operation for measured in short}
        return short + [
            _best_setting(self._data, operation)
            for operation in self._data.reported
            if operation not in named and findings.is_missed(self._data, operation)
        ]


def _best_setting(data: PageData, operation: str) -> Measured:
    """Return the best setting of an operation that has a reported number for its objective, as a headline."""
    done = [s for s in findings.with_reported_number(data, operation) if s.value is not None]
    objective = done[0].objectives[0]
    done = [s for s in done if s.objectives[0]["name"] == objective["name"]]
    maximize = is_maximized(str(objective["name"]), objective)
    best = max(done, key=lambda s: (s.value or 0.0) if maximize else -(s.value or 0.0))
    reported = statistics.mean(reported_numbers(data.reported[operation], objective))
    unit = "%" if objective.get("kind") == "rate" else ""
    headline = Headline(
        "", best.finished[0].study, operation, "", operation, {}, unit=unit, reported_span=(reported,) * 2
    )  # fmt: skip
    bounds = cells.interval_of(best.objectives)
    number = Number(tuple(best.finished), best.value or 0.0, bounds, tuple(best.objectives))
    return Measured(headline, (number,), maximize)


def _results(results: Results, data: PageData, studies: Sequence[StudyPage], length: int) -> str:
    """Return the findings of the studies, and the table of their headlines."""
    findings, lines = [], []
    for study in studies:
        link = f"[{study.title.partition(':')[0]}]({links.to(study.path)})"
        if finding := results.finding(study.name):
            findings.append(f"- **{link}**: {finding}")
        if entries := list(results.measured.get(study.name, {}).values()):
            lines.append([f"**{link}**", *[""] * 5])
            lines += [_result_row(results, data, entry) for entry in entries[:length]]
    columns = ["question", "measured, 95 %", "reported", "seeds", "same setting?", "runs"]
    table = markdown.table(columns, lines) if lines else ""
    return "\n\n".join(filter(None, ["\n".join(findings), table]))


def _result_row(results: Results, data: PageData, measured: Measured) -> list[str]:
    headline, number = measured.headline, measured.number
    seeds = results.runs.seeds(headline, number) if number else "–"
    return [
        markdown.escape(headline.question, 200),
        measured_text(measured),
        reported_text(headline),
        seeds,
        _same_setting(data, headline),
        _runs_cell(data, number),
    ]


def _same_setting(data: PageData, headline: Headline) -> str:
    """Return whether the setting is the source's, as the headline or its operation in reported.yml says."""
    report = data.reported.get(headline.operation)
    return markdown.escape(headline.same_setting or (report and report.same_setting) or "–", 160)


def _runs_cell(data: PageData, number: Number | None) -> str:
    """Return a link to the batch of a number's runs, or to the first of them, and how many more there are."""
    if number is None:
        return "–"
    first = number.runs[0]
    batches = {run.batch for run in number.runs}
    if first.batch in data.by_id and len(batches) == 1:
        return data.id_cell(first.batch)
    more = len(number.runs) - 1
    return data.id_cell(first.run) + (
        f" {data.section_link(first.run, f'+{more}')}" if more else ""
    )


def reported_text(headline: Headline) -> str:
    """Return what the source reports, as Markdown."""
    if headline.reported:
        return markdown.escape(headline.reported, 120)
    if headline.reported_span is None:
        return "no number"
    shown = list(dict.fromkeys(_digits(headline, *headline.reported_span)))
    return _with_unit(headline, " to ".join(shown))


def measured_text(measured: Measured) -> str:
    """Return a headline's number with its interval, as Markdown."""
    number, headline = measured.number, measured.headline
    if number is None:
        return "not run yet"
    if headline.compared_flag:
        shown = [_point_text(headline, n) for n in (number, *measured.ties)[:3]]
        word = "**best**" if measured.others else "only"
        text = f"undetermined: {', '.join(shown)}" if measured.ties else f"{word} {shown[0]}"
    else:
        text = number_text(headline, number, bold=True)
        text += "" if number.bounds else ", no interval"
    if measured.falls_short:
        text += ", not replicated"
    if measured.left_out:
        text += f"; {numbers.count(measured.left_out, 'run')} with other flags left out"
    return text


def number_text(headline: Headline, number: Number, *, bold: bool = False) -> str:
    """Return "99.2 % [98.9, 99.6]" as Markdown."""
    value, *bounds = _digits(headline, number.value, *(number.bounds or ()))
    shown = _with_unit(headline, value)
    shown = f"**{shown}**" if bold else shown
    return f"{shown} [{', '.join(bounds)}]" if bounds else shown


def _point_text(headline: Headline, number: Number) -> str:
    point = f"{markdown.escape(headline.compared_flag)} {markdown.flag_value(number.point)}"
    return f"{point} ({number_text(headline, number)})"


def _digits(headline: Headline, *values: float) -> list[str]:
    """Return numbers in the headline's unit: shares in tenths of a per cent, others with three digits of the first."""
    if headline.unit == "%":
        return [numbers.share(value) for value in values]
    first = abs(values[0])
    if all(float(value).is_integer() for value in values) or not 1e-3 <= first < 100:
        return [numbers.thousands(numbers.number(value, 3)) for value in values]
    decimals = min(3, 2 - math.floor(math.log10(first)))
    return [numbers.minus(f"{value:.{decimals}f}") for value in values]


def _with_unit(headline: Headline, text: str) -> str:
    return f"{text} {markdown.escape(headline.unit, 30)}" if headline.unit else text


def _studies(data: PageData, studies: Sequence[StudyPage], length: int) -> str:
    lines = []
    for study in studies:
        runs = [r for r in data.by_id.values() if r.study == study.name and not data.is_batch(r)]
        ends = Counter(run.status for run in runs)
        counts = numbers.count(len(runs), "run")
        if failed := ends[FAILED] + ends[KILLED]:
            counts += f", {failed} failed or killed"
        shown = study.sections[: 2 * length]
        names = [f"[{title}]({links.to(address)})" for title, address in shown]
        sections = " · ".join(names) + (" …" if len(shown) < len(study.sections) else "")
        lines.append(
            f"- **[{study.title}]({links.to(study.path)})**, {counts}{f': {sections}' if shown else ''}"
        )
    return "\n".join(lines)


def _newest(data: PageData, length: int) -> str:
    """Return the newest single runs and batches."""
    heads: dict[str, RunRecord] = {}
    for record in reversed(data.by_id.values()):
        if record.batch not in data.by_id:
            heads.setdefault(record.batch or record.run, record)
        if len(heads) == length:
            break
    lines = [
        [terminal.when(r.started) or "–", data.id_cell(id), _operation(r), _outcome(data, r)]
        for id, r in heads.items()
    ]
    columns = ["started (UTC)", "run", "operation", "result"]
    return markdown.table(columns, lines) if lines else ""


def _operation(record: RunRecord) -> str:
    name = markdown.escape(record.operation, 60)
    return f"{name} “{markdown.escape(record.label, 30)}”" if record.label else name


def _outcome(data: PageData, record: RunRecord) -> str:
    """Return a result in a few words."""
    if record.status != FINISHED:
        return _end(record)
    if data.is_batch(record) or record.batch:
        trials = data.members(record)
        shown = numbers.count(len(trials), "run")
        grouped = groups.groups(trials)
        if len(grouped) == 1 and grouped[0].value is not None:
            first = grouped[0].objectives[0]
            shown += f", mean {sentences.objective_text(first, grouped[0].value)}"
        return shown
    objective = record.objective
    if objective is None:
        summary = (record.result or {}).get("summary")
        return markdown.escape(summary or "finished", 60)
    shown = sentences.objective_text(objective, objective["value"])
    return f"{shown}{sentences.own_interval(objective)}"


def _end(record: RunRecord) -> str:
    word = dict(_ENDS)[record.status]
    reason = " ".join(record.reason.split())
    if reason.startswith("lost"):
        return markdown.escape(reason, 80)
    return f"{word}: {markdown.escape(reason, 70)}" if reason else word


def _failures(results: Results, data: PageData, length: int) -> str:
    parts = []
    if short := results.not_replicated():
        lines = [
            [
                markdown.escape(m.headline.question or m.headline.operation, 120),
                measured_text(m).removesuffix(", not replicated"),
                reported_text(m.headline),
                _same_setting(data, m.headline),
                _runs_cell(data, m.number),
            ]
            for m in short[:length]
        ]
        columns = ["not replicated", "measured, 95 %", "reported", "same setting?", "runs"]
        parts.append(markdown.table(columns, lines) + markdown.more(len(short) - length))
    failed = [r for r in reversed(data.by_id.values()) if r.status in (FAILED, KILLED)]
    if failed:
        lines = [
            [terminal.when(r.started) or "–", data.id_cell(r.run), _operation(r), _end(r)]
            for r in failed[:length]
        ]
        columns = ["started (UTC)", "run", "operation", "what happened"]
        hint = "`catalog search 'status=FAILED or status=KILLED'` lists all"
        parts.append(markdown.table(columns, lines) + markdown.more(len(failed) - length, hint))
    return "\n\n".join(parts)


def _never_run(data: PageData, length: int) -> str:
    ran = {data.operation_of(r) for r in data.by_id.values()}
    ran |= {r.operation for r in (*data.by_id.values(), *data.marked.values())}
    by_reason: dict[str, list[str]] = {}
    for name in data.operations:
        if name not in ran:
            by_reason.setdefault(data.pending.get(name) or "no reason given", []).append(name)
    if not by_reason:
        return ""
    shown = min(3, length)
    ordered = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    lines = [
        [
            markdown.escape(reason, 120),
            str(len(names)),
            ", ".join(map(markdown.code, names[:shown])) + (", …" if len(names) > shown else ""),
        ]
        for reason, names in ordered[:length]
    ]
    columns = ["why", "number", "operations"]
    more = markdown.more(len(ordered) - length)
    return f"{markdown.table(columns, lines)}{more}"


def _summary(data: PageData) -> str:
    """Return the numbers of current runs and batches by status, of marked records, of operations never run."""
    parts = [
        _ends([r for r in data.by_id.values() if data.is_batch(r) == batch], word)
        for word, batch in ((("run", "runs"), False), (("batch", "batches"), True))
    ]
    counts = f"{'; '.join(filter(None, parts))}." if data.by_id else "No runs yet."
    newest = max((terminal.when(r.started) for r in data.by_id.values()), default="")
    if newest:
        counts += f" The newest started on {newest} UTC."
    if data.marked:
        counts += (
            f" {len(data.marked)} further records are superseded or retracted: they count in no row and no figure, "
            "and are listed with their study's runs."
        )
    return counts


def _ends(records: Sequence[RunRecord], words: tuple[str, str]) -> str:
    """Return "3 runs: 2 finished, 1 failed"; "" without records."""
    ends = Counter(record.status for record in records)
    parts = ", ".join(f"{ends[status]:,} {end}" for status, end in _ENDS if ends[status])
    return f"{len(records):,} {words[len(records) != 1]}: {parts}" if records else ""
