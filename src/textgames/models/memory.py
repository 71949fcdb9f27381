"""The least memory that a model takes, compared with the machine's before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import torch

from runcatalog import record
from textgames.models.loading import ModelConfig
from textgames.models.sources import find

FP32, BF16, NF4 = 4.0, 2.0, 0.5  # bytes of a weight
TRAINED = 4 * FP32  # a weight, its gradient and AdamW's two moments
GIB = 2**30


def check(
    config: ModelConfig,
    *,
    training: bool = True,
    reference: bool = False,
    critic: bool = False,
    processes: int = 1,
) -> None:
    """Check that the weights of a model fit into the memory of its device, activations not counted.

    Args:
        config: The flags of the model, which is on this machine.
        training: The model is to be trained.
        reference: Beside it a frozen copy is kept, unless a LoRA is trained.
        critic: Beside it a critic of the same size is trained.
        processes: Processes with a GPU each over which all of it is sharded.

    Raises:
        UserError: The device has less memory.
    """
    source = find(config.model)
    if source.folder is None:
        return
    count = count_weights(source.folder)
    on_gpu = config.device != "cpu" and torch.cuda.is_available()
    least = count * bytes_of_weight(config, training=training, reference=reference, critic=critic)
    least, total = (least / processes, _gpu()) if on_gpu else (least, _machine())
    if least > total:
        what = "each GPU" if processes > 1 else "the GPU"
        raise record.UserError(
            f"--model: {config.model} has {count / 1e9:.3g} billion weights, for which this run needs "
            f"{least / GIB:.1f} GiB of memory without activations; {what if on_gpu else 'this machine'} has "
            f"{total / GIB:.1f} GiB. LoRA (lora-rank=64) with precision=bf16 or quantise=4bit needs less"
        )


def bytes_of_weight(config: ModelConfig, *, training: bool, reference: bool, critic: bool) -> float:
    """Return how many bytes a weight takes, without those of LoRA itself; arguments as in `check`."""
    if training and not config.lora_rank:
        return TRAINED * (1 + critic) + FP32 * reference
    packed = NF4 if config.quantise == "4bit" else FP32
    frozen = BF16 if packed == FP32 and config.precision == "bf16" else packed
    return frozen + TRAINED * critic


def count_weights(folder: Path) -> int:
    """Return the number of weights in the files of a model, of which only the headers are read.

    Raises:
        UserError: A file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "pt") as file:
                shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
        except SafetensorError as error:
            raise record.UserError(f"--model: {path} is damaged ({error})") from None
        count += sum(torch.Size(shape).numel() for shape in shapes)
    return count


def _gpu() -> int:
    return min(
        torch.cuda.get_device_properties(index).total_memory
        for index in range(torch.cuda.device_count())
    )


def _machine() -> int:
    import psutil

    return int(psutil.virtual_memory().total + psutil.swap_memory().total)
