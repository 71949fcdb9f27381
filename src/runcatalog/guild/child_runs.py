"""Guild runs that a run starts itself: ordinary runs, started where missing, gone on with where interrupted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runcatalog.guild import child_environment
from runcatalog.record import journal
from runcatalog.record.errors import RunFailed

POLL = 0.5  # s between two looks at what goes on
# Flags on which no result depends: of two runs that differ in these alone, one may stand for the other.
NEUTRAL = frozenset(
    {"resume", "threads", "envs-per-call", "video", "save-interval", "save-freq", "val-batch-size"}
)


@dataclass
class Child:
    """A Guild run that another run starts.

    Attributes:
        operation: Of Guild.
        run: Id, 32 hex digits.
    """

    operation: str
    run: str = ""

    @property
    def directory(self) -> Path:
        """Of its run."""
        return Path(os.environ["GUILD_HOME"]) / "runs" / self.run

    @property
    def finished(self) -> bool:
        """Return whether the run has ended well."""
        status = self.directory / ".guild" / "attrs" / "exit_status"
        return status.exists() and status.read_text().strip() == "0"

    @property
    def written(self) -> dict[str, Any]:
        """What the run left in the end: `result.json`."""
        return json.loads((self.directory / "result.json").read_text())

    def start(
        self, flags: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start the run as a user would, with flags as they are typed; one that has begun goes on.

        Args:
            flags: By name.
            environment: Variables besides those that there are.
        """
        # Guild rewrites its attributes in place whenever it starts a run; a kill in that moment leaves one empty or
        # none. Without its flags a run would go on at the defaults, and without the operation not at all.
        if self._known_to_guild():
            words = ["run", "--yes", "--restart", self.run]
        else:
            words = ["run", "--yes", self.operation, "--run-dir", str(self.directory)]
        words += [f"{name}={value}" for name, value in flags.items()]
        command = [sys.executable, "-m", "guild.main_bootstrap", *words]
        folder = os.environ.get("PROJECT_DIR", ".")
        return subprocess.Popen(
            command, cwd=folder, env={**child_environment.environment(), **(environment or {})}
        )

    def _known_to_guild(self) -> bool:
        """Return whether the run has begun, and Guild's attributes tell how."""
        import yaml

        from runcatalog.guild.compat import run

        began = run.for_dir(str(self.directory))
        try:
            return bool(began.get("started") and (began.get("op") or {}).get("op-cmd"))
        except (yaml.YAMLError, AttributeError):
            return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a run that still goes on, as a user would: its script first, which writes how it ended, then Guild."""
    import psutil

    if process.poll() is not None:
        return
    try:
        for child in psutil.Process(process.pid).children():
            child.terminate()
        process.wait()
    except psutil.NoSuchProcess:
        pass


def newest(operation: str, flags: Mapping[str, Any]) -> str | None:
    """Return the newest run of an operation that ended well with these flags, whatever its others, 32 hex digits.

    Args:
        operation: Of Guild.
        flags: As they are typed.
    """
    return next(_ended(operation, _decoded(flags)), None)


def same(operation: str, flags: Mapping[str, Any]) -> Iterator[str]:
    """Return the runs of an operation that ended well and are what these flags start now, the newest first.

    A flag that is not typed has to have the operation's default, unless it is one of `NEUTRAL`. A flag that a run
    does not know, since it is older, counts as its default. What a run required of another is a flag too, the run
    that it took; where none is typed, it has to have taken none.

    Args:
        operation: Of Guild, of the project in whose name this process runs.
        flags: As they are typed; runs with all their 32 hex digits.
    """
    from runcatalog.guild.compat import guildfile, op_util

    model, _, name = operation.partition(":")
    declared = guildfile.for_dir(os.environ.get("PROJECT_DIR", ".")).models.get(model)
    definition = declared.get_operation(name) if declared else None
    if definition is None:
        return
    typed = _decoded(flags)
    wanted = op_util.flag_vals_for_opdef(definition, typed, force=True)
    compared = {n: v for n, v in wanted.items() if n in typed or n not in NEUTRAL}
    defaults = op_util.flag_vals_for_opdef(definition, {}, force=True)
    yield from _ended(operation, compared, defaults)


def _ended(
    operation: str, flags: Mapping[str, Any], unknown: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """Run that ended well with these flags; `unknown`: the values of those that a run does not tell."""
    from runcatalog.guild.compat import var

    for run in var.runs(sort=["-timestamp"]):
        named = f"{run.opref.model_name}:{run.opref.op_name}"
        if run.get("exit_status") == 0 and named == operation:
            had = {**(unknown or {}), **(run.get("flags") or {})}
            if all(had.get(name) == value for name, value in flags.items()):
                yield run.id


def _decoded(flags: Mapping[str, Any]) -> dict[str, Any]:
    from runcatalog.guild.compat import flag_util

    return {name: flag_util.decode_flag_val(str(value)) for name, value in flags.items()}


@dataclass(kw_only=True)
class Link(Child):
    """One of many runs that depend on each other.

    Attributes:
        name: Its own among them.
        flags: As they are typed.
        after: Flag or resource by name of the link whose run is put there.
        run: Empty before :func:`plan`, unless a finished one is to be taken.
    """

    name: str
    flags: dict[str, str]
    after: dict[str, str] = field(default_factory=dict)


def plan(path: Path, links: Sequence[Link]) -> dict[str, Link]:
    """Return every link a run: that of an interrupted study, else a new one. Kept in a file before any starts.

    Args:
        path: The file.
        links: In an order in which each comes after those it needs.
    """
    known = json.loads(path.read_text()) if path.exists() else {}
    for link in links:
        link.run = known.get(link.name) or link.run or uuid.uuid4().hex
    journal.write_json(path, {link.name: link.run for link in links})
    return {link.name: link for link in links}


def complete(
    links: Mapping[str, Link],
    places: int | Sequence[Mapping[str, str]],
    told: Callable[[str], None],
    done: Callable[[int], None],
    failed: Callable[[Link, int], None] | None = None,
) -> None:
    """Run what is missing, one at a place, each after those it needs.

    Args:
        links: By name, as :func:`plan` gives them.
        places: How many run at a time; or for each place the environment's variables of what runs there.
        told: Called with a line when a run begins.
        done: Called with the number of runs that ended.
        failed: Called with a run that did not end well, and its exit status; the others go on, but for those that need
            it, which are never started.

    Raises:
        RunFailed: A run did not end well, and there is no `failed`; those beside it are stopped.
    """
    free = [dict(each) for each in ([{}] * places if isinstance(places, int) else places)]
    going: dict[str, tuple[subprocess.Popen[bytes], dict[str, str]]] = {}
    lost: set[str] = set()
    try:
        while missing := [
            link for link in links.values() if link.name not in lost and not link.finished
        ]:
            done(len(links) - len(missing))
            for link in missing:
                ready = all(links[each].finished for each in link.after.values())
                if ready and link.name not in going and free:
                    told(f"{link.name}: {link.operation}, run {link.run[:8]}")
                    runs = {flag: links[of].run for flag, of in link.after.items()}
                    place = free.pop(0)
                    going[link.name] = link.start(link.flags | runs, place), place
            time.sleep(POLL)
            for name, (process, place) in list(going.items()):
                code = process.poll()
                if code is None:
                    continue
                del going[name]
                free.append(place)
                if code == 0 and links[name].finished:
                    continue
                if failed is None:
                    raise RunFailed(
                        f"{name}: {links[name].operation}, run {links[name].run[:8]}, "
                        f"ended with status {code}"
                    )
                lost.add(name)
                for link in links.values():  # each comes after those it needs
                    if lost.intersection(link.after.values()):
                        lost.add(link.name)
                failed(links[name], code)
        done(len(links))
    finally:
        for process, _ in going.values():
            stop(process)
