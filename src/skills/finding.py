"""Where the agents lie that a flag names. Light to import: Guild reads flags by importing."""

from __future__ import annotations

import os
from pathlib import Path

from runcatalog import record
from runcatalog.guild import child_runs
from runcatalog.record.config import find_folder
from skills.schedule import COURSES

OTHERS = (
    "distill",
    "continue",
    "moe",
)  # operations that train agents, besides those of single stages


def located(flag: str, words: str, run: record.Run) -> dict[str, Path]:
    """The folder of each agent, by the name in the flag; kept, so that a run that goes on takes the same.

    Args:
        flag: The flag's name.
        words: Its value: stages or operations, whose newest finished run is taken, or folders of runs or
            checkpoints, separated by spaces.
        run: In whose folder the answer is kept.

    Raises:
        UserError: One is none of these, or has no finished run.
    """
    from runcatalog.record import journal

    path = run.directory / "agents.json"
    known = journal.read_json(path) or {}
    for word in words.split():
        if word not in known:
            known[word] = str(_folder(flag, word))
    journal.write_json(path, known)
    return {word: Path(known[word]) for word in words.split()}


def _folder(flag: str, word: str) -> Path:
    if (path := find_folder(word)) is not None:
        return path
    if word not in (*COURSES, *OTHERS) or not os.environ.get("GUILD_HOME"):
        raise record.UserError(f"--{flag}: {word!r} is neither a folder nor, under Guild, a stage")
    operation = f"skill:{word}"
    if not (found := child_runs.newest_finished(operation, {})):
        raise record.UserError(
            f"--{flag}: no finished run of {operation}; `guild run {operation}` makes one"
        )
    return child_runs.ChildRun(operation, found).directory
