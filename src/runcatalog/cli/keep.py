"""`catalog sync`, `import` and `export`: runs into MLflow, and from there to records; `weights` beside these."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from runcatalog.cli.common import Commands, chosen, reaches_mlflow, say
from runcatalog.model.project import Project

if TYPE_CHECKING:
    from runcatalog.model.run_record import RunRecord
    from runcatalog.store.client import Store


def sync(options: argparse.Namespace) -> int:
    """catalog sync"""
    from runcatalog.guild import runs
    from runcatalog.store.client import Store
    from runcatalog.sync.sync import Sync, alone

    project = Project.find()
    home = runs.guild_home()
    with alone(project):
        store = Store(options.tracking_uri)
        report = Sync(project, store, say(options)).run(home, everything=options.all)
        if report.sent:
            _arrange(project, store)
    where = home or "no Guild home"
    print(f"{report.runs} runs in {where} and {project.root / 'runs'}: {report.sent} sent")
    if report.others:
        print(f"{report.others} of other projects: left out (`catalog sync --all` sends them too)")
    if report.deleted:
        print(f"{report.deleted} deleted in MLflow: left so")
    for problem in report.problems:
        print(f"catalog: {problem}", file=sys.stderr)
    return 1 if report.problems else 0


def export(options: argparse.Namespace) -> int:
    """catalog export"""
    from runcatalog.model.record_files import write_all
    from runcatalog.store.sqlite_reader import reader
    from runcatalog.sync.ownership import own
    from runcatalog.sync.sync import alone

    project = Project.find()
    folder = Path(options.to) if options.to else project.records
    with alone(project):
        source = reader(options.tracking_uri)
        stored = source.runs(deleted=True)
        everyone = [each for each in stored if not each.deleted]
        live = own(project, source.uri, everyone)
        others = len(everyone) - len(live)
        if options.runs:
            live = chosen(live, options.runs)
        ended = [each for each in live if each.record.status != "RUNNING"]
        count, written = write_all(source.with_points(ended), folder)
        gone = {each.record.run for each in stored if each.deleted}
        gone -= {each.record.run for each in stored if not each.deleted}
        removed = _remove_records(folder, gone)
    print(f"{count} records in {os.path.relpath(folder)}: {written} written")
    if others:
        print(f"{others} of other projects in MLflow: not exported")
    if len(ended) < len(live):
        print(f"{len(live) - len(ended)} still running: not exported")
    if removed:
        print(f"{removed} removed: deleted in MLflow")
    return 0


def import_(options: argparse.Namespace) -> int:
    """catalog import"""
    from runcatalog.store.client import Store
    from runcatalog.sync import compare_csv, imports
    from runcatalog.sync.sync import Sync, alone

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
        counts = imports.put_records(store, found, say(options))
        problems: list[str] = []
        copied = [
            run for path, kind in kinds if kind == "journals" for run in imports.journals(path)
        ]
        if copied:
            report = Sync(project, store, say(options)).send_copied(copied)
            counts.seen += report.runs
            counts.added += report.sent
            counts.deleted += report.deleted
            problems = report.problems
        if counts.added:
            _arrange(project, store)
    print(f"{counts.seen} runs read: {counts.added} imported")
    if counts.deleted:
        print(f"{counts.deleted} deleted in MLflow: left so")
    for problem in problems:
        print(f"catalog: {problem}", file=sys.stderr)
    return 1 if problems else 0


def weights(options: argparse.Namespace) -> int:
    """catalog weights"""
    from runcatalog.cli.common import committed
    from runcatalog.guild.runs import GuildRun, guild_home
    from runcatalog.model.errors import CatalogError
    from runcatalog.sync.weights import export_weights

    project, home = Project.find(), guild_home()
    if home is None:
        raise CatalogError("no Guild home, so no run whose weights could be kept")
    records = committed(project)
    for wanted in options.runs:
        found = [each for each in records if each.run.startswith(wanted.lower())]
        if len(found) != 1:
            told = "could be several runs" if found else "has no record; `catalog export` writes it"
            raise CatalogError(f"{wanted!r} {told}")
        (record,) = found
        directory = home / "runs" / record.run
        if not directory.is_dir():
            raise CatalogError(f"{record.run[:8]} is not in {home}")
        size = export_weights(record, GuildRun(record.run, str(directory)), project.weights)
        print(
            f"{record.operation}, {record.run[:8]}: {size / 1000:.0f} kB in {os.path.relpath(project.weights)}"
        )
    return 0


def _arrange(project: Project, store: Store) -> None:
    from runcatalog.mlflow_ui.arrange import arrange

    arrange(project, store)


def _remove_records(folder: Path, gone: set[str]) -> int:
    from runcatalog.model.record_files import read

    removed = 0
    for path in sorted(folder.glob("*/*.json")) if gone else ():
        if read(path).run in gone:
            path.unlink()
            removed += 1
    return removed


def add(commands: Commands) -> None:
    """Declares the commands."""
    sub = commands.add(
        "sync",
        sync,
        "send Guild's runs and the journals to MLflow",
        "What is there already is not sent again. Runs that died before they recorded anything get "
        "a row too; a run deleted in Guild keeps its row. Of a Guild home that several projects share, the runs "
        "that were started from this project are sent.",
        "catalog sync\ncatalog sync -q --tracking-uri http://mlflow:5000    to the group's server",
    )
    reaches_mlflow(sub)
    sub.add_argument(
        "--all", action="store_true", help="the runs of other projects in the Guild home too"
    )
    sub.add_argument("-q", "--quiet", action="store_true", help="no line for each run")

    sub = commands.add(
        "import",
        import_,
        "bring records, copied run directories or `guild compare --csv` exports into MLflow",
        "Importing again changes nothing. Without PATH: experiments/records. Times in a CSV are local ones: "
        "of this machine, or of $TZ.",
        "catalog import                                the committed records\n"
        "catalog import ~/copied/runs                  from a machine without MLflow\n"
        "catalog import sweep.csv --objective opening_rate",
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

    sub = commands.add(
        "export",
        export,
        "write a record of each run in MLflow: experiments/records/STUDY/RUN8.json",
        "Runs that are still going on are left out.",
        "catalog export\ncatalog export 7623993d --to /tmp/records",
    )
    reaches_mlflow(sub)
    sub.add_argument("runs", nargs="*", metavar="RUN", help="only these (8 digits are enough)")
    sub.add_argument("--to", metavar="DIR", help="another folder")

    sub = commands.add(
        "weights",
        weights,
        "keep the weights of recorded runs, to commit: experiments/weights/",
        "Of a run's last checkpoint, without what only its own training needs; at most a megabyte. Export its record "
        "first. In a clone `guild import experiments/weights` makes runs of them that operations find.",
        "catalog weights 7623993d",
    )
    sub.add_argument("runs", nargs="+", metavar="RUN", help="8 digits are enough")
