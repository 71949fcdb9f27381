"""Conversations that begin again and again, as where each turn shows the last state alone: what was read is recalled.

A game that is played many times, and one in which nothing moves, comes back to the same state. What a model makes of
the same tokens is the same as long as it does not learn, so that it is computed once (a prefix cache).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from textgames.models.kv_cache import Reading

DEEP = 4  # tokens of a reply that are recalled: an answer without a thought; longer ones hardly come again
AT_MOST = 2**28  # numbers that are kept: 1 GiB

_Key = tuple[int, tuple[int, ...]]  # which prompt, and what was said


class Recall:
    """What a model makes of prompts and of the replies to them.

    Args:
        model: A causal model of `transformers`, which does not learn meanwhile.

    Attributes:
        read: Tokens that were computed.
        held: Numbers that are kept.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.read = 0
        self._forget()

    def _forget(self) -> None:
        self._names: dict[tuple[int, ...], int] = {}
        self._prompts = Reading(self._model, 0)
        self._rows: dict[_Key, int] = {}  # where in the table of logits
        self._table: Tensor | None = None
        self.held = 0
        self._part, self._in_part = self._prompts, np.zeros(0, np.int64)

    def begin(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Begins conversations; those of before are over.

        Args:
            prompts: Tokens of each.

        Returns:
            Logits of the token after them, float32 [n, vocabulary].
        """
        if self.held > AT_MOST:
            self._forget()
        wanted = [tuple(each) for each in prompts]
        new = [each for each in dict.fromkeys(wanted) if each not in self._names]
        if new:
            first = len(self._names)
            self._names |= {each: first + i for i, each in enumerate(new)}
            reading = Reading(self._model, len(new))
            logits = reading.add(new)
            self._keep([(first + i, ()) for i in range(len(new))], logits)
            self.read += reading.read
            self.held += reading.size
            self._prompts.join(reading)
        self._at = np.array([self._names[each] for each in wanted])
        self._said: list[tuple[int, ...]] = [()] * len(wanted)
        self._in_part = np.zeros(0, np.int64)
        return self._known(range(len(wanted)))

    def add_one(self, tokens: Tensor, of: Tensor) -> Tensor:
        """Reads a token more of some conversations.

        Args:
            tokens: int64 [n]; those of other conversations mean nothing.
            of: Of which, bool [n].

        Returns:
            Logits of the token after it, float32 [n, vocabulary]; those of other conversations mean nothing.
        """
        which, said = np.flatnonzero(of.cpu().numpy()), tokens.cpu().tolist()
        for i in which:
            self._said[i] += (said[i],)
        deep = len(self._said[which[0]]) > DEEP  # they are all in the same token of a reply
        found: Tensor | None = None
        missing = which if deep else self._unknown(which)
        if len(missing):
            found = self._read_on(missing)
            if not deep:
                self._keep([self._key(i) for i in missing], found)
        if not deep:
            found, missing = self._known(which), which
        logits = found.new_zeros(len(self._said), found.shape[1])
        logits[torch.from_numpy(missing).to(logits.device)] = found
        return logits

    def _unknown(self, which: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those that are not known, of several that are the same one, in rising order."""
        keys = {self._key(i): i for i in which}
        found = [i for key, i in keys.items() if key not in self._rows]
        return np.array(sorted(found), np.int64)

    def _read_on(self, which: NDArray[np.int64]) -> Tensor:
        """Logits after conversations, in rising order, of which the prompts at least were read."""
        if np.isin(which, self._in_part).all():
            self._part.keep(np.isin(self._in_part, which))
            chunks = [self._said[i][-1:] for i in which]
        else:
            self._part = self._prompts.copy(self._at[which])
            chunks = [self._said[i] for i in which]
        before, self._in_part = self._part.read, which
        found = self._part.add(chunks)
        self.read += self._part.read - before
        return found

    def _key(self, i: int) -> _Key:
        return int(self._at[i]), self._said[i]

    def _keep(self, keys: Sequence[_Key], logits: Tensor) -> None:
        used = len(self._rows)
        if self._table is None:
            self._table = logits.new_empty(0, logits.shape[1])
        if used + len(keys) > len(self._table):  # twice as long: what is copied stays in proportion
            more = logits.new_empty(used + len(keys), logits.shape[1])
            self._table = torch.cat([self._table[:used], more])
        self._table[used : used + len(keys)] = logits
        self._rows |= {key: used + i for i, key in enumerate(keys)}
        self.held += logits.numel()

    def _known(self, which: Any) -> Tensor:
        rows = [self._rows[self._key(i)] for i in which]
        return self._table[torch.tensor(rows, device=self._table.device)]
