"""`catalog search`, `best`, `diff` and `watch`: what runs say."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING

from runcatalog.cli.common import Commands, one, reaches_mlflow
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
             env_steps machine gpu host_cpu commit dirty reported_by
  dates      started>=2026-11-20   started=today   started<'2026-11-21 10:30'   (UTC)
  a name alone asks whether the run has it: dirty, not batch, opening_rate
  last:NAME, best:NAME where a flag has the metric's name; flag:NAME where a field has the flag's
  no comparison is true of a run that lacks the name; `not` of it is

examples:
  catalog search 'lr>1e-3 and task=lever'
  catalog search 'status=FAILED and started>=yesterday and reason~explosion'
  catalog search 'operation=ppo:train and not (seed=1 or dirty)' --csv > runs.csv
  catalog search 'best:opening_rate>0.9' --json | jq -r '.[].run'

exit status, as of grep: 0 if runs were found, 1 if none, 2 for an error"""


def search(options: argparse.Namespace) -> int:
    """catalog search"""
    from runcatalog.analysis import find_runs
    from runcatalog.store.sqlite_reader import reader
    from runcatalog.text import terminal

    result = find_runs.find_runs(reader(options.tracking_uri), options.query)
    if options.json:
        print(find_runs.as_json(result))
    elif options.csv:
        print(find_runs.as_csv(result))
    elif result.stored:
        print("\n".join(find_runs.as_table(result, options.number, terminal.room())))
    else:
        hint = result.hint if result.total else "`catalog sync` brings in what has run"
        shown = terminal.clean(f"none of {result.total} runs" + (f": {hint}" if hint else ""))
        print(shown, file=sys.stderr)
    return 0 if result.stored else 1


def best(options: argparse.Namespace) -> int:
    """catalog best"""
    from runcatalog.analysis import ranking
    from runcatalog.store.sqlite_reader import reader
    from runcatalog.sync.ownership import OwnRuns
    from runcatalog.text import terminal

    # Operations of two projects may have one name, and are not to be compared.
    source = reader(options.tracking_uri)
    with contextlib.suppress(CatalogError):  # called outside of a project: all that there is
        source = OwnRuns(Project.find(), source)
    by = None
    if options.group_by is not None:
        by = [name for each in options.group_by for name in each.split(",") if name]
    found = ranking.rank(source, options.operation, options.metric, options.goal, by)
    print("\n".join(ranking.as_table(found, options.number, terminal.room())))
    return 0 if found.groups else 1


def diff(options: argparse.Namespace) -> int:
    """catalog diff"""
    from runcatalog.analysis import diff as comparing
    from runcatalog.store.sqlite_reader import reader
    from runcatalog.sync.ownership import OwnRuns
    from runcatalog.text import terminal

    project = Project.find()
    source = OwnRuns(project, reader(options.tracking_uri))
    stored = source.runs()
    a, b = (_side(source, stored, one(stored, name)) for name in (options.a, options.b))
    if a.head.run == b.head.run:
        raise CatalogError(f"{options.a} and {options.b} are the same run")
    lines = comparing.diff(a, b, project.root, options.metric, terminal.room())
    print("\n".join(lines))
    return 0


def _side(source: Reader, stored: list[StoredRun], named: StoredRun) -> Side:
    from runcatalog.analysis.diff import Side

    trials = [each for each in stored if each.tags.get("batch") == named.run]
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
        raise argparse.ArgumentTypeError(f"a whole number is expected, not {text!r}")
    return int(text)


def add(commands: Commands) -> None:
    """Declares the commands."""
    sub = commands.add("search", search, "find runs by flags, metrics, status and dates")
    sub.epilog = _QUERY
    sub.set_defaults(error_code=2)
    reaches_mlflow(sub)
    sub.add_argument("query", metavar="QUERY", help="in quotes, so that the shell leaves it alone")
    sub.add_argument(
        "-n", type=_number, default=200, dest="number", metavar="N",
        help="show the newest N in the table (default 200, 0: all)",
    )  # fmt: skip
    form = sub.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="all of them as JSON, with all flags")
    form.add_argument("--csv", action="store_true", help="all of them as CSV")

    sub = commands.add(
        "best",
        best,
        "rank the runs of an operation over seeds",
        "Runs that differ in their seed alone are one point: mean, 95 % interval, number of seeds, how many "
        "failed. Points of several seeds are ranked by the worse end of the interval, in which a failed run "
        "counts as the worst value of all; a single seed stands below them, however good it is.",
        "catalog best hnppo:train\n"
        "catalog best ppo:train --metric best:opening_rate --group-by lr,clip-coef\n"
        "catalog best pg:seeds --metric episodes_to_plateau --goal min -n 3",
    )
    reaches_mlflow(sub)
    sub.add_argument("operation", metavar="OPERATION", help="as typed after `guild run`")
    sub.add_argument(
        "--metric", default="", metavar="NAME",
        help="its last value, or best:NAME for its best one (default: the operation's objective)",
    )  # fmt: skip
    sub.add_argument(
        "--goal",
        choices=("min", "max"),
        default="",
        help="default: the objective's, or by the name",
    )
    sub.add_argument(
        "--group-by", action="append", metavar="FLAGS",
        help="flags, with commas (default: all but the seed)",
    )  # fmt: skip
    sub.add_argument(
        "-n", type=_number, default=10, dest="number", metavar="N",
        help="show the best N points (default 10, 0: all)",
    )  # fmt: skip

    sub = commands.add(
        "diff",
        diff,
        "tell what differs between two runs or two batches",
        "Flags, metrics, code, versions and machine, as far as they differ. The trials of two batches are matched "
        "by their flags, and compared by mean and 95 % interval over seeds.",
        "catalog diff 7623993d latest\n"
        "catalog diff 404ebf03 508ac6b3 --metric opening_rate --metric episode_return",
    )
    reaches_mlflow(sub)
    for name in "ab":
        sub.add_argument(name, metavar=name.upper(), help="id, its first digits, or latest")
    sub.add_argument(
        "--metric", action="append", default=[], metavar="NAME",
        help="only this one (may be repeated; default: all, of a sweep the objective)",
    )  # fmt: skip

    sub = commands.add(
        "watch",
        watch,
        "show running jobs, live",
        "Progress, steps a second, the metric that matters, time left at the recent speed, and how a run ended. "
        "It reads the journals of Guild's runs and of runs/, each second; MLflow is not asked. Ctrl-C leaves.",
        "catalog watch\ncatalog watch --once | head",
    )
    sub.add_argument("--once", action="store_true", help="print it once; so without a terminal")
