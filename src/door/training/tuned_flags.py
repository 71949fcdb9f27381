"""Flags from the best trial of a hyperparameter search. Light to import: Guild reads flags by importing."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runcatalog.record import UserError
from runcatalog.record.config import Config, flag_name
from runcatalog.record.journal.files import read_json, write_json
from runcatalog.record.provenance.environment import project_root

if TYPE_CHECKING:
    from runcatalog.record import Run

# Guild's link to the result of a required search (`requires:` in guild.yml, `target-path: tuned`).
LINKED = Path("tuned") / "result.json"
NOTE = "tuned.json"  # in a run's directory: the flags that it took, for a restart


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The flags that a run takes from a search.

    Attributes:
        operation: Operation of the search.
        search: Run id of the search.
        trial: Run id of its best trial.
        point: The flags that are taken from that trial.
        objective: The optimised metric.
        value: Its value in that trial.
    """

    operation: str
    search: str
    trial: str
    point: dict[str, Any]
    objective: str
    value: float


def fill(config: Config, operation: str) -> Tuned | None:
    """Set the flags of a configuration to the best setting of a search, except those that were given.

    A flag is given if it was typed, or differs from its default.

    Args:
        config: The configuration; changed.
        operation: The search; "" changes nothing.

    Raises:
        UserError: There is no finished search of that name, or it searched a flag that the script does not have.
    """
    if not operation:
        return None
    noted = _noted(config, operation)
    tuned = noted or _linked(operation) or _recorded(operation)
    if tuned is None:
        raise UserError(
            f"--tuned: no finished search {operation} in {_records()}; `guild run {operation}`, then "
            "`catalog sync` and `catalog export`"
        )
    fields = {flag_name(field.name): field for field in dataclasses.fields(config)}
    taken = {}
    for flag, value in tuned.point.items():
        if flag not in fields:
            raise UserError(
                f"--tuned: {operation} searched {flag}, which this script does not have"
            )
        is_default = getattr(config, fields[flag].name) == fields[flag].default
        if is_default and (noted or flag not in config.given):
            object.__setattr__(config, fields[flag].name, value)
            taken[flag] = value
    return noted or dataclasses.replace(tuned, point=taken)


def note(run: Run, tuned: Tuned | None) -> None:
    """Save the flags that a run took in its directory, and add the search to its parents."""
    if tuned is None:
        return
    path = run.directory / NOTE
    if not path.exists():
        write_json(path, dataclasses.asdict(tuned))
        run.event(f"tuned: {sentence(tuned)}")
    run.add_parent(tuned.search)


def sentence(tuned: Tuned) -> str:
    """Return "lr=0.003, clip-coef=0.33 from trial 1a2b3c4d of ppo:… (5e6f7a8b)"."""
    point = ", ".join(f"{name}={value}" for name, value in sorted(tuned.point.items()))
    return f"{point} from trial {tuned.trial[:8]} of {tuned.operation} ({tuned.search[:8]})"


def _noted(config: Config, operation: str) -> Tuned | None:
    """Return the flags that the continued run took at its start."""
    directory = os.environ.get("RUN_DIR") or getattr(config, "resume", "")
    saved = read_json(Path(directory) / NOTE) if directory else None
    if saved is None or saved.get("operation") != operation:
        return None
    try:
        return Tuned(**saved)
    except TypeError:
        raise UserError(f"{Path(directory) / NOTE}: damaged; start a new run") from None


def _linked(operation: str) -> Tuned | None:
    """Return the best setting of the search that Guild resolved as a requirement of this run, if it has finished."""
    path = Path(os.environ.get("RUN_DIR") or ".") / LINKED
    result = (read_json(path) or {}).get("result") or {}
    if not (result.get("best") and result.get("objective")):
        return None
    directory = path.resolve().parent
    if _operation_of(directory) != operation:
        return None
    best, objective = result["best"], result["objective"]
    return Tuned(
        operation, directory.name, best["run"], best["point"], objective["name"], objective["value"]
    )


def _operation_of(directory: Path) -> str:
    """Return MODEL:OPERATION of a Guild run."""
    try:
        words = (directory / ".guild" / "opref").read_text().split()
    except OSError:
        return ""
    return f"{words[2]}:{words[3]}".replace("'", "") if len(words) > 3 else ""


def _recorded(operation: str) -> Tuned | None:
    """Return the best setting of the latest finished search in the committed records; none that is marked."""
    searches = [
        r
        for r in _with(operation)
        if r.get("operation") == operation and _counts(r) and (r.get("result") or {}).get("batch")
    ]
    for search in sorted(searches, key=lambda r: r.get("started") or 0, reverse=True):
        optimised = search["result"].get("optimised") or {}
        name, sign = optimised.get("name", ""), 1 if optimised.get("goal") == "min" else -1
        trials = [r for r in _with(search["run"]) if r.get("batch") == search["run"]]
        values = [(_value(r, name), r) for r in trials if _counts(r)]
        ranked = sorted(
            (
                (sign * value, r.get("started") or 0, r["run"], r)
                for value, r in values
                if value is not None
            ),
            key=lambda entry: entry[:3],
        )
        if ranked:
            value, _, _, best = ranked[0]
            names = search["result"].get("space") or _varying(trials)
            point = {flag: best["flags"][flag] for flag in names}
            return Tuned(operation, search["run"], best["run"], point, name, sign * value)
    return None


def _counts(record: dict[str, Any]) -> bool:
    """Return whether a run finished and is neither superseded nor retracted (`catalog forget`)."""
    is_marked = record.get("superseded_by") or record.get("retracted")
    return record.get("status") == "FINISHED" and not is_marked


def _value(record: dict[str, Any], name: str) -> float | None:
    """Return the last value of a metric in a trial; None without a finite one."""
    last = (record.get("metrics") or {}).get(name, {}).get("last")
    return last if isinstance(last, int | float) and math.isfinite(last) else None


def _varying(trials: list[dict[str, Any]]) -> list[str]:
    """Return the flags in which trials differ, for a search whose record lacks its space."""
    names = sorted({name for trial in trials for name in trial["flags"]} - {"seed"})
    return [n for n in names if len({repr(trial["flags"].get(n)) for trial in trials}) > 1]


def _with(word: str) -> Iterator[dict[str, Any]]:
    """Yield the records that contain a word."""
    for path in sorted(_records().glob("*/*.json")):
        try:
            content = path.read_text(encoding="utf-8")
            if word in content:
                yield json.loads(content)
        except (OSError, ValueError):
            continue  # broken records are reported by `catalog check`


def _records() -> Path:
    return project_root() / "experiments" / "records"
