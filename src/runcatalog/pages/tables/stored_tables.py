"""Tables that runs store in their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runcatalog.analysis import groups
from runcatalog.pages.tables import setting_table
from runcatalog.pages.tables.page_data import PageData
from runcatalog.pages.tables.settings import Setting
from runcatalog.text import markdown

UNFOLDED = 12  # lines; longer tables are folded


def details(data: PageData, operations: Sequence[str], folded: bool = True) -> str:
    """Return the tables in the results of runs as Markdown; "" without tables.

    A result may contain a `table` with `columns`, a list of text, and `rows`, a list of lists of text; or a list of
    such tables. An entry of another form is left out. A table whose columns are a subset of another's is merged into
    it, with the runs' names and ids in the first two columns. If `folded`, long tables are folded.
    """
    computed: list[tuple[tuple[str, ...], list[str], list[Any]]] = []
    for operation in operations:
        heads = data.heads(operation)
        varying = groups.varying(heads, lacking=False)
        hidden = setting_table.usual([Setting(operation, (head,)) for head in heads])
        for head in heads:
            entry: Any = (head.result or {}).get("table")
            for table_data in entry if isinstance(entry, list) else [entry]:
                if not _is_table(table_data):
                    continue
                name = setting_table.short_name(operation, operations)
                title = setting_table.setting_cell(
                    Setting(operation, (head,)), name, varying, hidden
                )
                name_cells = [title, data.id_cell(head.run)]
                computed.append(
                    (
                        tuple(map(str, table_data["columns"])),
                        name_cells,
                        table_data["rows"],
                    )
                )
    sections = []
    widest = _widest([columns for columns, _, _ in computed])
    for columns in dict.fromkeys(widest[shape] for shape, _, _ in computed):
        lines = [
            line
            for shape, name_cells, rows in computed
            if widest[shape] == columns
            for line in _lines(columns, shape, name_cells, rows)
        ]
        shown = map(markdown.escape, columns)
        table = markdown.table([setting_table.SETTING, setting_table.ID, *shown], lines)
        if folded and len(lines) > UNFOLDED:
            table = markdown.fold(f"{len(lines)} lines: {', '.join(columns)}", table)
        sections.append(table)
    return "\n\n".join(sections)


def _is_table(content: Any) -> bool:
    """Return whether an entry of a result has columns, and rows of cells."""
    if not isinstance(content, dict):
        return False
    columns, rows = content.get("columns"), content.get("rows")
    if not (isinstance(columns, list) and isinstance(rows, list)):
        return False
    return bool(columns) and all(isinstance(row, list) for row in rows)


def _widest(shapes: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Map every tuple of columns to the longest one that contains all of its columns."""
    ordered = sorted(dict.fromkeys(shapes), key=len, reverse=True)
    return {
        shape: next(candidate for candidate in ordered if set(shape) <= set(candidate))
        for shape in ordered
    }


def _lines(
    columns: Sequence[str],
    table_columns: Sequence[str],
    name_cells: Sequence[str],
    rows: Sequence[Any],
) -> list[list[str]]:
    """Return the lines of one run's table, with the run's name in the first."""
    lines = []
    for i, row in enumerate(rows):
        written = [
            # Seeds are names, not amounts.
            markdown.escape(text) if "seed" in column else markdown.computed(text)
            for column, text in zip(table_columns, row, strict=False)
        ]
        cells = dict(zip(table_columns, written, strict=False))
        lines.append([*(name_cells if i == 0 else ["", ""]), *(cells.get(c, "") for c in columns)])
    return lines
