"""Several processes that train one model, each on a GPU of its own: weights are spread over them, and games shared out.

Weights, gradients and AdamW's moments are fully sharded (Rajbhandari et al. 2020, "ZeRO", stage 3), by torch's
`fully_shard`. While games are played every process has all weights: conversations end at different times, and a layer
that is gathered for each token would have the processes wait for each other.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from runcatalog import record
from textgames.compat import unsplittable_layers

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn

T = TypeVar("T")
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
_STARTED_BY = "TEXTGAMES_STARTED_BY"  # a process of a run: the first one's number


class Ranks:
    """The processes of a run, of which this is one; by default the only one.

    Attributes:
        rank: Which of them this is.
        size: How many there are.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        device: torch.device | None = None,
        others: Sequence[subprocess.Popen[bytes]] = (),
    ) -> None:
        self._over = threading.Event()
        for index, each in enumerate(others, 1):
            threading.Thread(target=self._watch, args=(index, each), daemon=True).start()
        self.rank, self.size, self._device, self._others = rank, size, device, others
        self._mesh: Any = None

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self.size == 1:
            return
        from torch import distributed

        self._over.set()
        for each in self._others if kind else ():
            each.kill()
        if not kind:
            distributed.destroy_process_group()
        for each in self._others:
            each.wait()

    @property
    def first(self) -> bool:
        """Whether this is the process that records the run."""
        return self.rank == 0

    def share(self, items: Sequence[T] | NDArray[Any]) -> Any:
        """This process's part of what is to be done, one piece; parts differ in length by one at most."""
        ends = [index * len(items) // self.size for index in range(self.size + 1)]
        return items[ends[self.rank] : ends[self.rank + 1]]

    def stream(self, purpose: str) -> str:
        """The name of this process's own random numbers for a purpose."""
        return f"{purpose}, process {self.rank}" if self.rank else purpose

    def gather(self, items: list[T]) -> list[T]:
        """The parts of all processes behind each other, in every process."""
        if self.size == 1:
            return items
        from torch import distributed

        parts: list[Any] = [None] * self.size
        distributed.all_gather_object(parts, items)
        return [each for part in parts for each in part]

    def same(self, value: T) -> T:
        """The first process's value, in every process."""
        if self.size == 1:
            return value
        from torch import distributed

        holder = [value]
        distributed.broadcast_object_list(holder, src=0)
        return holder[0]

    def sums(self, values: Mapping[str, float]) -> dict[str, float]:
        """The sums of numbers over all processes; each has the same names."""
        parts = self.gather([dict(values)])
        return {name: sum(part[name] for part in parts) for name in values}

    def turns(self, chunks: Sequence[T]) -> list[tuple[T, bool]]:
        """This process's chunks of work, as many as every other one's, and whether each counts.

        Gradients and weights are exchanged at each chunk, so that all processes need the same number of them; what is
        done to make up the number is not to count.
        """
        own = [(chunk, True) for chunk in chunks[self.rank :: self.size]]
        most = -(-len(chunks) // self.size)
        return own + [(chunks[0], False)] * (most - len(own))

    def spread(self, module: nn.Module, *, bf16: bool = False) -> None:
        """Spreads a module's weights over the processes, each of its model's layers apart.

        Args:
            module: Its `forward` is what uses weights, but for `whole`.
            bf16: Layers compute in bf16; the weights that are kept stay as they are.
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
        names = unsplittable_layers(module)
        for each in list(module.modules()):
            if type(each).__name__ in names:
                fully_shard(each, mesh=self._mesh, mp_policy=policy)
        fully_shard(module, mesh=self._mesh, mp_policy=policy)
        # Whichever is used first takes itself for the outermost one; layers may be, while games are played.
        module.outermost = lambda: None
        register_fsdp_forward_method(module, "outermost")
        module.outermost()
        module.reshard()

    @contextlib.contextmanager
    def whole(self, module: nn.Module) -> Iterator[None]:
        """Every process has all weights of a module that was spread, and can use its parts without the others."""
        if self.size == 1:
            yield
            return
        from torch.distributed.fsdp import FSDPModule

        parts = [each for each in module.modules() if isinstance(each, FSDPModule)]
        for each in parts:
            each.set_reshard_after_forward(False, recurse=False)
            each.unshard()
        try:
            yield
        finally:
            for each in parts:
                # The outermost one's weights are needed again as soon as gradients are computed.
                each.set_reshard_after_forward(each is not module, recurse=False)
                each.reshard()

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        """Ends this process if another one fails, for which it would wait in vain."""
        code = process.wait()
        if code and not self._over.is_set():
            print(f"process {rank} of the run ended with {code}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)


def full(tensor: Tensor) -> Tensor:
    """A tensor; one that is spread comes whole and on the CPU, and every process has to ask for it."""
    whole = getattr(tensor, "full_tensor", None)
    return whole().cpu() if whole else tensor


def put(weight: Tensor, value: Tensor) -> None:
    """Writes a whole tensor into one that may be spread."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(weight, DTensor):
        value = distribute_tensor(
            value.to(weight.device, weight.dtype), weight.device_mesh, weight.placements
        )
    weight.copy_(value)


def moments(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimiser's state, its tensors whole."""
    told = optimizer.state_dict()
    state = {
        index: {name: full(each) if hasattr(each, "shape") else each for name, each in of.items()}
        for index, of in told["state"].items()
    }
    return told | {"state": state}


def restore_moments(optimizer: torch.optim.Optimizer, stored: Mapping[str, Any]) -> None:
    """Goes on from `moments`, whatever the number of processes was."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    weights = [weight for group in optimizer.param_groups for weight in group["params"]]

    def spread(value: Any, weight: Any) -> Any:
        if not isinstance(weight, DTensor) or value.dim() == 0:
            return value
        return distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements)

    state = {
        index: {name: spread(each, weights[index]) for name, each in of.items()}
        for index, of in stored["state"].items()
    }
    optimizer.load_state_dict({**stored, "state": state})


# The processes.


def join(count: int, device: str) -> Ranks:
    """Makes this process one of `count`. The first one starts the others, unless `torchrun` or the like did.

    Args:
        count: 1 leaves the process as it is.
        device: As of `models.ModelConfig`.

    Raises:
        UserError: There are GPUs, but not one for each.
    """
    if count == 1:
        return Ranks()
    import torch

    found = torch.cuda.device_count() if device != "cpu" else 0
    if found < count and (found or device == "cuda"):
        raise record.UserError(
            f"--processes: {count} of them need a GPU each, this machine has {found}; device=cpu takes its processor"
        )
    others = [] if int(os.environ.get("WORLD_SIZE", 1)) == count else _start(count)
    rank = int(os.environ["RANK"])
    if rank:
        _end_with_the_first()
        os.environ["RECORD"] = "off"  # the first one records, and says what there is to say
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    if found:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    else:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // count))
    torch.distributed.init_process_group("nccl" if found else "gloo")
    return Ranks(rank, count, torch.device("cuda" if found else "cpu"), others)


def _start(count: int) -> list[subprocess.Popen[bytes]]:
    """Starts all but the first, with the same command line."""
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
        )
        for rank in range(1, count)
    ]


def _end_with_the_first() -> None:
    """Lets the kernel end this process if the one that started it is gone, which could not say so."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    # It may be gone already: this process has imported torch first.
    if os.environ.get(_STARTED_BY, str(os.getppid())) != str(os.getppid()):
        os._exit(1)
