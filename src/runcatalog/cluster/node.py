"""What a worker does: it takes attempts of runs, runs each in a directory of its own, and shows what changes there.

Nothing leaves a machine by itself: the submitter asks. An attempt that nobody asks for is ended when its lease is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runcatalog.cluster import files, health, paths
from runcatalog.cluster.engine import Stamp, Wanted
from runcatalog.record.digest import file_digest
from runcatalog.record.errors import UserError
from runcatalog.record.journal.files import read_json, write_json

_KEPT = 24 * 3600.0  # s for which an ended attempt waits for its submitter
_KNOWN_ATTEMPTS = 10_000
_FRESH = 60.0  # s for which a check counts
_RUN_ID = re.compile("[0-9a-f]{32}")
_GRACE = 20.0  # s from SIGTERM to SIGKILL
ENDS_SOON = "the machine ends soon (SIGUSR1)"
_INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "LC_ALL"),
    *("LD_LIBRARY_PATH", "SSL_CERT_FILE", "CUDA_VISIBLE_DEVICES"),
)
# Dies with the worker, also before the command has begun.
_LAUNCH = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]): os._exit(1)
try: os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error: sys.exit(f"{sys.argv[2]}: {error.strerror}")
"""


class _Check(NamedTuple):
    """A check of the machine that was begun before it is needed."""

    key: str  # its demands
    began: float
    problem: asyncio.Future[str]


class Attempt:
    """An attempt of a run on this machine.

    Attributes:
        run, operation: See `runcatalog.cluster.engine.Job`.
        number: `Job.attempt`.
        code: Exit status; None before the end.
        reason: Why the worker ended it; "" otherwise.
        planned: Whether that is because the worker itself is to end.
        lease: Seconds without a look after which it is ended.
        has_ended: Called once its process has ended, in a thread.
    """

    def __init__(
        self,
        root: Path,
        machine: str,
        run: str,
        number: int,
        operation: str,
        lease: float,
        has_ended: Callable[[], None],
    ) -> None:
        self.root, self.machine = root, machine
        self.run, self.number, self.operation, self.lease = run, number, operation, lease
        self.has_ended = has_ended
        self.code: int | None = None
        self.reason, self.planned = "", False
        self.since = time.time()
        self.renewed = time.monotonic()
        self.directory = root / "home" / "runs" / run
        self._shipped: dict[str, Stamp] = {}
        self._paths: dict[str, str] = {}
        self._child: subprocess.Popen[bytes] | None = None
        self._sent: set[int] = set()  # signals

    def start(
        self,
        archive: bytes,
        digest: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        links: Mapping[str, str],
    ) -> None:
        """Unpack the archive and start the command.

        Raises:
            ValueError: The archive is not what was said.
            OSError: The command cannot be started, or the disk is full.
        """
        files.unpack(archive, digest, self.root)
        for name, target in links.items():
            link = files.inside(self.directory, name)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(files.inside(self.directory.parent, target))
        self._shipped = files.stamps(self.directory)
        own = {
            paths.RUN: str(self.directory),
            paths.HOME: str(self.root / "home"),
            paths.PROJECT: str(next((self.root / "project").iterdir())),
            paths.SUBMITTED: str(self.root / "submitted"),
            paths.PYTHON: sys.executable,
        }
        shown = (paths.RUN, paths.HOME, paths.PROJECT)
        # A script may print them with links or without.
        self._paths = {path: n for n in shown for path in (own[n], os.path.realpath(own[n]))}

        variables = {n: os.environ[n] for n in _INHERITED if n in os.environ}
        variables |= {name: paths.with_paths(text, own) for name, text in environment.items()}
        variables["RECORD_MACHINE"] = self.machine
        started: list[BaseException | None] = []
        ready = threading.Event()

        def run() -> None:
            # The thread that starts a process with a parent-death signal has to outlive it (prctl(2)).
            try:
                with (
                    (self.root / "output").open("wb") as out,
                    (self.root / "errors").open("wb") as err,
                ):
                    launch = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid())]
                    words = [paths.with_paths(word, own) for word in command]
                    self._child = subprocess.Popen(
                        [*launch, *words], cwd=self.directory, env=variables, stdout=out, stderr=err,
                        stdin=subprocess.DEVNULL, start_new_session=True,
                    )  # fmt: skip
            except OSError as error:
                started.append(error)
                return
            finally:
                ready.set()
            if self.reason:  # ended while it was unpacked
                self._child.kill()
            code = self._child.wait()
            with contextlib.suppress(OSError):  # what it has left behind
                os.killpg(self._child.pid, signal.SIGKILL)
            self.reason = self._reason(code)
            self.code = code
            self.has_ended()

        threading.Thread(target=run, name=f"attempt-{self.run[:8]}", daemon=True).start()
        ready.wait()
        if started and started[0]:
            raise started[0]

    @property
    def is_running(self) -> bool:
        """Whether it occupies its slot."""
        return self.code is None

    def _reason(self, code: int) -> str:
        """Return why the worker ended it; "" if it has ended by itself, whatever the worker has asked for."""
        if code == -signal.SIGUSR1 and signal.SIGUSR1 not in self._sent:
            self.planned = (
                True  # a queue may warn all processes of an allocation, not the worker alone
            )
            return ENDS_SOON
        if code == 0 or (self.reason == ENDS_SOON and code > 0):
            return ""
        return self.reason

    def signal(self, number: int) -> None:
        """Send a signal to its process."""
        self._sent.add(number)
        if self._child is not None and self.code is None:
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(number)

    def warn(self) -> None:
        """Let it write a checkpoint and end, since the machine ends soon."""
        if self._child is None:
            self.end(ENDS_SOON, planned=True)
        elif self.code is None and not self.reason:
            self.reason, self.planned = ENDS_SOON, True
            self.signal(signal.SIGUSR1)

    def end(self, reason: str, planned: bool = False) -> None:
        """End it: SIGTERM, and SIGKILL later."""
        if self.code is not None:
            return
        self.reason, self.planned = reason, planned
        if self._child is None:
            self.code = -signal.SIGKILL
            return
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a process that was suspended would not end
        late = threading.Timer(_GRACE, self.signal, [signal.SIGKILL])
        late.daemon = True
        late.start()

    def look(
        self, wanted: Sequence[Wanted], printed: Sequence[int], digests: bool
    ) -> dict[str, Any]:
        """Return the fields of `runcatalog.cluster.engine.Look`; names of files are bytes, as they may not be UTF-8.

        Raises:
            OSError: What it has printed, or a file, cannot be read.
        """
        code, reason = self.code, self.reason  # before the files: after the end they change no more
        now = files.stamps(self.directory)
        changed = {name: stamp for name, stamp in now.items() if self._shipped.get(name) != stamp}
        pieces = [
            vars(piece) | {"name": os.fsencode(piece.name)}
            for piece in files.read(self.directory, wanted)
        ]
        output, errors = (
            self._printed(name, at) for name, at in zip(("output", "errors"), printed, strict=True)
        )
        return {
            "code": code,
            "reason": reason,
            "planned": self.planned and bool(reason),
            "files": {os.fsencode(name): stamp for name, stamp in changed.items()},
            "gone": [os.fsencode(name) for name in self._shipped if name not in now],
            "pieces": pieces,
            "output": output,
            "errors": errors,
            "paths": self._paths,
            "digests": self._digests(changed) if digests else {},
        }

    def _printed(self, name: str, offset: int) -> bytes:
        with (self.root / name).open("rb") as file:
            file.seek(offset)
            return file.read(files.PIECE_BYTES)

    def _digests(self, names: Iterable[str]) -> dict[bytes, str]:
        found = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                found[os.fsencode(name)] = file_digest(self.directory / name)
        return found

    def remove(self) -> None:
        """Remove its directory."""
        shutil.rmtree(self.root, ignore_errors=True)


class Node:
    """A worker of a machine.

    Args:
        name: Its name in the lab.
        scratch: Its own folder, which the process has locked; what earlier processes have left there is removed.
        slots: Attempts that run at once.
        probe: See `runcatalog.cluster.engines.Settings`.

    Attributes:
        drained: Why it takes no more attempts; "" if it does.
        stopping: Set when it is to end.
        has_changed: Called when a slot is taken or free, or it is drained or no longer.
    """

    def __init__(self, name: str, scratch: Path, slots: int = 1, probe: str = "") -> None:
        self.name, self.scratch, self.slots, self._probe = name, scratch, slots, probe
        self.address = ""
        self.drained = ""
        self.stopping = asyncio.Event()
        self.has_changed: Callable[[], None] = lambda: None
        self._attempts: dict[str, Attempt] = {}  # by run
        self._attempts_file = scratch / "attempts.json"
        scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
        scratch.chmod(0o700)
        _kill_left_behind(scratch)
        shutil.rmtree(scratch / "trials", ignore_errors=True)
        self._newest: dict[str, int] = read_json(self._attempts_file) or {}
        self._hardware = hardware()
        self._claiming = asyncio.Lock()
        self._claims = 0  # in progress
        self._leaving = False
        self._prepared: _Check | None = None
        # The next check's process: it has its imports when a run ends.
        self._checker: asyncio.Future[asyncio.subprocess.Process] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether an attempt occupies a slot, or its submitter is still fetching its end."""
        return self._running() > 0 or self._recent()

    def describe(self) -> dict[str, Any]:
        """Return the worker's line of the inventory."""
        import psutil

        return {
            "name": self.name,
            "address": self.address,
            "pid": os.getpid(),
            "slots": self.slots,
            "drained": self.drained,
            "running": [
                {"run": a.run, "attempt": a.number, "operation": a.operation, "since": a.since}
                for a in self._attempts.values()
                if a.is_running
            ],
            "free_memory": psutil.virtual_memory().available / 1e9,
            "free_disk": shutil.disk_usage(self.scratch).free / 1e9,
            **self._hardware,
        }

    def handlers(self) -> dict[str, Any]:
        """Return what a submitter may call, by name."""
        calls = (
            self.ping,
            self.claim,
            self.start,
            self.poll,
            self.stop,
            self.release,
            self.drain,
            self.end,
        )
        # As submitters of earlier versions call them.
        return {f"trial_{call.__name__}": call for call in calls}

    async def ping(self) -> dict[str, str]:
        """Answer."""
        return {}

    async def claim(
        self,
        run: str,
        attempt: int,
        operation: str,
        demands: dict[str, Any],
        clock: float,
        lease: float,
    ) -> dict[str, str]:
        """Reserve a slot for an attempt, after the checks of the machine; `refused` says why not."""
        if not _RUN_ID.fullmatch(run):
            return {"refused": f"{run!r} is no id of a run"}
        if attempt < self._newest.get(run, 0):
            return {"stale": "a newer attempt is known"}
        # Before others' checks are waited for. Whose clock is wrong is not known, so the machine is not drained.
        if problem := health.clock_problem(time.time(), clock):
            return {"refused": problem}
        # At once, so that of several submitters all but one go on to another worker.
        if self._claims + self._running() >= self.slots and run not in self._attempts:
            return {"refused": "no slot is free"}
        async with self._turn():
            if self.stopping.is_set() or self._leaving:
                return {"refused": "it is being stopped"}
            if self.drained:
                return {"refused": f"drained: {self.drained}"}
            older = self._attempts.get(run)
            if older is not None and older.is_running:
                if older.number == attempt:  # the answer to its start was lost
                    return {"refused": "the attempt runs here, unknown to its submitter"}
                older.end("a newer attempt has begun")
                return {"refused": "an older attempt is ending"}
            if self._running() >= self.slots:
                return {"refused": "no slot is free"}
            # The machine is not drained: another run may need less.
            asked = demands | {"scratch": str(self.scratch)}
            if unmet := await asyncio.to_thread(health.unmet, asked):
                return {"refused": unmet}
            await self._check(demands)
            if self.drained:
                return {"refused": f"drained: {self.drained}"}
            if attempt < self._newest.get(run, 0):
                return {"stale": "a newer attempt is known"}
            if older is not None:
                older.remove()
            self._newest.pop(run, None)  # the newest come last
            self._newest[run] = attempt
            kept = dict(list(self._newest.items())[-_KNOWN_ATTEMPTS:])
            write_json(self._attempts_file, kept)
            root = self.scratch / "trials" / f"{run}-{attempt}"
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir(parents=True, mode=0o700)
            loop = asyncio.get_running_loop()

            def has_ended() -> None:
                with contextlib.suppress(RuntimeError):  # the worker has ended before
                    loop.call_soon_threadsafe(self._attempt_has_ended, demands)

            self._attempts[run] = Attempt(
                root, self.name, run, attempt, operation, lease, has_ended
            )
        self.has_changed()
        return {}

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Count a claim while it waits for those before it and is decided."""
        self._claims += 1
        try:
            async with self._claiming:
                yield
        finally:
            self._claims -= 1

    def _running(self) -> int:
        return sum(attempt.is_running for attempt in self._attempts.values())

    async def _check(self, demands: dict[str, Any]) -> None:
        """Check the machine, and drain it where it fails.

        Trials of a sweep follow one another: the check before the next one is made while the submitter prepares it.
        """
        key = json.dumps(demands, sort_keys=True)
        prepared, self._prepared = self._prepared, None
        if prepared and prepared.key == key and time.monotonic() - prepared.began < _FRESH:
            problem = await prepared.problem
        else:
            problem = await self._problem(demands)
        if problem:
            self._drain_for(problem)

    def _attempt_has_ended(self, demands: dict[str, Any]) -> None:
        self.has_changed()
        if self.drained or self.stopping.is_set():
            return
        problem = asyncio.ensure_future(self._problem(demands))
        key = json.dumps(demands, sort_keys=True)
        self._prepared = _Check(key, time.monotonic(), problem)

    def _drain_for(self, problem: str) -> None:
        self.drained = problem
        self.has_changed()
        print(f"{self.name}: drained: {problem}", flush=True)

    async def _problem(self, demands: dict[str, Any]) -> str:
        """Run the checks in a process of their own."""
        own = {"scratch": str(self.scratch), "probe": self._probe}
        given = json.dumps(demands | own).encode()
        limit = 120 + float(demands.get("seconds", 0))
        checker, self._checker = self._checker, None
        process = await (checker or _start_checker())
        if process.returncode is not None:  # killed while it waited
            process = await _start_checker()
        try:
            out, err = await asyncio.wait_for(process.communicate(given), limit)
            return str(json.loads(out.decode().splitlines()[-1])["problem"])
        except asyncio.CancelledError:
            await _kill(process)
            raise
        except TimeoutError:
            await _kill(process)
            return f"its check does not end within {limit:.0f} s"
        except (ValueError, LookupError):
            last = err.decode(errors="replace").strip().splitlines()[-1:] or [""]
            return f"its check ended with status {process.returncode}: {last[0][:200]}"

    async def start(
        self,
        run: str,
        attempt: int,
        archive: bytes,
        digest: str,
        command: list[str],
        environment: dict[str, str],
        links: dict[str, str],
    ) -> dict[str, str]:
        """Start a claimed attempt."""
        known, problem = self._known(run, attempt)
        if known is None:
            return problem
        known.renewed = time.monotonic()
        try:
            await asyncio.to_thread(known.start, archive, digest, command, environment, links)
        except (OSError, ValueError) as error:
            known.end(str(error))
            return {"refused": str(error)}
        known.renewed = time.monotonic()
        if self._checker is None:
            self._checker = asyncio.ensure_future(_start_checker())
        return {}

    async def poll(
        self, run: str, attempt: int, wanted: list[list[Any]], printed: list[int], digests: bool
    ) -> dict[str, Any]:
        """Show an attempt, and renew its lease."""
        known, problem = self._known(run, attempt)
        if known is None:
            return problem
        known.renewed = time.monotonic()
        asked = [
            Wanted(os.fsdecode(name), offset, check, tuple(stamp) if stamp else None)
            for name, offset, check, stamp in wanted
        ]
        try:
            return await asyncio.to_thread(known.look, asked, printed, digests)
        except OSError as error:  # Dask would raise it as an error of the connection
            return {"failed": f"{self.name}: {error}"}
        finally:
            known.renewed = time.monotonic()

    async def stop(self, run: str, attempt: int, number: int) -> dict[str, str]:
        """Send a signal to an attempt."""
        known, problem = self._known(run, attempt)
        if known is not None:
            known.signal(number)
        return problem

    async def release(self, run: str, attempt: int) -> dict[str, str]:
        """Forget an attempt that has ended."""
        known, problem = self._known(run, attempt)
        if known is not None and not known.is_running:
            del self._attempts[run]
            await asyncio.to_thread(known.remove)
        return problem

    async def drain(self, reason: str) -> dict[str, str]:
        """Take no more attempts; "" takes them again."""
        self.drained = reason
        self.has_changed()
        return {}

    async def end(self) -> dict[str, str]:
        """End the worker."""
        self.stopping.set()
        return {}

    def _known(self, run: str, attempt: int) -> tuple[Attempt | None, dict[str, str]]:
        if attempt < self._newest.get(run, 0):
            return None, {"stale": "a newer attempt is known"}
        known = self._attempts.get(run)
        if known is None or known.number != attempt:
            return None, {"lost": "it does not know the attempt"}
        return known, {}

    async def watch_leases(self) -> None:
        """End attempts whose submitter is silent, and forget old ones; runs for ever."""
        while True:
            await asyncio.sleep(0.2)
            for attempt in list(self._attempts.values()):
                silent = time.monotonic() - attempt.renewed
                if attempt.is_running and not attempt.reason and silent > attempt.lease:
                    attempt.end(f"its submitter was silent for {attempt.lease:g} s")
                elif not attempt.is_running and silent > attempt.lease + _KEPT:
                    self._attempts.pop(attempt.run, None)
                    attempt.remove()

    async def leave(self) -> None:
        """Take no more attempts, let those that run write a checkpoint, and end when they have gone elsewhere."""
        self.drained, self._leaving = ENDS_SOON, True
        self.has_changed()
        for attempt in self._attempts.values():
            attempt.warn()
        while self.is_busy:
            await asyncio.sleep(0.1)
        self.stopping.set()

    async def finish(self) -> None:
        """End all attempts; wait until they have, and a while for their submitters."""
        for attempt in self._attempts.values():
            if attempt.is_running:
                attempt.end(f"the worker {self.name} was stopped", planned=True)
        until = time.monotonic() + _GRACE + 5
        while any(a.is_running for a in self._attempts.values()) and time.monotonic() < until:
            await asyncio.sleep(0.05)
        until = time.monotonic() + 10
        while self._recent() and time.monotonic() < until:
            await asyncio.sleep(0.05)
        await self.end_checks()

    async def end_checks(self) -> None:
        """End the processes of checks."""
        if self._prepared is not None:
            self._prepared.problem.cancel()
            await asyncio.wait([self._prepared.problem])
        checker, self._checker = self._checker, None
        if checker is not None:
            await _kill(await checker)

    def _recent(self) -> bool:
        """Return whether a submitter is still about to fetch the end of an attempt."""
        return any(time.monotonic() - a.renewed < 10 for a in self._attempts.values())


async def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.communicate()  # which closes its pipes


async def _start_checker() -> asyncio.subprocess.Process:
    """Start a process that checks the machine once it is given the demands."""
    pipe = subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "runcatalog.cluster.health", stdin=pipe, stdout=pipe, stderr=pipe
    )


def hardware() -> dict[str, Any]:
    """Return what the inventory says of this machine."""
    import psutil

    from runcatalog.record.provenance import machine

    try:
        gpus = machine.gpus()
        problem = ""
    except OSError as error:
        gpus, problem = [], str(error)
    return {
        "host": socket.gethostname(),
        "cpu": machine.cpu_name(),
        "cores": machine.cores(),
        "memory": psutil.virtual_memory().total / 1e9,
        "gpus": [gpu.name for gpu in gpus],
        "gpu_memory": min((gpu.memory for gpu in gpus), default=0.0),
        "gpu_problem": problem,
    }


def scratch_of(folder: Path, name: str) -> Path:
    """Return the scratch folder of a worker.

    Raises:
        UserError: It belongs to another user.
    """
    path = folder / name
    if path.exists() and path.stat().st_uid != os.getuid():
        raise UserError(f"{path} belongs to another user")
    return path


def _kill_left_behind(scratch: Path) -> None:
    """Kill processes that an earlier worker has started and that outlived it."""
    import psutil

    begin = f"{scratch}{os.sep}"
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("RUN_DIR", "").startswith(begin):
                process.kill()
