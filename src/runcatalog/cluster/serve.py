"""The processes of a lab, scheduler and workers, which `catalog workers start` starts."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runcatalog.cluster import certificates, dask_engine, engines
from runcatalog.cluster.node import Node, scratch_of
from runcatalog.record.errors import UserError
from runcatalog.record.journal.files import locked, read_json, write_json
from runcatalog.record.lifecycle import process

STATE = "process.json"  # in the folder of a process: its number, start, machine and address
JOINED = "joined"  # in that file: whether the scheduler has taken the name; missing before
LOCK = "lock"  # in the same folder, held by the process
_DASK = {
    # Dask measures itself for its web page, which takes a tenth of a core.
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "60s",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s",
    # Until then the inventory has a machine whose cable was pulled.
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "30s",
}
_AGAIN = 1.0  # s until a worker asks for its scheduler again


@dataclass(frozen=True)
class Limits:
    """When a worker without runs ends by itself.

    Attributes:
        death_timeout: Seconds without a scheduler.
        idle_timeout: Seconds without a run.
    """

    death_timeout: float = math.inf
    idle_timeout: float = math.inf


class Waiting:
    """Submitters that wait for a slot: as many are notified as slots become free, those that have waited longest first.

    So a slot that becomes free is not empty until a submitter asks again, and the others need not ask.
    """

    def __init__(self) -> None:
        self._turns: list[asyncio.Future[None]] = []
        self._free: dict[str, int] = {}  # slots by address of the worker

    async def wait(self, longest: float) -> dict[str, Any]:
        """Return when a slot has become free, at the latest after so many seconds."""
        turn = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        try:
            await asyncio.wait([turn], timeout=longest)
        finally:
            if turn in self._turns:
                self._turns.remove(turn)
        return {}

    def note(self, worker: dict[str, Any] | None) -> None:
        """Note how a worker describes itself, see `Node.describe`."""
        if worker is None:
            return
        free = 0 if worker["drained"] else worker["slots"] - len(worker["running"])
        more = free - self._free.get(worker["address"], 0)
        self._free[worker["address"]] = free
        for _ in range(min(more, len(self._turns))):
            self._turns.pop(0).set_result(None)


async def scheduler(settings: engines.Settings, folder: Path) -> None:
    """Run the scheduler until a signal ends it."""
    from distributed import Scheduler

    class Quiet(Scheduler):
        """Without Dask's web page, which speaks no TLS; submitters can wait for a slot."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self._waiting = Waiting()
            self.handlers[dask_engine.WAIT] = self._waiting.wait

        def heartbeat_worker(self, *, metrics: dict[str, Any], **rest: Any) -> dict[str, Any]:
            """Note what a worker says of itself."""
            self._waiting.note(metrics.get(dask_engine.METRIC))
            return super().heartbeat_worker(metrics=metrics, **rest)

        def start_http_server(self, *arguments: Any, **options: Any) -> None:
            """Start nothing."""

    security = dask_engine.security(settings, certificates.SCHEDULER)
    host, port = settings.scheduler.removeprefix("tls://").rsplit(":", 1)
    # Without names: only numbers can be listened on.
    async with Quiet(
        security=security, protocol="tls", host=host, port=int(port), dashboard=False
    ) as running:
        _write_state(folder, running.address, True)
        print(f"listening on {running.address}", flush=True)
        stop = _stop_signal()
        finished = asyncio.ensure_future(running.finished())
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait([finished, stopped], return_when=asyncio.FIRST_COMPLETED)


class Membership:
    """A worker's place at its scheduler, taken again whenever the scheduler comes back.

    Args:
        settings: The entry of `engines.yml`.
        name: The worker's name.
        folder: Its scratch folder, whose state says whether the worker has joined.
        node: What takes the runs.
        security: Its certificates.

    Attributes:
        connected: Whether the scheduler knows the worker now.
    """

    def __init__(
        self,
        settings: engines.Settings,
        name: str,
        folder: Path,
        node: Node,
        security: Any,
    ) -> None:
        self._settings, self._name, self._folder = settings, name, folder
        self._node, self._security = node, security
        self.connected = self._joined = False
        self._noted: bool | None = None

    async def stay(self) -> None:
        """Join, and join again after every loss of the scheduler.

        Raises:
            UserError: The scheduler has another worker of this name.
        """
        while True:
            try:
                await self._join()
            except (OSError, TimeoutError):  # the scheduler is gone
                self._note_joined()
            except RuntimeError as error:
                if "name taken" not in str(error.__cause__):
                    raise
                # The scheduler may not have noticed yet that this very worker was cut off.
                if not self._joined:
                    raise UserError(f"the scheduler has another worker {self._name!r}") from None
            self.connected = False
            self._node.has_changed = lambda: None
            await asyncio.sleep(_AGAIN)

    async def _join(self) -> None:
        """Be a worker of the scheduler until it is gone."""
        from distributed import Worker

        class Quiet(Worker):
            """Without Dask's web page, which speaks no TLS."""

            def start_http_server(self, *arguments: Any, **options: Any) -> None:
                """Start nothing."""

        async def describe(_: Worker) -> dict[str, Any]:
            return self._node.describe()

        # Dask's own tasks are not used.
        async with Quiet(
            self._settings.scheduler, name=self._name, nthreads=1, memory_limit=0,
            security=self._security, metrics={dask_engine.METRIC: describe},
            local_directory=str(self._folder / "dask"), death_timeout=_AGAIN * 10,
            host=_own_address(self._settings),
        ) as running:  # fmt: skip
            self.connected = self._joined = True
            self._note_joined()
            # Submitters that wait see a free slot at once, not with the next heartbeat.
            self._node.has_changed = lambda: asyncio.ensure_future(running.heartbeat())
            await running.finished()

    def _note_joined(self) -> None:
        if self._noted != self._joined:
            self._noted = self._joined
            with contextlib.suppress(OSError):  # a full disk: it works without the note
                _write_state(self._folder, self._node.address, self._joined)


async def _wait_for_limit(name: str, node: Node, membership: Membership, limits: Limits) -> None:
    """Return when the worker has been without a scheduler, or without a run, for as long as its limits allow."""
    known = used = time.monotonic()
    while True:
        await asyncio.sleep(_AGAIN)
        now, busy = time.monotonic(), node.is_busy
        known, used = (now if membership.connected or busy else known), (now if busy else used)
        for silent, limit, why in (
            (now - known, limits.death_timeout, "without a scheduler"),
            (now - used, limits.idle_timeout, "without a run"),
        ):
            if silent > limit:
                print(f"{name}: ends after {limit:g} s {why}", flush=True)
                return


def _own_address(settings: engines.Settings) -> str:
    """Return this machine's address on the way to the scheduler."""
    from distributed.utils import get_ip

    return get_ip(settings.scheduler.removeprefix("tls://").rpartition(":")[0])


async def worker(
    settings: engines.Settings,
    name: str,
    folder: Path,
    slots: int,
    certificate: str = "",
    limits: Limits = Limits(),
) -> None:
    """Run a worker until a signal, `catalog workers stop` or a limit ends it; a scheduler that is gone is awaited.

    SIGUSR1, the warning before a time limit, lets its runs write a checkpoint and go on elsewhere; then it ends.

    Args:
        settings: The entry of `engines.yml`.
        name: The worker's name.
        folder: Its scratch folder.
        slots: Runs that it takes at once.
        certificate: Name of its certificate; by default its own.
        limits: When it ends by itself.
    """
    from distributed.core import Server

    security = dask_engine.security(settings, certificate or name)
    node = Node(name, folder, slots, settings.probe)
    # A listener of its own: attempts and their submitters do not notice that a scheduler is restarted.
    server = Server(
        node.handlers(), connection_args=security.get_connection_args("worker"), needs_workdir=False,
        local_directory=str(folder / "dask"),
    )  # fmt: skip
    await server.listen(f"tls://{_own_address(settings)}", **security.get_listen_args("worker"))
    node.address = server.address
    _write_state(folder, server.address)
    print(f"listening on {server.address}", flush=True)
    stop = _stop_signal()
    leaving: list[asyncio.Task[None]] = []

    def leave() -> None:
        if not leaving:
            leaving.append(asyncio.ensure_future(node.leave()))

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, leave)
    leases = asyncio.ensure_future(node.watch_leases())

    membership = Membership(settings, name, folder, node, security)
    staying = asyncio.ensure_future(membership.stay())
    limit = asyncio.ensure_future(_wait_for_limit(name, node, membership, limits))
    waits = [asyncio.ensure_future(each.wait()) for each in (stop, node.stopping)]
    await asyncio.wait([*waits, staying, leases, limit], return_when=asyncio.FIRST_COMPLETED)
    for task in (staying, leases):
        if task.done():
            task.result()  # an error that ends the worker
    node.stopping.set()
    await node.finish()
    tasks = (staying, leases, limit, *leaving)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await server.close()


def is_alive(folder: Path) -> dict[str, Any] | None:
    """Return the state of the process whose folder this is; None where it does not run on this machine."""
    state = read_json(folder / STATE)
    # Older versions do not say on which machine.
    if not state or any(state.get(key, own) != own for key, own in _machine().items()):
        return None
    return state if process.is_alive(state["pid"], state["started"]) else None


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Lock the folder of a process, which may be shared by machines; it is created where it is missing.

    Raises:
        UserError: Another process has locked it.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / LOCK, timeout=0))
        except TimeoutError:
            state = read_json(folder / STATE) or {}
            owner = f"process {state.get('pid', '?')} on {state.get('host', '?')}"
            raise UserError(f"{folder} is in use by {owner}; choose another name") from None
        except OSError as error:  # a file system without locks
            raise UserError(f"{folder} cannot be locked: {error}") from None
        yield


def _machine() -> dict[str, str]:
    """Return what tells machines, and containers on one of them, apart."""
    return {"boot": process.boot_id(), "pid_namespace": process.pid_namespace()}


def _write_state(folder: Path, address: str, joined: bool | None = None) -> None:
    pid = os.getpid()
    state = {"pid": pid, "started": process.process_state(pid)[1], "address": address}
    state |= {} if joined is None else {JOINED: joined}
    write_json(folder / STATE, state | {"host": socket.gethostname()} | _machine())


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def main() -> None:
    """Run the process that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("project", type=Path)
    parser.add_argument("engine")
    parser.add_argument("name")
    parser.add_argument("slots", type=int)
    parser.add_argument("--certificate", default="")
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--death-timeout", type=float, default=math.inf)
    parser.add_argument("--idle-timeout", type=float, default=math.inf)
    arguments = parser.parse_args()
    try:
        settings = engines.read(arguments.project, arguments.engine)
        if arguments.scratch:
            settings = replace(settings, scratch=arguments.scratch)
        folder = scratch_of(settings.scratch, arguments.name)
        os.environ.update(_DASK)  # before Dask is imported
        with owned(folder):
            (folder / STATE).unlink(missing_ok=True)
            if arguments.name == certificates.SCHEDULER:
                asyncio.run(scheduler(settings, folder))
            else:
                limits = Limits(arguments.death_timeout, arguments.idle_timeout)
                asyncio.run(
                    worker(
                        settings,
                        arguments.name,
                        folder,
                        arguments.slots,
                        arguments.certificate,
                        limits,
                    )
                )
                if arguments.scratch:  # of this worker alone
                    shutil.rmtree(folder, ignore_errors=True)
    except (UserError, OSError, ValueError) as error:
        sys.exit(f"{arguments.name}: {error}")


if __name__ == "__main__":
    main()
