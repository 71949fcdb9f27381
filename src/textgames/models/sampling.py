"""How a token is drawn from a model's logits."""

from __future__ import annotations

import torch
from torch import Tensor


def draw(
    logits: Tensor,
    generator: torch.Generator | None,
    *,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
) -> Tensor:
    """Draws a token a row.

    Args:
        logits: float32 [n, vocabulary].
        generator: Of the draws, on the CPU; not read where temperature is 0.
        temperature: Divides the logits; 0: the likeliest token.
        top_p: Share of probability of the likeliest tokens that are drawn from (Holtzman et al. 2020); the one that
            reaches it is among them.
        top_k: How many of the likeliest are drawn from; 0: all.

    Returns:
        Tokens, int64 [n].
    """
    if temperature == 0:
        return logits.argmax(-1)
    chances = (logits / temperature).softmax(-1)
    if top_k or top_p < 1:
        ordered, tokens = chances.sort(-1, descending=True)
        out = ordered.cumsum(-1) - ordered >= top_p
        if top_k:
            out[:, top_k:] = True
        out[:, 0] = False
        chances = torch.zeros_like(chances).scatter_(-1, tokens, ordered.masked_fill(out, 0.0))
    # One uniform number a row, drawn on the CPU: the same draws on every device.
    at = torch.rand(len(chances), 1, generator=generator, dtype=torch.float64).to(chances.device)
    sums = chances.double().cumsum(-1)
    found = torch.searchsorted(sums, at * sums[:, -1:], right=True)[:, 0]
    last = chances.shape[-1] - 1 - (chances > 0).flip(-1).long().argmax(-1)
    return torch.minimum(found, last)
