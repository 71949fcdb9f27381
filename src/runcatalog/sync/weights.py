"""Weights of recorded runs, to be committed with their records, and taken up by `guild import`.

A checkpoint without what only its own training needs (optimizer, environments) lies in the folder of a Guild run with
the few attributes by which Guild finds it. In a clone `guild import experiments/weights` makes runs of them, so that
operations which need a trained agent find one; what is known of the run its record tells.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from runcatalog.guild.runs import WEIGHTS_ONLY, GuildRun
from runcatalog.model.errors import CatalogError
from runcatalog.model.run_record import FINISHED, RunRecord
from runcatalog.record import checkpoint
from runcatalog.record.digest import weights_digest

LARGEST = 1_000_000  # bytes of one run's files
_ATTRIBUTES = ("id", "flags", "label", "initialized", "started", "stopped", "exit_status")


def keep(record: RunRecord, run: GuildRun, folder: Path) -> int:
    """Write a run's last checkpoint to a folder that `guild import` takes; returns its size in bytes.

    Args:
        record: What is known of the run.
        run: Where it lies.
        folder: A folder of such runs; the run's own is replaced.

    Raises:
        CatalogError: It has not ended well, its weights are not those of the record, or are too large to commit.
        UserError: There is no checkpoint, or it is damaged.
    """
    if record.status != FINISHED:
        raise CatalogError(f"{run.id[:8]} has not ended well: {record.status}")
    found = checkpoint.load_checkpoint(run.directory)
    told = (record.digest or {}).get("weights")
    if told != weights_digest(found.tensors):
        raise CatalogError(
            f"{run.id[:8]}: its last checkpoint has other weights than its record tells"
        )
    into = folder / run.id
    shutil.rmtree(into, ignore_errors=True)
    checkpoint.save_checkpoint(
        into / "checkpoints", found.step, found.tensors, _plain(found.state) or {}, run_id=run.id
    )
    _attributes(run, into / ".guild")
    size = sum(path.stat().st_size for path in into.rglob("*") if path.is_file())
    if size > LARGEST:
        shutil.rmtree(into)
        raise CatalogError(f"{run.id[:8]}: {size} bytes of weights, of which {LARGEST} are kept")
    return size


def _plain(state: Any) -> Any:
    """A checkpoint's state without arrays and what holds nothing else."""
    if isinstance(state, dict):
        kept = {name: _plain(value) for name, value in state.items()}
        return {name: value for name, value in kept.items() if value is not None} or None
    if isinstance(state, list | tuple):
        return state if all(isinstance(each, str | int | float) for each in state) else None
    return state if isinstance(state, str | int | float) else None


def _attributes(run: GuildRun, into: Path) -> None:
    """What Guild finds a run by; nothing of the machine on which it ran."""
    import yaml

    (into / "attrs").mkdir(parents=True)
    model, _, name = run.operation.rpartition(":")
    (into / "opref").write_text(f"guildfile:guild.yml '' '{model}' {name}")
    attributes = {each: run.attr(each) for each in _ATTRIBUTES} | {WEIGHTS_ONLY: True}
    for each, value in attributes.items():
        if value is not None:
            (into / "attrs" / each).write_text(yaml.safe_dump(value).removesuffix("...\n"))
