"""Errors that a script prints as one line, and a check for NaN and infinity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class UserError(Exception):
    """A wrong flag, file or server; the message names it and the expected value."""


class RunFailed(Exception):
    """The run cannot continue; the message becomes the reason in the record and the catalog."""


class OwnershipLost(UserError):
    """The process may no longer write to its run: another one has continued it, or its directory was deleted."""


class Killed(BaseException):
    """A termination signal. Not an Exception, so that no ``except Exception`` swallows it.

    Args:
        number: Number of the signal.
        reason: The reason in the record.
    """

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number
        self.reason = reason


class NumericalError(RunFailed):
    """A tensor became NaN or infinite.

    Args:
        update: Update at which it was detected.
        tensor_name: Name of the tensor in the paper or the code.
    """

    def __init__(self, update: int, tensor_name: str) -> None:
        super().__init__(f"gradient explosion at update {update}: {tensor_name} is not finite")
        self.update = int(update)
        self.tensor_name = tensor_name


def check_finite(update: int, tensors: Mapping[str, Any]) -> None:
    """Raise NumericalError for the first tensor that contains NaN or infinity.

    Args:
        update: Update of the tensors.
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
