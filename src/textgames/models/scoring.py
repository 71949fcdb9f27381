"""What a model thinks of tokens that were said: their log-probabilities, the entropy there, a critic's values."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import nll_loss
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from textgames.compat import attention_implementation
from textgames.models.prefix_sharing import packed
from textgames.models.trajectories import Text

AT_ONCE = 2**25  # numbers of logits in a piece: 128 MiB


@dataclass(frozen=True)
class Batch:
    """Texts to be computed together; of equal ones one is.

    Attributes:
        inputs: What a decoder takes, with at least `input_ids`, int64 [R, L].
        before: Where in `inputs` the tokens stand from which the counted ones are foretold, int64 [M]: row times L
            plus column; in order of different texts and their tokens.
        said: The counted tokens, int64 [M].
        which: Which of those M each counted token of the texts is, in order of texts and tokens, int64 [N].
        counts: How many of the N each text has.
    """

    inputs: dict[str, Tensor]
    before: Tensor
    said: Tensor
    which: Tensor
    counts: list[int]

    @classmethod
    def of(
        cls,
        texts: Sequence[Text],
        device: torch.device,
        *,
        all_tokens: bool = False,
        balance: int = 0,
    ) -> Batch:
        """Texts as a batch.

        Args:
            texts: Each with a token that counts; a first one never does.
            device: Of the tensors.
            all_tokens: See `Text.counted`.
            balance: See `sharing.packed`, which is used if it is not 0.
        """
        of, texts, counted = _different(texts, all_tokens)
        # What stands behind the last token that is foretold is not needed, nor is that token itself.
        needed = [text.tokens[: at[-1]] for text, at in zip(texts, counted, strict=True)]
        found = packed(needed, balance) if balance else None
        if found:
            inputs = {
                "input_ids": torch.from_numpy(found.tokens),
                "position_ids": torch.from_numpy(found.positions),
                "attention_mask": torch.from_numpy(found.seen)[:, None],
            }
            before = [where[at - 1] for where, at in zip(found.places, counted, strict=True)]
        else:
            # Padding stands behind all that counts: a causal model needs no mask for it.
            inputs = {
                "input_ids": pad_sequence(
                    [torch.from_numpy(each) for each in needed], batch_first=True
                )
            }
            longest = inputs["input_ids"].shape[1]
            before = [row * longest + at - 1 for row, at in enumerate(counted)]
        said = np.concatenate([text.tokens[at] for text, at in zip(texts, counted, strict=True)])
        counts = np.array([len(at) for at in counted])
        tokens = np.split(np.arange(len(said)), np.cumsum(counts)[:-1])
        return cls(
            {name: each.to(device) for name, each in inputs.items()},
            torch.from_numpy(np.concatenate(before)).to(device),
            torch.from_numpy(said).to(device),
            torch.from_numpy(np.concatenate([tokens[i] for i in of])).to(device),
            counts[of].tolist(),
        )


def _different(
    texts: Sequence[Text], all_tokens: bool
) -> tuple[list[int], list[Text], list[NDArray[np.int64]]]:
    """Which each text is of those that differ in what they are or count; those, and where they count."""
    names: dict[tuple[bytes, bytes], int] = {}
    of, found, counted = [], [], []
    for text in texts:
        counts = text.counted(all_tokens=all_tokens) >= 0
        of.append(names.setdefault((text.tokens.tobytes(), counts.tobytes()), len(found)))
        if of[-1] == len(found):
            found.append(text)
            counted.append(np.flatnonzero(counts))
    return of, found, counted


def balance(model: Any) -> int:
    """What `Batch.of` is to take as `balance` for a model; 0 if its attention takes no mask of what sees what.

    Products of a layer take about 26 times the square of the width for a token, attention 4 times the width for each
    place that is looked at, on a CPU at about two thirds of the speed.
    """
    config = model.config
    plain = all(each == "full_attention" for each in getattr(config, "layer_types", None) or ())
    return 4 * config.hidden_size if plain and attention_implementation(config) == "sdpa" else 0


def hidden(model: Any, batch: Batch) -> Tensor:
    """The last layer's states from which the counted tokens of different texts are foretold, float [M, width]."""
    states = model.get_decoder()(**batch.inputs, use_cache=False).last_hidden_state
    return states.flatten(0, 1)[batch.before]


def log_probs(model: Any, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the counted tokens, and the entropy of what they were drawn from.

    Args:
        model: A causal model of `transformers`.
        batch: Of texts.
        temperature: Divides the logits.

    Returns:
        Both float32 [N], in order of texts and tokens.
    """
    states, tokens = hidden(model, batch), batch.said
    head, cap = (
        model.get_output_embeddings(),
        getattr(model.config, "final_logit_softcapping", None),
    )

    def judged(states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(states).float()
        if cap:  # Gemma 2
            logits = cap * torch.tanh(logits / cap)
        logs = (logits / temperature).log_softmax(-1)
        return -nll_loss(logs, tokens, reduction="none"), -(logs.exp() * logs).sum(-1)

    size = max(1, AT_ONCE // head.weight.shape[0])
    if len(tokens) <= size:
        logs, entropy = judged(states, tokens)
        return logs[batch.which], entropy[batch.which]
    # A large vocabulary's logits are made again on the way back rather than kept.
    found = [
        checkpoint(judged, *each, use_reentrant=False)
        for each in zip(states.split(size), tokens.split(size), strict=True)
    ]
    return tuple(torch.cat(each)[batch.which] for each in zip(*found, strict=True))


class Scorer(nn.Module):
    """A model's `log_probs`, as the module whose weights are gathered for it where they are spread (`ranks`).

    Args:
        model: A causal model of `transformers`.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
        """See `log_probs`."""
        return log_probs(self.model, batch, temperature)


class Critic(nn.Module):
    """Foretells the rewards to come before each token: the model's own layers, copied, and a linear head.

    Args:
        model: A causal model of `transformers`; it stays as it is.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        # fp32, whatever frozen weights are in: bf16 would round small steps away.
        self.body = copy.deepcopy(model.get_decoder()).float()
        self.body.requires_grad_(True)
        self.head = nn.Linear(model.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def get_decoder(self) -> Any:
        """Its layers."""
        return self.body

    def forward(self, batch: Batch) -> Tensor:
        """Values before the counted tokens, float32 [N]."""
        values = self.head(hidden(self, batch).to(self.head.weight.dtype))
        return values[:, 0].float()[batch.which]
