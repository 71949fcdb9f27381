"""Guild runs that depend on each other: started where they are missing, gone on with where they were interrupted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import record
from record import journal, outer

POLL = 0.5  # s between two looks at what goes on


@dataclass
class Link:
    """One run of a study.

    Attributes:
        name: Its own within the study.
        operation: Of Guild.
        flags: As they are typed.
        after: Flag or resource by name of the link whose run is put there.
        run: Id, 32 hex digits; empty before :func:`plan`, unless a finished one is to be taken.
    """

    name: str
    operation: str
    flags: dict[str, str]
    after: dict[str, str] = field(default_factory=dict)
    run: str = ""

    @property
    def directory(self) -> Path:
        """Of its run."""
        return Path(os.environ["GUILD_HOME"]) / "runs" / self.run

    @property
    def finished(self) -> bool:
        """Whether the run has ended well."""
        status = self.directory / ".guild" / "attrs" / "exit_status"
        return status.exists() and status.read_text().strip() == "0"

    def result(self) -> dict[str, Any]:
        """What the run wrote in the end."""
        return json.loads((self.directory / "result.json").read_text())["result"]


def plan(path: Path, links: Sequence[Link]) -> dict[str, Link]:
    """Gives every link a run: that of an interrupted study, else a new one. Kept in a file before any starts.

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
    links: Mapping[str, Link], jobs: int, told: Callable[[str], None], done: Callable[[int], None]
) -> None:
    """Runs what is missing, up to `jobs` at once, each after those it needs.

    Args:
        links: By name.
        jobs: Runs at a time.
        told: Called with a line when a run begins.
        done: Called with the number of finished runs.

    Raises:
        RunFailed: A run did not end well; those beside it are stopped.
    """
    going: dict[str, subprocess.Popen[bytes]] = {}
    try:
        while missing := [link for link in links.values() if not link.finished]:
            done(len(links) - len(missing))
            for link in missing:
                ready = all(links[each].finished for each in link.after.values())
                if ready and link.name not in going and len(going) < jobs:
                    told(f"{link.name}: {link.operation}, run {link.run[:8]}")
                    going[link.name] = _start(link, links)
            time.sleep(POLL)
            for name, process in list(going.items()):
                code = process.poll()
                if code is not None:
                    del going[name]
                    if code != 0 or not links[name].finished:
                        raise record.RunFailed(
                            f"{name}: {links[name].operation}, run {links[name].run[:8]}, "
                            f"ended with status {code}"
                        )
        done(len(links))
    finally:
        for process in going.values():
            _stop(process)


def existing(operation: str, flags: Mapping[str, Any]) -> str | None:
    """Returns the newest finished run of an operation that has these flags, 32 hex digits."""
    from guild import var

    for run in var.runs(sort=["-timestamp"]):
        had = run.get("flags") or {}
        same = all(had.get(name) == value for name, value in flags.items())
        named = f"{run.opref.model_name}:{run.opref.op_name}"
        if run.get("exit_status") == 0 and named == operation and same:
            return run.id
    return None


def _start(link: Link, links: Mapping[str, Link]) -> subprocess.Popen[bytes]:
    words = ["run", "--yes"]
    if (link.directory / ".guild" / "attrs" / "started").exists():
        words += ["--restart", link.run]
    else:
        words += [link.operation, "--run-dir", str(link.directory)]
        words += [f"{name}={value}" for name, value in link.flags.items()]
        words += [f"{name}={links[of].run}" for name, of in link.after.items()]
    command = [sys.executable, "-m", "guild.main_bootstrap", *words]
    folder = os.environ.get("PROJECT_DIR", ".")
    return subprocess.Popen(command, cwd=folder, env=outer.environment())


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a run as a user would: its script first, which writes how it ended, and Guild its exit status."""
    import psutil

    try:
        for child in psutil.Process(process.pid).children():
            child.terminate()
        process.wait()
    except psutil.NoSuchProcess:
        pass
