"""Which language model plays: found, loaded, made ready to be trained, and saved as a folder of `transformers`.

`model=tiny` is made from nothing (`tiny.py`) and goes the same way as a model of the hub or of a folder.
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
from textgames.models.distributed import Ranks, full, put
from textgames.models.sources import FIRST, TINY, Source, find, longest, run_of

if TYPE_CHECKING:
    import torch

_PREFIX = "model."  # of the model's tensors in a checkpoint


@dataclass(frozen=True)
class ModelConfig(record.Config):
    """Flags of the model, for every script that needs one."""

    model: str = option(
        TINY, "tiny (made here), a hub name, a folder of transformers, or a run or checkpoint of this study"
    )  # fmt: skip
    width: int = option(128, "tiny: of a token's vector", low=8, high=4096)
    layers: int = option(4, "tiny: how many", low=1, high=64)
    heads: int = option(4, "tiny: of a layer", low=1, high=64)
    precision: str = option("fp32", "of the computation", choices=("fp32", "bf16"))
    lora_rank: int = option(
        0, "of the trained low-rank matrices (LoRA); 0 trains all weights", low=0, high=1024
    )
    lora_alpha: float = option(32.0, "LoRA's scale is this over the rank", low=0, low_open=True)
    quantise: str = option(
        "none", "4bit: frozen weights in NF4, twice quantised", choices=("none", "4bit")
    )
    gradient_checkpointing: bool = option(
        False, "compute activations twice instead of keeping them"
    )
    device: str = option(
        "auto", "auto takes a GPU if there is one", choices=("auto", "cpu", "cuda")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (2 * self.heads):
            raise record.UserError(
                f"--width: {self.width} is no multiple of twice the number of heads ({2 * self.heads})"
            )


@dataclass
class Loaded:
    """A model and what belongs to it.

    Attributes:
        model: Of `transformers`, with LoRA in it if `config.lora_rank`.
        tokenizer: Its own, padding on the left.
        base: Folder that the weights without LoRA came from.
        config: The flags.
        device: Where the model is.
        run_id: Of the run that it comes from; empty if from none.
        ranks: The processes that have it.
    """

    model: Any
    tokenizer: Any
    base: Source
    config: ModelConfig
    device: torch.device
    run_id: str = field(default="")
    ranks: Ranks = field(default_factory=Ranks)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """What each forward pass is to be in: weights that are trained stay fp32, `precision` is that of products."""
        import torch

        return torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.config.precision == "bf16"
        )


# What is wrong, before anything is loaded.


def check(config: ModelConfig, needed: int, *, training: bool = True) -> Source:
    """Finds the model; what is wrong gets one line before anything is loaded.

    Args:
        config: The flags.
        needed: Tokens of the longest conversation that there can be.
        training: Weights are to be trained.

    Raises:
        UserError: There is no such model or GPU here, the conversations are too long for it, or it cannot be trained.
    """
    if config.device == "cuda" and not _cuda():
        raise record.UserError(
            "--device: this machine has no GPU that CUDA finds; device=cpu takes its processor"
        )
    if config.quantise == "4bit" and training and not config.lora_rank:
        raise record.UserError(
            "--quantise: 4-bit weights cannot be trained themselves; give a LoRA, for example lora-rank=64"
        )
    source = find(config.model)
    most = longest(source)
    if needed > most:
        raise record.UserError(
            f"--max-turns: a conversation can take {needed} tokens, {config.model} reads at most {most}; "
            "take fewer turns, shorter replies or context=last"
        )
    return source


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


# Loading and saving.


def load(
    config: ModelConfig,
    run: record.Run,
    texts: Callable[[], Sequence[str]],
    *,
    training: bool = True,
    among: Ranks | None = None,
) -> Loaded:
    """Loads the model that the flags name; `tiny` is made first.

    The base weights are bf16 only where they are frozen: under LoRA, or if nothing is trained.

    Args:
        config: The flags; `check` has found nothing wrong with them.
        run: Keeps a tiny model in its folder; its seeds are those of first weights.
        texts: Gives texts of the games, for a tiny model's tokenizer.
        training: Weights are to be trained: LoRA is put in, activations are checkpointed.
        among: The processes that have it; each loads all of it.
    """
    import torch
    from transformers import AutoTokenizer

    among = among or Ranks()
    source = find(config.model)
    if source.folder is None:
        folder = run.directory / FIRST
        if among.first and not (folder / "config.json").exists():
            _make_tiny(config, run, texts(), folder)
        source = Source(among.same(folder))
    device = torch.device("cuda" if config.device != "cpu" and _cuda() else "cpu")
    frozen = not training or bool(config.lora_rank)
    dtype = torch.bfloat16 if frozen and config.precision == "bf16" else torch.float32
    model = _weights(source, dtype, config.quantise == "4bit", device)
    tokenizer = AutoTokenizer.from_pretrained(
        source.folder, local_files_only=True, padding_side="left"
    )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if training and config.lora_rank:
        model = _with_lora(model, config, _seed(run, "first LoRA weights"))
    elif not training:
        model.requires_grad_(False)
    if training and config.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    run_id = record.load_checkpoint(source.checkpoints[-1]).run_id if source.checkpoints else ""
    return Loaded(model, tokenizer, source, config, device, run_id or run_of(config.model), among)


def _make_tiny(config: ModelConfig, run: record.Run, texts: Sequence[str], folder: Path) -> None:
    from textgames.models import tiny

    part = folder.with_name(folder.name + ".part")
    tiny.write(
        part, texts, width=config.width, layers=config.layers, heads=config.heads,
        seed=_seed(run, "first weights"),
    )  # fmt: skip
    os.rename(part, folder)


def _weights(source: Source, dtype: torch.dtype, four_bit: bool, device: torch.device) -> Any:
    """The model without LoRA: a folder's weights, and over them what was trained in checkpoints."""
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    how: dict[str, Any] = {"dtype": dtype, "local_files_only": True}
    if four_bit:
        if source.checkpoints:
            raise record.UserError(
                "--quantise: a checkpoint's weights are not quantised; give the folder of a model"
            )
        how["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )  # fmt: skip
        model = AutoModelForCausalLM.from_pretrained(source.folder, device_map=str(device), **how)
        return _same_when_it_plays(model)
    if not source.checkpoints:
        return AutoModelForCausalLM.from_pretrained(source.folder, **how).to(device)
    model = AutoModelForCausalLM.from_pretrained(source.folder, **how | {"dtype": torch.float32})
    for path in source.checkpoints:
        model = _laid_over(model, path)
    return model.to(device, dtype)


def _same_when_it_plays(model: Any) -> Any:
    """Keeps bitsandbytes from packing 4-bit weights anew for some processors as soon as a model is not in training.

    What is packed so has rounded scales, passes no gradient on, and does not come back to what it was.
    """
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False
    return model


def _laid_over(model: Any, path: Path) -> Any:
    """A model with a checkpoint's weights in it: all of them, or LoRA's merged."""
    checkpoint = record.load_checkpoint(path)
    flags = json.loads((path.parents[1] / "journal/run.json").read_text())["flags"]
    if not flags["lora-rank"]:
        _put(model, checkpoint.tensors)
        return model
    told = ModelConfig(lora_rank=flags["lora-rank"], lora_alpha=flags["lora-alpha"])
    model = _with_lora(model, told, 0)
    _put(model, checkpoint.tensors)
    return model.merge_and_unload()


def _with_lora(model: Any, config: ModelConfig, seed: int) -> Any:
    import torch
    from peft import LoraConfig, get_peft_model

    how = LoraConfig(
        r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules="all-linear",
        lora_dropout=0.0, task_type="CAUSAL_LM",
    )  # fmt: skip
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by an older name
        torch.manual_seed(seed)
        return get_peft_model(model, how)


def trainable(model: Any) -> list[torch.Tensor]:
    """The weights that are trained."""
    return [weight for weight in model.parameters() if weight.requires_grad]


def tensors(loaded: Loaded) -> dict[str, torch.Tensor]:
    """The weights that are trained, by the names that they have in a checkpoint of this study."""
    named = loaded.model.named_parameters()
    return {_PREFIX + name: full(weight.detach()) for name, weight in named if weight.requires_grad}


def restore(loaded: Loaded, stored: Mapping[str, torch.Tensor]) -> None:
    """Puts weights of `tensors` back in; others of a checkpoint may be among them."""
    _put(loaded.model, stored)


def _put(model: Any, stored: Mapping[str, torch.Tensor]) -> None:
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                put(weight, stored[_PREFIX + name])


def save(loaded: Loaded, folder: Path, *, writes: bool = True) -> None:
    """Writes model and tokenizer as `transformers` does, without LoRA in it.

    A model that is spread has to be saved by all processes, one of which writes. LoRA is merged into the weights that
    it was trained on, read again in fp32: into bf16 or 4-bit weights it would be rounded.
    """
    import torch
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model = loaded.model
    merged = bool(loaded.config.lora_rank)
    state = (
        tensors(loaded)
        if merged
        else {name: full(each) for name, each in model.state_dict().items()}
    )
    if not writes:
        return
    if merged:
        base = _weights(loaded.base, torch.float32, False, torch.device("cpu"))
        model = _with_lora(base, loaded.config, 0)
        _put(model, state)
        model = model.merge_and_unload()
    model.save_pretrained(folder, state_dict=None if merged else state)
    loaded.tokenizer.save_pretrained(folder)


def reference(loaded: Loaded) -> Any | None:
    """A frozen copy of the model as it is now; None where the model without its LoRA is as it was."""
    if loaded.config.lora_rank:
        return None
    return copy.deepcopy(loaded.model).requires_grad_(False).eval()


def _seed(run: record.Run, purpose: str) -> int:
    return int(run.seeds.sequence(purpose).generate_state(1)[0])
