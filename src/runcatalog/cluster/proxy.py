"""Stands in for the process of a run that is elsewhere: `python -m runcatalog.cluster.proxy COMMAND…`.

Guild starts it in place of the run's command, in the same environment. It ships the run's directory, mirrors files and
output, passes signals on and ends as the run ended. When the run's machine is lost, it ships what it has to another.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from runcatalog.cluster import engines, files, paths
from runcatalog.cluster.dask_engine import DaskEngine
from runcatalog.cluster.engine import (
    Engine,
    EngineError,
    Job,
    Look,
    MachineLost,
    Place,
    StaleAttempt,
)
from runcatalog.cluster.mirror import Mirror
from runcatalog.record import config
from runcatalog.record.delivery import mlflow_client
from runcatalog.record.delivery.sender import is_sent, start_sender
from runcatalog.record.errors import UserError
from runcatalog.record.journal.files import locked, read_json, write_json
from runcatalog.record.lifecycle import status
from runcatalog.record.lifecycle.signals import die_with_parent
from runcatalog.record.output import messages
from runcatalog.record.provenance import environment, git, patch, redact

VARIABLES = "ENGINE_VARIABLES"  # names of the variables that the operation declares
RECORDS = "ENGINE_RECORDS"  # set if the script may read the project's records
LOOK_UP = "ENGINE_LOOK_UP"  # set if the script may look for finished runs
LOSSES = 3  # after which a run is given up
STATE = "engine.json"  # in the folder .guild of a run
_LOCK_SECONDS = 60.0
_FIRST_POLL = 0.1  # s from the first look to the second
_POLL_SHARE = 0.2  # of a run's time between two looks, so that the end of a short run is seen soon
_RUN_ID = re.compile("[0-9a-f]{8,32}")
_PROJECT_FILES = ("guild.yml", "catalog.yml", "experiments/machines.yml", "experiments/*/guild.yml")
# Which run it is, and with which result.
_FACTS = re.compile(
    r"\.guild/(opref|attrs/(id|op|flags|label|exit_status|started|stopped))|result.json|journal/run.json"
)
_NOT_PASSED = re.compile(r"MLFLOW_.*|ENGINE.*|GUILD_HOME|GUILD_PLUGINS|PROJECT_DIR|CMD_DIR|RUN_.*")


class Proxy:
    """A run that is elsewhere.

    Args:
        settings: The entry of `engines.yml`.
        engine: The engine.
        command: The run's command.
    """

    def __init__(self, settings: engines.Settings, engine: Engine, command: list[str]) -> None:
        self._settings, self._engine, self._command = settings, engine, command
        self._root, self._run = Path(os.environ["RUN_DIR"]), os.environ["RUN_ID"]
        self._project = Path(os.environ.get("PROJECT_DIR") or os.environ["CMD_DIR"]).resolve()
        self._runs = Path(os.path.realpath(Path(os.environ["GUILD_HOME"]) / "runs"))
        self._operation = os.environ.get("GUILD_OP", "")
        self._state_file = self._root / ".guild" / STATE
        # With the folder in the project, a run's copy of the code may have them.
        self._keys = {_content(path) for path in settings.tls.glob("*.key")} - {b""}
        self._attempt = 0
        self._signals: list[int] = []
        self._woken = threading.Event()
        self._sender: subprocess.Popen[bytes] | None = None
        self._sent_session: Any = None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, self._note_signal)

    def _note_signal(self, number: int, _frame: object) -> None:
        self._signals.append(number)
        self._woken.set()
        self._engine.wake()

    def run(self) -> int:
        """Run to the end; return the exit status, negative for a signal."""
        redact.keep_private(self._root)
        if self._end_earlier():
            return 0
        self._look_up()
        losses = 0
        while True:
            place = self._place(self._job())  # whose archive is not kept while it runs
            self._write_state(place=asdict(place))
            _say(
                f"on {place.machine}" + (f", attempt {self._attempt}" if self._attempt > 1 else "")
            )
            mirror = Mirror(self._root, self._owned)
            try:
                look = self._follow(place, mirror)
                if not look.reason or self._signals:
                    self._write_state(ended=True)
                    with contextlib.suppress(EngineError):
                        self._engine.release(place, self._run, self._attempt)
                    if look.code and self._signals:
                        self._say_how_to_continue()
                    return int(look.code or 0)
                reason = look.reason
                losses += not look.planned
            except MachineLost as error:
                if self._signals:
                    self._say_how_to_continue()
                    return -self._signals[0]
                reason = f"{place.machine} does not answer ({error})"
                losses += 1
            self._write_state(ended=True)
            if losses > LOSSES:
                self._say_how_to_continue()
                raise EngineError(f"{reason}; its machine was lost {losses} times")
            _say(f"{reason}; going on elsewhere from what is known")

    def close(self) -> None:
        """Tell the sender that the run has ended."""
        if self._sender is not None and self._sender.stdin is not None:
            self._sender.stdin.close()

    def _place(self, job: Job) -> Place:
        """Wait until a machine takes an attempt."""
        shown, silent_since = "", None
        while True:
            try:
                place = self._engine.submit(job)
                silent_since = None
            except StaleAttempt:
                raise
            except EngineError as error:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > self._settings.wait:
                    raise
                place = str(error)
            if isinstance(place, Place):
                return place
            if place != shown:
                shown = place
                _say(f"waiting: {place}")
            self._engine.wait(self._settings.poll)
            if self._signals:
                self._write_state(ended=True)
                _end_by(self._signals[0])

    def _say_how_to_continue(self) -> None:
        """Print the command; its own process cannot know whether it goes on elsewhere by itself."""
        if status.last_session(self._root) is not None:
            with contextlib.suppress(OSError):
                print(messages.how_to_continue(self._run, self._root), flush=True)

    def _sleep(self, seconds: float) -> None:
        self._woken.wait(seconds)
        self._woken.clear()

    def _follow(self, place: Place, mirror: Mirror) -> Look:
        """Mirror an attempt until it has ended; return the last look."""
        printed = _Printed()
        try:
            return self._mirror(place, mirror, printed)
        finally:
            printed.close()

    def _mirror(self, place: Place, mirror: Mirror, printed: _Printed) -> Look:
        passed, repeated = 0, 0
        look: Look | None = None
        unread, said, begun = set[str](), set[str](), set[str]()
        begin = time.monotonic()
        while True:
            for number in self._signals[passed:]:
                self._engine.stop(place, self._run, self._attempt, number)
                passed += 1
            wanted = mirror.wanted(look) if look else []
            # The machine reads all files for that: only once the run has ended and nothing else is missing.
            digests = (
                look is not None
                and look.code is not None
                and not (look.output or look.errors)
                and all(each.name in unread for each in wanted)
            )
            look = self._engine.poll(
                place, self._run, self._attempt, wanted, printed.known, digests
            )
            mirror.take(look.pieces)
            printed.take(look, self._paths_here(look.paths))
            arrived = {piece.name for piece in look.pieces if piece.complete}
            before, unread = unread, files.unread(wanted, look.pieces) & look.files.keys()
            # At the second look: a file that was removed during the first is no longer listed.
            for name in sorted((unread & before) - said):
                said.add(name)
                _say(f"{name!r} cannot be read on {place.machine}")
            readable = [each for each in wanted if each.name not in unread]
            before, begun = begun, {p.name for p in look.pieces if not (p.offset or p.complete)}
            # A file that is written all the time changes with every look; it has to wait for the next one.
            arrived |= before & begun
            incomplete = any(
                each.name in look.files and each.name not in arrived for each in readable
            )
            changed = mirror.wanted(look)
            fresh = any(each.name not in unread for each in changed)
            if incomplete or (fresh and (not readable or look.code is not None)):
                continue
            # No new checkpoint is still missing
            if all(files.grows(each.name) for each in changed):
                mirror.remove(look)
            self._send()
            if look.code is None:
                known = time.monotonic() - begin
                self._sleep(min(self._settings.poll, max(_FIRST_POLL, known * _POLL_SHARE)))
            elif digests and not (look.output or look.errors):
                if not (different := mirror.forget_different(look.digests)):
                    return look
                repeated += 1
                if repeated > 3:
                    raise EngineError(f"{different[0]} arrives otherwise than it was sent")

    def _send(self) -> None:
        """Start a sender to MLflow for each session of the run."""
        session = status.last_session(self._root)
        if session is not None and session != self._sent_session:
            self.close()
            self._sent_session = session
            self._sender = start_sender(self._root, self._project)

    def _end_earlier(self) -> bool:
        """End an attempt that an earlier process of this run has left behind, and fetch what it has done.

        Returns:
            Whether it had finished by itself.
        """
        state = read_json(self._state_file) or {}
        self._attempt = int(state.get("attempt", 0))
        place = state.get("place")
        if not place or state.get("ended"):
            return False
        earlier, look = Place(**place), None
        with contextlib.suppress(EngineError):
            self._engine.stop(earlier, self._run, self._attempt, signal.SIGTERM)
            look = self._follow(earlier, Mirror(self._root, self._owned))
            self._engine.release(earlier, self._run, self._attempt)
        self._write_state(ended=True)
        return look is not None and look.code == 0

    def _look_up(self) -> None:
        """Let the script link the runs that its flags name; where that fails, the run itself says why."""
        if os.environ.get(LOOK_UP):
            subprocess.run(
                self._command,
                env=os.environ | {config.LOOK_UP: "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )

    def _job(self) -> Job:
        """Return the next attempt, with the run as it is here."""
        self._attempt += 1
        self._write_state(attempt=self._attempt, place=None, ended=False)
        with tempfile.TemporaryDirectory(prefix="ship-") as folder:
            archive, digest = files.pack(self._parts(Path(folder)))
        declared = set(filter(None, os.environ.get(VARIABLES, "").split(",")))
        passed = declared | set(self._settings.variables) | set(redact.allowed(os.environ))
        passed |= {n for n in os.environ if n.startswith(("FLAG_", "RECORD"))}
        passed |= {"GUILD_OP", "PYTHONPATH", "LOG_LEVEL", "FLAGS_DEST"}
        variables = {
            name: self._there(os.environ[name])
            for name in passed & os.environ.keys()
            if not _NOT_PASSED.fullmatch(name)
        }
        # A secret in the command is hidden there as here if its variable is known.
        variables |= {
            name: value
            for name, value in os.environ.items()
            if redact.is_secret_variable(name) and value and any(value in w for w in self._command)
        }
        # What lies outside of the run is not there; a relative folder is in it.
        folders = variables.pop("PYTHONPATH", "").split(os.pathsep)
        folders = [p for p in folders if not p.startswith(("/", paths.PROJECT))]
        variables |= {
            "PYTHONPATH": os.pathsep.join(folders),
            "RUN_DIR": paths.RUN,
            "RUN_ID": self._run,
            "GUILD_HOME": paths.HOME,
            "PROJECT_DIR": paths.PROJECT,
            "CMD_DIR": paths.PROJECT,
            "RECORD_SUBMITTED": paths.SUBMITTED,
        }
        return Job(
            run=self._run,
            attempt=self._attempt,
            operation=self._operation,
            archive=archive,
            digest=digest,
            command=[self._there(word) for word in self._command],
            environment=variables,
            versions=_versions(self._project),
            links=self._links(),
        )

    def _parts(self, folder: Path) -> Iterator[tuple[str, Path, list[str]]]:
        """Yield what is shipped: the run, runs that its flags name, files of the project, facts of the submitter."""
        links = self._links()
        names = [
            name
            for name in files.stamps(self._root)
            if not self._is_key(self._root / name)
            and not any(_is_below(name, link) for link in links)
        ]
        session = status.last_session(self._root)
        if session is not None:
            # A session that is over, whatever its machine knows of it: this attempt has its number.
            attributes = folder / "attributes"
            attributes.mkdir()
            stopped = max(time.time() * 1e6, session["started"] * 1e3 + 1)
            values = {"exit_status": -signal.SIGKILL, "stopped": int(stopped)}
            for name, value in values.items():
                (attributes / name).write_text(f"{value}\n")
            names = [name for name in names if name not in {f".guild/attrs/{n}" for n in values}]
            yield f"home/runs/{self._run}/.guild/attrs", attributes, list(values)
        yield f"home/runs/{self._run}", self._root, names
        for run, wanted in self._other_runs(links).items():
            yield f"home/runs/{run}", self._runs / run, wanted
        patterns = [
            *_PROJECT_FILES,
            *(["experiments/records/*/*.json"] if os.environ.get(RECORDS) else []),
        ]
        found = {p for pattern in patterns for p in self._project.glob(pattern) if p.is_file()}
        found_names = [path.relative_to(self._project).as_posix() for path in sorted(found)]
        prefix = f"project/{self._project.name or 'project'}"
        yield prefix, self._project, found_names
        if "guild.yml" not in found_names:  # by which a run finds its project
            marker = folder / "project"
            marker.mkdir()
            (marker / "guild.yml").touch()
            yield prefix, marker, ["guild.yml"]
        facts = {"project": str(self._project), **git.commit_facts(self._project)}
        submitted = folder / "submitted"
        submitted.mkdir()
        uri = mlflow_client.shown(mlflow_client.tracking_uri()) if is_sent() else ""
        uri = uri.removeprefix(f"sqlite:///{self._project}/")
        sent = {"facts": facts, "mlflow": uri, "directory": str(self._root)}
        write_json(submitted / "facts.json", sent)
        if facts["dirty"] and session is None:
            patch.write(self._project, facts["commit"], submitted / patch.NAME)
        yield "submitted", submitted, [path.name for path in submitted.iterdir()]

    def _links(self) -> dict[str, str]:
        """Return the links of the run's directory into other runs: RUN/PATH by the path here."""
        found = {}
        for folder, folders, names in os.walk(self._root):
            for name in (*folders, *names):
                path = Path(folder, name)
                if path.is_symlink():
                    target = Path(os.path.realpath(path))
                    if target.exists() and target.is_relative_to(self._runs):
                        inside = target.relative_to(self._runs).as_posix()
                        if not _is_below(inside, self._run):
                            found[path.relative_to(self._root).as_posix()] = inside
        return found

    def _other_runs(self, links: dict[str, str]) -> dict[str, list[str]]:
        """Return the files of other runs that this one needs, by run: those that it links to, and all of those whose
        id is a flag."""
        needed: dict[str, set[str]] = {}
        named = [word for word in dict.fromkeys(self._command) if _RUN_ID.fullmatch(word)]
        for matches in (list(self._runs.glob(f"{word}*")) for word in named):
            if len(matches) == 1 and matches[0].name != self._run:
                needed[matches[0].name] = set(files.stamps(matches[0]))
        for target in links.values():
            run, _, wanted = target.partition("/")
            known = files.stamps(self._runs / run)
            kept = {name for name in known if _is_below(name, wanted) or _FACTS.fullmatch(name)}
            needed.setdefault(run, set()).update(kept)
        return {
            run: [name for name in names if not self._is_key(self._runs / run / name)]
            for run, names in needed.items()
        }

    def _is_key(self, path: Path) -> bool:
        """Return whether a file is a copy of one of the lab's private keys."""
        return path.suffix == ".key" and _content(path) in self._keys

    def _there(self, text: str) -> str:
        """Return a text with placeholders for the paths of this machine."""
        return paths.with_placeholders(
            text,
            {
                str(self._root): paths.RUN,
                os.path.realpath(self._root): paths.RUN,
                sys.executable: paths.PYTHON,
                str(self._project): paths.PROJECT,
            },
        )

    def _paths_here(self, there: Mapping[str, str]) -> dict[bytes, bytes]:
        """Return this machine's paths for those of a look."""
        own: dict[str, str | Path] = {
            paths.RUN: self._root,
            paths.HOME: os.environ["GUILD_HOME"],
            paths.PROJECT: self._project,
        }
        return {os.fsencode(path): os.fsencode(own[name]) for path, name in there.items()}

    @contextlib.contextmanager
    def _owned(self) -> Iterator[None]:
        """Hold the run's directory; fail where a newer attempt has begun.

        Raises:
            StaleAttempt: It has.
        """
        with locked(self._state_file.with_suffix(".lock"), _LOCK_SECONDS):
            if (read_json(self._state_file) or {}).get("attempt") != self._attempt:
                raise StaleAttempt("a newer attempt of this run has begun")
            yield

    def _write_state(self, **changed: Any) -> None:
        with locked(self._state_file.with_suffix(".lock"), _LOCK_SECONDS):
            state = read_json(self._state_file) or {}
            if state.get("attempt", 0) > self._attempt:
                raise StaleAttempt("a newer attempt of this run has begun")
            if place := changed.get("place"):
                known = state.get("machines", [])
                changed["machines"] = [
                    *known,
                    {"attempt": self._attempt, "machine": place["machine"]},
                ]
            write_json(self._state_file, state | changed)


def _versions(project: Path) -> dict[str, str]:
    """Return the versions of the project's lock for packages that are installed here, else those that runs record."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        lines = (project / "requirements.lock").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {n: v for n, v in environment.versions().items() if n != "python"}
    locked = {}
    for line in lines:
        if re.match(r"[A-Za-z0-9]", line):
            with contextlib.suppress(
                InvalidRequirement, metadata.PackageNotFoundError, StopIteration
            ):
                wanted = Requirement(line.rstrip("\\ "))
                if wanted.marker is None or wanted.marker.evaluate():
                    metadata.distribution(wanted.name)
                    locked[wanted.name] = next(iter(wanted.specifier)).version
    return locked


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # of another user, or removed
        return b""


def _is_below(name: str, folder: str) -> bool:
    """Return whether a path is that of a file or folder, or in it; "" is the folder of all."""
    return not folder or name == folder or name.startswith(f"{folder}/")


class _Printed:
    """What an attempt prints, printed here.

    Attributes:
        known: Bytes of its output and of its errors.
    """

    def __init__(self) -> None:
        self.known = (0, 0)
        self._output, self._errors = paths.Output(), paths.Output()

    def take(self, look: Look, here: Mapping[bytes, bytes]) -> None:
        """Print what a look shows; `here` has this machine's paths for those of the other."""
        self._write(self._output.take(look.output, here), self._errors.take(look.errors, here))
        self.known = self.known[0] + len(look.output), self.known[1] + len(look.errors)

    def close(self) -> None:
        """Print what still waits."""
        self._write(self._output.rest(), self._errors.rest())

    @staticmethod
    def _write(output: bytes, errors: bytes) -> None:
        for text, stream in ((output, sys.stdout), (errors, sys.stderr)):
            with contextlib.suppress(OSError):  # nobody reads it any more
                stream.buffer.write(text)
                stream.flush()


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"engine: {text}", flush=True)


def _end_by(number: int) -> NoReturn:
    """End this process by a signal."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # for a signal that is blocked


def main() -> None:
    """Run the command given as arguments elsewhere."""
    die_with_parent()
    try:
        project = Path(os.environ.get("PROJECT_DIR") or os.environ["CMD_DIR"])
        settings = engines.read(project)
        engine = DaskEngine(settings)
        proxy = Proxy(settings, engine, sys.argv[1:])
        try:
            code = proxy.run()
        finally:
            proxy.close()
    except StaleAttempt as error:
        sys.exit(f"engine: {error}; this process ends and has written nothing more")
    except (EngineError, UserError, OSError, ValueError) as error:
        sys.exit(f"engine: {error}")
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        _end_by(-code)
    os._exit(code)


if __name__ == "__main__":
    main()
