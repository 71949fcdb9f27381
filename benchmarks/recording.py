"""What recording costs: the same training with recording and with RECORD=off, in turn.

Everything counts: the journal, TensorBoard events, checkpoints, and the sender that puts the points into
SQLite at the same time on the same cores. Without ``--command`` the training is a small PPO-like loop
(rollout, three epochs, 20 metrics an update, a checkpoint every 10).
"""

import argparse
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

# The project's root instead of this folder, whose scripts are called as the packages are.
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from benchmarks import _report  # noqa: E402

from runcatalog import record  # noqa: E402

TARGET = 1.01


@dataclass(frozen=True)
class Config(record.Config):
    """The loop that is measured."""

    updates: int = record.option(40, "updates", low=1)
    metrics: int = record.option(20, "metrics an update", low=1)
    every: int = record.option(10, "updates between checkpoints", low=1)


def train(config: Config) -> dict:
    """Train a small network; prints ``seconds: S`` of the loop and ``recording: S`` in record's calls."""
    import torch

    torch.set_num_threads(1)
    spent = 0.0
    begin = time.perf_counter()
    with record.start(config, study="benchmark") as run:
        spent += time.perf_counter() - begin
        generator = run.seeds.torch("data")
        layers = [torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 128)]
        model = torch.nn.Sequential(*layers, torch.nn.Tanh(), torch.nn.Linear(128, 1))
        optimizer = torch.optim.Adam(model.parameters())
        for update in range(1, config.updates + 1):
            with torch.no_grad():  # the rollout: many calls on a few environments
                for _ in range(400):
                    observation = torch.randn(32, 64, generator=generator)
                    model(observation)
            for _ in range(120):
                batch = torch.randn(512, 64, generator=generator)
                loss = (model(batch) - batch.square().mean(1, keepdim=True)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            entered = time.perf_counter()
            run.log(
                {f"metric/{i}": float(loss.detach()) + i for i in range(config.metrics)}, update
            )
            run.progress(update, config.updates, "update")
            if update % config.every == 0:
                run.checkpoint(update, model.state_dict(), {"optimizer": optimizer.state_dict()})
            spent += time.perf_counter() - entered
        entered = time.perf_counter()
        run.digest_weights(model.state_dict())
        result = run.finish({"env_steps": config.updates})
    spent += time.perf_counter() - entered
    print(f"seconds: {time.perf_counter() - begin:.6f}\nrecording: {spent:.6f}")
    return result


@dataclass(frozen=True)
class Cost:
    """One training.

    Attributes:
        wall: Seconds of the training: what it prints as ``seconds``, else of the whole process.
        cpu: CPU seconds of the process, without the sender's.
        calls: Seconds in record's calls, if it prints them as ``recording``; else NaN.
    """

    wall: float
    cpu: float
    calls: float


def cost_of(command: list[str], recording: bool, project: Path) -> Cost:
    """Run a training once, with or without recording."""
    environment = os.environ | {"PROJECT_DIR": str(project), "OMP_NUM_THREADS": "1"}
    environment |= {"RECORD": "on" if recording else "off", "RECORD_MLFLOW": "on"}
    own = ("RUN_DIR", "RUN_ID", "GUILD_OP", "MLFLOW_TRACKING_URI")
    environment = {name: value for name, value in environment.items() if name not in own}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    seconds = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    printed = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    calls = float(printed.get("recording", "nan"))
    return Cost(float(printed.get("seconds", seconds)), cpu, calls)


def measure(command: list[str], what: str, repeats: int = _report.REPEATS) -> list[dict]:
    """Return the result rows for a training's command line.

    Args:
        command: The training; it must end by itself and record with :mod:`record`.
        what: Its name in the table.
        repeats: Number of alternating repeats.
    """
    costs: dict[bool, list[Cost]] = {True: [], False: []}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:

        def once(recording: bool) -> float:
            costs[recording].append(cost_of(command, recording, Path(folder)))
            return costs[recording][-1].wall

        cost_of(command, True, Path(folder))  # warms the file cache and sets the database up
        _report.alternate({"on": lambda: once(True), "off": lambda: once(False)}, repeats)
        time.sleep(5.0)  # the last sender is still at work in the folder
    on, off = costs[True], costs[False]
    options = {"target": TARGET, "target_is": "at most"}
    walls, cpus = (
        [[getattr(c, name) for c in each] for each in (on, off)] for name in ("wall", "cpu")
    )
    rows = [
        _report.row(f"{what}: time", *walls, peer_name="RECORD=off", unit="s", **options),
        _report.row(f"{what}: CPU", *cpus, peer_name="RECORD=off", unit="CPU s", **options),
    ]
    if on[0].calls == on[0].calls:
        rest = [cost.wall - cost.calls for cost in on]
        peer = "the same runs less the time in record's calls"
        what = f"{what}: time in record's calls"
        rows.append(_report.row(what, walls[0], rest, peer_name=peer, unit="s", **options))
    return rows


def main() -> None:
    """Measure, print the rows and write results/recording.json."""
    parser = _report.parser(__doc__, repeats=7)
    parser.add_argument("--command", default="", help="a training to measure instead of the loop")
    parser.add_argument("--what", default="", help="its name in the table")
    parser.add_argument("--updates", type=int, default=40, help="updates of the loop")
    arguments = parser.parse_args()
    command = shlex.split(arguments.command)
    what = arguments.what or arguments.command
    if not command:
        command = [sys.executable, __file__, "--loop", "--updates", str(arguments.updates)]
        what = f"training loop of {arguments.updates} updates, 20 metrics each, 4 checkpoints"
    rows = measure(command, what, arguments.repeats)
    _report.report("recording", rows, dry_run=arguments.dry_run)


if __name__ == "__main__":
    if "--loop" in sys.argv:
        sys.argv.remove("--loop")
        record.run_script(train, Config, argparse.ArgumentParser())
    else:
        main()
