"""The process that sends a run's journal to MLflow while the run goes on.

A process, not a thread: MLflow's import, its memory, a hung server or a locked database cannot touch the
training, and when the trainer is killed the sender is still there to tell the end.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import subprocess
import sys
import time
from pathlib import Path

from runcatalog.record.lifecycle.signals import RUNNING

INTERVAL = 5.0  # s between batches
SHARE = 0.01  # of a core, at most, that sending takes while the run goes on
PATIENCE = (
    120.0  # s after the end of a run in which MLflow is tried again; then `catalog sync` sends it
)
_NICENESS = 10


def start_sender(directory: Path, project: Path) -> subprocess.Popen[bytes] | None:
    """Starts the sender of a run; None if MLflow is not installed or RECORD_MLFLOW=off.

    Args:
        directory: The run's directory.
        project: The project's directory.

    Returns:
        The process. It ends by itself; closing its standard input tells it that the run has ended.
    """
    off = os.environ.get("RECORD_MLFLOW", "").lower() in ("off", "0", "no")
    if off or importlib.util.find_spec("mlflow") is None:
        return None
    source = Path(__file__).resolve().parents[3]
    paths = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
    changed = {
        "PYTHONPATH": os.pathsep.join(paths),
        "PROJECT_DIR": str(project),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with (directory / "journal" / "sender.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "runcatalog.record.delivery.sender", str(directory)],
            stdin=subprocess.PIPE,
            stdout=log,  # not the run's: Guild waits until nobody holds that one
            stderr=log,
            cwd=project,
            env=os.environ | changed,
            start_new_session=True,  # Ctrl-C is meant for the training
        )


def send_until_end(directory: Path, end_of_run: int) -> bool:
    """Sends batches until the run has ended and MLflow has everything.

    Args:
        directory: The run's directory.
        end_of_run: File descriptor that is at its end when the trainer is gone.

    Returns:
        False if MLflow did not answer for PATIENCE seconds after the end.
    """
    _wait(end_of_run, 2.0)  # lets the training start, which imports torch in this time
    from runcatalog.record.delivery.mlflow_client import MlflowError
    from runcatalog.record.delivery.publish import Publisher
    from runcatalog.record.lifecycle.status import last_session, save_kill_evidence, status_of

    publisher, failures, ended_at, open_pipe = Publisher(directory), 0, None, True
    session = last_session(directory)
    while (directory / "journal").is_dir():  # else someone deleted the run
        if last_session(directory) != session:
            return True  # the run was continued, and has a sender of its own
        running = status_of(directory).status == RUNNING
        if not running and ended_at is None:
            ended_at = time.monotonic()
            with contextlib.suppress(OSError):
                save_kill_evidence(directory)
        begin = time.process_time()
        try:
            published = publisher.send()
            failures = 0
            if published.status.status != RUNNING:
                return True
        except MlflowError as error:
            failures += 1
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {error}", flush=True)
        if ended_at is not None and time.monotonic() - ended_at > PATIENCE:
            print("given up: `catalog sync` sends the rest", flush=True)
            return False
        pause = max(INTERVAL, (time.process_time() - begin) / SHARE)
        if failures:
            pause = 2.0**failures
        pause = min(60.0, pause)
        if ended_at is not None or not open_pipe:
            time.sleep(min(pause, 10.0))
        elif _wait(end_of_run, pause):
            open_pipe = False
            time.sleep(0.2)  # a killed process closes its files a moment before it is gone
    return False


def _wait(file: int, seconds: float) -> bool:
    """Waits; True at once if the pipe is at its end."""
    ready, _, _ = select.select([file], [], [], seconds)
    return bool(ready)


def main() -> None:
    """Sends the run whose directory is the argument."""
    directory = Path(sys.argv[1])
    with contextlib.suppress(OSError, AttributeError):  # no such scheduler outside Linux
        os.nice(_NICENESS)
        # Linux: only what the training leaves over. The simulator's threads wait for each other, so that even a
        # tenth of a core taken from one of them, as niceness does, slows both.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if not send_until_end(directory, sys.stdin.fileno()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
