"""Tables that runs computed themselves, in their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runcatalog.analysis import groups
from runcatalog.pages import tables
from runcatalog.text import markdown

UNFOLDED = 12  # lines of a table that runs computed; a longer one is folded


def details(store: tables.Store, operations: Sequence[str], folded: bool = True) -> str:
    """Return the tables that runs computed themselves, as Markdown; nothing without one.

    A result may hold a `table`: `columns`, a list of text, and `rows`, a list of lists of text; or a list of such
    tables. Those whose columns are among those of another are put together, under each run's name and id; a long
    one is folded, if it may be.
    """
    found: list[tuple[tuple[str, ...], list[str], list[Any]]] = []
    for operation in operations:
        heads = store.heads(operation)
        shown = groups.varying(heads)
        for head in heads:
            kept = (head.result or {}).get("table")
            for told in kept if isinstance(kept, list) else [kept]:
                if not isinstance(told, dict) or not told.get("columns"):
                    continue
                row = tables.single_row(
                    store, [head], tables.short_name(operation, operations), shown
                )
                first = [row.cells["Name"], row.cells["batch id"]]
                found.append(
                    (tuple(map(markdown.escape, told["columns"])), first, told.get("rows", []))
                )
    made = []
    widest = _widest([columns for columns, _, _ in found])
    for columns in dict.fromkeys(widest[own] for own, _, _ in found):
        lines = [
            line
            for own, first, told in found
            if widest[own] == columns
            for line in _lines(columns, own, first, told)
        ]
        table = tables.pipes(["Name", "batch id", *columns], lines)
        if folded and len(lines) > UNFOLDED:
            table = tables.fold(f"{len(lines)} lines: {', '.join(columns)}", table)
        made.append(table)
    return "\n\n".join(made)


def _widest(shapes: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """The columns that hold all of a table's own: of the widest table that does."""
    ordered = sorted(dict.fromkeys(shapes), key=len, reverse=True)
    return {own: next(each for each in ordered if set(own) <= set(each)) for own in ordered}


def _lines(
    columns: Sequence[str], own: Sequence[str], first: Sequence[str], told: Sequence[Any]
) -> list[list[str]]:
    """The lines of one run's table; its name stands on the first of them."""
    lines = []
    for i, line in enumerate(told):
        cells = dict(zip(own, map(markdown.escape, line), strict=False))
        lines.append([*(first if i == 0 else ["", ""]), *(cells.get(c, "") for c in columns)])
    return lines
