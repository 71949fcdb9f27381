"""`catalog render`, `check` and `row`: the generated pages."""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import TYPE_CHECKING

from runcatalog.cli.common import Commands, committed_records, reader_of, runs_of, selected_runs
from runcatalog.model.errors import CatalogError
from runcatalog.model.marks import changed_numbers
from runcatalog.model.project import CATALOG_FILE, LOCAL_FILE, Project

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from runcatalog.model.run_record import RunRecord


def render(options: argparse.Namespace) -> int:
    """catalog render"""
    from runcatalog.analysis import missing_commits
    from runcatalog.pages import local_page
    from runcatalog.pages.check import lost_rows
    from runcatalog.pages.render import write

    project = Project.find()
    records = committed_records(project)
    if lost := lost_rows(project, records):
        raise CatalogError(
            f"{lost}, without a record: `catalog export` writes the records of runs in MLflow, `git checkout` "
            "brings removed ones back, `catalog forget RUN --why TEXT` takes a run out of the tables"
        )
    links = _links(options) if options.server and not options.records else None
    listed = missing_commits.update(project, records) if options.commits else None
    changed = [*([listed] if listed else []), *write(project, records, links)]
    _print_written(changed)
    if not changed:
        print(f"{CATALOG_FILE} is up to date")
    if not options.records:
        local = local_page.not_exported(project, reader_of(options), records)
        _print_written(local_page.write(project, records, local, links))
        committed = {record.run: record for record in records}
        new = [
            r for r in local if r.run not in committed or not changed_numbers(committed[r.run], r)
        ]
        if new:
            runs = "1 run is" if len(new) == 1 else f"{len(new)} runs are"
            where = os.path.relpath(project.local_catalog)
            print(
                f"{runs} not exported: see {where}, `catalog export` enters them in {CATALOG_FILE}"
            )
    return 0


def _print_written(paths: Sequence[Path]) -> None:
    for path in paths:
        print(f"{'wrote' if path.exists() else 'removed'} {os.path.relpath(path)}")


def _links(options: argparse.Namespace) -> dict[str, str]:
    """Return the addresses of the runs' pages in MLflow, by run."""
    from runcatalog.store.client import Store

    base = options.server.rstrip("/")
    if not re.fullmatch(r"https?://[^\s()<>]+", base):
        raise CatalogError(f"--server {base}: http://HOST:PORT or https://HOST is expected")
    store = Store(options.tracking_uri)
    links: dict[str, str] = {}
    for stored in store.runs():
        experiment = store.experiment(stored.experiment)
        links.setdefault(stored.run, f"{base}/#/experiments/{experiment}/runs/{stored.id}")
    return links


def check(options: argparse.Namespace) -> int:
    """catalog check"""
    from runcatalog.analysis import kept_records, missing_commits
    from runcatalog.model import marks
    from runcatalog.pages import cited_numbers
    from runcatalog.pages.check import difference

    project = Project.find()
    records: list[RunRecord] = []
    differences, agrees = [], "no record was removed or changed"
    if not options.records:
        records = committed_records(project)
        differences += difference(project, records)
        if options.fix:
            written, wrong = cited_numbers.fix(project, records)
            for line in written:
                print(f"written anew: {line}")
        else:
            wrong = cited_numbers.problems(project, records)
        differences += wrong
        differences += marks.problems(records)
        wrong, note = missing_commits.problems(project, records)
        differences += wrong
        if note:
            print(note)
        agrees = f"{CATALOG_FILE} agrees with {len(records)} record{'s' * (len(records) != 1)}"
    lost, unchecked = kept_records.problems(project, records)
    differences += lost
    if unchecked:
        print(f"not checked whether records were removed or changed: {unchecked}")
    if not differences and not (unchecked and options.records):
        print(agrees)
    for line in differences:
        print(line, file=sys.stderr)
    return 1 if differences else 0


def row(options: argparse.Namespace) -> int:
    """catalog row"""
    from runcatalog.pages.render import Catalog

    project, source = Project.find(), runs_of(options)
    stored = selected_runs(source.runs(), [options.run_id], with_batch=False)
    record = stored[0].record
    records = source.with_points(stored)
    (named,) = (r for r in records if r.run == record.run)
    print(Catalog(project, records).row(named))
    for requirement in options.require:
        _require(named, requirement)
    return 0


def _require(record: RunRecord, requirement: str) -> None:
    """Raise CatalogError unless a metric of a run is at least a number; requirement: `opening_rate=0.95`."""
    from runcatalog.query.fields import suggestion

    match = re.fullmatch(r"(.+?)>?=(.+)", requirement)
    try:
        name, least = (match[1], float(match[2])) if match else ("", 0.0)
    except ValueError:
        name = ""
    if not name:
        raise CatalogError(f"--require {requirement}: METRIC=NUMBER is expected")
    if (record.result or {}).get("batch"):
        raise CatalogError(f"{record.id8} is a batch: --require takes a run")
    objective = record.objective or {}
    metrics = (record.result or {}).get("metrics")
    known = dict(metrics) if isinstance(metrics, dict) else {}
    known |= {each: metric.last for each, metric in record.metrics.items()}
    if objective:
        known[objective["name"]] = objective["value"]
    if name not in known:
        raise CatalogError(f"run {record.id8} has no metric {name}{suggestion(name, known)}")
    value = known[name]
    if not isinstance(value, int | float) or not value >= least:
        shown = f"{value:g}" if isinstance(value, int | float) else "missing"
        raise CatalogError(f"run {record.id8}: {name} is {shown}, at least {least:g} is required")


def add(commands: Commands) -> None:
    """Declare the commands."""
    sub = commands.add(
        "render",
        render,
        f"write {CATALOG_FILE}, the pages of catalog/ and their figures",
        "From experiments/records; the prose is from experiments/*/catalog.md.j2. Runs in MLflow without a record "
        f"are listed in {LOCAL_FILE} and shown beside the others in runs_local/, which are not committed.",
        "catalog sync && catalog render                     runs of this machine: runs_local.md\n"
        "catalog sync && catalog export && catalog render   the same runs in runs_catalog.md\n"
        "catalog render --server http://mlflow.lab:8080     every run linked to its page there",
        uses_mlflow=True,
    )
    sub.add_argument(
        "--commits",
        action="store_true",
        help="list the records' commits that git's history lacks (experiments/missing_commits.txt): rows are marked",
    )
    source = sub.add_mutually_exclusive_group()
    source.add_argument("--records", action="store_true", help=f"without MLflow: no {LOCAL_FILE}")
    source.add_argument(
        "--server",
        default=os.environ.get("MLFLOW_UI", ""),
        metavar="URL",
        help="where MLflow's pages are served: runs are linked to them ($MLFLOW_UI; by default none)",
    )
    sub = commands.add(
        "check",
        check,
        "check that the pages and the cited numbers of the docs agree with the committed records",
        "If not, print the first row that differs, and every number in README.md and docs/ that differs from the "
        "record that it cites (`79.6 %<!-- =success; run: 3bf9dfdd -->`), and exit with 1. Records are append-only: "
        "one that was committed once and is missing now, or has other numbers, is an error too. MLflow is not needed.",
        "catalog check               in a commit hook or in CI\n"
        "catalog check --fix         after new records; then read the sentences with new numbers\n"
        "catalog check --records     only the records, against git's history",
    )
    what = sub.add_mutually_exclusive_group()
    what.add_argument(
        "--fix",
        action="store_true",
        help="write the cited numbers of README.md and docs/ that differ, with as many decimals as before",
    )
    what.add_argument(
        "--records", action="store_true", help="only the records, against those in git's history"
    )

    sub = commands.add(
        "row",
        row,
        "print the row of one run or batch as Markdown",
        examples="catalog row latest\ncatalog row 7623993d --require opening_rate=0.9",
        uses_mlflow=True,
    )
    sub.add_argument("run_id", metavar="RUN", help="id, its first digits, or latest")
    sub.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="METRIC=NUMBER",
        help="exit 1 unless the run's METRIC is at least NUMBER",
    )
