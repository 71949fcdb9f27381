"""Independent random streams, by purpose and environment, from a seed per run."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # keeps the import of record for help and flags fast
    import numpy as np
    import torch


class Seeds:
    """Random streams of a run, named by purpose.

    A stream depends only on (seed, purpose, index), not on the order of calls, on threads or on processes. There is no
    global random number generator.

    Args:
        seed: The run's seed, at least 0.
    """

    def __init__(self, seed: int) -> None:
        self.seed = int(seed)

    def __repr__(self) -> str:
        return f"Seeds({self.seed})"

    def sequence(self, purpose: str, index: int = 0) -> np.random.SeedSequence:
        """Return the seed sequence of a purpose (for example "world") and an index (an environment)."""
        import numpy as np

        # Python's own hash() differs between processes; SHA-256 does not.
        words = np.frombuffer(hashlib.sha256(purpose.encode()).digest()[:16], dtype="<u4")
        return np.random.SeedSequence(self.seed, spawn_key=(*map(int, words), int(index)))

    def generator(self, purpose: str, index: int = 0) -> np.random.Generator:
        """Return a new numpy generator (PCG64) at the start of the stream."""
        import numpy as np

        return np.random.Generator(np.random.PCG64(self.sequence(purpose, index)))

    def integer(self, purpose: str, index: int = 0) -> int:
        """Return a seed below 2**32 for a generator of another package."""
        return int(self.sequence(purpose, index).generate_state(1)[0])

    def torch(self, purpose: str, index: int = 0) -> torch.Generator:
        """Return a new torch CPU generator at the start of the stream."""
        import numpy as np
        import torch

        state = self.sequence(purpose, index).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(state[0]) >> 1)
