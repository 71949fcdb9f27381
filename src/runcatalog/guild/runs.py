"""Guild's runs, read from its files: reading a thousand takes less time than importing Guild."""

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
from runcatalog.guild.dependencies import UNMET
from runcatalog.model.errors import CatalogError
from runcatalog.numbers import is_int64
from runcatalog.record.config import REFUSED
from runcatalog.record.journal.files import read_json
from runcatalog.record.lifecycle.process import is_alive_since
from runcatalog.record.lifecycle.signals import (
    FINISHED,
    GONE,
    KILLED,
    NEVER_STARTED,
    end_from_exit_status,
)
from runcatalog.record.output.console import last_message
from runcatalog.record.provenance.git import UNKNOWN
from runcatalog.record.provenance.redact import Redactor
from runcatalog.record.untrusted import guild_attribute, is_damaged_attribute

_ID = re.compile("[0-9a-f]{32}")
_NEEDED = ("flags", "exit_status", "started")
BATCH_RUN = "batch_run"  # attribute of a trial: id of Guild's run of the batch
WEIGHTS_ONLY = "weights_only"  # attribute of a run that consists of weights only, see `runcatalog.sync.weights`


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
        """Return an attribute; None if the run does not have it."""
        return guild_attribute(self.directory, name)

    @cached_property
    def operation(self) -> str:
        """Name as typed after `guild run`."""
        return _operation(self.directory)

    @cached_property
    def proto_operation(self) -> str:
        """Operation of a batch's trials; "" for a run that is not a batch."""
        return _operation(self.directory / ".guild" / "proto")

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Content of its journal's run.json; empty without a journal."""
        return read_json(self.directory / "journal" / "run.json") or {}

    @cached_property
    def source(self) -> str:
        """Absolute path of the folder whose Guild file or script it was started from; "" if unknown.

        For a batch it is that of its trials' operation, since the optimizer may belong to another project.
        """
        for folder in (self.directory / ".guild" / "proto", self.directory):
            if source := _source(folder):
                return source
        environment = {} if self.facts.get("project") else self.attr("env")
        path = self.facts.get("project") or (
            environment.get("PROJECT_DIR") if isinstance(environment, dict) else ""
        )
        return path if isinstance(path, str) and os.path.isabs(path) else ""

    @cached_property
    def commit(self) -> str:
        """Commit of the project at the start; "" if unknown."""
        commit = str(self.facts.get("commit") or self.attr("vcs_commit") or "")
        return commit.removeprefix("git:").rstrip("*")  # Guild writes git:COMMIT, and * for changes

    @cached_property
    def dirty(self) -> str:
        """Digest of the uncommitted changes at the start; UNKNOWN if no digest was recorded, "" without changes."""
        if "dirty" in self.facts:
            return str(self.facts["dirty"])
        return UNKNOWN if str(self.attr("vcs_commit") or "").endswith("*") else ""

    @property
    def damaged(self) -> list[str]:
        """Names of the attributes on which its record depends and that cannot be read, as after a full disk."""
        return [name for name in _NEEDED if is_damaged_attribute(self.directory, name)]

    @cached_property
    def is_waiting(self) -> bool:
        """Whether the run is staged or pending, and so has not begun."""
        guild = self.directory / ".guild"
        return (guild / "STAGED").exists() or (guild / "PENDING").exists()

    @property
    def is_kept(self) -> bool:
        """Whether Guild still has it."""
        return (self.directory / ".guild" / "opref").is_file()

    @property
    def has_begun(self) -> bool:
        """Whether it is a run: not waiting, nor of weights only, nor one whose flags the script refused."""
        return (
            self.is_kept
            and not self.is_waiting
            and not self.attr(WEIGHTS_ONLY)
            and not self.attr(REFUSED)
        )

    @cached_property
    def stamp(self) -> str:
        """See :func:`runcatalog.guild.file_stamps.stamp_of`."""
        return file_stamps.stamp_of(self.where)

    @cached_property
    def flags(self) -> dict[str, Any]:
        """The flags that have a value; empty for a batch, whose flags are its optimizer's."""
        value = self.attr("flags")
        found = value if isinstance(value, dict) else {}
        return {name: each for name, each in found.items() if each is not None}

    @cached_property
    def hide(self) -> Redactor:
        """Redactor of the secrets in the run's environment."""
        return Redactor.for_run(self.directory)

    @property
    def shown_flags(self) -> dict[str, Any]:
        """The flags without secrets."""
        return {name: self.hide.flag(name, value) for name, value in self.flags.items()}

    @cached_property
    def label(self) -> str:
        """Label given by the user; "" for the label that Guild creates from the flags."""
        label = str(self.attr("label") or "")
        return "" if not label or is_automatic(label, self.flags) else self.hide.text(label)

    @cached_property
    def started(self) -> int | None:
        """Milliseconds since the epoch."""
        value = self.attr("started") or self.attr("initialized")
        return value // 1000 if _is_time(value) else None

    @cached_property
    def wall_seconds(self) -> float | None:
        """Seconds from start to end."""
        begin, end = self.attr("started"), self.attr("stopped")
        both = _is_time(begin) and _is_time(end)
        return max(0.0, (end - begin) / 1e6) if both else None

    def end(self) -> tuple[str, str]:
        """Return (status, reason), from Guild's files and the output."""
        status, guild = self.attr("exit_status"), self.directory / ".guild"
        if status is None and ((guild / "LOCK.remote").exists() or _is_alive(self.directory)):
            return "RUNNING", ""
        # The script of a run that is restarted has been started before; searches note a status in trials without one.
        if not (guild / "output").exists() and (unmet := self.attr(UNMET)):
            return "FAILED", f"{NEVER_STARTED}: {self.hide.text(str(unmet))}"
        if status is None:
            return KILLED, GONE
        if status == 0:
            return FINISHED, ""
        if end := end_from_exit_status(status):
            return end
        # The output of a batch ends with the commands that continue and show it.
        noted = self._result.get("reason") if self.proto_operation else ""
        line = self.hide.text(str(noted or last_message(self.directory / ".guild" / "output")))
        return "FAILED", f"exit status {status}: {line}" if line else f"exit status {status}"

    @cached_property
    def trials(self) -> list[str]:
        """Ids of the trials that a batch's directory links to."""
        ids = []
        with contextlib.suppress(FileNotFoundError):  # removed since it was read
            for entry in os.scandir(self.directory):
                if entry.is_symlink():
                    target = os.path.basename(os.path.realpath(entry.path))
                    if _ID.fullmatch(target):
                        ids.append(target)
        return sorted(ids)

    @cached_property
    def parents(self) -> list[str]:
        """Ids of the required runs."""
        ids = re.findall(r"[0-9a-f]{32}", _text(self.directory / ".guild" / "attrs" / "deps"))
        return list(dict.fromkeys(ids))

    @cached_property
    def search(self) -> str:
        """A search's note on its trial, as JSON that fits into a tag; "" without a search."""
        note = self._note
        names = ("kind", "method", "trial", "predicted", "kernel", "acq_func", "hyperparameters")
        kept = {name: note[name] for name in names if note.get(name) not in (None, {}, "")}
        shown = json.dumps(kept, sort_keys=True, ensure_ascii=False) if note else ""
        return shown if len(shown) < 7000 else json.dumps({"kind": kept.get("kind", "")})

    @cached_property
    def objective(self) -> dict[str, Any] | None:
        """Objective of its search, as noted; None without a search."""
        objective = self._note.get("objective")
        return objective if isinstance(objective, dict) else None

    @cached_property
    def space(self) -> dict[str, Any] | None:
        """Space of its search, a range per parameter, as noted; None without a search."""
        space = self._note.get("space")
        return space if isinstance(space, dict) else None

    @cached_property
    def importance(self) -> dict[str, Any] | None:
        """Importance of the parameters, computed at the end of a search; None without it."""
        if not self.proto_operation:
            return None
        result = self._result.get("result")
        importance = result.get("importance") if isinstance(result, dict) else None
        return importance if isinstance(importance, dict) else None

    @property
    def _result(self) -> dict[str, Any]:
        return read_json(self.directory / "result.json") or {}

    @cached_property
    def method(self) -> str:
        """Method of its search: "gp" or "random"; "" without a search."""
        return str(self._note.get("method") or "")

    @cached_property
    def _note(self) -> dict[str, Any]:
        return read_json(self.directory / "search.json") or {}

    @cached_property
    def origin(self) -> str:
        """Key that is equal for the trials of a batch, since they copy its prototype, and unique to the batch."""
        begun, seed = self.attr("initialized"), self.attr("random_seed")
        if begun is None or seed is None:
            return ""
        return hashlib.sha256(f"{_opref(self.directory)} {begun} {seed}".encode()).hexdigest()[:32]

    @cached_property
    def batch_run(self) -> str:
        """Id of the batch that started it, which Guild may have deleted since; "" if it was not noted."""
        noted = str(self.attr(BATCH_RUN) or "")
        return noted if _ID.fullmatch(noted) else ""

    @cached_property
    def proto_origin(self) -> str:
        """The trials' `origin`, for a batch."""
        proto = GuildRun("", f"{self.where}/.guild/proto")
        return proto.origin if self.proto_operation else ""


@dataclass
class Batch:
    """A batch and its trials.

    Attributes:
        key: The trials' `origin`; independent of whether Guild kept the batch's directory.
        id: Id of Guild's run, also if it was deleted; the key if it is not known.
        operation: Operation of the trials, or of the batch if the project declares it.
        trials: Ids of the trials.
        run: The batch's own run; None if Guild deleted it, as it does at the end of a grid.
        method: The optimizer: "grid", or the operation's name, such as "gp".
    """

    key: str
    id: str
    operation: str
    trials: list[str] = field(default_factory=list)
    run: GuildRun | None = None
    method: str = "grid"

    def end(self) -> tuple[str, str]:
        """Return (status, reason).

        A batch whose directory Guild has deleted, perhaps since it was read, has finished.
        """
        end = self.run.end() if self.run else None
        is_kept = self.run is not None and self.run.directory.is_dir()
        return end if end and is_kept else (FINISHED, "")


def guild_home() -> Path | None:
    """Return the folder with Guild's runs, in Guild's order of precedence; None without one.

    $GUILD_HOME, else `.guild` of the active environment, else (if the command was called by its path) of this Python's
    environment, else of the nearest enclosing folder.

    Raises:
        CatalogError: $GUILD_HOME is not a directory.
    """
    given = os.environ.get("GUILD_HOME")
    if given:
        if not Path(given).is_dir():
            raise CatalogError(f"GUILD_HOME={given} is not a directory")
        return Path(given)
    for base in (os.environ.get("CONDA_PREFIX"), os.environ.get("VIRTUAL_ENV")):
        if base:  # Guild uses the first variable that is set
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


FORMAT = 5  # changes when the meaning of a cached field changes
# Fields of GuildRun that depend only on the files in _PARTS.
FIELDS = (
    *("operation", "proto_operation", "origin", "proto_origin", "label", "started"),
    *("wall_seconds", "parents", "trials", "search", "objective"),
    *("space", "method", "importance", "stamp", "source", "batch_run"),
)
# Creating, removing or replacing a file changes the time of its folder; the begin or end of a session adds a line to
# the journal. Guild writes a label in place; a restart, which rewrites other files in place, creates a new lock.
_PARTS: tuple[str, ...] = ("", "/.guild", "/.guild/attrs", "/.guild/attrs/label")
_PARTS += ("/journal", "/journal/sessions.jsonl")
_SETTLED = 2_000_000_000  # ns; a younger file may change again without a change of its time stamp


class Cache:
    """Cached fields of runs.

    Args:
        path: File of the cache; empty if it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        content = read_json(path) or {}
        known = content.get("runs") if content.get("format") == FORMAT else None
        self._known: dict[str, Any] = known if isinstance(known, dict) else {}
        self._stamps: dict[str, str] = {}
        self._filled = 0

    def fill(self, run: GuildRun) -> bool:
        """Set the cached fields of a run; return False if it is not cached or has changed."""
        stamp = self._stamps[run.where] = _stamp(run.where)
        cached = self._known.get(run.where)
        if not stamp or cached is None or cached[0] != stamp:
            return False
        self._filled += 1
        run.__dict__.update(zip(FIELDS, cached[1:], strict=True))  # as cached_property does
        return True

    def keep(self, runs: Sequence[GuildRun]) -> None:
        """Save the fields of these runs, and of no others."""
        if self._filled == len(runs) == len(self._known):
            return
        content = {}
        for run in runs:
            stamp = self._stamps.get(run.where)
            fields = [getattr(run, name) for name in FIELDS] if stamp else []
            # Neither changed nor removed while they were read.
            if stamp and stamp == _stamp(run.where):
                content[run.where] = [stamp, *fields]
        shown = json.dumps({"format": FORMAT, "runs": content}, separators=(",", ":"))
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):  # without a cache, the next sync reads all runs again
            temporary.write_text(shown, encoding="utf-8")
            os.replace(temporary, self._path)


def _stamp(where: str) -> str:
    """Return the times of the files behind the fields; "" if a file changed too recently."""
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
    """Return the runs in a Guild home, oldest first.

    Left out are those that have not begun, and copies of a run's directory under another id, which would make a batch
    of the two.

    Args:
        home: The Guild home.
        cache: Fields cached by an earlier call.
    """
    if home is None or not (home / "runs").is_dir():
        return []
    runs = []
    for entry in os.scandir(home / "runs"):
        if _ID.fullmatch(entry.name) and entry.is_dir():
            run = GuildRun(entry.name, entry.path)
            if cache is not None and cache.fill(run):
                runs.append(run)  # cached runs have begun
            elif run.has_begun and not _is_copy(run):
                runs.append(run)
    return sorted(runs, key=lambda run: (run.started or 0, run.id))


def _is_copy(run: GuildRun) -> bool:
    own = run.attr("id")
    return isinstance(own, str) and bool(_ID.fullmatch(own)) and own != run.id


def copied(directory: Path) -> GuildRun:
    """Return the run in a copied directory, whose name may differ from the run's id.

    Raises:
        CatalogError: The id is unknown.
    """
    facts = read_json(directory / "journal" / "run.json") or {}
    known = str(facts.get("id") or guild_attribute(directory, "id") or directory.name)
    if not _ID.fullmatch(known):
        raise CatalogError(f"{directory}: name it after its run's id (32 hex digits)")
    return GuildRun(known, str(directory))


def batches(runs: Iterable[GuildRun], declared: Iterable[str]) -> list[Batch]:
    """Return the batches of runs.

    Args:
        runs: All runs.
        declared: Operations of the studies. A batch of such an operation keeps its name (`ppo:opt@gp`); any other
            batch gets the name of its trials' operation.
    """
    runs, names = list(runs), set(declared)
    by_id = {run.id: run for run in runs}
    by_key: dict[str, Batch] = {}
    for run in runs:
        if run.proto_operation:
            own = run.operation in names
            batch = Batch(
                key=run.proto_origin or run.id,
                id=run.id,
                operation=run.operation if own else run.proto_operation,
                run=run,
                method="search" if own and "@" not in run.operation else _method(run),
            )
            batch.trials = [trial for trial in run.trials if trial in by_id]
            methods = (by_id[trial].method for trial in batch.trials)
            batch.method = next(filter(None, methods), batch.method)
            by_key[batch.key] = batch
    linked = {trial for batch in by_key.values() for trial in batch.trials}
    by_origin: dict[str, list[GuildRun]] = {}
    for run in runs:
        if not run.proto_operation and run.id not in linked and run.origin:
            by_origin.setdefault(run.origin, []).append(run)
    for key, members in by_origin.items():
        known = by_key.get(key)
        if known is not None:
            known.trials = sorted({*known.trials, *(m.id for m in members)})
        elif len(members) > 1:
            noted = next((m.batch_run for m in members if m.batch_run), key)
            by_key[key] = Batch(key, noted, members[0].operation, sorted(m.id for m in members))
    return list(by_key.values())


def is_automatic(label: str, flags: Iterable[str]) -> bool:
    """Return whether a label is one that Guild creates from the flags (`lr=0.1 seed=1`)."""
    try:
        tokens = shlex.split(label)
    except ValueError:
        return False
    names = {*flags, "resume"}  # which is not among the flags of a recorded run
    return bool(tokens) and all(
        "=" in token and token.partition("=")[0] in names for token in tokens
    )


def _method(run: GuildRun) -> str:
    note = str(run.flags.get("method") or "")
    name = run.operation.rpartition(":")[2]
    if "@" in name:
        return note or name.partition("@")[2]
    return "grid" if name in ("", "+") else name


def _operation(directory: Path) -> str:
    parts = _opref_parts(directory)
    if len(parts) < 4:
        return ""
    model, name = parts[2], parts[3]
    return f"{model}:{name}" if model else name


def _source(directory: Path) -> str:
    """Return the folder of the Guild file or script of a run's operation; "" for an operation of a package."""
    parts = _opref_parts(directory)
    kind, _, where = parts[0].partition(":") if parts else ("", "", "")
    if not os.path.isabs(where):
        return ""
    return os.path.dirname(where) if kind == "guildfile" else where if kind == "script" else ""


def _opref_parts(directory: Path) -> list[str]:
    try:
        return shlex.split(_opref(directory))
    except ValueError:  # a damaged file
        return []


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


def _is_time(value: Any) -> bool:
    """Return whether a value is microseconds since the epoch."""
    return is_int64(value) and value >= 0


def _is_alive(directory: Path) -> bool:
    """Return whether the process of a run still runs: it started before Guild wrote its number into LOCK."""
    lock = directory / ".guild" / "LOCK"
    try:
        return is_alive_since(int(_text(lock)), lock.stat().st_mtime)
    except (ValueError, OSError):
        return False
