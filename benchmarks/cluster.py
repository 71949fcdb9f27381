"""Runs on workers of this machine compared with the same runs without an engine, and four workers with one.

Everything is started by `guild run` and `catalog workers`, with the default settings of an engine, so that a worker's
check takes 2 s of matrix products; the check for the next trial of a batch is made while the submitter ends the last.

The part "overhead": the seconds that a worker adds to a run that ends at once, by itself and as a trial of a batch
that runs one after the other. The part "speed-up": trials a minute of a batch that sleeps, on four workers and on one,
with four trials for each worker, so that the batch's start and end weigh alike. All of it shares the cores of this
machine, which in a lab the submitter, the scheduler and each worker have for themselves.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

# The project's root instead of this folder, whose scripts are called as the packages are.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import _report  # noqa: E402
from benchmarks._lab import ENGINE, Lab, seeds_flag  # noqa: E402

PARTS = ("overhead", "speed-up")
OVERHEAD = 2.0  # s that a worker may add to a trial
TRIALS = 6  # of the batch whose trials end at once
WORKERS, SPEED_UP = 4, 3.5
SLEEPERS = 4  # trials of each worker


def overhead_rows(lab: Lab, repeats: int) -> list[dict[str, Any]]:
    """Return the seconds that one worker adds to a run, and to a trial of a batch."""
    lab.set_workers(1)
    single, batch = ["run", "bench:sleep", "-y"], ["run", "bench:sleep", seeds_flag(TRIALS), "-y"]
    measures = {
        "run there": lambda: lab.guild(*single, engine=ENGINE),
        "run here": lambda: lab.guild(*single),
        "trials there": lambda: lab.guild(*batch, engine=ENGINE),
        "trials here": lambda: lab.guild(*batch),
    }
    for measure in measures.values():  # the flags are imported, files are in the page cache
        measure()
    seconds = _report.alternate(measures, repeats)
    rows = []
    for what, name, trials in (
        ("a run by itself", "run", 1),
        (f"a trial of a batch of {TRIALS}", "trials", TRIALS),
    ):
        pairs = zip(seconds[f"{name} there"], seconds[f"{name} here"], strict=True)
        added = [(there - here) / trials for there, here in pairs]
        rows.append(
            _report.row(
                f"seconds that a worker adds to {what}",
                added,
                [OVERHEAD] * len(added),
                peer_name="the limit",
                unit="s",
                target=1.0,
                target_is="at most",
                there=seconds[f"{name} there"],
                here=seconds[f"{name} here"],
            )
        )
    return rows


def speed_up_rows(lab: Lab, seconds: float, repeats: int) -> list[dict[str, Any]]:
    """Return how much faster four workers run a batch of sleeping trials than one."""
    measures = {
        "four": lambda: lab.sleepers_rate(WORKERS, WORKERS * SLEEPERS, seconds),
        "one": lambda: lab.sleepers_rate(1, SLEEPERS, seconds),
    }
    rates = _report.alternate(measures, repeats)
    return [
        _report.row(
            f"trials that sleep for {seconds:g} s, {SLEEPERS} on each of {WORKERS} workers",
            rates["four"],
            rates["one"],
            peer_name="one worker",
            unit="trials/min",
            target=SPEED_UP,
        )
    ]


def main() -> None:
    """Measure, print the rows and write results/cluster.json."""
    parser = _report.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="that a trial sleeps")
    _report.add_parts(parser, PARTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cluster-", ignore_cleanup_errors=True) as folder:
        lab = Lab(Path(folder) / "project")
        measures = {
            "overhead": lambda: overhead_rows(lab, options.repeats),
            "speed-up": lambda: speed_up_rows(lab, options.seconds, options.repeats),
        }
        try:
            for part in options.parts:
                rows = measures[part]()
                _report.report_part("cluster", part, PARTS, rows, dry_run=options.dry_run)
        finally:
            lab.close()


if __name__ == "__main__":
    main()
