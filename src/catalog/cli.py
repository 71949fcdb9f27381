"""The `catalog` command."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catalog.errors import CatalogError
from catalog.project import CATALOG_FILE, Project

if TYPE_CHECKING:
    from catalog.model import RunRecord
    from catalog.store import Store

_DESCRIPTION = """\
Keeps the list of experiments: runs go from Guild to MLflow, from there to
records, and from these to runs_catalog.md."""

_EPILOG = """\
the usual way:
  guild run hnppo:train task=lever -y     run something
  catalog sync                            its row, and every other, into MLflow
  catalog export                          records to commit: experiments/records/
  catalog render                          runs_catalog.md and its figures
  catalog check                           does the file say what the records say?
in a clone without runs:
  catalog import && catalog render        the same bytes again

MLflow is $MLFLOW_TRACKING_URI, else mlflow.db in the project's folder."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; an error of the user's is one line and exit 1, a wrong call exit 2."""
    options = _parser().parse_args(arguments)
    try:
        with _one_line():
            code = options.run(options)
        sys.stdout.flush()
    except CatalogError as error:
        print(f"catalog: {_line(error)}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print("catalog: stopped", file=sys.stderr)
        code = 130
    except BrokenPipeError:  # `catalog … | head`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)


def sync(options: argparse.Namespace) -> int:
    """catalog sync"""
    from catalog import guild_runs
    from catalog.store import Store
    from catalog.sync import Sync, alone

    project = Project.find()
    home = guild_runs.guild_home()
    with alone(project):
        store = Store(options.tracking_uri)
        report = Sync(project, store, _say(options)).run(home)
    where = home or "no Guild home"
    print(f"{report.runs} runs in {where} and {project.root / 'runs'}: {report.sent} sent")
    if report.deleted:
        print(f"{report.deleted} deleted in MLflow: left so")
    for problem in report.problems:
        print(f"catalog: {problem}", file=sys.stderr)
    return 1 if report.problems else 0


def render(options: argparse.Namespace) -> int:
    """catalog render"""
    from catalog.render import write

    project = Project.find()
    changed = write(project, _committed(project) if options.records else _held(options))
    shown = [os.path.relpath(path) for path in changed]
    print("\n".join(f"wrote {path}" for path in shown) or f"{CATALOG_FILE} is up to date")
    return 0


def check(options: argparse.Namespace) -> int:
    """catalog check"""
    from catalog.render import difference

    project = Project.find()
    records = _committed(project)
    told = difference(project, records)
    if not told:
        print(f"{CATALOG_FILE} is what {len(records)} records give")
    for line in told:
        print(line, file=sys.stderr)
    return 1 if told else 0


def export(options: argparse.Namespace) -> int:
    """catalog export"""
    from catalog.records import write_all
    from catalog.sync import alone

    project = Project.find()
    folder = Path(options.to) if options.to else project.records
    with alone(project):
        store = _store(options)
        stored = store.runs(deleted=True)
        live = [each for each in stored if not each.deleted]
        if options.runs:
            live = _chosen(live, options.runs)
        ended = [each for each in live if each.record.status != "RUNNING"]
        count, written = write_all(store.with_points(ended), folder)
        gone = {each.record.run for each in stored if each.deleted}
        gone -= {each.record.run for each in stored if not each.deleted}
        removed = _remove_records(folder, gone)
    print(f"{count} records in {os.path.relpath(folder)}: {written} written")
    if len(ended) < len(live):
        print(f"{len(live) - len(ended)} still running: not exported")
    if removed:
        print(f"{removed} removed: deleted in MLflow")
    return 0


def import_(options: argparse.Namespace) -> int:
    """catalog import"""
    from catalog import compare_csv, imports
    from catalog.store import Store
    from catalog.sync import Sync, alone

    project = Project.find()
    paths = [Path(path) for path in options.paths]
    if not paths:
        if not project.records.is_dir():
            print(f"no records in {project.records}")
            return 0
        paths = [project.records]
    kinds = [
        (path, "records" if path == project.records else imports.kind_of(path)) for path in paths
    ]
    reading = compare_csv.Options("", options.objective, options.goal, options.batch)
    found: list[RunRecord] = []
    for path, kind in kinds:  # everything is read before anything is written
        if kind == "csv":
            found += imports.read_csv(project, path, options.study, reading)
        elif kind != "journals":
            found += imports.read_records(path)
    with alone(project):
        store = Store(options.tracking_uri)
        counts = imports.put_records(store, found, _say(options))
        problems: list[str] = []
        copied = [
            run for path, kind in kinds if kind == "journals" for run in imports.journals(path)
        ]
        if copied:
            work = Sync(project, store, _say(options))
            for directory in copied:
                work.send_journal(directory)
            counts.seen += work.report.runs
            counts.added += work.report.sent
            counts.deleted += work.report.deleted
            problems = work.report.problems
    print(f"{counts.seen} runs read: {counts.added} imported")
    if counts.deleted:
        print(f"{counts.deleted} deleted in MLflow: left so")
    for problem in problems:
        print(f"catalog: {problem}", file=sys.stderr)
    return 1 if problems else 0


def row(options: argparse.Namespace) -> int:
    """catalog row"""
    from catalog.render import Catalog

    project = Project.find()
    store = _store(options)
    stored = _chosen(store.runs(), [options.run_id], trials=False)
    record = stored[0].record
    records = store.with_points(stored)
    catalog = Catalog(project, records)
    print(catalog.row(catalog.store.by_id[record.run]))
    for requirement in options.require:
        _require(catalog.store.by_id[record.run], requirement)
    return 0


def _require(record: RunRecord, requirement: str) -> None:
    """Raises CatalogError unless a run's metric is at least a number: `opening_rate=0.95`."""
    match = re.fullmatch(r"(.+?)>?=(.+)", requirement)
    try:
        name, least = (match[1], float(match[2])) if match else ("", 0.0)
    except ValueError:
        name = ""
    if not name:
        raise CatalogError(f"--require {requirement}: METRIC=NUMBER is expected")
    objective = record.objective or {}
    told = (record.result or {}).get("metrics")
    value = told.get(name) if isinstance(told, dict) else None
    if objective.get("name") == name:
        value = objective["value"]
    elif name in record.metrics:
        value = record.metrics[name].last
    if not isinstance(value, int | float) or not value >= least:
        shown = f"{value:g}" if isinstance(value, int | float) else "not there"
        raise CatalogError(f"run {record.id8}: {name} is {shown}, required is at least {least:g}")


def _chosen(stored: Sequence[Any], wanted: Sequence[str], *, trials: bool = True) -> list[Any]:
    """Runs by prefix of their id (or "latest"), each batch with its trials, the named one first."""
    found: dict[str, Any] = {}
    for prefix in wanted:
        if prefix == "latest":
            heads = [s for s in stored if not s.record.batch]
            match = (
                [max(heads, key=lambda s: (s.record.started or 0, s.record.run))] if heads else []
            )
        else:
            match = [s for s in stored if s.record.run.startswith(prefix.lower())]
        exact = [s for s in match if s.record.run == prefix.lower()]
        match = exact or match
        if not match:
            raise CatalogError(
                f"no run {prefix!r} in MLflow; `catalog sync` brings in what has run"
            )
        if len({s.record.run for s in match}) > 1:
            shown = ", ".join(s.record.run[:12] for s in match[:4])
            raise CatalogError(f"{prefix!r} could be {shown}: more digits are needed")
        found[match[0].id] = match[0]
        members = [s for s in stored if s.record.batch == match[0].record.run]
        found |= {s.id: s for s in members}
        if trials and match[0].record.batch:
            found |= {s.id: s for s in stored if s.record.run == match[0].record.batch}
    return list(found.values())


def _remove_records(folder: Path, gone: set[str]) -> int:
    removed = 0
    for path in sorted(folder.glob("*/*.json")) if gone else ():
        from catalog.records import read

        if read(path).run in gone:
            path.unlink()
            removed += 1
    return removed


def _committed(project: Project) -> list[RunRecord]:
    from catalog.records import read_all

    return read_all(project.records)


def _held(options: argparse.Namespace) -> list[RunRecord]:
    return _store(options).records()


def _store(options: argparse.Namespace) -> Store:
    from catalog.store import Store

    return Store(options.tracking_uri)


def _say(options: argparse.Namespace) -> Any:
    return (lambda line: None) if options.quiet else lambda line: print(line, flush=True)


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """Makes record's errors the catalog's, without importing it for commands that do not need it."""
    try:
        yield
    except Exception as error:
        errors = sys.modules.get("record.errors")
        if errors is not None and isinstance(error, errors.UserError):
            raise CatalogError(str(error)) from error
        if isinstance(error, OSError) and error.filename and not isinstance(error, BrokenPipeError):
            raise CatalogError(f"{error.filename}: {error.strerror}") from error
        raise


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="catalog",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, run: Any, short: str, more: str = "") -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=short, description=f"{short[0].upper()}{short[1:]}. {more}"
        )
        sub.set_defaults(run=run, tracking_uri=None, quiet=False)
        return sub

    def reaches_mlflow(sub: argparse.ArgumentParser) -> None:
        sub.add_argument(
            "--tracking-uri", metavar="URI", help="MLflow, instead of $MLFLOW_TRACKING_URI"
        )

    sub = command(
        "sync",
        sync,
        "send Guild's runs and the journals to MLflow",
        "What is there already is not sent again. Runs that died before they recorded anything get "
        "a row too; a run deleted in Guild keeps its row.",
    )
    reaches_mlflow(sub)
    sub.add_argument("-q", "--quiet", action="store_true", help="no line for each run")

    sub = command(
        "render",
        render,
        f"write {CATALOG_FILE} and its figures",
        "From MLflow alone; the prose comes from experiments/*/catalog.md.j2.",
    )
    reaches_mlflow(sub)
    sub.add_argument(
        "--records", action="store_true", help="from experiments/records instead of MLflow"
    )

    command(
        "check",
        check,
        f"say whether {CATALOG_FILE} is what the committed records give",
        "Exit 1 and the first row that differs, if it is not. Does not need MLflow.",
    )

    sub = command(
        "export",
        export,
        "write a record of each run in MLflow: experiments/records/STUDY/RUN8.json",
        "Runs that are still going on are left out.",
    )
    reaches_mlflow(sub)
    sub.add_argument("runs", nargs="*", metavar="RUN", help="only these (8 digits are enough)")
    sub.add_argument("--to", metavar="DIR", help="another folder")

    sub = command(
        "import",
        import_,
        "bring records, copied run directories or `guild compare --csv` exports into MLflow",
        "Importing again changes nothing. Without PATH: experiments/records.",
    )
    reaches_mlflow(sub)
    sub.add_argument("paths", nargs="*", metavar="PATH", help="FILE.csv, FILE.json or a directory")
    sub.add_argument("--study", default="", help="study of a CSV's runs, if it is not declared")
    sub.add_argument(
        "--objective", default="", metavar="METRIC", help="what a CSV's batch optimised"
    )
    sub.add_argument("--goal", choices=("max", "min"), default="max", help="of that objective")
    sub.add_argument("--batch", default="", metavar="ID", help="id of a CSV's batch, if known")
    sub.add_argument("-q", "--quiet", action="store_true", help="no line for each run")

    sub = command("row", row, "print the row of one run or batch as Markdown")
    reaches_mlflow(sub)
    sub.add_argument("run_id", metavar="RUN", help="id, its first digits, or latest")
    sub.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="METRIC=NUMBER",
        help="exit 1 unless the run's METRIC is at least NUMBER",
    )
    return parser


if __name__ == "__main__":
    main()
