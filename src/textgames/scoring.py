"""What a model thinks of tokens that were said: their log-probabilities, the entropy there, a critic's values."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from textgames.trajectories import Text

AT_ONCE = 2**25  # numbers of logits in a piece: 128 MiB


@dataclass(frozen=True)
class Batch:
    """Texts side by side, padded on the right.

    Attributes:
        tokens: int64 [B, T].
        counted: Which tokens count, bool [B, T]; never a text's first.
    """

    tokens: Tensor
    counted: Tensor

    @classmethod
    def of(cls, texts: Sequence[Text], device: torch.device, *, all_tokens: bool = False) -> Batch:
        """Texts as a batch; `all_tokens`: see `Text.counted`."""
        masks = [text.counted(all_tokens=all_tokens) >= 0 for text in texts]
        tokens = pad_sequence([torch.from_numpy(text.tokens) for text in texts], batch_first=True)
        counted = pad_sequence([torch.from_numpy(mask) for mask in masks], batch_first=True)
        return cls(tokens.to(device), counted.to(device))


def hidden(model: Any, batch: Batch) -> Tensor:
    """The last layer's states from which the counted tokens are foretold, in order, float [N, width]."""
    # Padding stands behind all that counts: a causal model needs no mask for it.
    states = model.get_decoder()(input_ids=batch.tokens[:, :-1], use_cache=False).last_hidden_state
    return states[batch.counted[:, 1:]]


def log_probs(model: Any, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the counted tokens, and the entropy of what they were drawn from.

    Args:
        model: A causal model of `transformers`.
        batch: Of texts.
        temperature: Divides the logits.

    Returns:
        Both float32 [N], in order of texts and tokens.
    """
    states, tokens = hidden(model, batch), batch.tokens[:, 1:][batch.counted[:, 1:]]
    head, cap = (
        model.get_output_embeddings(),
        getattr(model.config, "final_logit_softcapping", None),
    )

    def judged(states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(states).float()
        if cap:  # Gemma 2
            logits = cap * torch.tanh(logits / cap)
        logs = (logits / temperature).log_softmax(-1)
        return logs.gather(-1, tokens[:, None])[:, 0], -(logs.exp() * logs).sum(-1)

    size = max(1, AT_ONCE // head.weight.shape[0])
    if len(tokens) <= size:
        return judged(states, tokens)
    # A large vocabulary's logits are made again on the way back rather than kept.
    found = [
        checkpoint(judged, *each, use_reentrant=False)
        for each in zip(states.split(size), tokens.split(size), strict=True)
    ]
    return torch.cat([each[0] for each in found]), torch.cat([each[1] for each in found])


class Critic(nn.Module):
    """Foretells the rewards to come before each token: the model's own layers, copied, and a linear head.

    Args:
        model: A causal model of `transformers`; it stays as it is.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.body = copy.deepcopy(model.get_decoder())
        self.body.requires_grad_(True)
        self.head = nn.Linear(model.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def get_decoder(self) -> Any:
        """Its layers."""
        return self.body

    def forward(self, batch: Batch) -> Tensor:
        """Values before the counted tokens, float32 [N]."""
        return self.head(hidden(self, batch).to(self.head.weight.dtype))[:, 0].float()
