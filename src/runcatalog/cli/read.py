"""`catalog search`, `best`, `diff` and `watch`: commands that only read runs."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from runcatalog.cli.common import Commands, declared_operations, run_named, runs_of
from runcatalog.model.errors import CatalogError
from runcatalog.model.project import Project

if TYPE_CHECKING:
    from runcatalog.analysis.diff import Side
    from runcatalog.store.run_rows import Reader, StoredRun

_QUERY = """\
a query compares names with values: = != < <= > >= ~ (contains), and, or, not, ( )
  flags      lr>1e-3   task=lever   "network-size"='64 64'   clip-coef<=0.2
  metrics    opening_rate>=0.9 (the last value)   best:opening_rate>=0.9   loss=nan
  fields     run batch operation label study status reason seed started wall_seconds
             env_steps machine gpu host_cpu commit dirty reported_by superseded_by retracted
             split (training, validation, test: the set of the result)
  dates      started>=2026-11-20   started=today   started<'2026-11-21 10:30'   (UTC)
  a name alone is true if the run has a value of it: dirty, not batch, opening_rate
  last:NAME, best:NAME for a metric named like a flag; flag:NAME for a flag named like a field
  a comparison is false if the run has no value of the name

examples:
  catalog search 'lr>1e-3 and task=lever'
  catalog search 'status=FAILED and started>=yesterday and reason~explosion'
  catalog search 'operation=ppo:train and not (seed=1 or dirty)' --csv > runs.csv
  catalog search 'best:opening_rate>0.9' --json | jq -r '.[].run'

exit status, as of grep: 0 if runs match, 1 if none do, 2 for an error"""


def search(options: argparse.Namespace) -> int:
    """catalog search"""
    from runcatalog.analysis import find_runs
    from runcatalog.text import terminal

    result = find_runs.find_runs(runs_of(options, all_projects=True), options.query)
    if options.json:
        print(find_runs.as_json(result))
    elif options.csv:
        print(find_runs.as_csv(result))
    elif result.stored:
        print("\n".join(find_runs.as_table(result, options.number, terminal.room())))
    else:
        hint = result.hint if result.total else "`catalog sync` adds new runs"
        shown = terminal.clean(f"no match in {result.total} runs" + (f": {hint}" if hint else ""))
        print(shown, file=sys.stderr)
    return 0 if result.stored else 1


def best(options: argparse.Namespace) -> int:
    """catalog best"""
    from runcatalog.analysis import ranking
    from runcatalog.text import terminal

    # Operations of two projects may have the same name; they are not compared.
    source = runs_of(options)
    by = None
    if options.group_by is not None:
        by = [name for names in options.group_by for name in names.split(",") if name]
    result = ranking.rank(
        source,
        options.operation,
        options.metric,
        options.goal,
        by,
        declared_operations,
        options.query,
    )
    if options.json:
        print(ranking.as_json(result, options.number))
    else:
        room = terminal.room()
        table = ranking.as_table(result, options.number, room, every_flag=options.all)
        print("\n".join(table))
    return 0 if result.groups else 1


def diff(options: argparse.Namespace) -> int:
    """catalog diff"""
    from runcatalog.analysis import diff as comparing
    from runcatalog.text import terminal

    project, source = Project.find(), runs_of(options)
    stored = source.runs()
    a, b = (_side(source, stored, run_named(stored, name)) for name in (options.a, options.b))
    if a.head.run == b.head.run:
        raise CatalogError(f"{options.a} and {options.b} are the same run")
    if options.json:
        print(comparing.as_json(a, b, options.metric))
    else:
        lines = comparing.diff(a, b, project.root, options.metric, terminal.room())
        print("\n".join(lines))
    return 0


def _side(source: Reader, stored: list[StoredRun], named: StoredRun) -> Side:
    from runcatalog.analysis.diff import Side
    from runcatalog.model.marks import counted

    trials = counted((run for run in stored if run.batch == named.run), named)
    head, *members = source.with_points([named, *trials])
    return Side(head, tuple(members))


def watch(options: argparse.Namespace) -> int:
    """catalog watch"""
    from runcatalog.cli import watch as watching
    from runcatalog.cli.job_progress import Jobs, metrics_of
    from runcatalog.guild import runs
    from runcatalog.text import terminal

    project = Project.find()
    jobs, metrics = Jobs(project, runs.guild_home()), metrics_of(project)
    if options.once or not sys.stdout.isatty():
        watching.once(jobs, metrics, terminal.room())
    else:
        watching.watch(jobs, metrics)
    return 0


def _number(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"a whole number from 0 on is expected, not {text!r}")
    return int(text)


def add(commands: Commands) -> None:
    """Declare the commands."""
    sub = commands.add(
        "search", search, "find runs by flags, metrics, status and dates", uses_mlflow=True
    )
    sub.epilog = _QUERY
    sub.set_defaults(error_code=2)
    sub.add_argument("query", metavar="QUERY", help="the query, in quotes")
    sub.add_argument(
        "-n", type=_number, default=200, dest="number", metavar="N",
        help="show the newest N in the table (default 200, 0: all)",
    )  # fmt: skip
    form = sub.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="all matching runs as JSON, with all flags"
    )
    form.add_argument("--csv", action="store_true", help="all matching runs as CSV")

    sub = commands.add(
        "best",
        best,
        "rank the runs of an operation over seeds",
        "Runs that differ only in their seed form a setting with mean, 95 % interval, number of seeds and number of "
        "failed runs. Settings with several seeds are ranked by the worse end of the interval, in which a failed run "
        "counts as the worst value of all finished ones. Settings with a single seed are ranked below them.",
        "catalog best hnppo:train\n"
        "catalog best ppo:train 'task=lever and start=near'\n"
        "catalog best ppo:train --metric best:opening_rate --group-by lr,clip-coef\n"
        "catalog best pg:seeds --metric episodes_to_plateau --goal min -n 3",
        uses_mlflow=True,
    )
    sub.add_argument("operation", metavar="OPERATION", help="as typed after `guild run`")
    sub.add_argument(
        "query", nargs="?", default="", metavar="QUERY",
        help="rank only the runs that match, as of `catalog search`, in quotes",
    )  # fmt: skip
    sub.add_argument(
        "--metric", default="", metavar="METRIC",
        help="compare its last value, or with best:NAME its best value (default: the operation's objective)",
    )  # fmt: skip
    sub.add_argument(
        "--goal",
        choices=("min", "max"),
        default="",
        help="default: the objective's goal, or inferred from the name",
    )
    sub.add_argument(
        "--group-by", action="append", metavar="FLAGS",
        help="flags, separated by commas (default: all but the seed and those that only change how a run is computed, "
        "such as threads)",
    )  # fmt: skip
    sub.add_argument(
        "-n", type=_number, default=10, dest="number", metavar="N",
        help="show the best N settings (default 10, 0: all)",
    )  # fmt: skip
    form = sub.add_mutually_exclusive_group()
    form.add_argument(
        "--all",
        action="store_true",
        help="every flag that differs is a column, however wide the table gets",
    )
    form.add_argument("--json", action="store_true", help="as JSON, with the ids of all runs")

    sub = commands.add(
        "diff",
        diff,
        "show the differences between two runs or two batches",
        "In flags, metrics, code, versions and machine. The trials of two batches are matched by their flags and "
        "compared by mean and 95 % interval over seeds.",
        "catalog diff 7623993d 5eb1f174\n"
        "catalog diff 404ebf03 508ac6b3 --metric opening_rate --metric episode_return",
        uses_mlflow=True,
    )
    for name in "ab":
        sub.add_argument(name, metavar=name.upper(), help="id, its first digits, or latest")
    sub.add_argument(
        "--metric", action="append", default=[], metavar="METRIC",
        help="show only this metric (may be repeated; default: all, for batches the objective)",
    )  # fmt: skip
    sub.add_argument("--json", action="store_true", help="as JSON: pairs of the values of A and B")

    sub = commands.add(
        "watch",
        watch,
        "show running jobs, live",
        "Progress, steps per second, the main metric, time left at the recent speed, and how runs ended. "
        "Reads the journals of Guild's runs and of runs/ every second, not MLflow. Ctrl-C quits.",
        "catalog watch\ncatalog watch --once | head",
    )
    sub.add_argument(
        "--once", action="store_true", help="print once and exit; the default without a terminal"
    )
