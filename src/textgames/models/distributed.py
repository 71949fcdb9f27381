"""Processes that train a model together, every one on its own GPU: weights are sharded, games are divided.

Weights, gradients and AdamW's moments are fully sharded (ZeRO stage 3, Rajbhandari et al. 2020) by torch's
`fully_shard`. During generation every process has all weights: conversations end at different times, and gathering a
layer for every token would make the processes wait for each other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from runcatalog import record
from runcatalog.record.lifecycle.signals import die_with_parent
from textgames.compat import unsplittable_layers

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn

T = TypeVar("T")
_STARTED_BY = "TEXTGAMES_STARTED_BY"  # environment variable: process id of rank 0


class Ranks:
    """The processes of a run, as seen by the current one; by default a single process.

    Attributes:
        rank: Number of the current process.
        size: Number of processes.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        device: torch.device | None = None,
        others: Sequence[subprocess.Popen[bytes]] = (),
    ) -> None:
        self._ending = threading.Event()
        for index, process in enumerate(others, 1):
            threading.Thread(target=self._watch, args=(index, process), daemon=True).start()
        self.rank, self.size, self._device, self._others = rank, size, device, others
        self._mesh: Any = None

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self.size == 1:
            return
        from torch import distributed

        self._ending.set()
        for process in self._others if kind else ():
            process.kill()
        if not kind:
            distributed.destroy_process_group()
        for process in self._others:
            process.wait()

    @property
    def first(self) -> bool:
        """Whether the current process records the run."""
        return self.rank == 0

    def share(self, items: Sequence[T] | NDArray[Any]) -> Any:
        """Return the current process's contiguous part of a list; parts differ in length by at most 1."""
        bounds = [index * len(items) // self.size for index in range(self.size + 1)]
        return items[bounds[self.rank] : bounds[self.rank + 1]]

    def stream_name(self, purpose: str) -> str:
        """Return the name of the current process's random stream for a purpose."""
        return f"{purpose}, process {self.rank}" if self.rank else purpose

    def gather(self, items: list[T]) -> list[T]:
        """Return the concatenated lists of all processes, in every process."""
        if self.size == 1:
            return items
        from torch import distributed

        parts: list[Any] = [None] * self.size
        distributed.all_gather_object(parts, items)
        return [item for part in parts for item in part]

    def broadcast(self, value: T) -> T:
        """Return rank 0's value, in every process."""
        if self.size == 1:
            return value
        from torch import distributed

        holder = [value]
        distributed.broadcast_object_list(holder, src=0)
        return holder[0]

    def sums(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the sums of named numbers over all processes, which have the same names."""
        parts = self.gather([dict(values)])
        return {name: sum(part[name] for part in parts) for name in values}

    def micro_batches(self, batches: Sequence[T]) -> list[tuple[T, bool]]:
        """Return the current process's batches and whether they count.

        Gradients and weights are exchanged in every batch, so all processes need the same number of them; batches that
        fill up that number do not count.
        """
        own = [(batch, True) for batch in batches[self.rank :: self.size]]
        most = -(-len(batches) // self.size)
        return own + [(batches[0], False)] * (most - len(own))

    def shard(self, module: nn.Module, *, bf16: bool = False) -> None:
        """Shard a module's weights over the processes, layer by layer.

        Args:
            module: Only its `forward` may use the weights, except in `unsharded`.
            bf16: Layers compute in bf16; the stored weights keep their precision.
        """
        if self.size == 1:
            return
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import (
            MixedPrecisionPolicy,
            fully_shard,
            register_fsdp_forward_method,
        )

        if self._mesh is None:
            self._mesh = init_device_mesh(self._device.type, (self.size,))
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if bf16 else None, reduce_dtype=torch.float32
        )
        layer_classes = unsplittable_layers(module)
        for layer in list(module.modules()):
            if type(layer).__name__ in layer_classes:
                fully_shard(layer, mesh=self._mesh, mp_policy=policy)
        fully_shard(module, mesh=self._mesh, mp_policy=policy)
        # FSDP takes the first module that runs for the root; in generation that would be a layer.
        module.mark_as_root = lambda: None
        register_fsdp_forward_method(module, "mark_as_root")
        module.mark_as_root()
        module.reshard()

    @contextlib.contextmanager
    def unsharded(self, module: nn.Module) -> Iterator[None]:
        """Give every process all weights of a sharded module, whose parts can be used without the other processes."""
        if self.size == 1:
            yield
            return
        from torch.distributed.fsdp import FSDPModule

        parts = [part for part in module.modules() if isinstance(part, FSDPModule)]
        for part in parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        try:
            yield
        finally:
            for part in parts:
                # The root's weights are needed again at the start of the backward pass.
                part.set_reshard_after_forward(part is not module, recurse=False)
                part.reshard()

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        """End the current process if another one fails: collective operations would wait for it for ever."""
        code = process.wait()
        if code and not self._ending.is_set():
            print(f"process {rank} of the run ended with {code}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)


def full_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor; if it is sharded, gathered on the CPU, for which all processes have to call this."""
    gather = getattr(tensor, "full_tensor", None)
    return gather().cpu() if gather else tensor


def copy_into(weight: Tensor, value: Tensor) -> None:
    """Copy a full tensor into a weight, which may be sharded."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(weight, DTensor):
        value = distribute_tensor(
            value.to(weight.device, weight.dtype), weight.device_mesh, weight.placements
        )
    weight.copy_(value)


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return an optimizer's state with full tensors."""
    state_dict = optimizer.state_dict()
    state = {
        index: {
            name: full_tensor(value) if hasattr(value, "shape") else value
            for name, value in moments.items()
        }
        for index, moments in state_dict["state"].items()
    }
    return state_dict | {"state": state}


def restore_optimizer(optimizer: torch.optim.Optimizer, stored: Mapping[str, Any]) -> None:
    """Restore a state of `optimizer_state`, whatever the number of processes was."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    weights = [weight for group in optimizer.param_groups for weight in group["params"]]

    def shard(value: Any, weight: Any) -> Any:
        if not isinstance(weight, DTensor) or value.dim() == 0:
            return value
        return distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements)

    state = {
        index: {name: shard(value, weights[index]) for name, value in moments.items()}
        for index, moments in stored["state"].items()
    }
    optimizer.load_state_dict({**stored, "state": state})


def join(count: int, device: str) -> Ranks:
    """Join the processes of a run. Rank 0 starts the others, unless `torchrun` or a similar launcher did.

    Args:
        count: Number of processes; 1 changes nothing.
        device: See `loading.ModelConfig`.

    Raises:
        UserError: There are fewer GPUs than processes, but at least one.
    """
    if count == 1:
        return Ranks()
    import torch

    gpus = torch.cuda.device_count() if device != "cpu" else 0
    if gpus < count and (gpus or device == "cuda"):
        raise record.UserError(
            f"--processes: {count} processes need a GPU each, this machine has {gpus}; device=cpu uses its processor"
        )
    others = [] if int(os.environ.get("WORLD_SIZE", 1)) == count else _start(count)
    rank = int(os.environ["RANK"])
    if rank:
        _end_with_parent()
        os.environ["RECORD"] = "off"  # rank 0 records the run and prints
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    else:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // count))
    torch.distributed.init_process_group("nccl" if gpus else "gloo")
    return Ranks(rank, count, torch.device("cuda" if gpus else "cpu"), others)


def _start(count: int) -> list[subprocess.Popen[bytes]]:
    """Start the processes other than rank 0 with the same command line."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count), "RANK": "0", "LOCAL_RANK": "0",
    }  # fmt: skip
    return [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env=os.environ
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), _STARTED_BY: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # rank 0 alone gets the signals of a terminal or scheduler, such as Ctrl-C
        )
        for rank in range(1, count)
    ]


def _end_with_parent() -> None:
    """Let the kernel end the current process when the process that started it ends."""
    die_with_parent()
    # The parent may have ended before, while this process imported torch.
    if os.environ.get(_STARTED_BY, str(os.getppid())) != str(os.getppid()):
        os._exit(1)
