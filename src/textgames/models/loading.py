"""Language models: loaded, prepared for training, and saved as a folder of `transformers`.

`model=tiny` is created here (`tiny.py`) and then treated like a model of the hub or of a folder.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.record import option
from textgames.models.distributed import Ranks, copy_into, full_tensor
from textgames.models.sources import (
    FIRST,
    TINY,
    Source,
    find,
    load_weights,
    longest,
    pretrained,
    run_of,
)

if TYPE_CHECKING:
    import torch

_PREFIX = "model."  # of the names of the model's tensors in a checkpoint


@dataclass(frozen=True)
class ModelConfig(record.Config):
    """Flags of the model."""

    model: str = option(
        TINY, "tiny (created here), a hub name, a folder of transformers, or a run or checkpoint of this study"
    )  # fmt: skip
    width: int = option(128, "tiny: width of a token's vector", low=8, high=4096)
    layers: int = option(4, "tiny: number of layers", low=1, high=64)
    heads: int = option(4, "tiny: attention heads of a layer", low=1, high=64)
    precision: str = option("fp32", "precision of the computation", choices=("fp32", "bf16"))
    lora_rank: int = option(
        0, "rank of LoRA, whose matrices alone are trained; 0 trains all weights", low=0, high=1024
    )
    lora_alpha: float = option(32.0, "scale of LoRA times its rank", low=0, low_open=True)
    quantise: str = option(
        "none", "4bit: frozen weights in NF4 with double quantisation", choices=("none", "4bit")
    )
    gradient_checkpointing: bool = option(False, "recompute activations instead of storing them")
    device: str = option("auto", "auto uses a GPU if there is one", choices=("auto", "cpu", "cuda"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (2 * self.heads):
            raise record.UserError(
                f"--width: {self.width} is no multiple of twice the number of heads ({2 * self.heads})"
            )


@dataclass
class Loaded:
    """A loaded model.

    Attributes:
        model: A model of `transformers`, with LoRA if `config.lora_rank`.
        tokenizer: Its tokenizer, padding on the left.
        base: Source of the weights without LoRA.
        config: The flags.
        device: Device of the model.
        run_id: Id of the run that the model comes from; empty if it comes from elsewhere.
        ranks: The processes that share the model.
    """

    model: Any
    tokenizer: Any
    base: Source
    config: ModelConfig
    device: torch.device
    run_id: str = field(default="")
    ranks: Ranks = field(default_factory=Ranks)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context of a forward pass: trained weights stay fp32, products have the flag's `precision`."""
        import torch

        return torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.config.precision == "bf16"
        )


def check(config: ModelConfig, needed: int, *, training: bool = True) -> Source:
    """Return the source of the model, after checks that need no weights.

    Args:
        config: The flags.
        needed: Length of the longest possible conversation [tokens].
        training: The model is to be trained.

    Raises:
        UserError: The model or a GPU is missing, conversations are too long, or the model cannot be trained.
    """
    if config.device == "cuda" and not _cuda():
        raise record.UserError(
            "--device: CUDA finds no GPU on this machine; device=cpu uses its processor"
        )
    if config.quantise == "4bit" and training and not config.lora_rank:
        raise record.UserError(
            "--quantise: 4-bit weights cannot be trained; train a LoRA on them, for example lora-rank=64"
        )
    source = find(config.model)
    most = longest(source)
    if needed > most:
        raise record.UserError(
            f"--max-turns: a conversation can have {needed} tokens, {config.model} reads at most {most}; "
            "use fewer turns, shorter replies or context=last"
        )
    return source


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def load(
    config: ModelConfig,
    run: record.Run,
    texts: Callable[[], Sequence[str]],
    *,
    training: bool = True,
    ranks: Ranks | None = None,
) -> Loaded:
    """Load the model of the flags; a `tiny` model is created first.

    Base weights are bf16 only if they are frozen: below LoRA, or without training.

    Args:
        config: The flags, checked by `check`.
        run: Its folder receives a tiny model, and its seeds initialise weights.
        texts: Returns texts of the games, for a tiny model's tokenizer.
        training: Prepare training: add LoRA and activation checkpointing.
        ranks: The processes that share the model; every process loads all of it.
    """
    import torch
    from transformers import AutoTokenizer

    ranks = ranks or Ranks()
    source = find(config.model)
    if source.folder is None:
        folder = run.directory / FIRST
        if ranks.first and not (folder / "config.json").exists():
            _make_tiny(config, run, texts(), folder)
        source = Source(ranks.broadcast(folder))
    device = torch.device("cuda" if config.device != "cpu" and _cuda() else "cpu")
    frozen = not training or bool(config.lora_rank)
    dtype = torch.bfloat16 if frozen and config.precision == "bf16" else torch.float32
    model = _weights(source, dtype, config.quantise == "4bit", device)
    tokenizer = pretrained(AutoTokenizer, source.folder, padding_side="left")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if training and config.lora_rank:
        model = _with_lora(model, config, run.seeds.integer("first LoRA weights"))
    elif not training:
        model.requires_grad_(False)
    if training and config.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    run_id = record.load_checkpoint(source.checkpoints[-1]).run_id if source.checkpoints else ""
    return Loaded(model, tokenizer, source, config, device, run_id or run_of(config.model), ranks)


def _make_tiny(config: ModelConfig, run: record.Run, texts: Sequence[str], folder: Path) -> None:
    from textgames.models import tiny

    part = folder.with_name(folder.name + ".part")
    tiny.write(
        part, texts, width=config.width, layers=config.layers, heads=config.heads,
        seed=run.seeds.integer("first weights"),
    )  # fmt: skip
    os.rename(part, folder)


def _weights(source: Source, dtype: torch.dtype, four_bit: bool, device: torch.device) -> Any:
    """Return the model without LoRA: a folder's weights, updated by the checkpoints' weights."""
    import torch
    from transformers import BitsAndBytesConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    options: dict[str, Any] = {"dtype": dtype}
    if four_bit:
        if source.checkpoints:
            raise record.UserError(
                "--quantise: the weights of a checkpoint are not quantised; give the folder of a model"
            )
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )  # fmt: skip
        model = load_weights(source.folder, device_map=str(device), **options)
        return _without_repacking(model)
    if not source.checkpoints:
        return load_weights(source.folder, **options).to(device)
    model = load_weights(source.folder, **options | {"dtype": torch.float32})
    for path in source.checkpoints:
        model = _with_checkpoint(model, path)
    return model.to(device, dtype)


def _without_repacking(model: Any) -> Any:
    """Prevent bitsandbytes from repacking 4-bit weights in evaluation mode, as it does for some processors.

    Repacked weights have rounded scales, pass no gradient, and cannot be restored.
    """
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False
    return model


def _with_checkpoint(model: Any, path: Path) -> Any:
    """Return a model with a checkpoint's weights: all weights, or LoRA's, merged."""
    checkpoint = record.load_checkpoint(path)
    flags = json.loads((path.parents[1] / "journal/run.json").read_bytes())["flags"]
    if not flags["lora-rank"]:
        _copy_tensors(model, checkpoint.tensors)
        return model
    config = ModelConfig(lora_rank=flags["lora-rank"], lora_alpha=flags["lora-alpha"])
    model = _with_lora(model, config, 0)
    _copy_tensors(model, checkpoint.tensors)
    return model.merge_and_unload().requires_grad_(True)  # the LoRA had frozen it


def _with_lora(model: Any, config: ModelConfig, seed: int) -> Any:
    import torch
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(
        r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules="all-linear",
        lora_dropout=0.0, task_type="CAUSAL_LM",
    )  # fmt: skip
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft uses an older name of transformers
        torch.manual_seed(seed)
        return get_peft_model(model, lora)


def trainable(model: Any) -> list[torch.Tensor]:
    """Return the trained weights."""
    return [weight for weight in model.parameters() if weight.requires_grad]


def tensors(loaded: Loaded) -> dict[str, torch.Tensor]:
    """Return the trained weights by their names in a checkpoint."""
    named = loaded.model.named_parameters()
    return {
        _PREFIX + name: full_tensor(weight.detach())
        for name, weight in named
        if weight.requires_grad
    }


def restore(loaded: Loaded, stored: Mapping[str, torch.Tensor]) -> None:
    """Restore the weights of `tensors`; `stored` may contain others."""
    _copy_tensors(loaded.model, stored)


def _copy_tensors(model: Any, stored: Mapping[str, torch.Tensor]) -> None:
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                copy_into(weight, stored[_PREFIX + name])


def save(loaded: Loaded, folder: Path, *, writes: bool = True) -> None:
    """Save model and tokenizer as a folder of `transformers`, with LoRA merged.

    LoRA is merged into the weights on which it was trained, loaded again in fp32: bf16 or 4 bits would round it.

    Args:
        loaded: The model; all processes have to call this if it is sharded.
        folder: The folder.
        writes: Whether the current process writes the files.
    """
    import torch
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model = loaded.model
    merged = bool(loaded.config.lora_rank)
    state = (
        tensors(loaded)
        if merged
        else {name: full_tensor(value) for name, value in model.state_dict().items()}
    )
    if not writes:
        return
    if merged:
        base = _weights(loaded.base, torch.float32, False, torch.device("cpu"))
        model = _with_lora(base, loaded.config, 0)
        _copy_tensors(model, state)
        model = model.merge_and_unload()
    model.save_pretrained(folder, state_dict=None if merged else state)
    loaded.tokenizer.save_pretrained(folder)


def reference(loaded: Loaded) -> Any | None:
    """Return a frozen copy of the model; None with LoRA, without which the model does not change."""
    if loaded.config.lora_rank:
        return None
    return copy.deepcopy(loaded.model).requires_grad_(False).eval()
