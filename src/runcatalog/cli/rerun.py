"""`catalog rerun`: repeat recorded runs at their commits, and note the outcome in their records."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from runcatalog.cli.common import (
    Commands,
    committed_record,
    committed_records,
    progress_printer,
)
from runcatalog.model.errors import CatalogError
from runcatalog.model.project import Project

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runcatalog.model.run_record import RunRecord


def rerun(options: argparse.Namespace) -> int:
    """catalog rerun"""
    from runcatalog.guild.runs import guild_home
    from runcatalog.model.record_files import by_digits, committed, write_all
    from runcatalog.rerun.rerun import Repeater
    from runcatalog.sync.sync import project_lock

    project = Project.find()
    records = {record.run: record for record in committed_records(project)}
    selected = _selected(list(records.values()), options.runs)
    repeater = Repeater(project, records, guild_home(), options.parents, progress_printer(options))
    problems = []
    for record in selected:  # before hours of work, not in their middle
        try:
            repeater.check(record)
        except CatalogError as error:
            problems.append(str(error))
    if problems and len(selected) == len(problems):
        raise CatalogError("; ".join(problems))
    if options.check:
        selected = []
    agree = True
    for record in selected:
        try:
            outcome = repeater.repeat(record)
        except CatalogError as error:
            if str(error) not in problems:
                problems.append(str(error))
            continue
        agree = agree and outcome.agrees is not False
        print(f"{record.id8}  {record.operation}  {outcome.text()}", flush=True)
        with project_lock(project):
            # Hours may have passed, in which the record was marked.
            now = committed(record.run, by_digits(project.records)) or record
            noted = replace(now, reproduced=(*now.reproduced, outcome.entry()))
            write_all([noted], project.records)
    for problem in problems:
        print(f"catalog: {problem}", file=sys.stderr)
    return 0 if agree and not problems else 1


def _selected(records: Sequence[RunRecord], names: Sequence[str]) -> list[RunRecord]:
    """Return the named records, a batch as its trials; without those that were retracted or superseded alone."""
    from runcatalog.model.marks import counted

    selected: dict[str, RunRecord] = {}
    for name in names:
        named = committed_record(records, name)
        trials = counted((record for record in records if record.batch == named.run), named)
        selected |= {record.run: record for record in trials or [named]}
    return list(selected.values())


def add(commands: Commands) -> None:
    """Declare the command."""
    sub = commands.add(
        "rerun",
        rerun,
        "repeat recorded runs at their commits, and compare",
        "A run's commit is checked out into .cache/rerun, and its operation is run there with every flag of its "
        "record and the packages of this environment. The line says whether all bits are equal (digests of the "
        "weights and of the metrics), and otherwise whether the 95 % interval of the difference of both values "
        "contains 0; it is added to the record, and `catalog render` lists it. Runs that a run starts from are taken "
        "from this machine's Guild home or experiments/weights. Exit status: 0 if all agree, 1 if not.",
        "catalog rerun 7623993d e6fd5d22\ncatalog rerun --check 7623993d      can it be repeated here?",
    )
    sub.add_argument("-q", "--quiet", action="store_true", help="do not print a line per start")
    sub.add_argument(
        "runs", nargs="+", metavar="RUN", help="8 digits are enough, or latest; of a batch, all"
    )
    sub.add_argument(
        "--parents",
        action="store_true",
        help="train runs again that a run starts from and whose weights are not kept",
    )
    sub.add_argument("--check", action="store_true", help="only say what cannot be repeated here")
