"""Log-probabilities, entropies and values of the tokens of texts."""

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
from textgames.models.branch_attention import NAME, Branches
from textgames.models.prefix_sharing import pack
from textgames.models.trajectories import Text

LOGITS_AT_ONCE = 2**25  # logits in memory at a time: 128 MiB


@dataclass(frozen=True)
class Batch:
    """Texts that are computed together; equal texts are computed once.

    Attributes:
        inputs: Inputs of a decoder, at least `input_ids`, int64 [R, L]; `branches` for `branch_attention`.
        predictors: Positions in `inputs` whose outputs predict the trained tokens, row times L plus column, int64 [M];
            in order of distinct texts and their tokens.
        targets: The trained tokens, int64 [M].
        expand: For every trained token of all texts, in order of texts and tokens, its index in the M, int64 [N].
        counts: Number of trained tokens of every text; their sum is N.
    """

    inputs: dict[str, Any]
    predictors: Tensor
    targets: Tensor
    expand: Tensor
    counts: list[int]

    @classmethod
    def of(
        cls,
        texts: Sequence[Text],
        device: torch.device,
        *,
        all_tokens: bool = False,
        sharing_cost: int = 0,
        branching: bool = False,
    ) -> Batch:
        """Return texts as a batch.

        Args:
            texts: Texts with at least one trained token; the first token of a text is never trained on.
            device: Device of the tensors.
            all_tokens: See `Text.trained_turns`.
            sharing_cost: See `prefix_sharing.pack`; 0: common prefixes are not shared.
            branching: See `branch_attention.is_enabled`.
        """
        index, texts, trained = _distinct(texts, all_tokens)
        # Tokens after the last predictor are not needed.
        needed = [text.tokens[: at[-1]] for text, at in zip(texts, trained, strict=True)]
        packed = pack(needed, sharing_cost, branching=branching) if sharing_cost else None
        inputs: dict[str, Any]
        if packed:
            inputs = {
                "input_ids": torch.from_numpy(packed.tokens),
                "position_ids": torch.from_numpy(packed.positions),
            }
            if packed.visible is None:
                inputs["branches"] = Branches.of(packed.groups, packed.outputs)
                # Not used; without a mask of this form transformers makes one.
                inputs["attention_mask"] = torch.ones(1, 1, 1, 1, dtype=torch.bool)
            else:
                inputs["attention_mask"] = torch.from_numpy(packed.visible)[:, None]
            predictors = [places[at - 1] for places, at in zip(packed.places, trained, strict=True)]
        else:
            # Padding follows all trained tokens, so a causal model needs no mask for it.
            inputs = {
                "input_ids": pad_sequence(
                    [torch.from_numpy(tokens) for tokens in needed], batch_first=True
                )
            }
            length = inputs["input_ids"].shape[1]
            predictors = [row * length + at - 1 for row, at in enumerate(trained)]
        targets = np.concatenate([t.tokens[at] for t, at in zip(texts, trained, strict=True)])
        counts = np.array([len(at) for at in trained])
        ranges = np.split(np.arange(len(targets)), np.cumsum(counts)[:-1])
        return cls(
            {name: tensor.to(device) for name, tensor in inputs.items()},
            torch.from_numpy(np.concatenate(predictors)).to(device),
            torch.from_numpy(targets).to(device),
            torch.from_numpy(np.concatenate([ranges[i] for i in index])).to(device),
            counts[index].tolist(),
        )


def _distinct(
    texts: Sequence[Text], all_tokens: bool
) -> tuple[list[int], list[Text], list[NDArray[np.int64]]]:
    """Return the number of every text among the distinct texts, these texts, and their trained positions."""
    numbers: dict[tuple[bytes, bytes], int] = {}
    index, distinct, trained = [], [], []
    for text in texts:
        mask = text.trained_turns(all_tokens=all_tokens) >= 0
        key = text.tokens.tobytes(), mask.tobytes()
        index.append(numbers.setdefault(key, len(distinct)))
        if index[-1] == len(distinct):
            distinct.append(text)
            trained.append(np.flatnonzero(mask))
    return index, distinct, trained


def prefix_sharing_cost(model: Any) -> int:
    """Return `sharing_cost` of `Batch.of` for a model; 0 if its attention accepts no mask of any form.

    The products of a layer take about 26 times the squared width for a token; attention takes 4 times the width for
    every visible position, on a CPU at about two thirds of the speed.
    """
    config = model.config
    plain = all(kind == "full_attention" for kind in getattr(config, "layer_types", None) or ())
    masked = attention_implementation(config) in ("sdpa", NAME)
    return 4 * config.hidden_size if plain and masked else 0


def predictor_states(model: Any, batch: Batch) -> Tensor:
    """Return the last layer's states at the predictors, float [M, width]."""
    states = model.get_decoder()(**batch.inputs, use_cache=False).last_hidden_state
    return states.flatten(0, 1)[batch.predictors]


def log_probs(
    model: Any, batch: Batch, temperature: float, *, entropies: bool = False
) -> tuple[Tensor, ...]:
    """Return the log-probabilities of the trained tokens, and the entropies of their distributions if wanted.

    Args:
        model: A causal model of `transformers`.
        batch: The texts.
        temperature: Divides the logits.
        entropies: Return entropies, which take another pass over the logits.

    Returns:
        One or two tensors, float32 [N], in order of texts and tokens.
    """
    states, targets = predictor_states(model, batch), batch.targets
    head = model.get_output_embeddings()
    softcap = getattr(model.config, "final_logit_softcapping", None)

    def evaluate(states: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        logits = head(states).float()
        if softcap:  # Gemma 2
            logits = softcap * torch.tanh(logits / softcap)
        log_p = (logits / temperature).log_softmax(-1)
        chosen = -nll_loss(log_p, targets, reduction="none")
        return (chosen, -(log_p.exp() * log_p).sum(-1)) if entropies else (chosen,)

    size = max(1, LOGITS_AT_ONCE // head.weight.shape[0])
    if len(targets) <= size:
        return tuple(values[batch.expand] for values in evaluate(states, targets))
    # The logits of a large vocabulary are recomputed in the backward pass instead of stored.
    parts = [
        checkpoint(evaluate, *part, use_reentrant=False)
        for part in zip(states.split(size), targets.split(size), strict=True)
    ]
    return tuple(torch.cat(values)[batch.expand] for values in zip(*parts, strict=True))


class Scorer(nn.Module):
    """`log_probs` of a model as a module, so that its weights can be sharded.

    Args:
        model: A causal model of `transformers`.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, batch: Batch, temperature: float, *, entropies: bool = False
    ) -> tuple[Tensor, ...]:
        """Return `log_probs`."""
        return log_probs(self.model, batch, temperature, entropies=entropies)


class Critic(nn.Module):
    """Value network: a copy of the model's own layers and a linear head.

    Args:
        model: A causal model of `transformers`; it is not changed.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        # fp32, whatever the precision of frozen weights: bf16 would round small steps away.
        self.body = copy.deepcopy(model.get_decoder()).float()
        self.body.requires_grad_(True)
        self.head = nn.Linear(model.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def get_decoder(self) -> Any:
        """Return the layers."""
        return self.body

    def forward(self, batch: Batch) -> Tensor:
        """Return the values before the trained tokens, float32 [N]."""
        values = self.head(predictor_states(self, batch).to(self.head.weight.dtype))
        return values[:, 0].float()[batch.expand]
