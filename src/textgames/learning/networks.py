"""Policy, reference and critic, evaluated in micro-batches, on one device or sharded over processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from textgames.models import branch_attention
from textgames.models.distributed import Ranks
from textgames.models.scoring import Batch, Critic, Scorer, prefix_sharing_cost
from textgames.models.trajectories import Text


class MicroBatch(NamedTuple):
    """Trajectories that are computed together.

    Attributes:
        rows: Their indices.
        batch: Their texts.
        counts: False for a batch that only fills up the number of batches, see `Ranks.micro_batches`.
    """

    rows: list[int]
    batch: Batch
    counts: bool


class Networks:
    """The networks of reinforcement learning.

    Args:
        policy: A causal model of `transformers`; its trained weights require gradients.
        reference: The policy before training; None if it is the policy without its LoRA.
        critic: Value network; None without one.
        micro_batch_size: Trajectories that are computed together.
        all_tokens: Which tokens are trained on, see `Text.trained_turns`.
        temperature: Temperature that tokens are sampled at.
        autocast: Context of every forward pass.
        ranks: The processes over which weights are sharded.
        bf16: Sharded layers compute in bf16, see `Ranks.shard`.
    """

    def __init__(
        self,
        policy: Any,
        *,
        reference: Any | None,
        critic: Critic | None,
        micro_batch_size: int,
        all_tokens: bool,
        temperature: float,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        ranks: Ranks | None = None,
        bf16: bool = False,
    ) -> None:
        self.policy, self.critic, self.ranks = policy, critic, ranks or Ranks()
        self.autocast, self._temperature = autocast, temperature
        self._micro_batch_size, self._all_tokens = micro_batch_size, all_tokens
        self._scorer = Scorer(policy)
        self._reference = None if reference is None else Scorer(reference)
        for model in filter(None, (policy, reference, critic and critic.body)):
            branch_attention.enable(model)
        for module in filter(None, (self._scorer, self._reference, critic)):
            self.ranks.shard(module, bf16=bf16)
        self.trained = [weight for weight in policy.parameters() if weight.requires_grad]
        self.device = self.trained[0].device

    def log_probs_and_entropy(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the policy's log-probabilities and entropies at the trained tokens, with gradients, [N] each."""
        with self.autocast():
            return self._scorer(batch, self._temperature, entropies=True)

    def batch_values(self, batch: Batch) -> Tensor:
        """Return the critic's values before the trained tokens, with gradients [N]."""
        with self.autocast():
            return self.critic(batch)

    def log_probs(self, texts: Sequence[list[Text]]) -> list[Tensor]:
        """Return the policy's log-probabilities of the trained tokens of every trajectory, [N] each."""
        return self._evaluate(texts, lambda batch: self._scorer(batch, self._temperature)[0])

    def reference_log_probs(self, texts: Sequence[list[Text]]) -> list[Tensor]:
        """Return the reference's log-probabilities of the trained tokens of every trajectory, [N] each."""
        if self._reference is not None:
            scorer = self._reference
            return self._evaluate(texts, lambda batch: scorer(batch, self._temperature)[0])
        with self.policy.disable_adapter():
            return self.log_probs(texts)

    def values(self, texts: Sequence[list[Text]]) -> list[Tensor]:
        """Return the critic's values before the trained tokens of every trajectory, [N] each."""
        return self._evaluate(texts, self.critic)

    def micro_batches(self, texts: Sequence[list[Text]]) -> Iterator[MicroBatch]:
        """Yield this process's micro-batches of trajectories, as many as in every other process."""
        for rows, counts in self.ranks.micro_batches(self._grouped(texts)):
            flat = [text for row in rows for text in texts[row]]
            cost = prefix_sharing_cost(self.policy)
            batch = Batch.of(
                flat, self.device, all_tokens=self._all_tokens, sharing_cost=cost,
                branching=branch_attention.is_enabled(self.policy),
            )  # fmt: skip
            yield MicroBatch(rows, batch, counts)

    @contextmanager
    def generating(self) -> Iterator[None]:
        """Context of generation: every process has all weights of the policy."""
        with self.ranks.unsharded(self._scorer):
            yield

    @torch.no_grad()
    def _evaluate(
        self, texts: Sequence[list[Text]], network: Callable[[Batch], Tensor]
    ) -> list[Tensor]:
        if not texts:
            return []
        own: list[tuple[int, Tensor]] = []
        for rows, batch, counts in self.micro_batches(texts):
            with self.autocast():
                outputs = network(batch)
            token_counts = iter(batch.counts)
            lengths = [sum(next(token_counts) for _ in texts[row]) for row in rows]
            if counts:
                own += zip(rows, outputs.split(lengths), strict=True)
        outputs_by_row = dict(self._gathered(own))
        return [outputs_by_row[row] for row in range(len(texts))]

    def _gathered(self, own: list[tuple[int, Tensor]]) -> list[tuple[int, Tensor]]:
        """Return the outputs of all processes, on this process's device."""
        if self.ranks.size == 1:
            return own
        gathered = self.ranks.gather([(row, output.cpu()) for row, output in own])
        return [(row, output.to(self.device)) for row, output in gathered]

    def _grouped(self, texts: Sequence[list[Text]]) -> list[list[int]]:
        """Return the trajectories of every micro-batch: those of a game together, games by length."""
        prompts = [
            first.tokens[: np.argmax(first.turns >= 0)].tobytes() for first, *_ in texts
        ]  # fmt: skip
        longest: dict[bytes, int] = {}
        for prompt, parts in zip(prompts, texts, strict=True):
            longest[prompt] = max(longest.get(prompt, 0), *(len(text.tokens) for text in parts))
        order = sorted(
            range(len(texts)),
            key=lambda i: (longest[prompts[i]], prompts[i], texts[i][0].tokens.tobytes()),
        )
        size = self._micro_batch_size
        return [order[start : start + size] for start in range(0, len(order), size)]
