"""Functions of torch 2.13 that its own optimizers use and that it does not document.

Each steps many tensors in one call, to the same bits as a loop over the tensors.
"""

from torch import _foreach_add_ as add_to_each
from torch import _foreach_mul_ as multiply_each
from torch import _fused_adam_ as fused_adam

__all__ = ["add_to_each", "fused_adam", "multiply_each"]
