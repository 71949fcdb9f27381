"""Guild runs started by another run: missing ones are started, interrupted ones continued."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runcatalog.guild import child_environment, elsewhere
from runcatalog.guild.side_by_side import Started, run_side_by_side
from runcatalog.record.errors import RunFailed, UserError
from runcatalog.record.evaluation import declared
from runcatalog.record.journal.files import write_json
from runcatalog.record.output.outcome import sentence
from runcatalog.record.run import Run


@dataclass
class ChildRun:
    """A Guild run started by another run.

    Attributes:
        operation: Name of the Guild operation.
        run: Id, 32 hex digits.
    """

    operation: str
    run: str = ""

    @property
    def directory(self) -> Path:
        """The run's directory."""
        return Path(os.environ["GUILD_HOME"]) / "runs" / self.run

    @property
    def finished(self) -> bool:
        """Whether the run ended with status 0."""
        status = self.directory / ".guild" / "attrs" / "exit_status"
        return status.exists() and status.read_text().strip() == "0"

    @property
    def result_json(self) -> dict[str, Any]:
        """Content of the run's `result.json`."""
        return json.loads((self.directory / "result.json").read_bytes())

    @property
    def outcome(self) -> str:
        """The result of the finished run, as its row in the catalog has it."""
        path = self.directory / "result.json"
        return sentence(self.result_json.get("result")) if path.exists() else "finished"

    def start(
        self, flags: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start the run with `guild run`, or restart it if it has begun.

        Args:
            flags: Values by name, as on the command line.
            environment: Additional environment variables.
        """
        # Guild rewrites its attributes in place at every start; a kill at that moment leaves them empty or missing.
        # A restart without them would use the default flags, or fail.
        if self._can_restart():
            command = child_environment.restart(self.run)
        else:
            arguments = ["run", "--yes", self.operation, "--run-dir", str(self.directory)]
            command = child_environment.command(arguments)
        command += [f"{name}={value}" for name, value in flags.items()]
        folder = os.environ.get("PROJECT_DIR", ".")
        # Guild would say that it does not see runs in other folders, but this one is in its own.
        own = child_environment.environment() | {"NO_WARN_RUNDIR": "1"} | dict(environment or {})
        return subprocess.Popen(command, cwd=folder, env=own)

    def _can_restart(self) -> bool:
        """Return whether the run has begun and its Guild attributes are complete."""
        import yaml

        from runcatalog.guild.compat import run

        guild_run = run.for_dir(str(self.directory))
        try:
            return bool(guild_run.get("started") and (guild_run.get("op") or {}).get("op-cmd"))
        except (yaml.YAMLError, AttributeError):
            return False


def are_elsewhere() -> bool:
    """Return whether child runs go to other machines, whatever the places of this one."""
    return bool(os.environ.get(elsewhere.VARIABLE))


def require_guild(what: str, command: str) -> None:
    """Check that the current process is a Guild run, which alone can start child runs.

    Args:
        what: Kind of the current run, such as "a study".
        command: Guild command that starts it.

    Raises:
        UserError: The script was started without Guild.
    """
    if not os.environ.get("GUILD_HOME") or not os.environ.get("RUN_DIR"):
        raise UserError(f"{what} runs under Guild: `{command}`")


@dataclass(kw_only=True)
class PlannedRun(ChildRun):
    """A run in a plan of runs that depend on one another.

    Attributes:
        name: Its name in the plan.
        flags: Values by name, as on the command line.
        after: {flag or resource: name of the required run}; the run's id becomes the flag's value.
        run: "" before :func:`plan`, unless a finished run is to be reused.
    """

    name: str
    flags: dict[str, str]
    after: dict[str, str] = field(default_factory=dict)


def plan(path: Path, runs: Sequence[PlannedRun]) -> dict[str, PlannedRun]:
    """Assign run ids, reusing those of an interrupted study, and save them before any run starts.

    Args:
        path: The JSON file, {name: run id}.
        runs: The runs, every one after those that it requires.

    Returns:
        The runs by name.

    Raises:
        UserError: The file is damaged.
    """
    known_ids = _known_ids(path, [child.name for child in runs]) if path.exists() else {}
    for child in runs:
        child.run = known_ids.get(child.name) or child.run or uuid.uuid4().hex
    write_json(path, {child.name: child.run for child in runs})
    return {child.name: child for child in runs}


def _known_ids(path: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the run ids by name in the file of a plan; new ones would run all again.

    Raises:
        UserError: It does not have them.
    """
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} cannot be read ({error}): restore it from a copy") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: {{name: run id}} is expected: restore it from a copy")
    known = {name: content[name] for name in names if name in content}
    for name, run in known.items():
        if not isinstance(run, str):
            raise UserError(f"{path}: the key {name!r} has the value {run!r}, a run id is expected")
    return known


def declare_evaluation(
    run: Run, children: Iterable[PlannedRun], name: str, *, chosen: str = ""
) -> None:
    """Declare that a run's objective is of the sets of its children; nothing unless all declare the same split.

    Args:
        run: The current run.
        children: Finished children.
        name, chosen: See :meth:`runcatalog.record.Run.declare_evaluation`.
    """
    sets = [declared(child.result_json["result"]) for child in children]
    if sets and len({each and each.split for each in sets}) == 1 and sets[0] is not None:
        contents = [each.digest or each.name for each in sets if each is not None]
        run.declare_evaluation(sets[0].split, name, contents=contents, chosen=chosen)


def run_plan(
    run: Run,
    file: str,
    planned: Sequence[PlannedRun],
    places: int | Sequence[Mapping[str, str]] = 1,
    on_failure: Callable[[PlannedRun, int], None] | None = None,
    unit: str = "run",
) -> dict[str, PlannedRun]:
    """Run a plan as children of a recorded run: save the ids, note the parents, run all, report the progress.

    Args:
        run: The current run.
        file: Name of the plan's JSON file in its directory.
        planned: The child runs, every one after those that it requires.
        places: See :func:`run_all`.
        on_failure: See :func:`run_all`.
        unit: Unit of the progress.

    Returns:
        The child runs by name, all finished but for those that failed or were skipped.

    Raises:
        RunFailed: See :func:`run_all`.
    """
    runs = plan(run.directory / file, planned)
    for child in runs.values():
        run.add_parent(child.run)
    run_all(runs, places, run.event, lambda n: run.progress(n, len(runs), unit), on_failure)
    return runs


def run_all(
    runs: Mapping[str, PlannedRun],
    places: int | Sequence[Mapping[str, str]],
    log: Callable[[str], None],
    on_progress: Callable[[int], None],
    on_failure: Callable[[PlannedRun, int], None] | None = None,
) -> None:
    """Run all unfinished runs, in parallel, every one after those that it requires.

    Args:
        runs: The runs by name, from :func:`plan`.
        places: Number of parallel runs; or a list with the environment variables of every parallel slot. With $ENGINE
            the places of the engine count instead.
        log: Called with a line when a run starts, and when it has finished.
        on_progress: Called with the number of finished runs.
        on_failure: Called with a failed run and its exit status; runs that require it are skipped, the others
            continue.

    Raises:
        RunFailed: A run failed, and `on_failure` is None; the other runs are stopped.
    """
    free_places = [dict(place) for place in ([{}] * places if isinstance(places, int) else places)]
    count = len(free_places)
    occupied: dict[Path, tuple[PlannedRun, dict[str, str]]] = {}
    skipped: set[str] = set()
    # The places of this machine do not count where the runs are elsewhere.
    engine = elsewhere.Places() if are_elsewhere() else None

    def start_next() -> Started | None:
        unfinished = [c for c in runs.values() if c.name not in skipped and not c.finished]
        on_progress(len(runs) - len(unfinished))
        for child in unfinished:
            ready = all(runs[required].finished for required in child.after.values())
            if ready and child.directory not in occupied:
                log(f"{child.name}: {child.operation}, run {child.run[:8]}")
                run_ids = {flag: runs[required].run for flag, required in child.after.items()}
                place = {} if engine else free_places.pop(0)
                occupied[child.directory] = child, place
                return child.directory, child.start(child.flags | run_ids, place)
        return None

    def has_ended(directory: Path, code: int) -> None:
        child, place = occupied.pop(directory)
        free_places.append(place)
        if code == 0 and child.finished:
            ended = sum(child.finished for child in runs.values())
            log(f"{child.name}: {child.outcome}; {ended} of {len(runs)} runs finished")
            return
        if on_failure is None:
            raise RunFailed(
                f"{child.name}: {child.operation}, run {child.run[:8]}, ended with status {code}"
            )
        skipped.add(child.name)
        for other in runs.values():  # in order: every run after those that it requires
            if skipped.intersection(other.after.values()):
                skipped.add(other.name)
        on_failure(child, code)

    run_side_by_side(start_next, has_ended, engine or (lambda _: count))
    on_progress(len(runs))
