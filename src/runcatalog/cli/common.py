"""What the subcommands share: how one is declared, and how runs are named."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from runcatalog.model.errors import CatalogError

if TYPE_CHECKING:
    from runcatalog.model.project import Project
    from runcatalog.model.run_record import RunRecord
    from runcatalog.store.client import Store
    from runcatalog.store.run_rows import StoredRun

Handler = Callable[[argparse.Namespace], int]
T = TypeVar("T")


class Help(argparse.HelpFormatter):
    """Wraps prose, and leaves text of more than one line (examples) as it was typed."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)


class Commands:
    """The subcommands of a parser.

    Args:
        parser: The parser.
    """

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._all = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(
        self, name: str, run: Handler, short: str, more: str = "", examples: str = ""
    ) -> argparse.ArgumentParser:
        """Declares a command.

        Args:
            name: As typed.
            run: Called with the options; returns the exit status.
            short: One line for the list of commands.
            more: What else its help says.
            examples: Lines to type, shown at the end of its help.
        """
        sub = self._all.add_parser(
            name,
            help=short,
            description=f"{short[0].upper()}{short[1:]}. {more}".strip(),
            epilog=f"examples:\n{_indented(examples)}" if examples else None,
            formatter_class=Help,
        )
        sub.set_defaults(run=run, tracking_uri=None, quiet=False, error_code=1)
        return sub


def reaches_mlflow(sub: argparse.ArgumentParser) -> None:
    """Declares the option of commands that read or write MLflow."""
    sub.add_argument(
        "--tracking-uri", metavar="URI", help="MLflow, instead of $MLFLOW_TRACKING_URI"
    )


def store_of(options: argparse.Namespace) -> Store:
    """The MLflow that the options name."""
    from runcatalog.store.client import Store

    return Store(options.tracking_uri)


def committed(project: Project) -> list[RunRecord]:
    """The records in the repository."""
    from runcatalog.model.record_files import read_all

    return read_all(project.records)


def say(options: argparse.Namespace) -> Callable[[str], None]:
    """What tells of each run as it goes on; silent with -q."""
    return (lambda line: None) if options.quiet else lambda line: print(line, flush=True)


def one(stored: Sequence[StoredRun], wanted: str) -> StoredRun:
    """Returns the run whose id begins so; "latest" is the newest batch or single run.

    Raises:
        CatalogError: There is none, or more than one.
    """
    prefix = wanted.lower()
    if prefix == "latest":
        heads = [s for s in stored if not s.record.batch]
        match = [max(heads, key=lambda s: (s.record.started or 0, s.record.run))] if heads else []
    else:
        match = [s for s in stored if s.record.run.startswith(prefix)] if prefix else []
    exact = [s for s in match if s.record.run == prefix]
    match = exact or match
    if not match:
        raise CatalogError(f"no run {wanted!r} in MLflow; `catalog sync` brings in what has run")
    if len({s.record.run for s in match}) > 1:
        shown = ", ".join(s.record.run[:12] for s in match[:4])
        raise CatalogError(f"{wanted!r} could be {shown}: more digits are needed")
    return match[0]


def chosen(
    stored: Sequence[StoredRun], wanted: Iterable[str], *, trials: bool = True
) -> list[StoredRun]:
    """Returns the runs that :func:`one` finds, each batch with its trials, the named one first.

    Args:
        stored: All runs.
        wanted: First digits of ids, or "latest".
        trials: Of a trial, its batch too.
    """
    found: dict[str, Any] = {}
    for each in wanted:
        named = one(stored, each)
        found[named.id] = named
        found |= {s.id: s for s in stored if s.record.batch == named.record.run}
        if trials and named.record.batch:
            found |= {s.id: s for s in stored if s.record.run == named.record.batch}
    return list(found.values())


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines())
