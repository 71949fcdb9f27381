"""Where a language model's weights are: made here, in a folder, in a run of this study, or of a hub."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runcatalog import record
from runcatalog.record.config import RUN_ID, find_folder

TINY = "tiny"
FIRST = "first_model"  # in a run's folder: the tiny model that it began with
MODEL = "artifacts/model"  # in a run's folder: the model that came out
_HERE = f"model={TINY} needs no download"


@dataclass(frozen=True)
class Source:
    """Where a model's weights are.

    Attributes:
        folder: Of `transformers`; None for a tiny model that is yet to be made.
        checkpoints: Of this study, to be laid over it one after the other.
    """

    folder: Path | None
    checkpoints: tuple[Path, ...] = ()


def find(named: str) -> Source:
    """Returns where the model lies that a flag names; nothing is loaded.

    Raises:
        UserError: It is nowhere here, and no hub can be reached that has it.
    """
    if named == TINY:
        return Source(None)
    if (folder := find_folder(named)) is not None:
        return _in_folder(named, folder)
    if _is_path(named):
        raise record.UserError(f"the model {named} is no directory; {_HERE}")
    return Source(_of_hub(named))


def _is_path(named: str) -> bool:
    """Whether this can be no name of a hub's model."""
    return named.count("/") > 1 or named.startswith((".", "/", "~"))


def _in_folder(named: str, folder: Path) -> Source:
    if (folder / "config.json").exists():
        return Source(_whole(named, folder))
    if (folder / MODEL / "config.json").exists():
        return Source(_whole(named, folder / MODEL))
    checkpoint = record.load_checkpoint(folder)
    run = checkpoint.path.parents[1]
    if (run / FIRST / "config.json").exists():
        return Source(run / FIRST, (checkpoint.path,))
    try:
        before = str(json.loads((run / "journal/run.json").read_text())["flags"]["model"])
    except (OSError, ValueError, KeyError):
        raise record.UserError(f"{named} is no run of this study, and no model") from None
    below = find(before)
    return Source(below.folder, (*below.checkpoints, checkpoint.path))


def _whole(named: str, folder: Path) -> Path:
    """The folder, if all its weights are there."""
    index = folder / "model.safetensors.index.json"
    files = {"model.safetensors"}
    if index.exists():
        files = set(json.loads(index.read_text())["weight_map"].values())
    missing = sorted(each for each in files if not (folder / each).exists())
    if missing:
        raise record.UserError(f"the model {named} has no {missing[0]}; {_HERE}")
    return folder


def _of_hub(name: str) -> Path:
    """The folder of a hub's model in this machine's cache; downloaded if the hub can be reached."""
    import huggingface_hub
    from huggingface_hub import errors

    patterns = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
    try:
        found = Path(huggingface_hub.snapshot_download(name, local_files_only=True))
        return _whole(name, found)
    except errors.HFValidationError:
        raise record.UserError(
            f"the model {name} is no name of a hub's model, and no directory; {_HERE}"
        ) from None
    except (errors.LocalEntryNotFoundError, record.UserError):
        pass  # not here, or a part of it
    try:
        huggingface_hub.model_info(name, timeout=5)
    except errors.RepositoryNotFoundError:
        raise record.UserError(f"the hub has no model {name}, or not for you; {_HERE}") from None
    except Exception:  # offline, no route, refused, too slow: whatever the network finds
        raise record.UserError(
            f"the weights of the model {name} are not on this machine and no hub can be reached; "
            f"bring them (hf download {name}); {_HERE}"
        ) from None
    return _whole(name, Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns)))


def longest(source: Source) -> int:
    """Tokens that the model can read."""
    if source.folder is None:
        from textgames.models.tiny import LENGTH

        return LENGTH
    told = json.loads((source.folder / "config.json").read_text())
    return int(told.get("max_position_embeddings") or told.get("n_positions") or 1 << 30)


def run_of(named: str) -> str:
    """Id of the run in whose folder a model lies; empty if in none."""
    return str(_told(named).get("id", ""))


def flags_of(named: str) -> dict[str, Any]:
    """Flags of the run in whose folder a model lies; none if in none."""
    return dict(_told(named).get("flags", {}))


def lineage(named: str) -> Iterator[dict[str, Any]]:
    """Flags of each run that a model was trained in, the last one first; none of a run that is gone, or before it."""
    while named and named != TINY:
        if find_folder(named) is None:
            if _is_path(named) or RUN_ID.fullmatch(named):
                yield {}
            return
        if not (flags := flags_of(named)):
            return  # a model from elsewhere
        yield flags
        named = str(flags.get("model", ""))


def _told(named: str) -> dict[str, Any]:
    """What the run in whose folder a model lies told of itself."""
    folder = find_folder(named)
    for each in (folder, *folder.parents) if folder else ():
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads((each / "journal/run.json").read_text()))
    return {}
