"""Start, stop and drain the processes of a lab."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from runcatalog.cluster import certificates, engines
from runcatalog.cluster.dask_engine import DaskEngine
from runcatalog.cluster.engine import EngineError, Place
from runcatalog.cluster.node import scratch_of
from runcatalog.cluster.serve import JOINED, Limits, is_alive, owned
from runcatalog.record.errors import UserError

LOG = "log.txt"  # in the folder of a process
_START_SECONDS = 120.0
_STOP_SECONDS = 60.0


def start(
    project: Path,
    settings: engines.Settings,
    name: str,
    slots: int,
    *,
    foreground: bool,
    as_root: bool,
    certificate: str = "",
    scratch: Path | None = None,
    limits: Limits,
) -> str:
    """Start the scheduler or a worker on this machine; return a line that says so.

    Args:
        project: The project's folder.
        settings: The entry of `engines.yml`.
        name: "scheduler" or the worker's name.
        slots: Runs that the worker takes at once.
        foreground: Whether to become that process, which does not return.
        as_root: Whether a worker may run as root.
        certificate: Name of the process's certificate; by default its own.
        scratch: A worker's folder in place of the entry's; the part that it uses is removed at its end.
        limits: When a worker ends by itself.

    Raises:
        UserError: It ends at once, has no certificate, or would run as root.
        EngineError: It runs already, and the scheduler or it does not answer.
    """
    if not engines.NAME.fullmatch(name):
        raise UserError(f"{name!r} is no name of a machine: letters, digits, _, - and .")
    if slots < 1:
        raise UserError(f"--slots must be at least 1, not {slots}")
    timeouts = {f"--{n.replace('_', '-')}": seconds for n, seconds in vars(limits).items()}
    for option, seconds in timeouts.items():
        if not seconds > 0:
            raise UserError(f"{option} must be above 0 seconds, not {seconds:g}")
    certificates.files_of(settings.tls, certificate or name)
    folder = scratch_of(scratch or settings.scratch, name)
    if is_alive(folder):
        if name == certificates.SCHEDULER:
            return f"{name} runs already"
        return _take_again(settings, name)
    if os.geteuid() == 0 and name != certificates.SCHEDULER and not as_root:
        raise UserError(
            "a worker runs scripts of others: start it as an ordinary user, or in a container with --as-root"
        )
    command = [
        sys.executable,
        "-m",
        "runcatalog.cluster.serve",
        str(project),
        settings.name,
        name,
        str(slots),
        *(["--certificate", certificate] if certificate else []),
        *(["--scratch", str(scratch.resolve())] if scratch else []),
        *(f"{option}={seconds}" for option, seconds in timeouts.items()),
    ]
    variables = {n: v for n, v in os.environ.items() if n not in (engines.VARIABLE, "PYTHONPATH")}
    if foreground:
        os.execve(command[0], command, variables)
    with owned(folder):
        pass  # before another process's log is overwritten
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables, cwd=folder,
            start_new_session=True,
        )  # fmt: skip
    until = time.monotonic() + _START_SECONDS
    # A worker listens before the scheduler can refuse its name.
    while not (state := is_alive(folder)) or state["pid"] != process.pid or JOINED not in state:
        if process.poll() is not None or time.monotonic() > until:
            lines = (folder / LOG).read_text(errors="replace").strip().splitlines()
            raise UserError(f"{lines[-1] if lines else f'{name} ended at once'} ({folder / LOG})")
        time.sleep(0.05)
    done = f"listens on {state['address']}" if state[JOINED] else f"waits for {settings.scheduler}"
    return f"{name} {done} (process {process.pid}, log {folder / LOG})"


def _take_again(settings: engines.Settings, name: str) -> str:
    engine = DaskEngine(settings)
    try:
        place = _find(engine, name)
        engine.drain(place, "")
    finally:
        engine.close()
    return f"{name} runs already, and takes runs"


def stop(settings: engines.Settings, name: str) -> str:
    """Stop the scheduler or a worker; its runs go on elsewhere.

    Raises:
        UserError: The scheduler knows no such worker, or the process does not end.
        EngineError: The scheduler or the worker does not answer.
    """
    folder = scratch_of(settings.scratch, name)
    if state := is_alive(folder):
        os.kill(state["pid"], signal.SIGTERM)
        until = time.monotonic() + _STOP_SECONDS
        while is_alive(folder):
            if time.monotonic() > until:
                raise UserError(f"{name} (process {state['pid']}) does not end")
            time.sleep(0.05)
        return f"{name} is stopped"
    engine = DaskEngine(settings)
    try:
        if name == certificates.SCHEDULER:
            engine.workers()
            engine.end_scheduler()
        else:
            engine.end(_find(engine, name))
    finally:
        engine.close()
    return f"{name} stops"


def drain(settings: engines.Settings, name: str, reason: str) -> str:
    """Let a worker take no more runs; those that it has go on.

    Raises:
        UserError: The scheduler knows no such worker.
        EngineError: The scheduler or the worker does not answer.
    """
    engine = DaskEngine(settings)
    try:
        engine.drain(_find(engine, name), reason)
    finally:
        engine.close()
    return f"{name} takes no more runs; `catalog workers start {name}` there ends that"


def _find(engine: DaskEngine, name: str) -> Place:
    workers = engine.workers()
    for worker in workers:
        if worker["name"] == name:
            return Place(name, worker["address"])
    known = ", ".join(worker["name"] for worker in workers) or "none"
    raise UserError(f"no worker {name!r}; the scheduler knows {known}")


def inventory(settings: engines.Settings) -> list[dict[str, object]]:
    """Return the inventory, see `Engine.workers`.

    Raises:
        UserError: The scheduler does not answer.
    """
    engine = DaskEngine(settings)
    try:
        return engine.workers()
    except EngineError as error:
        raise UserError(str(error)) from None
    finally:
        engine.close()
