"""Folders of the agents that a flag names. Light to import: Guild reads flags by importing."""

from __future__ import annotations

import os
from pathlib import Path

from runcatalog import record
from runcatalog.guild import child_runs
from runcatalog.record.config import find_folder
from skills.learning.schedule import SCHEDULES

COMBINED = ("distill", "continue", "moe")  # operations that train an agent from specialists


def find_agents(flag: str, words: str, run: record.Run) -> dict[str, Path]:
    """Return the folder of every agent by its name in the flag; saved, so that a resumed run takes the same.

    Args:
        flag: Name of the flag.
        words: Its value, separated by spaces: stages or operations, whose newest finished run is taken, or folders of
            runs or checkpoints.
        run: The run in whose directory the answer is saved.

    Raises:
        UserError: A word is none of these, or has no finished run.
    """
    from runcatalog.record import journal

    path = run.directory / "agents.json"
    folders = journal.read_json(path) or {}
    for word in words.split():
        if word not in folders:
            folders[word] = str(_folder(flag, word))
    journal.write_json(path, folders)
    return {word: Path(folders[word]) for word in words.split()}


def _folder(flag: str, word: str) -> Path:
    if (path := find_folder(word)) is not None:
        return path
    if word not in (*SCHEDULES, *COMBINED) or not os.environ.get("GUILD_HOME"):
        raise record.UserError(f"--{flag}: {word!r} is neither a folder nor, under Guild, a stage")
    operation = f"skill:{word}"
    if not (run_id := child_runs.newest_finished(operation, {})):
        raise record.UserError(
            f"--{flag}: no finished run of {operation}; `guild run {operation}` makes one"
        )
    return child_runs.ChildRun(operation, run_id).directory
