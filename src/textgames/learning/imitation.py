"""Supervised training of a language model on replies in games.

The loss of an update is the mean negative log-likelihood of the replies' tokens, - mean_t log pi(a_t | s_t), over all
texts of the update, in however many micro-batches it is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl.schedule import rise_and_fall
from runcatalog import record
from textgames.models import loading
from textgames.models.loading import Loaded
from textgames.models.scoring import Batch, log_probs
from textgames.models.trajectories import Text

GRAD_CLIP = 1.0  # largest norm of the gradient


@dataclass(frozen=True, kw_only=True)
class ImitationSettings:
    """Settings of supervised training.

    Attributes:
        updates: Number of updates.
        batch_size: Texts per update.
        micro_batch_size: Texts that are computed together.
        lr: AdamW's highest learning rate.
        warm_up: Share of the updates in which the learning rate rises.
    """

    updates: int
    batch_size: int
    micro_batch_size: int
    lr: float
    warm_up: float


class SupervisedLearner:
    """A model with its optimizer in supervised training.

    Args:
        loaded: The model.
        texts: Training texts.
        settings: See `ImitationSettings`.
        seeds: Random streams of the order of texts.

    Attributes:
        update: Number of updates so far.
        tokens: Number of tokens read in them, with padding.
    """

    def __init__(
        self,
        loaded: Loaded,
        texts: Sequence[Text],
        settings: ImitationSettings,
        seeds: record.Seeds,
    ) -> None:
        self.loaded, self.settings, self.update, self.tokens = loaded, settings, 0, 0
        self._texts, self._seeds = texts, seeds
        self._weights = loading.trainable(loaded.model)
        self.optimizer = torch.optim.AdamW(
            self._weights, lr=settings.lr, betas=(0.9, 0.95), weight_decay=0.01
        )

    def learn(self) -> dict[str, float]:
        """Make an update.

        Returns:
            Its loss and gradient norm.
        """
        settings = self.settings
        texts = [self._texts[i] for i in self.batch_indices()]
        # Texts of similar length are computed together, so that there is little padding.
        texts.sort(key=lambda text: len(text.tokens))
        count = sum(int((text.turns >= 0).sum()) for text in texts)
        self.loaded.model.train()
        self.optimizer.zero_grad()
        total = 0.0
        for start in range(0, len(texts), settings.micro_batch_size):
            part = texts[start : start + settings.micro_batch_size]
            batch = Batch.of(part, self.loaded.device)
            with self.loaded.autocast():
                loss = -log_probs(self.loaded.model, batch, 1.0)[0].sum() / count
            loss.backward()
            total += loss.item()
            self.tokens += batch.inputs["input_ids"].numel()
        norm = torch.nn.utils.clip_grad_norm_(self._weights, GRAD_CLIP)
        self.update += 1
        scale = rise_and_fall(self.update, settings.updates, settings.warm_up)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr * scale
        self.optimizer.step()
        return {"loss": total, "grad_norm": norm.item()}

    def batch_indices(self) -> NDArray[np.int64]:
        """Return the indices of the next update's texts: all texts in random order, then all in another order."""
        size = self.settings.batch_size
        epoch, position = divmod(self.update, updates_per_epoch(len(self._texts), size))
        order = self._seeds.generator("texts", epoch).permutation(len(self._texts))
        return order[position * size : (position + 1) * size]

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without weights."""
        return {
            "update": self.update,
            "tokens": self.tokens,
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state of `state()`."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.update, self.tokens = state["update"], state["tokens"]


def updates_per_epoch(texts: int, batch_size: int) -> int:
    """Return the number of updates that read every text once; the last one may have fewer texts."""
    return -(-texts // batch_size)


@torch.no_grad()
def evaluate(loaded: Loaded, texts: Sequence[Text], batch_size: int) -> dict[str, float]:
    """Evaluate the model on replies, `batch_size` texts at a time.

    Returns:
        `loss`: mean over the tokens of replies; `right`: share of replies in which every token has a probability above
        1/2, and so is the most likely token.
    """
    loaded.model.eval()
    total, count, right, replies = 0.0, 0, 0, 0
    ordered = sorted(texts, key=lambda text: len(text.tokens))
    for start in range(0, len(ordered), batch_size):
        part = ordered[start : start + batch_size]
        with loaded.autocast():
            log_p = log_probs(loaded.model, Batch.of(part, loaded.device), 1.0)[0]
        log_p = log_p.double().cpu()
        # A number per reply: the text's index and the turn.
        numbers = [(n << 20) + text.turns[text.turns >= 0] for n, text in enumerate(part)]
        _, reply = np.unique(np.concatenate(numbers), return_inverse=True)
        is_right = torch.ones(reply.max() + 1, dtype=torch.bool)
        is_right[torch.from_numpy(reply)[log_p <= math.log(0.5)]] = False
        total, count = total - log_p.sum().item(), count + len(log_p)
        right, replies = right + int(is_right.sum()), replies + len(is_right)
    return {"loss": total / count, "right": right / replies}
