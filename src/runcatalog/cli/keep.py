"""`catalog sync`, `import`, `export` and `weights`: runs into MLflow, records and weights out of it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from runcatalog.cli.common import Commands, progress_printer, reader_of, selected_runs
from runcatalog.model.project import Project

if TYPE_CHECKING:
    from runcatalog.model.run_record import RunRecord


def sync(options: argparse.Namespace) -> int:
    """catalog sync"""
    from runcatalog.guild import runs
    from runcatalog.store.client import Store
    from runcatalog.sync.sync import Sync, project_lock
    from runcatalog.text.terminal import clean

    project = Project.find()
    home = runs.guild_home()
    with project_lock(project):
        store = Store(options.tracking_uri)
        report = Sync(project, store, progress_printer(options)).run(home, everything=options.all)
        if report.sent:
            from runcatalog.mlflow_ui.arrange import arrange

            arrange(project, store)
    where = home or "no Guild home"
    print(
        f"{report.runs} run{'s' * (report.runs != 1)} in {where} and {project.root / 'runs'}: {report.sent} sent"
    )
    if report.others:
        print(f"{report.others} of other projects: not sent (`catalog sync --all` sends them too)")
    if report.deleted:
        print(f"{report.deleted} deleted in MLflow: not sent again")
    for hint in report.hints:
        print(f"catalog: {clean(hint)}", file=sys.stderr)
    for problem in report.problems:
        print(f"catalog: {clean(problem)}", file=sys.stderr)
    return 1 if report.problems else 0


def export(options: argparse.Namespace) -> int:
    """catalog export"""
    from runcatalog.sync import exports
    from runcatalog.sync.ownership import own
    from runcatalog.sync.sync import project_lock

    project = Project.find()
    folder = Path(options.to) if options.to else project.records
    with project_lock(project):
        source = reader_of(options)
        stored = source.runs(deleted=True)
        live = [run for run in stored if not run.deleted]
        selected = own(project, source.uri, live)
        others = len(live) - len(selected)
        lacking = exports.never_started(selected)
        if options.runs:
            selected = selected_runs(selected, options.runs)
        ended = [run for run in selected if run.record.status != "RUNNING"]
        begun = [run for run in ended if run.run not in lacking]
        counts = exports.export(source.with_points(begun), folder)
        deleted = {run.run for run in stored if run.deleted} - {run.run for run in live}
        kept = exports.kept(deleted, folder)
    where = os.path.relpath(folder)
    print(
        f"{counts.records} record{'s' * (counts.records != 1)} in {where}: {counts.written} written"
    )
    if not counts.written and not options.runs:
        print("runs that MLflow does not have yet: `catalog sync` sends them")
    if counts.continued:
        print(f"{counts.continued} went on since their record was written")
    if others:
        print(f"{others} of other projects in MLflow: not exported")
    if len(ended) < len(selected):
        print(f"{len(selected) - len(ended)} still running: not exported")
    if len(begun) < len(ended):
        print(f"{len(ended) - len(begun)} never started: not exported")
    if kept:
        print(
            f"{len(kept)} deleted in MLflow: their records are kept, "
            "`catalog forget RUN --why TEXT` takes them out of the tables"
        )
    for line in counts.refused:
        print(f"catalog: {line}", file=sys.stderr)
    return 1 if counts.refused else 0


def forget(options: argparse.Namespace) -> int:
    """catalog forget"""
    from runcatalog.cli.common import committed_records
    from runcatalog.model.errors import CatalogError
    from runcatalog.model.marks import marked
    from runcatalog.model.record_files import write_all
    from runcatalog.model.run_record import MAX_TEXT
    from runcatalog.store.client import Store
    from runcatalog.store.run_rows import mark_tags
    from runcatalog.sync.ownership import OwnRuns
    from runcatalog.sync.sync import project_lock
    from runcatalog.text import sentences, terminal

    project = Project.find()
    why = " ".join(options.why.split())
    if not why:
        raise CatalogError("--why: a reason is expected")
    if len(why) > MAX_TEXT:
        raise CatalogError(f"--why: {len(why):,} characters; at most {MAX_TEXT:,} are kept")
    with project_lock(project):
        records = committed_records(project) if project.records.is_dir() else []
        stored = OwnRuns(project, reader_of(options)).runs()
        known = {run.run: run.record for run in stored} | {r.run: r for r in records}
        chosen = dict.fromkeys(_known_run(known, name) for name in options.runs)
        # A trial that is marked already keeps its own reason.
        trials = [r.run for r in known.values() if r.batch in chosen and r.is_current]
        chosen |= dict.fromkeys(trials)
        by = _known_run(known, options.superseded_by) if options.superseded_by else ""
        if by in chosen:
            raise CatalogError(f"{by[:8]} cannot supersede itself")
        if by and by in known and not known[by].is_current:
            raise CatalogError(f"{by[:8]} is superseded or retracted itself")
        write_all([marked(r, why, by) for r in records if r.run in chosen], project.records)
        in_mlflow = [run for run in stored if run.run in chosen]
        if in_mlflow:
            store = Store(options.tracking_uri)
            for row in in_mlflow:
                store.tag(row.id, mark_tags(marked(row.record, why, by)))
    mark = f"superseded by {by[:8]}" if by else "retracted"
    for run in chosen:
        record = known.get(run)  # a batch of trials may have none
        before = terminal.plain(sentences.mark(record)) if record else ""
        operation = record.operation if record else "batch"
        print(f"{run[:8]}  {operation}  {mark}{f' (was {before})' if before else ''}")
    return 0


def _known_run(known: dict[str, RunRecord], name: str) -> str:
    """Return the id of the run or batch that begins so, for "latest" of the newest one."""
    from runcatalog.cli.common import LATEST, full_id, latest_id

    if name.lower() == LATEST and (run := latest_id(known.values())):
        return run
    ids = known.keys() | {record.batch for record in known.values() if record.batch}
    return full_id(ids, name, f"{name!r} is neither in the records nor in MLflow")


def import_(options: argparse.Namespace) -> int:
    """catalog import"""
    from runcatalog.store.client import Store
    from runcatalog.sync import compare_csv, imports
    from runcatalog.sync.sync import Sync, project_lock
    from runcatalog.text.terminal import clean

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
    records: list[RunRecord] = []
    for path, kind in kinds:  # all inputs are read before anything is written
        if kind == "csv":
            records += imports.read_csv(project, path, options.study, reading)
        elif kind != "journals":
            records += imports.read_records(path)
    with project_lock(project):
        store = Store(options.tracking_uri)
        counts = imports.put_records(store, records, progress_printer(options))
        copied, problems = imports.check_files(
            run for path, kind in kinds if kind == "journals" for run in imports.journals(path)
        )
        if copied:
            report = Sync(project, store, progress_printer(options)).send_copied(copied)
            counts.read += report.runs
            counts.added += report.sent
            counts.deleted += report.deleted
            problems += report.problems
        if counts.added:
            from runcatalog.mlflow_ui.arrange import arrange

            arrange(project, store)
    print(f"{counts.read} run{'s' * (counts.read != 1)} read: {counts.added} imported")
    if counts.deleted:
        print(f"{counts.deleted} deleted in MLflow: not imported")
    for problem in problems:
        print(f"catalog: {clean(problem)}", file=sys.stderr)
    return 1 if problems else 0


def weights(options: argparse.Namespace) -> int:
    """catalog weights"""
    from runcatalog.cli.common import committed_record, committed_records
    from runcatalog.guild.runs import GuildRun, guild_home
    from runcatalog.model.errors import CatalogError
    from runcatalog.sync.weights import export_weights

    project, home = Project.find(), guild_home()
    if home is None:
        raise CatalogError("no Guild home, so no runs with weights")
    records = committed_records(project)
    for prefix in options.runs:
        record = committed_record(records, prefix)
        directory = home / "runs" / record.run
        if not directory.is_dir():
            raise CatalogError(f"{record.run[:8]} is not in {home}")
        size = export_weights(record, GuildRun(record.run, str(directory)), project.weights)
        print(
            f"{record.operation}, {record.run[:8]}: {size / 1000:.0f} kB in {os.path.relpath(project.weights)}"
        )
    return 0


def _add_quiet(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("-q", "--quiet", action="store_true", help="do not print a line per run")


def add(commands: Commands) -> None:
    """Declare the commands."""
    sub = commands.add(
        "sync",
        sync,
        "send Guild's runs and the journals to MLflow",
        "Unchanged runs are not sent again. Runs that died before they recorded anything get a row too; a run "
        "deleted in Guild keeps its row. If several projects share a Guild home, only runs that were started from "
        "this project are sent.",
        "catalog sync\ncatalog sync -q --tracking-uri http://mlflow:5000    to the group's server",
        uses_mlflow=True,
    )
    _add_quiet(sub)
    sub.add_argument(
        "--all", action="store_true", help="also send the Guild home's runs of other projects"
    )

    sub = commands.add(
        "import",
        import_,
        "bring records, copied run directories or `guild compare --csv` exports into MLflow",
        "Importing again changes nothing. Without PATH: experiments/records. Times in a CSV are read as local time "
        "of this machine, or of $TZ.",
        "catalog import                                the committed records\n"
        "catalog import ~/copied/runs                  from a machine without MLflow\n"
        "catalog import sweep.csv --objective opening_rate",
        uses_mlflow=True,
    )
    _add_quiet(sub)
    sub.add_argument("paths", nargs="*", metavar="PATH", help="FILE.csv, FILE.json or a directory")
    sub.add_argument(
        "--study", default="", help="study of a CSV's runs, if their operation is not declared"
    )
    sub.add_argument(
        "--objective",
        default="",
        metavar="METRIC",
        help="objective of a CSV's batch (default: the declared one)",
    )
    sub.add_argument(
        "--goal",
        choices=("max", "min"),
        default="",
        help="of that objective (default: as declared; else min for a loss or an error, max for others)",
    )
    sub.add_argument("--batch", default="", metavar="ID", help="id of a CSV's batch, if known")

    sub = commands.add(
        "export",
        export,
        "write a record of every run in MLflow: experiments/records/STUDY/RUN8.json",
        "Runs that are still running are left out, and those that never started because a run that they require is "
        "missing. Records are append-only: a record is added or marked, never removed, and its numbers never change. "
        "If MLflow has other numbers for a finished run, nothing is written for it and the exit status is 1.",
        "catalog export\ncatalog export 7623993d --to /tmp/records",
        uses_mlflow=True,
    )
    sub.add_argument(
        "runs", nargs="*", metavar="RUN", help="only these runs (8 digits are enough, or latest)"
    )
    sub.add_argument("--to", metavar="DIR", help="write to another folder")

    sub = commands.add(
        "forget",
        forget,
        "mark runs as retracted or superseded, so that they count in no table",
        "The record stays, with the mark; so does the run in MLflow. The page lists it with its reason at the end of "
        "its study's page of runs. A batch is marked with its trials.",
        "catalog forget 7623993d --why 'the wrong reward'\n"
        "catalog forget 7623993d --superseded-by 404ebf03 --why 'with the fixed schedule'",
        uses_mlflow=True,
    )
    sub.add_argument("runs", nargs="+", metavar="RUN", help="8 digits are enough, or latest")
    sub.add_argument("--why", required=True, metavar="TEXT", help="the reason, for the page")
    sub.add_argument(
        "--superseded-by",
        default="",
        metavar="RUN",
        help="the run or batch that stands for it (default: it is retracted)",
    )

    sub = commands.add(
        "weights",
        weights,
        "write the weights of recorded runs, to commit: experiments/weights/",
        "From the last checkpoint of a run, without the state that only its training needs; at most a megabyte per "
        "run. Export its record first. In a clone, `guild import experiments/weights` creates runs from them, for "
        "operations that require a trained agent.",
        "catalog weights 7623993d",
    )
    sub.add_argument("runs", nargs="+", metavar="RUN", help="8 digits are enough, or latest")
