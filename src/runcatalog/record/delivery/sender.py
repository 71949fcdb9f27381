"""The process that sends a run's journal to MLflow during the run.

A process, not a thread: MLflow's import, its memory, a hung server or a locked database cannot affect the training,
and if the training is killed, the sender still reports the end.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

from runcatalog.record import journal
from runcatalog.record.lifecycle.signals import RUNNING
from runcatalog.record.provenance.environment import submitted

INTERVAL = 5.0  # s between batches
SHARE = 0.01  # largest share of a core that sending uses during the run
PATIENCE = 120.0  # s of retries after the end of a run; later `catalog sync` sends the rest
_IDLE_PATIENCE = 5.0  # s after the end in which idle time may suffice to send the rest
_MODULE = "runcatalog.record.delivery.sender"  # its name, which is `__main__` where it runs
_NICENESS = 10
_LOWEST_PRIORITY = 19
_DATE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")  # before an error in the log


def is_sent() -> bool:
    """Return whether runs are sent to MLflow from here: it is installed, and RECORD_MLFLOW is not off."""
    off = os.environ.get("RECORD_MLFLOW", "").lower() in ("off", "0", "no")
    return not off and importlib.util.find_spec("mlflow") is not None


def start_sender(directory: Path, project: Path) -> subprocess.Popen[bytes] | None:
    """Start the sender of a run; return None if it is not sent, or not from here.

    Args:
        directory: The run's directory.
        project: The project's directory.

    Returns:
        The process. It ends by itself; closing its standard input signals the end of the run.
    """
    if submitted() is not None or not is_sent():
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
    with (directory / "journal" / journal.SENDER_LOG).open("ab") as log:
        # The sender inherits the lock with the open file, and so holds it from its first moment to its last.
        with contextlib.suppress(OSError):
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return subprocess.Popen(
            [sys.executable, "-m", _MODULE, str(directory), str(_session(directory))],
            stdin=subprocess.PIPE,
            stdout=log,  # not the run's: Guild waits until no process has that open
            stderr=log,
            cwd=project,
            env=os.environ | changed,
            start_new_session=True,  # so that Ctrl-C reaches only the training
        )


def send_until_end(directory: Path, session: int, end_of_run: int) -> bool:
    """Send batches until the run has ended and MLflow has all data.

    An error is written to the log and does not end it, since what comes later may be sent all the same.

    Args:
        directory: The run's directory.
        session: Number of the session whose end it sends; the next one has a sender of its own.
        end_of_run: File descriptor of a pipe that is closed when the training process ends.

    Returns:
        False if not all data were sent after the end: MLflow could not be used for PATIENCE seconds, or it rejects
        the run.
    """
    _wait(end_of_run, 2.0)  # meanwhile the training imports torch
    from runcatalog.record.delivery.mlflow_client import MlflowError
    from runcatalog.record.delivery.publish import Publisher
    from runcatalog.record.errors import UserError
    from runcatalog.record.lifecycle.status import save_kill_evidence

    created = os.environ.get("MLFLOW_RUN_ID", "")
    publisher, failures, ended_at, open_pipe = None, 0, None, True
    problem = ""
    while (directory / "journal").is_dir():  # until the run is deleted
        if _session(directory) != session:
            return True  # the run was continued and has a new sender
        if ended_at is None and not _is_running(directory, open_pipe):
            ended_at = time.monotonic()
            with contextlib.suppress(OSError):
                save_kill_evidence(directory)
        begin = time.process_time()
        try:
            publisher = publisher or Publisher(directory, created=created)
            published = publisher.send(again=False)
            failures = 0
            if published.status.status != RUNNING:
                return True
        except UserError as error:
            failures += 1
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {error}", flush=True)
            same, problem = str(error) == problem, str(error)
            late = ended_at is not None and time.monotonic() - ended_at > PATIENCE
            if late or (ended_at is not None and same and not isinstance(error, MlflowError)):
                print("given up: `catalog sync` sends the rest", flush=True)
                return False
        pause = max(INTERVAL, (time.process_time() - begin) / SHARE)
        if failures:
            pause = 2.0 ** min(failures, 6)
        pause = min(60.0, pause)
        if ended_at is not None or not open_pipe:
            time.sleep(min(pause, 10.0))
        elif _wait(end_of_run, pause):
            open_pipe = False
            time.sleep(0.2)  # a killed process closes its files shortly before it disappears
    return False


def problem(directory: Path, since: float) -> str:
    """Return why MLflow has nothing of a run, or nothing of late; "" if it has, or nothing is known yet.

    Args:
        directory: The run's directory.
        since: When the session began [s since the epoch]; what was written to the log before does not count.
    """
    log, state = directory / "journal" / journal.SENDER_LOG, directory / "journal" / "mlflow.json"
    try:
        changed = log.stat().st_mtime
        if changed < since or (state.exists() and state.stat().st_mtime > changed):
            return ""
        lines = [line for line in log.read_text(errors="replace").splitlines() if _DATE.match(line)]
    except OSError:
        return ""
    return _DATE.sub("", lines[-1]) if lines else ""


def _session(directory: Path) -> int:
    """Return the number of the run's last session; 0 before the first."""
    from runcatalog.record.lifecycle.status import last_session

    session = last_session(directory)
    return session["session"] if session else 0


def _is_running(directory: Path, otherwise: bool) -> bool:
    """Return whether the run is still running; `otherwise` if its files do not say so."""
    from runcatalog.record.lifecycle.status import status_of

    try:
        return status_of(directory).status == RUNNING
    except Exception:
        return otherwise


def _wait(file: int, seconds: float) -> bool:
    """Wait; return True as soon as the pipe is closed."""
    ready, _, _ = select.select([file], [], [], seconds)
    return bool(ready)


def _make_missing_database() -> None:
    """Make the project's database at the usual priority: others wait for it, and a busy machine has no idle time."""
    from runcatalog.record.delivery.mlflow_client import connect, is_missing_database, tracking_uri
    from runcatalog.record.errors import UserError

    with contextlib.suppress(UserError):  # sending says what is wrong
        uri = tracking_uri()
        if is_missing_database(uri):
            connect(uri)


def _restore_priority_at_end(end_of_run: int) -> None:
    """Wait for the end of the training; then nothing is disturbed by sending the rest at the usual priority.

    A machine that stays busy may have no idle time, and without privileges a thread does not leave the idle scheduler.
    This one has not entered it, so it starts the program again in this process.
    """
    select.select([end_of_run], [], [])
    _set_priority_of_session(0)
    time.sleep(_IDLE_PATIENCE)
    os.execv(sys.executable, [sys.executable, "-m", _MODULE, *sys.argv[1:]])


def _set_priority_of_session(niceness: int) -> None:
    """Set the priority of this session beside others, on Linux with autogroups."""
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(f"{niceness}\n", encoding="ascii")


def main() -> None:
    """Send the session of a run; the arguments are the run's directory and the session's number."""
    directory, session = Path(sys.argv[1]), int(sys.argv[2])
    # A database that is replaced by a backup meanwhile must be opened anew.
    os.environ.setdefault("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", "NullPool")
    _make_missing_database()
    if not _wait(sys.stdin.fileno(), 0):
        _give_way_until_end(sys.stdin.fileno())
    if not send_until_end(directory, session, sys.stdin.fileno()):
        raise SystemExit(1)


def _give_way_until_end(end_of_run: int) -> None:
    """Use idle time alone until the training has ended."""
    # On Linux each thread has a priority of its own; this one keeps the usual one.
    threading.Thread(target=_restore_priority_at_end, args=(end_of_run,), daemon=True).start()
    with contextlib.suppress(OSError, AttributeError):  # no such scheduler outside Linux
        os.nice(_NICENESS)
        # Linux: use only idle time. The simulator's threads wait for one another, so even a tenth of a core taken
        # from a single thread, as niceness allows, slows all of them.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # Linux schedules sessions against one another first (sched(7), "The autogroup feature"): both settings above count
    # within the sender's own session only.
    _set_priority_of_session(_LOWEST_PRIORITY)


if __name__ == "__main__":
    main()
