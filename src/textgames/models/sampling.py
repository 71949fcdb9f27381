"""Sampling of a token from a model's logits."""

from __future__ import annotations

import torch
from torch import Tensor


def sample(
    logits: Tensor,
    generator: torch.Generator | None,
    *,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
) -> Tensor:
    """Sample a token per row.

    Args:
        logits: float32 [n, vocabulary].
        generator: Random generator on the CPU; not used at temperature 0.
        temperature: Divides the logits; 0: the most likely token.
        top_p: Nucleus sampling (Holtzman et al. 2020): sample from the most likely tokens whose probabilities sum up to
            this share, including the token that reaches it.
        top_k: Sample from this number of most likely tokens; 0: from all.

    Returns:
        Tokens, int64 [n].
    """
    if temperature == 0:
        return logits.argmax(-1)
    probs = (logits / temperature).softmax(-1)
    if top_k or top_p < 1:
        ordered, tokens = probs.sort(-1, descending=True)
        excluded = ordered.cumsum(-1) - ordered >= top_p
        if top_k:
            excluded[:, top_k:] = True
        excluded[:, 0] = False
        probs = torch.zeros_like(probs).scatter_(-1, tokens, ordered.masked_fill(excluded, 0.0))
    # A uniform number per row, drawn on the CPU: the same samples on every device.
    uniform = torch.rand(len(probs), 1, generator=generator, dtype=torch.float64).to(probs.device)
    cumulative = probs.double().cumsum(-1)
    tokens = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)[:, 0]
    last = probs.shape[-1] - 1 - (probs > 0).flip(-1).long().argmax(-1)
    return torch.minimum(tokens, last)
