"""A search's trials: Guild runs linked from the batch's directory, each with a `search.json`.

Nothing about a search is kept anywhere else, so what a restart sees is what an uninterrupted search
would see.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runcatalog.search.core import Observation, is_value
from runcatalog.search.space import Dimension, Point, SearchError

# Exit statuses of a trial that was stopped from outside: Guild's own for SIGTERM and Ctrl-C, the
# signals themselves, and the shell's way of writing them. SIGKILL is not among them: with the
# search alive it is the system's answer to a trial that took too much memory, and such a trial, if
# it were run again, would be killed again.
_KEYBOARD_INTERRUPT = -16  # guild.exit_code.KEYBOARD_INTERRUPT
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
INTERRUPTED = frozenset(
    (_KEYBOARD_INTERRUPT, *(-s for s in _SIGNALS), *(128 + s for s in _SIGNALS))
)
STOP_SECONDS = 30.0  # for a trial to write its last checkpoint


@dataclass(frozen=True)
class Objective:
    """The scalar that a batch optimises: its Guild column and whether it is to grow."""

    name: str
    column: tuple[str | None, str, str | None]
    maximize: bool

    @property
    def goal(self) -> str:
        return "max" if self.maximize else "min"

    def to_minimize(self, value: float) -> float:
        """The value (or, its own inverse, the value back) with the sign for minimising."""
        return -value if self.maximize else value


@dataclass(frozen=True)
class Trial:
    """One trial and where it stands.

    `state`: "pending" (to be run, or run on), "done" with its objective in `value`, or "failed"
    with the `reason`. `number` counts from 1.
    """

    run: Any
    number: int
    point: Point
    state: str
    value: float | None = None
    reason: str | None = None


def objective_of(batch: Any) -> Objective:
    """The objective of a batch; raises SearchError when it is not one scalar."""
    from runcatalog.guild.compat import batch_util, query

    spec, sign = batch_util.objective_scalar(batch)
    try:
        columns = query.parse_colspec(spec).cols
    except query.ParseError as e:
        raise SearchError(f"objective {spec!r} cannot be read: {e}") from e
    if len(columns) != 1 or not hasattr(columns[0], "split_key"):
        raise SearchError(f"objective {spec!r} must be a single scalar")
    prefix, tag = columns[0].split_key()
    return Objective(spec, (prefix, tag, columns[0].qualifier), sign < 0)


def read(batch: Any, objective: Objective) -> list[Trial]:
    """The trials of a batch by number. One that was never completely set up is removed."""
    from runcatalog.guild.compat import batch_util, run

    found = []
    home = Path(os.path.realpath(batch.dir)).parent
    for link in sorted(Path(batch.dir).iterdir()):
        directory = Path(os.path.realpath(link))
        # Guild links a trial under its id; other links in a run are its dependencies.
        if not link.is_symlink() or directory != home / link.name:
            continue
        note = load(directory / "search.json")
        if note is None:
            link.unlink()
            shutil.rmtree(directory, ignore_errors=True)
            continue
        found.append((note, run.for_dir(str(directory))))
    found.sort(key=lambda pair: pair[0]["trial"])
    results = batch_util.trial_results_for_runs([r for _, r in found], [objective.column])
    return [
        _trial(trial_run, note, values[0])
        for (note, trial_run), (_, values) in zip(found, results, strict=True)
    ]


def _trial(trial_run: Any, note: dict[str, Any], value: float | None) -> Trial:
    number, point = note["trial"], note["point"]
    status = trial_run.get("exit_status")
    if status is None or status in INTERRUPTED:
        return Trial(trial_run, number, point, "pending")
    reason = _failure(trial_run, status, value, note["objective"]["name"])
    if reason is not None:
        return Trial(trial_run, number, point, "failed", reason=reason)
    return Trial(trial_run, number, point, "done", value=value)


def _failure(trial_run: Any, status: int, value: float | None, name: str) -> str | None:
    """Why a trial that has ended counts as failed; None when it does not."""
    if status == 0:
        return None if is_value(value) else f"no finite {name}"
    # A script that tells its own end is believed; the exit status is all there is otherwise.
    told = (load(Path(trial_run.dir) / "result.json") or {}).get("reason")
    if told:
        return str(told)
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"


def untold(batch: Any, trials: Sequence[Trial], objective: Objective) -> str | None:
    """Return what to do if no trial has a value and one ended well without ever telling the objective.

    Each further trial would be lost the same way. Guild fills in `loss` where nothing declares an objective.
    A NaN was told: such a trial has failed, and others need not.
    """
    from runcatalog.guild.compat import index, run_util

    ended = [t for t in trials if t.state == "failed" and t.run.get("exit_status") == 0]
    if not ended or any(t.state == "done" for t in trials):
        return None
    prefix, tag, _ = objective.column
    found = index.RunIndex()
    found.refresh([t.run for t in ended], ["scalar"])
    for trial in ended:
        rows = found.run_scalars(trial.run)
        if any(r["tag"] == tag and str(r["prefix"]).startswith(prefix or "") for r in rows):
            continue
        if re.search(rf"^\s*{re.escape(tag)}:", _output(trial), re.MULTILINE):
            continue  # Guild takes no printed NaN for a number
        own = (load(Path(trial.run.dir) / "result.json") or {}).get("result") or {}
        goal = "minimize" if (own.get("objective") or {}).get("goal") == "min" else "maximize"
        names = sorted({r["tag"] for r in rows}, key=lambda name: (name != "objective", name))
        name = names[0] if "objective" in names else "NAME"
        operation = run_util.format_operation(batch.batch_proto, nowarn=True)
        shown = f"; it told {', '.join(names[:8])}" if names else ""
        return (
            f"trial {trial.number} ended well and told no {objective.name}: declare "
            f"`objective: {{{goal}: {name}}}` in the guild.yml of {operation}, or type "
            f"--{goal} {name}{shown}"
        )
    return None


def _output(trial: Trial) -> str:
    with contextlib.suppress(OSError):
        return Path(trial.run.guild_path("output")).read_text(errors="replace")
    return ""


def observations(trials: Sequence[Trial], objective: Objective) -> list[Observation]:
    """What the finished trials say, failed ones with no value."""
    return [
        Observation(t.point, None if t.value is None else objective.to_minimize(t.value))
        for t in trials
        if t.state != "pending"
    ]


def prior(
    batch: Any, dimensions: Sequence[Dimension], objective: Objective, mode: str
) -> list[Observation]:
    """Results of earlier trials outside the batch, chosen once and then kept in the batch.

    `mode`: "batch" (none), "operation" (of the same operation) or "sourcecode" (of the same code).
    Only trials at a point of the present space count whose other flags, the seed apart, are the batch's.
    """
    path = Path(batch.dir) / "prior.json"
    kept = load(path)
    if kept is None:
        kept = [] if mode == "batch" else _outside(batch, dimensions, objective, mode)
        save(path, kept)
    return [Observation(entry["point"], entry["value"]) for entry in kept]


def _outside(
    batch: Any, dimensions: Sequence[Dimension], objective: Objective, mode: str
) -> list[dict[str, Any]]:
    from runcatalog.guild.compat import batch_util

    entries = []
    free = {"seed", *(d.name for d in dimensions)}
    fixed = _without(batch.batch_proto.get("flags") or {}, free)
    for flags, values in batch_util.trial_results(batch, [objective.column], mode):
        inside = flags and all(d.name in flags and d.holds(flags[d.name]) for d in dimensions)
        # Another task's values say nothing about this one's.
        if inside and _without(flags, free) == fixed and is_value(values[0]):
            point = {d.name: d.rounded(flags[d.name]) for d in dimensions}
            entries.append({"point": point, "value": objective.to_minimize(values[0])})
    return entries


def _without(flags: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if name not in names}


def renew(batch: Any, trial: Trial) -> None:
    """Write Guild's attributes of an interrupted trial anew; what the trial itself wrote stays.

    Guild rewrites them in place whenever it starts a run. A kill in that moment leaves one empty or
    none, and a trial without its flags would be run at the defaults, as though at its point.
    """
    from runcatalog.guild.compat import batch_util

    flags = batch.batch_proto.get("flags") or {}
    fresh = batch_util.init_trial_run(batch, {**flags, **trial.point})
    try:
        for attr in Path(fresh.guild_path("attrs")).iterdir():
            if attr.name != "id":
                shutil.copy(attr, trial.run.guild_path("attrs", attr.name))
    finally:
        (Path(batch.dir) / fresh.id).unlink()
        shutil.rmtree(fresh.dir)


def end_orphan(trial_run: Any) -> None:
    """End what is left of a trial whose search was killed.

    Nobody reads its output any more, so that its scalars are lost; it is run on from its last
    checkpoint instead. A process that merely has the same number by now is left alone.
    """
    import psutil

    try:
        process = psutil.Process(int(Path(trial_run.guild_path("LOCK")).read_text()))
        ours = process.environ().get("RUN_ID") == trial_run.id
    except (OSError, ValueError, psutil.Error):
        return
    if ours:
        end([process])


def end(processes: Sequence[Any], seconds: float = STOP_SECONDS) -> None:
    """SIGTERM, and SIGKILL for each, and all that it started, that is there so much later.

    SIGTERM goes to the trial alone: what it started (the sender of its record, say) it ends itself.
    Nothing is waited for as a parent waits: whoever started a trial is to have its exit status.
    """
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    deadline = time.monotonic() + seconds
    while (alive := [p for p in processes if _runs(p)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            for each in [*process.children(recursive=True), process]:
                each.kill()


def _runs(process: Any) -> bool:
    """Return whether a process has not ended; one that its parent has yet to wait for has."""
    import psutil

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def load(path: Path) -> Any:
    """The JSON in a file, None when there is none or it is not whole."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def save(path: Path, data: Any) -> None:
    """Write JSON so that a reader finds the old file or the new one, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n")
    temporary.replace(path)
