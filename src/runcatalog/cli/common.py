"""Shared by the subcommands: their declaration, and the selection of runs by id."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from runcatalog.model.errors import CatalogError
from runcatalog.model.project import Operation, Project

if TYPE_CHECKING:
    from runcatalog.model.run_record import RunRecord
    from runcatalog.store.run_rows import Reader, StoredRun

Handler = Callable[[argparse.Namespace], int]
Run = TypeVar("Run", "RunRecord", "StoredRun")

LATEST = "latest"  # names the newest batch or single run


class Help(argparse.HelpFormatter):
    """Help formatter that wraps prose and keeps the line breaks of longer text, such as examples."""

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
        self,
        name: str,
        run: Handler,
        short: str,
        more: str = "",
        examples: str = "",
        *,
        uses_mlflow: bool = False,
    ) -> argparse.ArgumentParser:
        """Declare a command; return its parser.

        Args:
            name: Name as typed.
            run: Handler; takes the options and returns the exit status.
            short: A line for the list of commands.
            more: Further text of the help.
            examples: Example lines at the end of the help.
            uses_mlflow: Whether the command reads or writes MLflow, and so has the option `--tracking-uri`.
        """
        sub = self._all.add_parser(
            name,
            help=short,
            description=f"{short[0].upper()}{short[1:]}. {more}".strip(),
            epilog=f"examples:\n{_indented(examples)}" if examples else None,
            formatter_class=Help,
        )
        sub.set_defaults(run=run, parser=sub, tracking_uri=None, quiet=False, error_code=1)
        if uses_mlflow:
            text = "MLflow, instead of $MLFLOW_TRACKING_URI"
            sub.add_argument("--tracking-uri", metavar="URI", help=text)
        return sub


def reader_of(options: argparse.Namespace) -> Reader:
    """Return a reader of MLflow's runs.

    Raises:
        CatalogError: --tracking-uri names a database that does not exist.
    """
    from runcatalog.record.delivery.mlflow_client import sqlite_path, tracking_uri
    from runcatalog.store.sqlite_reader import reader

    uri = options.tracking_uri
    path = sqlite_path(tracking_uri(uri)) if uri else None
    if path is not None and not path.exists():
        raise CatalogError(f"--tracking-uri {uri}: there is no such database")
    return reader(uri)


def runs_of(options: argparse.Namespace, *, all_projects: bool = False) -> Reader:
    """Return a reader of the runs in MLflow that a command can show, and of the committed records.

    Args:
        options: Options of the command.
        all_projects: Whether to read the runs of other projects in MLflow too, as always outside of a project.
    """
    from runcatalog.store.committed_runs import WithCommitted
    from runcatalog.sync.ownership import OwnRuns

    source = reader_of(options)
    try:
        project = Project.find()
    except CatalogError:
        return source
    return WithCommitted(source if all_projects else OwnRuns(project, source), project.records)


def declared_operations() -> dict[str, Operation]:
    """Return the project's operations by name; none outside of a project."""
    try:
        project = Project.find()
    except CatalogError:
        return {}
    return project.operations()


def committed_records(project: Project) -> list[RunRecord]:
    """Return the records in the repository."""
    from runcatalog.model.record_files import read_all

    return read_all(project.records)


def full_id(ids: Iterable[str], name: str, missing: str) -> str:
    """Return the id that is `name`, else the single one that begins with it.

    Args:
        ids: All ids.
        name: First digits of an id.
        missing: The error if there is none.

    Raises:
        CatalogError: No id or several ids match.
    """
    prefix = name.lower()
    found = sorted({run for run in ids if prefix and run.startswith(prefix)})
    if prefix in found:
        return prefix
    if not found:
        raise CatalogError(missing)
    if len(found) > 1:
        shown = ", ".join(run[:12] for run in found[:4])
        raise CatalogError(f"{name!r} could be {shown}: more digits are needed")
    return found[0]


def committed_record(records: Sequence[RunRecord], name: str) -> RunRecord:
    """Return the committed record of the run whose id begins with `name`, for "latest" of the newest one.

    Raises:
        CatalogError: No record or several records match, or a run on this machine is newer than the latest record.
    """
    run = latest_id(records) if name.lower() == LATEST else ""
    missing = f"{name!r} has no record; `catalog export` writes it"
    run = run or full_id((record.run for record in records), name, missing)
    return next(record for record in records if record.run == run)


def progress_printer(options: argparse.Namespace) -> Callable[[str], None]:
    """Return a function that prints a line per run; with -q it prints nothing."""
    from runcatalog.text.terminal import clean_line

    return (
        (lambda line: None) if options.quiet else lambda line: print(clean_line(line), flush=True)
    )


def run_named(stored: Sequence[StoredRun], name: str) -> StoredRun:
    """Return the run whose id begins with `name`; "latest" is the newest batch or single run.

    Raises:
        CatalogError: No run or several runs match.
    """
    if name.lower() == LATEST:
        newest = _newest(stored)
        if newer := _newer_here(stored, newest):
            print(f"run {newer[:8]} is newer, and not in MLflow yet", file=sys.stderr)
        if newest:
            return newest
    missing = f"no run {name!r}; `catalog sync` adds new runs"
    if name and any(path.name.startswith(name.lower()) for path in _local_runs()):
        missing = f"run {name} is not in MLflow yet: its sender may need a moment, or `catalog sync` sends it"
    run = full_id((s.run for s in stored), name, missing)
    return next(s for s in stored if s.run == run)


def latest_id(runs: Collection[Run]) -> str:
    """Return the id of the newest batch or single run, for a command that changes or repeats it; "" without any.

    Raises:
        CatalogError: A run of this project on this machine is newer than all of them.
    """
    newest = _newest(runs)
    if newer := _newer_here(runs, newest):
        raise CatalogError(
            f"{LATEST}: run {newer[:8]} is newer, and not yet among these runs; "
            "`catalog sync` and `catalog export` add it"
        )
    return newest.run if newest else ""


def _newest(runs: Iterable[Run]) -> Run | None:
    heads = (run for run in runs if not run.batch)
    return max(heads, key=lambda run: (run.started or 0, run.run), default=None)


def _local_runs() -> list[Path]:
    """Return the directories of Guild's runs on this machine."""
    from runcatalog.guild.runs import guild_home

    with contextlib.suppress(CatalogError):  # MLflow can be read without them
        if home := guild_home():
            return [path for path in (home / "runs").glob("*") if path.is_dir()]
    return []


def _newer_here(known: Iterable[Run], newest: Run | None) -> str:
    """Return the id of this machine's newest batch or single run, if it is this project's and newer than all known."""
    from runcatalog.guild.runs import GuildRun

    paths = sorted(_local_runs(), key=_changed, reverse=True)
    runs = (GuildRun(path.name, str(path)) for path in paths)
    run = next((run for run in runs if run.has_begun), None)
    if run is None or (head := run.batch_run or run.id) in {each.run for each in known}:
        return ""
    is_newer = (run.started or 0) > ((newest and newest.started) or 0)
    is_own = bool(run.source) and Path(run.source).is_relative_to(Project.find().root)
    return head if is_newer and is_own else ""


def _changed(path: Path) -> float:
    """Return when an entry of a folder was changed [s since the epoch]; 0 for one that is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def selected_runs(
    stored: Sequence[StoredRun], names: Iterable[str], *, with_batch: bool = True
) -> list[StoredRun]:
    """Return named runs (see :func:`run_named`), every batch followed by its trials.

    Args:
        stored: All runs.
        names: First digits of ids, or "latest".
        with_batch: Whether a trial is followed by its batch.
    """
    selected: dict[str, StoredRun] = {}
    for name in names:
        named = run_named(stored, name)
        selected[named.id] = named
        selected |= {s.id: s for s in stored if s.batch == named.run}
        if with_batch and named.batch:
            selected |= {s.id: s for s in stored if s.run == named.batch}
    return list(selected.values())


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines())
