"""The catalog with thousands of runs: sync, render, search; and the cost of recording compared with its peers.

Every number is that of a whole command, its start included. The runs are synthetic (see _synthetic_runs.py), 100
points each; they are synced into a new SQLite in one go per size, as after a long absence. With --wandb or --aim the
Python of an environment that has the package (`python -m venv DIR && DIR/bin/pip install wandb`), the same points are
logged there too.

The part "import" brings the committed records into a new MLflow, and writes some of them with MLflow's own client for
comparison: the library's writer of SQLite stays only while it is at least five times as fast.

The part "start" times the first commands of a newcomer: "cold" without any compiled module, those of Python and its
packages included, and without the flags that Guild keeps; "warm" is the same command again.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The project's root instead of this folder, whose scripts are called as the packages are.
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from benchmarks import _recording_peers, _report, _synthetic_runs  # noqa: E402

from runcatalog.model.record_files import read_all  # noqa: E402
from runcatalog.model.run_record import RunRecord  # noqa: E402
from runcatalog.store.client import Addition, Store  # noqa: E402

LIMITS = {"sync": 2.0, "render": 10.0, "search": 1.0}  # s
MEMORY = 1024.0  # MiB
SEARCH = "lr>1e-3 and task=lever"
PARTS = ("sizes", "loops", "guild", "import", "start")
# The first commands of a newcomer; the target of "cold" and of "warm" [s].
START = {
    "catalog --help": ("catalog", "--help"),
    "guild ops": ("guild", "ops"),
    "guild run hnppo:train --help-op": ("guild", "run", "hnppo:train", "--help-op"),
}
COLD, WARM = 5.0, 1.0
# ms for a record: 8 s for the 882 records that there were when the limit was set
IMPORT = 8000 / 882
FASTER = 5.0  # times MLflow's client, or the library's writer goes
SAMPLE = 100  # records that both writers write
GROWTH = 1.2  # of the time per run, from one size to the next: linear, with room for noise


@dataclass(frozen=True)
class Cost:
    """A command: seconds from start to end, and its peak memory in MiB."""

    seconds: float
    memory: float


@dataclass
class Size:
    """What was measured at a number of runs.

    Attributes:
        runs: The number.
        new: How many of them were new to the sync that filled MLflow.
        fill: That sync.
        costs: Repeated measurements by command.
    """

    runs: int
    new: int
    fill: Cost
    costs: dict[str, list[Cost]]


def run_catalog(root: Path, *words: str, project: Path | None = None) -> Cost:
    """Run a command of the catalog in a project.

    Args:
        root: Folder of MLflow's database, and of the project unless that is given.
        words: The command.
        project: The project.
    """
    project = project or root
    kept = {n: v for n, v in os.environ.items() if not n.startswith(_recording_peers.FOREIGN)}
    env = kept | {
        "GUILD_HOME": str(root / "guild"),
        "PROJECT_DIR": str(project),
        "MLFLOW_TRACKING_URI": f"sqlite:///{root}/mlflow.db",
        "OMP_NUM_THREADS": "1",
    }
    begin = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "runcatalog.cli.main", *words],
        cwd=project,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - begin
    if process.returncode:
        raise SystemExit(f"catalog {' '.join(words)}: exit {process.returncode}\n{output}")
    return Cost(seconds, usage.ru_maxrss / 1024)


def measure(root: Path, sizes: Sequence[int], repeats: int) -> list[Size]:
    """Grow a project to every size, and measure the commands at that size."""
    template = _synthetic_runs.make_project(root)
    measured, before = [], 0
    for size in sizes:
        _synthetic_runs.add_runs(root, template, before, size - before)
        fill = run_catalog(root, "sync", "-q")
        costs: dict[str, list[Cost]] = {name: [] for name in LIMITS}
        for _ in range(repeats):
            costs["sync"].append(run_catalog(root, "sync", "-q"))
            (root / "runs_catalog.md").unlink(missing_ok=True)
            for folder in ("catalog", "runs_local"):
                shutil.rmtree(root / folder, ignore_errors=True)
            costs["render"].append(run_catalog(root, "render"))
            costs["search"].append(run_catalog(root, "search", SEARCH))
        measured.append(Size(size, size - before, fill, costs))
        text = ", ".join(f"{n} {min(c.seconds for c in cost):.2f} s" for n, cost in costs.items())
        print(f"{size} runs: first sync {fill.seconds:.1f} s; {text}", flush=True)
        before = size
    return measured


def rows(sizes: Sequence[Size]) -> list[dict[str, Any]]:
    """Return the result rows of the sizes: limits at the largest, growth between them."""
    largest = sizes[-1]
    what = {"sync": "sync, nothing new", "render": "render", "search": f"search '{SEARCH}'"}
    rows = []
    for name, limit in LIMITS.items():
        seconds = [cost.seconds for cost in largest.costs[name]]
        rows.append(_limit(f"{what[name]}, {largest.runs:,} runs", seconds, limit, "s"))
    every = [largest.fill, *(cost for costs in largest.costs.values() for cost in costs)]
    peak = max(cost.memory for cost in every)
    rows.append(_limit(f"peak memory of these, {largest.runs:,} runs", [peak], MEMORY, "MiB"))
    if len(sizes) > 1:
        first, before = sizes[0], sizes[-2]
        rows.append(
            _growth(
                f"sync of {largest.new:,} new runs, per run",
                [1000 * largest.fill.seconds / largest.new],
                [1000 * first.fill.seconds / first.new],
                f"of {first.new:,} new runs",
            )
        )
        for name in ("render", "sync"):
            ours, peer = (
                [1000 * c.seconds / s.runs for c in s.costs[name]] for s in (largest, before)
            )
            title = f"{what[name]}, per run at {largest.runs:,} runs"
            rows.append(_growth(title, ours, peer, f"at {before.runs:,} runs"))
    return rows


def _limit(what: str, measured: list[float], limit: float, unit: str) -> dict[str, Any]:
    limits = [limit] * len(measured)
    options = {"peer_name": "the limit", "unit": unit, "target": 1.0, "target_is": "at most"}
    return _report.row(what, measured, limits, **options)


def _growth(what: str, ours: list[float], peer: list[float], peer_name: str) -> dict[str, Any]:
    options = {"unit": "ms a run", "target": GROWTH, "target_is": "at most"}
    return _report.row(what, ours, peer, peer_name=peer_name, **options)


def import_rows(folder: Path, repeats: int) -> list[dict[str, Any]]:
    """Return the rows of the import: the whole command, and its writer compared with MLflow's client."""
    records = read_all(ROOT / "experiments" / "records")
    points = sum(len(metric.steps) for record in records for metric in record.metrics.values())
    seconds = []
    for turn in range(repeats):
        (folder / str(turn)).mkdir()
        seconds.append(run_catalog(folder / str(turn), "import", "-q", project=ROOT).seconds)
        shutil.rmtree(folder / str(turn))
    what = f"import of {len(records):,} records, {points:,} points, into a new MLflow, per record"
    # Every n-th: the records of one study would all be of a length.
    sample = records[:: max(1, len(records) // SAMPLE)]
    points = sum(len(metric.steps) for record in sample for metric in record.metrics.values())
    measures = {
        name: lambda write=write: points / _writing(folder, sample, write)
        for name, write in {"ours": _write_ours, "peer": _write_peer}.items()
    }
    rates = _report.alternate(measures, max(repeats, _report.REPEATS))
    return [
        _limit(what, [1000 * each / len(records) for each in seconds], IMPORT, "ms"),
        _report.row(
            f"points a second into SQLite: {len(sample)} records, {points:,} points",
            rates["ours"],
            rates["peer"],
            peer_name="MLflow's client, log_batch of 1,000",
            unit="1/s",
            target=FASTER,
        ),
    ]


def start_rows(folder: Path, repeats: int) -> list[dict[str, Any]]:
    """Return the rows of commands that start without compiled modules and kept flags, and again with them."""
    rows = []
    for name, (program, *words) in START.items():
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(repeats):
            home = Path(tempfile.mkdtemp(dir=folder))
            (home / "guild").mkdir()
            own = {"GUILD_HOME": str(home / "guild"), "PYTHONPYCACHEPREFIX": str(home / "compiled")}
            for measured in seconds:
                begin = time.perf_counter()
                subprocess.run(
                    [sys.executable, str(Path(sys.executable).with_name(program)), *words],
                    cwd=ROOT,
                    env=os.environ | own,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    check=True,
                )
                measured.append(time.perf_counter() - begin)
            shutil.rmtree(home)
        rows.append(_limit(f"{name}, cold", seconds[0], COLD, "s"))
        rows.append(_limit(f"{name}, warm", seconds[1], WARM, "s"))
    return rows


def _writing(folder: Path, records: Sequence[RunRecord], write: Any) -> float:
    """Seconds to write records into an MLflow that has their experiments and no run."""
    template = folder / "template.db"
    if not template.exists():
        store = Store(f"sqlite:///{template}")
        for study in {record.study for record in records}:
            store.experiment(study)
    # MLflow keeps the connection of a path, so that no path may come twice.
    path = Path(tempfile.mkdtemp(dir=folder), "mlflow.db")
    shutil.copy(template, path)
    store = Store(f"sqlite:///{path}")
    for study in {record.study for record in records}:
        store.experiment(study)
    begin = time.perf_counter()
    write(store, records)
    return time.perf_counter() - begin


def _write_ours(store: Store, records: Sequence[RunRecord]) -> None:
    for _ in store.write_all([Addition(record) for record in records]):
        pass


def _write_peer(store: Store, records: Sequence[RunRecord]) -> None:
    for record in records:
        store.write_by_client(record)


def ascending(text: str) -> list[int]:
    """Return the numbers of runs of a list with commas."""
    sizes = [_synthetic_runs.number_of_runs(size) for size in text.split(",")]
    if sizes != sorted(set(sizes)):
        raise argparse.ArgumentTypeError(f"{text!r} does not ascend")
    return sizes


def main() -> None:
    """Measure, print the rows and write results/catalog.json."""
    parser = _report.parser(__doc__)
    parser.add_argument(
        "--sizes", type=ascending, default="1000,3000,10000", help="numbers of runs, ascending"
    )
    for peer in ("wandb", "aim"):
        parser.add_argument(f"--{peer}", default="", metavar="PYTHON", help=f"that has {peer}")
    parser.add_argument("--folder", default="", help="an empty folder to work in; it is kept")
    _report.add_parts(parser, PARTS)
    options = parser.parse_args()
    peers = {name: getattr(options, name) for name in ("wandb", "aim") if getattr(options, name)}
    for name in ("wandb", "aim"):
        if name not in peers:
            print(f"{name} is left out: --{name} PYTHON names an environment that has it")
    with contextlib.ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="catalog-", ignore_cleanup_errors=True)
        folder = Path(options.folder or stack.enter_context(temporary))
        measures = {
            "sizes": lambda: rows(measure(folder / "sizes", options.sizes, options.repeats)),
            "loops": lambda: _recording_peers.loops(folder / "loops", peers, options.repeats),
            "guild": lambda: [_recording_peers.guild_run(folder / "guild", options.repeats)],
            "import": lambda: import_rows(folder / "import", options.repeats),
            "start": lambda: start_rows(folder / "start", options.repeats),
        }
        for part in options.parts:
            (folder / part).mkdir()
            rows_of_part = measures[part]()
            _report.report_part("catalog", part, PARTS, rows_of_part, dry_run=options.dry_run)


if __name__ == "__main__":
    main()
