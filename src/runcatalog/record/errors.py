"""The errors that a script shows as one line, and the check that raises the most common of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class UserError(Exception):
    """A wrong flag, file or server: the message names it and says what would be right."""


class RunFailed(Exception):
    """The run cannot go on; the message is the reason that the record and the catalog show."""


class NumericalError(RunFailed):
    """A tensor became NaN or infinite.

    Args:
        update: Update at which it was seen.
        tensor_name: Name of the tensor, as the paper or the code calls it.
    """

    def __init__(self, update: int, tensor_name: str) -> None:
        super().__init__(f"gradient explosion at update {update}: {tensor_name} is not finite")
        self.update = int(update)
        self.tensor_name = tensor_name


def check_finite(update: int, tensors: Mapping[str, Any]) -> None:
    """Raises NumericalError for the first of the tensors that holds a NaN or an infinity.

    Args:
        update: Update that the tensors belong to.
        tensors: Torch tensors, arrays or numbers of any shape; None (no gradient) is skipped.
    """
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if hasattr(tensor, "isfinite"):
            finite = bool(tensor.isfinite().all())
        else:
            import numpy as np

            finite = bool(np.isfinite(tensor).all())
        if not finite:
            raise NumericalError(update, name)
