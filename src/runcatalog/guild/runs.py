"""Guild's runs, read from its files: importing Guild takes longer than reading a thousand runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from runcatalog.guild import file_stamps
from runcatalog.model.errors import CatalogError
from runcatalog.record.journal import read_json
from runcatalog.record.lifecycle.signals import FINISHED, GONE, KILLED, end_from_exit_status
from runcatalog.record.provenance.redact import Redactor
from runcatalog.record.untrusted import guild_attribute

_ID = re.compile("[0-9a-f]{32}")
WEIGHTS_ONLY = "weights_only"  # attribute of a run of which nothing else is there, see `runcatalog.sync.weights`


@dataclass(frozen=True)
class GuildRun:
    """A run or batch of Guild.

    Attributes:
        id: 32 hex digits.
        where: The run's directory.
    """

    id: str
    where: str

    @cached_property
    def directory(self) -> Path:
        """The run's directory."""
        return Path(self.where)

    def attr(self, name: str) -> Any:
        """Returns an attribute, None without it."""
        return guild_attribute(self.directory, name)

    @cached_property
    def operation(self) -> str:
        """Name as typed after `guild run`."""
        return _operation(self.directory)

    @cached_property
    def proto_operation(self) -> str:
        """Operation of a batch's trials; "" for a run that is no batch."""
        return _operation(self.directory / ".guild" / "proto")

    @cached_property
    def source(self) -> str:
        """Absolute path of the folder whose Guild file or script it was started from; "" if nothing tells.

        Of a batch, that of the operation that its trials run: the optimizer may come from elsewhere.
        """
        for place in (self.directory / ".guild" / "proto", self.directory):
            if found := _source(place):
                return found
        facts = read_json(self.directory / "journal" / "run.json") or {}
        environment = {} if facts.get("project") else self.attr("env")
        told = facts.get("project") or (
            environment.get("PROJECT_DIR") if isinstance(environment, dict) else ""
        )
        return told if isinstance(told, str) and os.path.isabs(told) else ""

    @cached_property
    def commit(self) -> str:
        """The commit of the project that it was started at; "" if nothing tells."""
        facts = read_json(self.directory / "journal" / "run.json") or {}
        told = str(facts.get("commit") or self.attr("vcs_commit") or "")
        return told.removeprefix("git:").rstrip(
            "*"
        )  # with changes, and as Guild names the kind of repository

    @cached_property
    def is_waiting(self) -> bool:
        """Staged or pending: it has not begun, and is no result."""
        guild = self.directory / ".guild"
        return (guild / "STAGED").exists() or (guild / "PENDING").exists()

    @cached_property
    def stamp(self) -> str:
        """See :func:`runcatalog.guild.file_stamps.stamp_of`."""
        return file_stamps.stamp_of(self.where)

    @cached_property
    def flags(self) -> dict[str, Any]:
        """The flags; empty for a batch, whose flags are its optimizer's."""
        value = self.attr("flags")
        return value if isinstance(value, dict) else {}

    @cached_property
    def hide(self) -> Redactor:
        """Takes secrets out of what is told of the run."""
        return Redactor.of_run(self.directory)

    @property
    def shown_flags(self) -> dict[str, Any]:
        """The flags as they may be published."""
        return {name: self.hide.flag(name, value) for name, value in self.flags.items()}

    @cached_property
    def label(self) -> str:
        """The label that a person gave; Guild makes one of the flags itself, which is none."""
        label = str(self.attr("label") or "")
        return "" if not label or is_automatic(label, self.flags) else self.hide.text(label)

    @cached_property
    def started(self) -> int | None:
        """Milliseconds since the epoch."""
        value = self.attr("started") or self.attr("initialized")
        return int(value) // 1000 if isinstance(value, int | float) else None

    @cached_property
    def wall_seconds(self) -> float | None:
        """Seconds from start to end."""
        begin, end = self.attr("started"), self.attr("stopped")
        both = isinstance(begin, int | float) and isinstance(end, int | float)
        return max(0.0, (end - begin) / 1e6) if both else None

    @property
    def comment(self) -> str:
        """The newest comment that a person gave the run."""
        found = self.attr("comments")
        last = found[-1] if isinstance(found, list) and found else None
        return self.hide.text(str(last.get("body") or "")) if isinstance(last, dict) else ""

    def end(self) -> tuple[str, str]:
        """Returns (status, reason) as Guild and the output tell it."""
        status = self.attr("exit_status")
        if status is None:
            if (self.directory / ".guild" / "LOCK.remote").exists() or _alive(self.directory):
                return "RUNNING", ""
            return KILLED, GONE
        if status == 0:
            return FINISHED, ""
        if told := end_from_exit_status(status):
            return told
        line = self.hide.text(last_line(self.directory / ".guild" / "output"))
        return "FAILED", f"exit status {status}: {line}" if line else f"exit status {status}"

    @cached_property
    def trials(self) -> list[str]:
        """Ids of the trials that a batch's directory links to."""
        found = []
        for entry in os.scandir(self.directory):
            if entry.is_symlink():
                target = os.path.basename(os.path.realpath(entry.path))
                if _ID.fullmatch(target):
                    found.append(target)
        return sorted(found)

    @cached_property
    def parents(self) -> list[str]:
        """Ids of the runs whose files it required."""
        found = re.findall(r"[0-9a-f]{32}", _text(self.directory / ".guild" / "attrs" / "deps"))
        return list(dict.fromkeys(found))

    @cached_property
    def search(self) -> str:
        """What a search noted about its trial, as JSON short enough for a tag; "" without one."""
        note = self._note
        names = ("kind", "method", "trial", "predicted", "kernel", "acq_func", "hyperparameters")
        kept = {name: note[name] for name in names if note.get(name) not in (None, {}, "")}
        shown = json.dumps(kept, sort_keys=True, ensure_ascii=False) if note else ""
        return shown if len(shown) < 7000 else json.dumps({"kind": kept.get("kind", "")})

    @cached_property
    def objective(self) -> dict[str, Any] | None:
        """The metric that its search looks at, as noted; None without one."""
        told = self._note.get("objective")
        return told if isinstance(told, dict) else None

    @cached_property
    def space(self) -> dict[str, Any] | None:
        """The range of each parameter that its search looks through, as noted; None without one."""
        told = self._note.get("space")
        return told if isinstance(told, dict) else None

    @cached_property
    def importance(self) -> dict[str, Any] | None:
        """Importance of the parameters, as a search computed it at its end; None without one."""
        if not self.proto_operation:
            return None
        result = (read_json(self.directory / "result.json") or {}).get("result")
        found = result.get("importance") if isinstance(result, dict) else None
        return found if isinstance(found, dict) else None

    @cached_property
    def method(self) -> str:
        """How its search chose its point: "gp" or "random"; "" if no search did."""
        return str(self._note.get("method") or "")

    @cached_property
    def _note(self) -> dict[str, Any]:
        return read_json(self.directory / "search.json") or {}

    @cached_property
    def origin(self) -> str:
        """What the trials of one batch share and no two batches do: a trial copies its prototype."""
        begun, seed = self.attr("initialized"), self.attr("random_seed")
        if begun is None or seed is None:
            return ""
        return hashlib.sha256(f"{_opref(self.directory)} {begun} {seed}".encode()).hexdigest()[:32]

    @cached_property
    def proto_origin(self) -> str:
        """The same of a batch."""
        proto = GuildRun("", f"{self.where}/.guild/proto")
        return proto.origin if self.proto_operation else ""


@dataclass
class Batch:
    """A batch and its trials.

    Attributes:
        key: What the trials share; the same whether or not Guild kept the batch's directory.
        operation: Whose trials they are.
        trials: Their ids.
        run: The batch's own run; None where Guild deleted it, as it does when a grid is done.
        method: The optimizer: "grid", or the operation's name, such as "gp".
    """

    key: str
    operation: str
    trials: list[str] = field(default_factory=list)
    run: GuildRun | None = None
    method: str = "grid"


def guild_home() -> Path | None:
    """Returns where Guild keeps its runs, found as Guild finds it; None if there is no such place.

    $GUILD_HOME, else the active environment's .guild, else (the command called by its path) that
    of the environment of this Python, else the nearest .guild upwards.

    Raises:
        CatalogError: $GUILD_HOME is no directory.
    """
    given = os.environ.get("GUILD_HOME")
    if given:
        if not Path(given).is_dir():
            raise CatalogError(f"GUILD_HOME={given} is no directory")
        return Path(given)
    for base in (os.environ.get("CONDA_PREFIX"), os.environ.get("VIRTUAL_ENV")):
        if base:  # Guild looks at the first that is set
            if (Path(base) / ".guild").is_dir():
                return Path(base) / ".guild"
            break
    if sys.prefix != sys.base_prefix and (Path(sys.prefix) / ".guild").is_dir():
        return Path(sys.prefix) / ".guild"
    here, home = Path.cwd().resolve(), Path.home()
    for directory in (here, *here.parents):
        if (directory / ".guild").is_dir():
            return directory / ".guild"
        if directory == home:
            break
    return home / ".guild" if (home / ".guild").is_dir() else None


FORMAT = 4  # changes when a kept field gets another meaning
# Fields of GuildRun that are made of the files in _PARTS alone.
FIELDS = (
    *("operation", "proto_operation", "origin", "proto_origin", "label", "started"),
    *("wall_seconds", "parents", "trials", "search", "objective"),
    *("space", "method", "importance", "stamp", "source"),
)
# A file that comes, goes or is replaced changes its folder, and a session that begins or ends is a line in the
# journal; Guild writes a label in place. What it writes in place when it starts a run again comes with a new lock.
_PARTS = ("", "/.guild", "/.guild/attrs", "/.guild/attrs/label")
_PARTS += ("/journal", "/journal/sessions.jsonl")
_SETTLED = (
    2_000_000_000  # ns; a file that changed just now may change again within its time's precision
)


class Cache:
    """The kept fields of runs.

    Args:
        path: Where they are kept; nothing is known if that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        content = read_json(path) or {}
        known = content.get("runs") if content.get("format") == FORMAT else None
        self._known: dict[str, Any] = known if isinstance(known, dict) else {}
        self._stamps: dict[str, str] = {}
        self._filled = 0

    def fill(self, run: GuildRun) -> bool:
        """Gives a run the fields that were kept of it; False if it was not known or has changed."""
        stamp = self._stamps[run.where] = _stamp(run.where)
        kept = self._known.get(run.where)
        if not stamp or kept is None or kept[0] != stamp:
            return False
        self._filled += 1
        run.__dict__.update(zip(FIELDS, kept[1:], strict=True))  # as cached_property does
        return True

    def keep(self, runs: Sequence[GuildRun]) -> None:
        """Keeps the fields of all runs, those of no others."""
        if self._filled == len(runs) == len(self._known):
            return
        content = {}
        for run in runs:
            stamp = self._stamps.get(run.where)
            if stamp:
                content[run.where] = [stamp, *(getattr(run, name) for name in FIELDS)]
        shown = json.dumps({"format": FORMAT, "runs": content}, separators=(",", ":"))
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):  # then the next sync reads all again
            temporary.write_text(shown, encoding="utf-8")
            os.replace(temporary, self._path)


def _stamp(where: str) -> str:
    """Times of what the fields are made of; "" if some of it changed just now."""
    newest, parts = 0, []
    for part in _PARTS:
        try:
            changed = os.stat(where + part).st_mtime_ns
        except OSError:
            changed = 0
        newest = max(newest, changed)
        parts.append(changed)
    return "" if newest > time.time_ns() - _SETTLED else " ".join(map(str, parts))


def read(home: Path | None, cache: Cache | None = None) -> list[GuildRun]:
    """Returns the runs in a Guild home, oldest first; those that have not begun or are mere weights are none.

    Args:
        home: The home.
        cache: What an earlier call found.
    """
    if home is None or not (home / "runs").is_dir():
        return []
    found = []
    for entry in os.scandir(home / "runs"):
        if _ID.fullmatch(entry.name) and entry.is_dir():
            run = GuildRun(entry.name, entry.path)
            if cache is not None and cache.fill(run):
                found.append(run)  # it had begun before
            elif (
                (run.directory / ".guild" / "opref").is_file()
                and not run.is_waiting
                and not run.attr(WEIGHTS_ONLY)
            ):
                found.append(run)
    return sorted(found, key=lambda run: (run.started or 0, run.id))


def copied(directory: Path) -> GuildRun:
    """Returns a run whose directory was copied, and may have another name than its id.

    Raises:
        CatalogError: Nothing tells its id.
    """
    facts = read_json(directory / "journal" / "run.json") or {}
    known = str(facts.get("id") or guild_attribute(directory, "id") or directory.name)
    if not _ID.fullmatch(known):
        raise CatalogError(f"{directory}: name it after its run's id (32 hex digits)")
    return GuildRun(known, str(directory))


def batches(runs: Iterable[GuildRun], declared: Iterable[str]) -> list[Batch]:
    """Returns the batches among runs.

    Args:
        runs: All runs.
        declared: Operations of the studies; a batch that is one keeps its name (`ppo:opt@gp`), another
            is named as what it optimises.
    """
    runs, names = list(runs), set(declared)
    known = {each.id: each for each in runs}
    found: dict[str, Batch] = {}
    for run in runs:
        if run.proto_operation:
            own = run.operation in names
            batch = Batch(
                key=run.proto_origin or run.id,
                operation=run.operation if own else run.proto_operation,
                run=run,
                method="search" if own and "@" not in run.operation else _method(run),
            )
            batch.trials = [trial for trial in run.trials if trial in known]
            told = (known[trial].method for trial in batch.trials)
            batch.method = next(filter(None, told), batch.method)
            found[batch.key] = batch
    taken = {trial for batch in found.values() for trial in batch.trials}
    loose: dict[str, list[GuildRun]] = {}
    for run in runs:
        if not run.proto_operation and run.id not in taken and run.origin:
            loose.setdefault(run.origin, []).append(run)
    for key, members in loose.items():
        batch = found.get(key)
        if batch is not None:
            batch.trials = sorted({*batch.trials, *(m.id for m in members)})
        elif len(members) > 1:
            found[key] = Batch(key, members[0].operation, sorted(m.id for m in members))
    return list(found.values())


def is_automatic(label: str, flags: Iterable[str]) -> bool:
    """Whether a label is the one that Guild makes of the flags (`lr=0.1 seed=1`)."""
    try:
        tokens = shlex.split(label)
    except ValueError:
        return False
    names = set(flags)
    return bool(tokens) and all(
        "=" in token and token.partition("=")[0] in names for token in tokens
    )


def last_line(path: Path, size: int = 8192) -> str:
    """Returns the last line of a file that says something."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:500] for line in reversed(lines) if line.strip()), "")


def _method(run: GuildRun) -> str:
    note = str((run.attr("flags") or {}).get("method") or "")
    name = run.operation.rpartition(":")[2]
    if "@" in name:
        return note or name.partition("@")[2]
    return "grid" if name in ("", "+") else name


def _operation(directory: Path) -> str:
    parts = shlex.split(_opref(directory)) if _opref(directory) else []
    if len(parts) < 4:
        return ""
    model, name = parts[2], parts[3]
    return f"{model}:{name}" if model else name


def _source(directory: Path) -> str:
    """Where the Guild file or script of a run's operation lies; "" for one of a package."""
    parts = shlex.split(_opref(directory)) if _opref(directory) else []
    kind, _, where = parts[0].partition(":") if parts else ("", "", "")
    if not os.path.isabs(where):
        return ""
    return os.path.dirname(where) if kind == "guildfile" else where if kind == "script" else ""


def _opref(directory: Path) -> str:
    for path in (directory / ".guild" / "opref", directory / "opref"):
        if shown := _text(path).strip():
            return shown
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _alive(directory: Path) -> bool:
    try:
        os.kill(int(_text(directory / ".guild" / "LOCK")), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
