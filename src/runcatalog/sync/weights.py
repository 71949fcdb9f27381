"""Committed weights of recorded runs, for `guild import`.

A checkpoint without optimizer and environment state is stored in the folder of a Guild run with the attributes that
Guild needs to find it. In a clone, `guild import experiments/weights` creates runs from these folders, for operations
that require a trained agent; all other data of the run is in its record.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from runcatalog.guild.runs import WEIGHTS_ONLY, GuildRun
from runcatalog.model.errors import CatalogError
from runcatalog.model.run_record import FINISHED, RunRecord
from runcatalog.record.digest import weights_digest
from runcatalog.record.training import checkpoint

MAX_BYTES = 1_000_000  # bytes of one run's files
_ATTRIBUTES = ("id", "flags", "label", "initialized", "started", "stopped", "exit_status")


def export_weights(record: RunRecord, run: GuildRun, folder: Path) -> int:
    """Write a run's last checkpoint to a folder for `guild import`; return its size in bytes.

    Args:
        record: Record of the run.
        run: The Guild run.
        folder: Folder of exported runs; an older export of the run is then replaced.

    Raises:
        CatalogError: The run has not finished, its weights differ from the record's digest, or exceed MAX_BYTES.
        UserError: The run has no checkpoint, or it is damaged.
    """
    if record.status != FINISHED:
        raise CatalogError(f"{run.id[:8]} has not finished: {record.status}")
    checkpoint_ = checkpoint.load_checkpoint(run.directory)
    recorded_digest = (record.digest or {}).get("weights")
    if recorded_digest != weights_digest(checkpoint_.tensors):
        raise CatalogError(f"{run.id[:8]}: its last checkpoint has other weights than its record")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=folder) as temporary:
        new, target = Path(temporary) / run.id, folder / run.id
        checkpoint.save_checkpoint(
            new / "checkpoints",
            checkpoint_.step,
            checkpoint_.tensors,
            _scalars_only(checkpoint_.state) or {},
            run_id=run.id,
        )
        _write_guild_attributes(run, new / ".guild")
        size = sum(path.stat().st_size for path in new.rglob("*") if path.is_file())
        if size > MAX_BYTES:
            raise CatalogError(
                f"{run.id[:8]}: {size} bytes of weights, more than the limit of {MAX_BYTES}"
            )
        shutil.rmtree(target, ignore_errors=True)
        new.rename(target)
    return size


def _scalars_only(state: Any) -> Any:
    """Return a checkpoint's state without arrays and containers of arrays; None if nothing is left."""
    if isinstance(state, dict):
        entries = {name: _scalars_only(value) for name, value in state.items()}
        return {name: value for name, value in entries.items() if value is not None} or None
    if isinstance(state, list | tuple):
        return state if all(isinstance(item, str | int | float) for item in state) else None
    return state if isinstance(state, str | int | float) else None


def _write_guild_attributes(run: GuildRun, guild_folder: Path) -> None:
    """Write the attributes that Guild needs to find a run; none of them identifies the machine."""
    import yaml

    (guild_folder / "attrs").mkdir(parents=True)
    model, _, name = run.operation.rpartition(":")
    (guild_folder / "opref").write_text(f"guildfile:guild.yml '' '{model}' {name}")
    attributes = {name_: run.attr(name_) for name_ in _ATTRIBUTES} | {WEIGHTS_ONLY: True}
    for name_, value in attributes.items():
        if value is not None:
            (guild_folder / "attrs" / name_).write_text(yaml.safe_dump(value).removesuffix("...\n"))
