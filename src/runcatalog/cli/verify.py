"""`catalog verify`: do journals, MLflow and committed records agree?"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from runcatalog.cli.common import Commands, committed_records, progress_printer, reader_of
from runcatalog.model.project import Project

if TYPE_CHECKING:
    from pathlib import Path

    from runcatalog.sync.verify import Report


def verify(options: argparse.Namespace) -> int:
    """catalog verify"""
    from runcatalog.guild.runs import guild_home
    from runcatalog.sync.sync import project_lock

    project, home = Project.find(), guild_home()
    with project_lock(project):
        report = _compare(project, home, options)
        if options.repair and any(each.missing for each in report.differences):
            _send_again(project, home, options, report)
            report = _compare(project, home, options)
    records = f"{report.records} of {os.path.relpath(project.records)}"
    print(
        f"compared: {report.journals} journals with their results and checkpoints, {report.in_mlflow} with MLflow, "
        f"{records} with MLflow: {len(report.differences) or 'no'} differences"
    )
    for reason, count in sorted(report.unchecked.items()):
        print(f"not compared: {count} {reason}")
    return 1 if report.differences else 0


def _compare(project: Project, home: Path | None, options: argparse.Namespace) -> Report:
    from runcatalog.sync.verify import verify as compare

    source = reader_of(options)
    line = progress_printer(options)
    return compare(project, source, home, committed_records(project), line)


def _send_again(
    project: Project, home: Path | None, options: argparse.Namespace, report: Report
) -> None:
    from runcatalog.store.client import Store
    from runcatalog.sync.sync import STAMP, Sync
    from runcatalog.sync.verify import forget_what_was_sent

    store = Store(options.tracking_uri)
    runs = {each.run for each in report.differences if each.missing}
    for run in runs & report.directories.keys():
        forget_what_was_sent(report.directories[run], store.uri)
    for stored in store.runs():
        if stored.run in runs:
            store.tag(stored.id, {STAMP: ""})
    line = progress_printer(options)
    sent = Sync(project, store, line).run(home)
    line(f"sent again: {sent.sent} runs")
    for problem in sent.problems:
        line(problem)


def add(commands: Commands) -> None:
    """Declare the command."""
    sub = commands.add(
        "verify",
        verify,
        "compare journals, results, checkpoints, MLflow and committed records",
        "A line for each difference: damaged or missing lines of a journal, points that are not those of the result's "
        "digest, damaged checkpoints, points that MLflow lacks or has too many, another status, a record with other "
        "numbers than MLflow. Runs of other projects, times of points and artifacts are not compared. Exit status, as "
        "of grep: 0 if all agrees, 1 for a difference, 2 for an error.",
        "catalog verify\ncatalog verify --repair      send what MLflow lacks, then compare again",
        uses_mlflow=True,
    )
    sub.add_argument("--repair", action="store_true", help="send what MLflow lacks")
    sub.set_defaults(error_code=2)
