"""Tables of settings: a row for runs that differ only in their seed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runcatalog.analysis import groups
from runcatalog.model import values
from runcatalog.model.run_record import FINISHED, RunRecord
from runcatalog.pages.tables import cells, settings
from runcatalog.pages.tables.page_data import PageData
from runcatalog.pages.tables.settings import Setting
from runcatalog.plots import labels
from runcatalog.text import markdown, sentences, terminal

SHOWN = 12  # rows of an operation that a table shows; earlier rows are folded
_FEW, _MOST = 4, 2 / 3  # from 4 settings on, what more than two thirds of them share is usual
_SHORTEST = 10  # characters of a value that is cut
_WIDEST = 80  # characters of a setting, without the number of its other flags
_USUAL = 8  # flags that a sentence lists
_OPTIONS = 4  # columns of options
_WORD = re.compile(r"\S+?='[^']*'|'[^']*'|\S+")
_FLAGS = 5  # flags that a setting shows; its entry has the command with all
_FURTHER = 3  # columns of further numbers

SETTING, VALUE, INTERVAL, COUNT, AFTER = "setting", "value", "95 %", "runs", "after"
OUTCOME, REPORTED, SAME = "outcome", "reported", "same setting?"
STARTED, ID = "started", "id"


@dataclass(frozen=True)
class Row:
    """A row of Markdown cells.

    Attributes:
        cells: Text by column.
        options: Cells of the options in which the rows differ, by their names.
        further: Cells of further numbers by their names.
        objective: Name of the value; "" without one.
        folded: Whether the row is folded below the table, as an earlier row of its operation.
        units: Units of the value and the further numbers by their names.
    """

    cells: dict[str, str]
    further: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    objective: str = ""
    folded: bool = False
    units: Mapping[str, str] = field(default_factory=dict)


def rows(
    data: PageData,
    operations: Sequence[str],
    *,
    flags: Sequence[str] | None = None,
    reused: Mapping[str, str] | None = None,
    hidden: Mapping[str, Sequence[Any]] | None = None,
    names: Mapping[str, Mapping[str, Any]] | None = None,
    summary: bool = True,
) -> list[Row]:
    """Return the rows of a table, a row for each setting; searches have a table of their own.

    Args:
        data: All records.
        operations: Names, in the table's order.
        flags: Flags to show with the names; by default all in which the settings of an operation differ.
        reused: Series by operation, for operations whose run is reused from that series.
        hidden: Values by flag that are not shown.
        names: Names of settings instead of their flags, as for :func:`runcatalog.analysis.groups.name_of`. Settings
            with a name come first, in the order of the names, and are not folded.
        summary: Whether the outcome has the sentence of a script beside its value.
    """
    names = names or {}
    places = {name: place for place, name in enumerate(names)}

    def name_of(setting: Setting) -> str:
        return groups.name_of(setting.members[0], names)

    def place(setting: Setting) -> int:
        return places.get(name_of(setting), len(places))

    grouped = {name: sorted(settings.settings(data, name), key=place) for name in operations}
    done = [s for each in grouped.values() for s in each]
    variants = _varying_variants(done)
    shared = _fixed(done) if flags is None else {}
    table: list[Row] = []
    for operation in operations:
        name = short_name(operation, operations)
        single = [m for setting in grouped[operation] for m in setting.members]
        shown = groups.varying(single, lacking=False) if flags is None else flags
        left_out = shared | usual(grouped[operation], flags) | dict(hidden or {})
        named = [markdown.escape(name_of(setting)) for setting in grouped[operation]]
        titles = [title or name for title in named]
        new = [
            _row(data, s, title or setting_cell(s, name, shown, left_out), variants, summary)
            for s, title in zip(grouped[operation], named, strict=True)
        ]
        new = _distinct(new, grouped[operation], titles, shown, left_out)
        new += [_empty_batch(data, head, name) for head in _without_trials(data, operation)]
        if reused and operation in reused:
            note = f"reused from {markdown.escape(reused[operation])}"
            new = [replace(row, cells={**row.cells, OUTCOME: note}) for row in new]
        if not new and not settings.search_heads(data, operation):
            new = [missing_row(data, operation, name)]
        first = sum(map(bool, named))
        earlier = range(first, first + len(new) - SHOWN)
        new = [replace(row, folded=i in earlier) for i, row in enumerate(new)]
        table += _with_report(new, data, operation, grouped[operation])
    return table


def _row(
    data: PageData,
    setting: Setting,
    title: str,
    variants: Sequence[str],
    summary: bool,
) -> Row:
    objectives = setting.objectives
    row = {
        SETTING: title,
        COUNT: cells.count(setting),
        OUTCOME: cells.outcome(data, setting, summary),
        STARTED: cells.day(setting.newest),
        ID: cells.ids(data, setting),
    }
    options = {n: cells.distinct(_variant(m).get(n, "") for m in setting.members) for n in variants}
    if not objectives:
        return Row(row, options=options)
    row |= {
        VALUE: cells.mean_text(objectives),
        INTERVAL: cells.interval(objectives),
        AFTER: cells.after(objectives),
    }
    further = {
        key: f"{cells.mean_text(numbers)} {cells.interval(numbers)}".strip()
        for key, numbers in cells.further(setting).items()
    }
    declared = data.operations.get(setting.members[0].operation)
    name_ = str(objectives[0]["name"])
    units = {n: declared.unit(n) if declared else "" for n in (name_, *further)}
    return Row(row, further, options, name_, units=units)


def _distinct(
    new: Sequence[Row],
    grouped: Sequence[Setting],
    titles: Sequence[str],
    shown: Sequence[str],
    hidden: Mapping[str, Sequence[Any]],
) -> list[Row]:
    """Return rows whose names are the same with the flags first in which they differ, else with their parents."""
    by_name: dict[str, list[int]] = {}
    for i, row in enumerate(new):
        by_name.setdefault(row.cells[SETTING], []).append(i)
    named = list(new)
    for same in by_name.values():
        if len(same) < 2:
            continue
        first = groups.varying([grouped[i].members[0] for i in same], lacking=False)
        texts = [setting_cell(grouped[i], titles[i], shown, hidden, first) for i in same]
        for i, text in zip(same, texts, strict=True):
            members = grouped[i].members
            parents = list(dict.fromkeys(parent for m in members for parent in m.parents[:1]))
            if texts.count(text) == 1 or not parents:
                cell = text
            else:
                origin = f" from {', '.join(parent[:8] for parent in parents[:2])}"
                room = _WIDEST - len(origin)
                cell = setting_cell(grouped[i], titles[i], shown, hidden, first, room) + origin
            named[i] = replace(new[i], cells={**new[i].cells, SETTING: cell})
    return named


def setting_cell(
    setting: Setting,
    name: str,
    shown: Sequence[str],
    hidden: Mapping[str, Sequence[Any]] | None = None,
    differing: Sequence[str] = (),
    room: int = _WIDEST,
) -> str:
    """Return the name of a setting: operation, flags, and what its label says besides.

    Args:
        setting: The setting.
        name: The operation, as shown.
        shown: Flags to show, besides those that the label names.
        hidden: Values by flag that are not shown.
        differing: Flags that tell the setting from another with the same name: shown first, with any value.
        room: Characters, without the number of further flags.
    """
    first, hidden = setting.members[0], hidden or {}
    (named, rest), known = _label_flags(first), first.comparable_flags
    flags = {
        n: known[n]
        for n in dict.fromkeys((*differing, *named, *shown))
        if (n in differing and n in known)
        or known.get(n) not in (None, "", name, *hidden.get(n, ()))
    }
    title = f"{name} “{markdown.escape(rest)}”" if rest not in ("", name) else name
    parts = [f"{markdown.escape(n)} {flag_text(v)}" for n, v in flags.items()]
    if parts and len(terminal.plain(f"{title} {parts[0]}")) > room:
        flag, value = next(iter(flags.items()))
        limit = max(_SHORTEST, room - len(f"{title} {flag} "))
        parts[0] = f"{markdown.escape(flag)} {markdown.escape(values.flag_text(value), limit)}"
    kept: list[str] = []
    for part in parts[:_FLAGS]:
        if kept and len(terminal.plain(" ".join([title, *kept, part]))) > room:
            break
        kept.append(part)
    if more := len(parts) - len(kept):
        kept.append(f"{more} more flag{'s' * (more != 1)}")
    return f"{title} {', '.join(kept)}" if kept else title


def flag_text(value: Any) -> str:
    """Format a flag's value; of a run's id its first digits, as everywhere."""
    is_id = isinstance(value, str) and re.fullmatch(r"[0-9a-f]{32}", value)
    return markdown.flag_value(value[:8] if is_id else value)


def label_flags(record: RunRecord) -> list[str]:
    """Return the flags that a run's label names."""
    return _label_flags(record)[0]


def _label_flags(record: RunRecord) -> tuple[list[str], str]:
    """Return the flags that a label names, as `lr=0.1`, `lr 0.1` or by a text alone, and the rest of the label."""
    texts = {n: values.flag_text(v) for n, v in record.flags.items()}
    by_text = {texts[n]: n for n, v in reversed(record.flags.items()) if isinstance(v, str)}
    named: list[str] = []
    rest: list[str] = []
    for word in _WORD.findall(groups.label(record)):
        name, equals, _ = word.partition("=")
        value = word.strip("'")  # Guild quotes numbers that are text, and what has spaces
        if equals and name in texts:
            named.append(name)
        elif rest and texts.get(rest[-1]) == value:
            named.append(rest.pop())
        elif value in by_text:
            named.append(by_text[value])
        else:
            rest.append(word)
    return named, " ".join(rest)


def _fixed(grouped: Sequence[Setting]) -> dict[str, list[Any]]:
    """Return the value of each flag that several settings of a table share, by flag."""
    if len(grouped) < 2:
        return {}
    first, *others = (setting.flags for setting in grouped)
    return {n: [v] for n, v in first.items() if all(n in o and o[n] == v for o in others)}


def usual(grouped: Sequence[Setting], flags: Sequence[str] | None = None) -> dict[str, list[Any]]:
    """Return the value that most settings of an operation have, by flag: a row names only other values.

    So a setting with a new value adds its row and leaves the others as they are.

    Args:
        grouped: The settings.
        flags: Flags that rows show; by default all in which they differ.
    """
    if len(grouped) < _FEW:
        return {}
    found = {}
    varying = groups.varying([setting.members[0] for setting in grouped], lacking=False)
    for name in varying if flags is None else flags:
        counts = Counter(repr(s.flags[name]) for s in grouped if name in s.flags)
        if not counts:
            continue
        value, count = counts.most_common(1)[0]
        if count > _MOST * len(grouped):
            found[name] = [next(v for s in grouped if repr(v := s.flags.get(name)) == value)]
    return found


def _variant(record: RunRecord) -> dict[str, str]:
    """Return the options in the result's `variant` as text, by name; without those that are flags."""
    variant = (record.result or {}).get("variant")
    return {
        name: markdown.flag_value(values.parse_flag(value))
        for name, value in (sorted(variant.items()) if isinstance(variant, dict) else ())
        if value not in (None, "") and name not in record.flags
    }


def _varying_variants(grouped: Sequence[Setting]) -> list[str]:
    """Return the names of the options in which settings differ."""
    options = [_variant(setting.members[0]) for setting in grouped if setting.finished]
    names = dict.fromkeys(name for each in options for name in each)
    varying = [name for name in names if len({each.get(name) for each in options}) > 1]
    return varying[:_OPTIONS]


def common(
    data: PageData,
    operations: Sequence[str],
    flags: Sequence[str] | None = None,
    titles: Mapping[str, str] | None = None,
) -> str:
    """Return the options and main flags that all settings of a table share, and what most of them share.

    Args:
        data: All records.
        operations: Names.
        flags: As for :func:`rows`.
        titles: Names of options, as for :func:`as_markdown`.
    """
    grouped = [s for name in operations for s in settings.settings(data, name)]
    done = [setting.members[0] for setting in grouped if setting.finished]
    if len(done) < 2:
        return ""
    options = [_variant(record) for record in done]
    shared = [
        f"{markdown.escape((titles or {}).get(name, name.replace('_', ' ')))} {text}"
        for name, text in options[0].items()
        if all(o.get(name) == text for o in options)
    ]
    declared = (data.operations[name].compare for name in operations if name in data.operations)
    main = dict.fromkeys(c[1:] for compare in declared for c in compare if c.startswith("="))
    for name in main:
        first = done[0].flags.get(name)
        if (
            name != "seed"
            and first not in (None, "")
            and all(r.flags.get(name) == first for r in done)
        ):
            shared.append(f"{markdown.escape(name)} {flag_text(first)}")
    texts = [f"All rows: {', '.join(dict.fromkeys(shared))}."] if shared else []
    for name in operations:
        if shared_by_most := usual(settings.settings(data, name), flags):
            named = [
                f"{markdown.escape(n)} {flag_text(v)}"
                for n, (v,) in shared_by_most.items()
                if v not in (None, "")
            ]
            if not named:
                continue
            named = named[:_USUAL] + ["…"] * (len(named) > _USUAL)
            of = f"{short_name(name, operations)}, u" if len(operations) > 1 else "U"
            texts.append(f"{of}nless a row says otherwise: {', '.join(named)}.")
    return " ".join(texts)


def _without_trials(data: PageData, operation: str) -> list[RunRecord]:
    heads = data.heads(operation)
    return [head for head in heads if data.is_batch(head) and not data.members(head)]


def _empty_batch(data: PageData, batch: RunRecord, name: str) -> Row:
    """Return the row of a batch without trials."""
    row = {
        SETTING: f"{name} “{markdown.escape(batch.label)}”" if batch.label else name,
        OUTCOME: "no trials" if batch.status == FINISHED else sentences.state(batch),
        STARTED: cells.day(batch.started),
        ID: data.id_cell(batch.run),
    }
    return Row(row)


def missing_row(data: PageData, operation: str, name: str) -> Row:
    """Return the row of an operation without a current run."""
    if marked := data.marked_of(operation):
        result = f"no current run: {len(marked)} superseded or retracted"
    elif operation in data.operations:
        reason = data.pending.get(operation)
        note = f" ({markdown.escape(reason)})" if reason else ""
        result = f"declared, not run{note}"
    elif operation in data.reported:
        result = "reported by the source, not declared here"
    else:
        result = "neither declared nor run"
    return Row({SETTING: name, OUTCOME: result})


def _with_report(
    rows: list[Row], data: PageData, operation: str, grouped: Sequence[Setting]
) -> list[Row]:
    """Add the source's result to the first visible row as declared, without one to the first visible row."""
    report = data.reported.get(operation)
    visible = [i for i, row in enumerate(rows) if not row.folded]
    if report is None or not visible:
        return rows
    declared = [
        i
        for i in visible
        if i < len(grouped) and settings.is_as_declared(data, grouped[i].members[0])
    ]
    first = (declared or visible)[0]
    added = {
        REPORTED: cells.report(report),
        SAME: markdown.escape(report.same_setting, cells.WIDEST),
    }
    with_report = replace(rows[first], cells={**rows[first].cells, **added})
    return [*rows[:first], with_report, *rows[first + 1 :]]


def as_markdown(rows: Sequence[Row], titles: Mapping[str, str] | None = None) -> str:
    """Return rows as a Markdown table; a column that is empty in all rows is left out.

    Where all values are of one metric, it is the title of their column. Folded rows follow below the table.

    Args:
        rows: The rows.
        titles: Titles of columns by name of the number or option; by default the name in words.
    """
    if not rows:
        return ""
    short, reason = same_settings([row.cells.get(SAME, "") for row in rows])
    rows = [
        replace(row, cells={**row.cells, SAME: text}) for row, text in zip(rows, short, strict=True)
    ]
    objectives = {row.objective for row in rows if row.objective}
    only = objectives.pop() if len(objectives) == 1 else ""
    further = list(dict.fromkeys(name for row in rows for name in row.further))
    further = further if len(further) <= _FURTHER else []
    options = list(dict.fromkeys(name for row in rows for name in row.options))
    before, behind = (
        [SETTING, VALUE, INTERVAL, COUNT, AFTER],
        [OUTCOME, REPORTED, SAME, STARTED, ID],
    )

    def cell(row: Row, column: str) -> str:
        if column == VALUE and not only and row.objective:
            return f"{row.cells.get(VALUE, '')} {markdown.words(row.objective)}"
        return row.cells.get(column) or row.options.get(column) or row.further.get(column, "")

    columns = [
        column
        for column in (SETTING, *options, *before[1:], *further, *behind)
        if column == SETTING or any(cell(row, column) for row in rows)
    ]
    named = titles or {}

    def title(column: str) -> str:
        if column in (*before, *behind) and not (column == VALUE and only):
            return column
        name = only if column == VALUE else column
        if name in named:
            return markdown.escape(named[name])
        unit = next((row.units[name] for row in rows if row.units.get(name)), "")
        return markdown.words(name) + (f" [{markdown.escape(unit)}]" if unit else "")

    names = [title(column) for column in columns]

    def table(part: Sequence[Row]) -> str:
        return markdown.table(names, [[cell(row, column) for column in columns] for row in part])

    shown = table([row for row in rows if not row.folded])
    folded = [row for row in rows if row.folded]
    if reason:
        shown += f"\n\n{reason}"
    if not folded:
        return shown
    return f"{shown}\n\n{markdown.fold(f'{len(folded)} earlier rows', table(folded))}"


def same_settings(texts: Sequence[str]) -> tuple[list[str], str]:
    """Return the cells "same setting?" of a table, and the reason as a sentence where it is the same in all of them.

    Args:
        texts: "yes", "no" or "no: reason" by row; "" for none.
    """
    (only, *others) = {text for text in texts if text} or {""}
    word, colon, reason = only.partition(": ")
    if others or not colon or sum(map(bool, texts)) < 2:
        return list(texts), ""
    start = "Not the source's setting" if word == "no" else "The source's setting"
    return [word if text else "" for text in texts], f"{start}: {reason}."


def short_name(operation: str, operations: Sequence[str]) -> str:
    """Return an operation's name without its model, unless another operation of the table has the same short name."""
    return markdown.escape(labels.operations([operation, *operations])[operation])
