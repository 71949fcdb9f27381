"""Folders of the agents that a flag names. Light to import: Guild reads flags by importing."""

from __future__ import annotations

import os
from pathlib import Path

from runcatalog import record
from runcatalog.guild import finished_runs
from runcatalog.record.config import find_folder
from skills.learning.schedule import SCHEDULES

COMBINED = ("distill", "continue", "moe", "subtasks")  # operations that train an agent from others
FOLDER = "agents"  # of the links in the run's directory


def find_agents(flag: str, words: str, directory: Path, seed: int | None = None) -> dict[str, Path]:
    """Return the folder of every agent by its name in the flag.

    Args:
        flag: Name of the flag.
        words: Its value, separated by spaces: stages or operations, whose newest finished run is taken, or folders of
            runs or checkpoints.
        directory: The run's directory, in which they are linked, so that a resumed run takes the same.
        seed: Seed of the runs that are taken for stages and operations; None for any.

    Raises:
        UserError: A word is none of these, or has no finished run.
    """
    folders = {}
    for index, word in enumerate(words.split()):
        link = directory / FOLDER / f"{index}_{Path(word).name}"
        if not link.exists():
            folder = _folder(flag, word, seed)
            link.parent.mkdir(exist_ok=True)
            link.unlink(missing_ok=True)  # of a run that is gone
            link.symlink_to(os.path.relpath(folder, link.parent.resolve()))
        folders[word] = link.resolve()
    return folders


def _folder(flag: str, word: str, seed: int | None) -> Path:
    if (path := find_folder(word)) is not None:
        return path
    if word not in (*SCHEDULES, *COMBINED) or not os.environ.get("GUILD_HOME"):
        raise record.UserError(f"--{flag}: {word!r} is neither a folder nor, under Guild, a stage")
    operation = f"skill:{word}"
    flags, given = ({}, "") if seed is None else ({"seed": seed}, f" seed={seed}")
    run_id = finished_runs.newest_finished(operation, flags)
    if not run_id or (path := find_folder(run_id)) is None:
        raise record.UserError(
            f"--{flag}: no finished run of {operation}{given}; `guild run {operation}{given}` makes one"
        )
    return path
