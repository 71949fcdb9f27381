"""Cache of prompts that come again, for conversations that begin anew every turn (`context=last`).

A game that is played many times, and a game in which nothing moved, returns to the same state. While the model does not
learn its logits for the same tokens are the same, so they are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from textgames.models.kv_cache import KVCache

DEPTH = 4  # tokens of a reply whose logits are cached: an answer without a thought; longer replies rarely repeat
MAX_SIZE = 2**28  # values in the cache: 1 GiB

_Key = tuple[int, tuple[int, ...]]  # number of a prompt, tokens of the reply


class PrefixCache:
    """Logits after prompts and after the first tokens of the replies to them.

    Args:
        model: A causal model of `transformers`; its weights must not change.

    Attributes:
        computed: Number of tokens that were computed.
        size: Number of values in the cache.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.computed = 0
        self._clear()

    def _clear(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}
        self._prompts = KVCache(self._model, 0)
        self._rows: dict[_Key, int] = {}  # row of the table of logits
        self._table: Tensor | None = None
        self.size = 0
        self._part, self._in_part = self._prompts, np.zeros(0, np.int64)

    def begin(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Begin conversations; earlier ones end.

        Args:
            prompts: Tokens of every prompt.

        Returns:
            Logits of the next token, float32 [n, vocabulary].
        """
        if self.size > MAX_SIZE:
            self._clear()
        wanted = [tuple(prompt) for prompt in prompts]
        new = [prompt for prompt in dict.fromkeys(wanted) if prompt not in self._numbers]
        if new:
            first = len(self._numbers)
            self._numbers |= {prompt: first + i for i, prompt in enumerate(new)}
            cache = KVCache(self._model, len(new))
            logits = cache.add(new)
            self._store([(first + i, ()) for i in range(len(new))], logits)
            self.computed += cache.computed
            self.size += cache.size
            self._prompts.join(cache)
        self._at = np.array([self._numbers[prompt] for prompt in wanted])
        self._replies: list[tuple[int, ...]] = [()] * len(wanted)
        self._in_part = np.zeros(0, np.int64)
        return self._cached(range(len(wanted)))

    def add_one(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Append a token to some conversations.

        Args:
            tokens: int64 [n]; ignored outside of the mask.
            mask: The conversations to extend, bool [n].

        Returns:
            Logits of the next token, float32 [n, vocabulary]; undefined outside of the mask.
        """
        which, new = np.flatnonzero(mask.cpu().numpy()), tokens.cpu().tolist()
        for i in which:
            self._replies[i] += (new[i],)
        deep = len(self._replies[which[0]]) > DEPTH  # all replies have the same length
        logits: Tensor | None = None
        missing = which if deep else self._missing(which)
        if len(missing):
            logits = self._compute(missing)
            if not deep:
                self._store([self._key(i) for i in missing], logits)
        if not deep:
            logits, missing = self._cached(which), which
        all_logits = logits.new_zeros(len(self._replies), logits.shape[1])
        all_logits[torch.from_numpy(missing).to(all_logits.device)] = logits
        return all_logits

    def _missing(self, which: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return conversations that are not cached, one for equal conversations, in rising order."""
        keys = {self._key(i): i for i in which}
        return np.array(sorted(i for key, i in keys.items() if key not in self._rows), np.int64)

    def _compute(self, which: NDArray[np.int64]) -> Tensor:
        """Return the logits after conversations, in rising order, whose prompts are cached."""
        if np.isin(which, self._in_part).all():
            self._part.keep(np.isin(self._in_part, which))
            chunks = [self._replies[i][-1:] for i in which]
        else:
            self._part = self._prompts.copy(self._at[which])
            chunks = [self._replies[i] for i in which]
        before, self._in_part = self._part.computed, which
        logits = self._part.add(chunks)
        self.computed += self._part.computed - before
        return logits

    def _key(self, i: int) -> _Key:
        return int(self._at[i]), self._replies[i]

    def _store(self, keys: Sequence[_Key], logits: Tensor) -> None:
        used = len(self._rows)
        if self._table is None:
            self._table = logits.new_empty(0, logits.shape[1])
        # Doubled, so that copying stays proportional to the size
        if used + len(keys) > len(self._table):
            more = logits.new_empty(used + len(keys), logits.shape[1])
            self._table = torch.cat([self._table[:used], more])
        self._table[used : used + len(keys)] = logits
        self._rows |= {key: used + i for i, key in enumerate(keys)}
        self.size += logits.numel()

    def _cached(self, which: Any) -> Tensor:
        rows = [self._rows[self._key(i)] for i in which]
        return self._table[torch.tensor(rows, device=self._table.device)]
