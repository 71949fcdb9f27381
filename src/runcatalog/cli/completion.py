"""Completion of `catalog` in bash and zsh: operations, run ids, names of flags and metrics.

The shell calls `catalog` itself, as argcomplete describes: eval "$(register-python-argcomplete catalog)".
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from runcatalog.model.errors import CatalogError
from runcatalog.model.project import Project

Completer = Callable[..., Iterable[str]]


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell and end the process, if the shell has asked; else do nothing."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    _attach(parser)
    argcomplete.autocomplete(parser)


def _attach(parser: argparse.ArgumentParser) -> None:
    """Give the arguments of all commands their completers, by what their help calls them."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                _attach(sub)
        elif completer := _COMPLETERS.get(str(action.metavar)):
            action.completer = completer  # type: ignore[attr-defined]


def _or_nothing(completer: Completer) -> Completer:
    """Return a completer that offers nothing outside of a project and on an error, which would garble the line."""

    def completed(**context: Any) -> Iterable[str]:
        try:
            return completer(**context)
        except (CatalogError, OSError, ValueError):
            return ()

    return completed


def _operations(**_: Any) -> list[str]:
    return sorted(Project.find().operations())


def _runs(**_: Any) -> set[str]:
    """Return the first 8 digits of the ids of committed runs and of runs in the Guild home."""
    from runcatalog.guild.runs import guild_home

    ids = {path.name[:8] for path in Project.find().records.glob("*/*.json")}
    home = guild_home()
    folder = home / "runs" if home else Path()
    if home and folder.is_dir():
        ids |= {entry.name[:8] for entry in os.scandir(folder) if len(entry.name) == 32}
    return ids | {"latest"}


def _names(parsed_args: argparse.Namespace) -> tuple[set[str], set[str]]:
    """Return the names of flags and of metrics of all runs."""
    from runcatalog.cli.common import runs_of

    source = runs_of(parsed_args, all_projects=True)
    return source.names(source.runs())


def _metrics(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    return sorted(_names(parsed_args)[1])


def _flags(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    return sorted(_names(parsed_args)[0])


def _query(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Return names of flags and metrics for the last word of a query."""
    before = prefix.rpartition(" ")[0]
    flags, metrics = _names(parsed_args)
    start = f"{before} " if before else ""
    return [f"{start}{name}=" for name in sorted(flags | metrics)]


_COMPLETERS: dict[str, Completer] = {
    "OPERATION": _or_nothing(_operations),
    **dict.fromkeys(("RUN", "A", "B"), _or_nothing(_runs)),
    "METRIC": _or_nothing(_metrics),
    "FLAGS": _or_nothing(_flags),
    "QUERY": _or_nothing(_query),
}
