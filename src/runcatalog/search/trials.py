"""Trials of a search: Guild runs linked from the batch's directory, with a `search.json` in every run.

A search has no other state, so a restarted search reads the same data as an uninterrupted one.
"""

import contextlib
import json
import os
import re
import shutil
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runcatalog.guild import side_by_side
from runcatalog.record.journal.files import read_json, write_json
from runcatalog.search.core import Observation, is_value
from runcatalog.search.space import Dimension, Point, SearchError

# Exit statuses of a trial that was stopped from outside: Guild's for Ctrl-C, negative signal numbers,
# and a shell's 128 + number. SIGKILL is excluded: while the search is alive, the kernel sends it to a
# trial that uses too much memory, which would be killed again if it were repeated.
_KEYBOARD_INTERRUPT = -16  # guild.exit_code.KEYBOARD_INTERRUPT
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
INTERRUPTED = frozenset(
    (_KEYBOARD_INTERRUPT, *(-s for s in _SIGNALS), *(128 + s for s in _SIGNALS))
)
_REMEDY = "restore it from a copy, or delete the run: `guild runs rm"


@dataclass(frozen=True)
class Objective:
    """The scalar that a batch optimises: its Guild column and direction."""

    name: str
    column: tuple[str | None, str, str | None]
    maximize: bool

    @property
    def goal(self) -> str:
        return "max" if self.maximize else "min"

    def to_minimize(self, value: float) -> float:
        """Return the value with the sign for minimising; the function is its own inverse."""
        return -value if self.maximize else value


@dataclass(frozen=True)
class Trial:
    """A trial and its state.

    `state`: "pending" (to be started or continued), "done" with its objective in `value`, or "failed"
    with the `reason`. `number` counts from 1.
    """

    run: Any
    number: int
    point: Point
    state: str
    value: float | None = None
    reason: str | None = None


def objective_of(batch: Any) -> Objective:
    """Return the objective of a batch; raise SearchError unless it is a single scalar."""
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


def flags_of(batch: Any) -> dict[str, Any]:
    """Return the flags of a search; a list of a single value, such as `seed=[1]`, is that value.

    Raises:
        SearchError: A list is empty.
    """
    flags = dict(batch.batch_proto.get("flags") or {})
    for name, value in flags.items():
        if isinstance(value, list):
            if not value:
                raise SearchError(f"{name}=[]: a value is expected")
            if all(each == value[0] for each in value):
                flags[name] = value[0]
    return flags


def read(batch: Any, objective: Objective, dimensions: Sequence[Dimension]) -> list[Trial]:
    """Return the trials of a batch by number; remove those whose set-up was interrupted.

    Raises:
        SearchError: The note of a trial is damaged or lacks a key, or that of a trial that has begun is missing.
    """
    from runcatalog.guild.compat import batch_util, run

    entries = []
    runs_folder = Path(os.path.realpath(batch.dir)).parent
    for link in sorted(Path(batch.dir).iterdir()):
        directory = Path(os.path.realpath(link))
        # Guild names the link of a trial by its id; other links are dependencies.
        if not link.is_symlink() or directory != runs_folder / link.name:
            continue
        path = directory / "search.json"
        note = _load(path)
        if note is None:
            if _has_begun(directory):
                raise SearchError(f"{path} is missing: {_REMEDY} {link.name[:8]}`")
            link.unlink()
            shutil.rmtree(directory, ignore_errors=True)
            continue
        _check(path, note, {"trial": int, "point": dict, "objective": dict})
        _check(path, note["objective"], {"name": str})
        _check(path, note["point"], {d.name: object for d in dimensions})
        entries.append((note, run.for_dir(str(directory))))
    entries.sort(key=lambda pair: pair[0]["trial"])
    results = batch_util.trial_results_for_runs([r for _, r in entries], [objective.column])
    return [
        _trial(trial_run, note, values[0])
        for (note, trial_run), (_, values) in zip(entries, results, strict=True)
    ]


def _has_begun(directory: Path) -> bool:
    files = ("journal", ".guild/output", ".guild/attrs/exit_status")
    return any((directory / name).exists() for name in files)


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
    """Return why an ended trial counts as failed; None if it does not."""
    if status == 0:
        return None if is_value(value) else f"no finite {name}"
    # The reason recorded by the script takes precedence over the exit status.
    recorded_reason = (read_json(Path(trial_run.dir) / "result.json") or {}).get("reason")
    if recorded_reason:
        return str(recorded_reason)
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"


def own_objective(trial_run: Any) -> dict[str, Any]:
    """Return the objective in a trial's result; {} without one."""
    result = (read_json(Path(trial_run.dir) / "result.json") or {}).get("result") or {}
    return result.get("objective") or {}


def missing_objective_hint(batch: Any, trials: Sequence[Trial], objective: Objective) -> str | None:
    """Return advice if no trial has a value and one finished without logging the objective; else None.

    All further trials would fail likewise. Guild assumes the objective `loss` if none is declared.
    A logged NaN does not count: only that trial has failed.
    """
    from runcatalog.guild.compat import index, run_util

    ended_without_value = [
        t for t in trials if t.state == "failed" and t.run.get("exit_status") == 0
    ]
    if not ended_without_value or any(t.state == "done" for t in trials):
        return None
    prefix, tag, _ = objective.column
    run_index = index.RunIndex()
    run_index.refresh([t.run for t in ended_without_value], ["scalar"])
    for trial in ended_without_value:
        rows = run_index.run_scalars(trial.run)
        if any(r["tag"] == tag and str(r["prefix"]).startswith(prefix or "") for r in rows):
            continue
        if re.search(rf"^\s*{re.escape(tag)}:", _output(trial), re.MULTILINE):
            continue  # a declared pattern of `output-scalars` may leave out a NaN
        goal = "minimize" if own_objective(trial.run).get("goal") == "min" else "maximize"
        names = sorted({r["tag"] for r in rows}, key=lambda name: (name != "objective", name))
        name = names[0] if "objective" in names else "NAME"
        operation = run_util.format_operation(batch.batch_proto, nowarn=True)
        logged = f"; it logged {', '.join(names[:8])}" if names else ""
        return (
            f"trial {trial.number} finished but logged no {objective.name}: declare "
            f"`objective: {{{goal}: {name}}}` in the guild.yml of {operation}, or type "
            f"--{goal} {name}{logged}"
        )
    return None


def _output(trial: Trial) -> str:
    with contextlib.suppress(OSError):
        return Path(trial.run.guild_path("output")).read_text(errors="replace")
    return ""


def observations(trials: Sequence[Trial], objective: Objective) -> list[Observation]:
    """Return the observations of ended trials; failed ones have no value."""
    return [
        Observation(t.point, None if t.value is None else objective.to_minimize(t.value))
        for t in trials
        if t.state != "pending"
    ]


def prior_observations(
    batch: Any, dimensions: Sequence[Dimension], objective: Objective, mode: str
) -> list[Observation]:
    """Return results of earlier trials outside the batch, selected once and stored in the batch.

    `mode`: "batch" (none), "operation" (of the same operation) or "sourcecode" (of the same code).
    Trials count if their point is in the space and their other flags, except the seed, equal the batch's.
    """
    path = Path(batch.dir) / "prior.json"
    entries = _load(path)
    if entries is None:
        entries = [] if mode == "batch" else _earlier_results(batch, dimensions, objective, mode)
        write_json(path, entries)
    for entry in entries:
        _check(path, entry, {"point": dict, "value": object})
        _check(path, entry["point"], {d.name: object for d in dimensions})
    return [Observation(entry["point"], entry["value"]) for entry in entries]


def _earlier_results(
    batch: Any, dimensions: Sequence[Dimension], objective: Objective, mode: str
) -> list[dict[str, Any]]:
    from runcatalog.guild.compat import batch_util

    entries = []
    searched = {"seed", *(d.name for d in dimensions)}
    fixed = _without(flags_of(batch), searched)
    for flags, values in batch_util.trial_results(batch, [objective.column], mode):
        in_space = flags and all(d.name in flags and d.contains(flags[d.name]) for d in dimensions)
        # Trials with other fixed flags optimise another function.
        if in_space and _without(flags, searched) == fixed and is_value(values[0]):
            point = {d.name: d.rounded(flags[d.name]) for d in dimensions}
            entries.append({"point": point, "value": objective.to_minimize(values[0])})
    return entries


def _without(flags: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if name not in names}


def rewrite_attributes(batch: Any, trial: Trial) -> None:
    """Rewrite Guild's attributes of an interrupted trial; files of the trial itself stay.

    Guild rewrites attributes in place at every start. A kill at that moment leaves them empty or missing,
    and a trial without its flags would run at the defaults instead of its point.
    """
    from runcatalog.guild.compat import batch_util

    flags = flags_of(batch)
    template = batch_util.init_trial_run(batch, {**flags, **trial.point})
    try:
        for attr in Path(template.guild_path("attrs")).iterdir():
            if attr.name != "id":
                shutil.copy(attr, trial.run.guild_path("attrs", attr.name))
    finally:
        (Path(batch.dir) / template.id).unlink()
        shutil.rmtree(template.dir)


def stop_orphan(trial_run: Any) -> None:
    """Stop the process of a trial whose search was killed.

    No process reads its output any more, so its scalars would be lost; it continues from its last
    checkpoint instead.
    """
    process = side_by_side.process_of(Path(trial_run.dir))
    if process is not None:
        side_by_side.stop([process])


def _check(path: Path, content: Any, kinds: Mapping[str, type]) -> None:
    """Check the keys of an object in a file.

    Raises:
        SearchError: A key is missing, or its value is of another kind.
    """
    known = content if isinstance(content, dict) else {}
    for name, kind in kinds.items():
        if name in known and isinstance(known[name], kind):
            continue
        what = f"has the value {known[name]!r}" if name in known else "is missing"
        raise SearchError(f"{path}: the key {name!r} {what}: {_REMEDY} {path.parent.name[:8]}`")


def _load(path: Path) -> Any:
    """Return the JSON in a file; None if it is missing.

    Raises:
        SearchError: It cannot be read.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SearchError(
            f"{path} cannot be read ({error}): {_REMEDY} {path.parent.name[:8]}`"
        ) from None
