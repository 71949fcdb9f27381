"""Supervised training of a language model on what was said in games: the likelihood of the replies is made large."""

from __future__ import annotations

import math
from collections.abc import Sequence
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


class Imitation:
    """A model in supervised training.

    Args:
        loaded: The model.
        texts: To learn from.
        updates: How many there will be.
        batch: Texts of an update.
        micro: Texts that are computed together.
        lr: AdamW's highest step size.
        warm_up: Share of the updates in which the step size rises.
        seeds: Of the order of texts.

    Attributes:
        update: How many there were.
        tokens: That were read in them, padding too.
    """

    def __init__(
        self,
        loaded: Loaded,
        texts: Sequence[Text],
        *,
        updates: int,
        batch: int,
        micro: int,
        lr: float,
        warm_up: float,
        seeds: record.Seeds,
    ) -> None:
        self.loaded, self.update, self.tokens = loaded, 0, 0
        self._texts, self._updates, self._batch, self._micro = texts, updates, batch, micro
        self._lr, self._warm_up, self._seeds = lr, warm_up, seeds
        self._weights = loading.trainable(loaded.model)
        self.optimizer = torch.optim.AdamW(
            self._weights, lr=lr, betas=(0.9, 0.95), weight_decay=0.01
        )

    def learn(self) -> dict[str, float]:
        """Makes an update.

        Returns:
            Its loss, a mean over the tokens of replies, and the norm of its gradient.
        """
        chosen = [self._texts[i] for i in self._drawn()]
        # Texts that are computed together are about equally long, so that little is padding.
        chosen.sort(key=lambda text: len(text.tokens))
        count = sum(int((text.turns >= 0).sum()) for text in chosen)
        self.loaded.model.train()
        self.optimizer.zero_grad()
        total = 0.0
        for start in range(0, len(chosen), self._micro):
            batch = Batch.of(chosen[start : start + self._micro], self.loaded.device)
            with self.loaded.autocast():
                loss = -log_probs(self.loaded.model, batch, 1.0)[0].sum() / count
            loss.backward()
            total += loss.item()
            self.tokens += batch.inputs["input_ids"].numel()
        norm = torch.nn.utils.clip_grad_norm_(self._weights, GRAD_CLIP)
        self.update += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr * rise_and_fall(self.update, self._updates, self._warm_up)
        self.optimizer.step()
        return {"loss": total, "grad_norm": norm.item()}

    def _drawn(self) -> NDArray[np.int64]:
        """The texts of an update: all of them once in random order, then all again."""
        epoch, at = divmod(self.update, updates_of_an_epoch(len(self._texts), self._batch))
        order = self._seeds.generator("texts", epoch).permutation(len(self._texts))
        return order[at * self._batch : (at + 1) * self._batch]

    def state(self) -> dict[str, Any]:
        """What it takes, besides the weights, to go on to the bit."""
        return {
            "update": self.update,
            "tokens": self.tokens,
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state()`."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.update, self.tokens = state["update"], state["tokens"]


def updates_of_an_epoch(texts: int, batch: int) -> int:
    """How many updates take each text once; the last of them may have fewer."""
    return -(-texts // batch)


@torch.no_grad()
def judged(loaded: Loaded, texts: Sequence[Text], at_once: int) -> dict[str, float]:
    """How likely the replies of texts are, `at_once` texts computed together.

    Returns:
        `loss`, a mean over their tokens, and `right`: the share of replies all of whose tokens have more than half of
        the probability, so that each is the likeliest.
    """
    loaded.model.eval()
    total, count, right, replies = 0.0, 0, 0, 0
    ordered = sorted(texts, key=lambda text: len(text.tokens))
    for start in range(0, len(ordered), at_once):
        part = ordered[start : start + at_once]
        with loaded.autocast():
            logs = log_probs(loaded.model, Batch.of(part, loaded.device), 1.0)[0]
        logs = logs.double().cpu()
        of = np.concatenate([(n << 20) + text.turns[text.turns >= 0] for n, text in enumerate(part)])  # fmt: skip
        _, reply = np.unique(of, return_inverse=True)
        sure = torch.ones(reply.max() + 1, dtype=torch.bool)
        sure[torch.from_numpy(reply)[logs <= math.log(0.5)]] = False
        total, count = total - logs.sum().item(), count + len(logs)
        right, replies = right + int(sure.sum()), replies + len(sure)
    return {"loss": total / count, "right": right / replies}
