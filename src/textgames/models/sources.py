"""Sources of a language model's weights: created here, a folder, a run of this study, or a hub."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runcatalog import record
from runcatalog.record.config import RUN_ID, find_folder
from runcatalog.record.lifecycle.signals import is_disk_full, out_of_memory
from runcatalog.record.training.checkpoint import find_checkpoint

TINY = "tiny"
FIRST = "first_model"  # in a run's folder: the tiny model that it started from
MODEL = "artifacts/model"  # in a run's folder: the trained model
_HINT = f"model={TINY} needs no download"


@dataclass(frozen=True)
class Source:
    """Location of a model's weights.

    Attributes:
        folder: Folder of `transformers`; None for a tiny model that does not exist yet.
        checkpoints: Checkpoints of this study whose weights replace the folder's, in this order.
    """

    folder: Path | None
    checkpoints: tuple[Path, ...] = ()


def find(named: str) -> Source:
    """Return the location of the model that a flag names; nothing is loaded.

    Raises:
        UserError: The model is not on this machine, and no reachable hub has it.
    """
    if named == TINY:
        return Source(None)
    if (folder := find_folder(named)) is not None:
        return _in_folder(named, folder)
    if _is_path(named):
        raise record.UserError(f"the model {named} is no directory; {_HINT}")
    return Source(_of_hub(named))


def _is_path(named: str) -> bool:
    """Return whether a name cannot be that of a model of the hub."""
    return named.count("/") > 1 or named.startswith((".", "/", "~"))


def _in_folder(named: str, folder: Path) -> Source:
    if (folder / "config.json").exists():
        return Source(_complete(named, folder))
    if (folder / MODEL / "config.json").exists():
        return Source(_complete(named, folder / MODEL))
    try:
        checkpoint = find_checkpoint(folder)
    except record.UserError:
        raise record.UserError(
            f"the model {named} has no config.json, and it is no run or checkpoint of this study; {_HINT}"
        ) from None
    run = checkpoint.parents[1]
    if (run / FIRST / "config.json").exists():
        return Source(run / FIRST, (checkpoint,))
    try:
        parent = str(json.loads((run / "journal/run.json").read_bytes())["flags"]["model"])
    except (OSError, ValueError, KeyError):
        raise record.UserError(f"{named} is no run of this study, and no model") from None
    base = find(parent)
    return Source(base.folder, (*base.checkpoints, checkpoint))


def _complete(named: str, folder: Path) -> Path:
    """Return the folder if all its weights exist."""
    index = folder / "model.safetensors.index.json"
    files = {"model.safetensors"}
    if index.exists():
        try:
            files = set(json.loads(index.read_bytes())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError):
            raise record.UserError(
                f"the model {named} has a damaged {index.name}; {_HINT}"
            ) from None
    missing = sorted(name for name in files if not (folder / name).exists())
    if missing:
        raise record.UserError(f"the model {named} has no {missing[0]}; {_HINT}")
    return folder


def _of_hub(name: str) -> Path:
    """Return the folder of a hub's model in this machine's cache, downloaded if the hub is reachable."""
    import huggingface_hub
    from huggingface_hub import errors

    patterns = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
    try:
        return _complete(name, Path(huggingface_hub.snapshot_download(name, local_files_only=True)))
    except errors.HFValidationError:
        raise record.UserError(
            f"the model {name} is neither a name of a hub's model nor a directory; {_HINT}"
        ) from None
    except (errors.LocalEntryNotFoundError, record.UserError):
        pass  # not or only partly on this machine
    try:
        huggingface_hub.model_info(name, timeout=5)
    except errors.RepositoryNotFoundError:
        raise record.UserError(f"the hub has no public model {name}; {_HINT}") from None
    except Exception:  # offline, no route, refused, too slow
        raise record.UserError(
            f"the weights of the model {name} are not on this machine and no hub can be reached; "
            f"copy them here (hf download {name}); {_HINT}"
        ) from None
    return _complete(name, Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns)))


def pretrained(kind: Any, folder: Path, **options: Any) -> Any:
    """Return what a class of `transformers` loads from a folder; code in the folder is not run.

    Args:
        kind: `AutoConfig`, `AutoTokenizer` or `AutoModelForCausalLM`.
        folder: Folder of a model.
        options: Further arguments of `from_pretrained`.

    Raises:
        UserError: The model needs code of its own, or its files are damaged or of no known architecture.
    """
    from safetensors import SafetensorError

    try:
        return kind.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **options
        )
    except (OSError, ValueError, SafetensorError) as error:
        if "trust_remote_code" not in str(error):
            if is_disk_full(error) or out_of_memory(error):
                raise
            reason = str(error).strip().partition("\n")[0]
            raise record.UserError(
                f"--model: `transformers` cannot read {folder}: {reason}"
            ) from None
        raise record.UserError(
            f"--model: {folder} needs code of its own (auto_map), which is never run; "
            "use a model whose architecture `transformers` has"
        ) from None


def load_weights(folder: Path, **options: Any) -> Any:
    """Return the model of a folder.

    Args:
        folder: Folder of a model.
        options: Further arguments of `from_pretrained`.

    Raises:
        UserError: See `pretrained`; or the files lack weights of the model that `config.json` describes.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()  # the error below is shorter than its table
    try:
        model, loaded = pretrained(
            AutoModelForCausalLM, folder, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )  # fmt: skip
    finally:
        logging.set_verbosity(level)
    wrong = sorted({*loaded["missing_keys"], *(name for name, *_ in loaded["mismatched_keys"])})
    if wrong:
        raise record.UserError(
            f"--model: the weights in {folder} are not those of its config.json: {wrong[0]} is missing or has another "
            f"size ({len(wrong)} of them)"
        )
    return model


def check_architecture(folder: Path) -> Any:
    """Return a model's configuration.

    Raises:
        UserError: See `pretrained`; or it is no causal language model.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = pretrained(AutoConfig, folder)
    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, ())
    names = [causal] if isinstance(causal, str) else list(causal)
    stored = config.architectures or names[:1]
    if not {*names} & {*stored}:
        raise record.UserError(
            f"--model: {folder} has the architecture {', '.join(stored) or config.model_type}, which is no causal "
            "language model of `transformers`"
        )
    return config


def longest(source: Source) -> int:
    """Return the longest conversation that the model can read [tokens]."""
    if source.folder is None:
        from textgames.models.tiny import LENGTH

        return LENGTH
    config = json.loads((source.folder / "config.json").read_bytes())
    return int(config.get("max_position_embeddings") or config.get("n_positions") or 1 << 30)


def run_of(named: str) -> str:
    """Return the id of the run that contains a model; empty if none does."""
    return str(_run_json(named).get("id", ""))


def flags_of(named: str) -> dict[str, Any]:
    """Return the flags of the run that contains a model; empty if none does."""
    return dict(_run_json(named).get("flags", {}))


def lineage(named: str) -> Iterator[dict[str, Any]]:
    """Yield the flags of the runs that trained a model, the last run first; a missing run has none and is the end."""
    while named and named != TINY:
        if find_folder(named) is None:
            if _is_path(named) or RUN_ID.fullmatch(named):
                yield {}
            return
        if not (flags := flags_of(named)):
            return  # a model from elsewhere
        yield flags
        named = str(flags.get("model", ""))


def _run_json(named: str) -> dict[str, Any]:
    """Return `run.json` of the run that contains a model; empty if none does."""
    folder = find_folder(named)
    for parent in (folder, *folder.parents) if folder else ():
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads((parent / "journal/run.json").read_bytes()))
    return {}
