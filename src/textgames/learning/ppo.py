"""Policy optimisation of a language model on the tokens that it said.

PPO's clipped objective (Schulman et al. 2017) per token; the mean is over all tokens of a minibatch, however they are
spread over trajectories and however many pieces it is computed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from textgames.learning import advantages
from textgames.models import distributed
from textgames.models.scoring import Batch, Critic, Scorer, balance
from textgames.models.trajectories import Text, Trajectory

KL_LIMIT = 10.0


@dataclass(frozen=True)
class Settings:
    """What an update needs to know.

    Attributes:
        estimator: One of `advantages.ESTIMATORS`.
        credit: One of `advantages.CREDITS`, of `gae`.
        gamma: Of `gae` from token to token, of `states` from turn to turn.
        gae_lambda: Of `gae`.
        clip_low, clip_high: How far below and above 1 the ratio of probabilities still pays.
        entropy_coef: Of the entropy, which is added to what is made large.
        kl_coef: Of the divergence from the reference, which is made small.
        minibatch: Trajectories a step of the optimiser.
        micro: Trajectories that are computed together.
        epochs: Passes over the trajectories.
        all_tokens: What the game said is learned from too, see `Text.counted`.
        temperature: At which tokens were drawn.
        grad_clip: The largest norm of the gradient.
    """

    estimator: str = "brpo"
    credit: str = "outcome"
    gamma: float = 1.0
    gae_lambda: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.2
    entropy_coef: float = 0.001
    kl_coef: float = 0.001
    minibatch: int = 32
    micro: int = 4
    epochs: int = 1
    all_tokens: bool = False
    temperature: float = 1.0
    grad_clip: float = 1.0


def policy_losses(
    logs: Tensor, old: Tensor, advantage: Tensor, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """The clipped objective, to be made small, and whether it was clipped; each [N].

    Args:
        logs, old: Log-probabilities now and when the tokens were said [N].
        advantage: [N].
        low, high: See `Settings`.
    """
    ratio = (logs - old).exp()
    free, held = -advantage * ratio, -advantage * ratio.clamp(1 - low, 1 + high)
    return torch.maximum(free, held), held > free


def divergence(logs: Tensor, reference: Tensor) -> Tensor:
    """An estimate of the Kullback-Leibler divergence from the reference, never below 0 (Schulman 2020, "k3") [N]."""
    apart = reference - logs
    return (apart.exp() - apart - 1).clamp(max=KL_LIMIT)


@dataclass
class _Piece:
    """Texts of a trajectory, with what does not change while it is learned from; float32 [N] each.

    `old` is None until it was learned from, if that is before the model changes.
    """

    texts: list[Text]
    advantage: Tensor
    returns: Tensor | None
    old: Tensor | None
    reference: Tensor | None

    @property
    def count(self) -> int:
        return len(self.advantage)


class Learner:
    """A policy, perhaps a critic, and their optimisers.

    Args:
        model: A causal model of `transformers`; what it has to learn requires gradients.
        settings: See `Settings`.
        lr: Of AdamW.
        reference: The model as it was at first, for the divergence; None for the model itself without its LoRA.
        critic: Of `gae`.
        critic_lr: Of its AdamW.
        cast: Around each forward pass, such as autocast.
        among: The processes that learn together; the models are spread over them.
        bf16: Of models that are spread, see `Ranks.spread`.
    """

    def __init__(
        self,
        model: Any,
        settings: Settings,
        lr: float,
        reference: Any | None = None,
        critic: Critic | None = None,
        critic_lr: float = 1e-5,
        cast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        among: distributed.Ranks | None = None,
        *,
        bf16: bool = False,
    ) -> None:
        self.model, self.critic, self.settings, self._lr = model, critic, settings, lr
        self._scorer, self._cast, self.ranks = Scorer(model), cast, among or distributed.Ranks()
        self._reference = reference and Scorer(reference)
        for each in filter(None, (self._scorer, self._reference, critic)):
            self.ranks.spread(each, bf16=bf16)
        self._weights = [each for each in model.parameters() if each.requires_grad]
        self._device = self._weights[0].device
        self.optimizer = torch.optim.AdamW(self._weights, lr=lr, weight_decay=0.01)
        self.critic_optimizer = critic and torch.optim.AdamW(
            critic.parameters(), lr=critic_lr, weight_decay=0.01
        )

    def update(
        self,
        trajectories: Sequence[Trajectory],
        groups: NDArray[np.int64],
        rng: np.random.Generator,
        *,
        critic_alone: bool = False,
        step: float = 1.0,
    ) -> dict[str, float]:
        """Learns from trajectories.

        Args:
            trajectories: At least one; the same ones in every process.
            groups: Equal where the game is, int64 [B].
            rng: Of the order in which they come, games one after the other.
            critic_alone: The model stays as it is; its gradient is not computed and told as 0.
            step: The size of the model's steps, as a share of `lr`.

        Returns:
            Means over tokens, and the largest norm of the model's gradient; of the critic alone its loss and no more.
        """
        settings = self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = step * self._lr
        orders = [_shuffled(groups, rng) for _ in range(settings.epochs)]
        pieces = self._pieces(trajectories, groups, orders[0][: settings.minibatch], critic_alone)
        sums: dict[str, float] = {}
        self.model.train()
        largest = 0.0
        for order in orders:
            for start in range(0, len(order), settings.minibatch):
                part = [pieces[i] for i in order[start : start + settings.minibatch]]
                largest = max(largest, self._step(part, sums, critic_alone))
        tokens = sum(piece.count for piece in pieces)
        sums = self.ranks.sums(sums)
        means = {name: value / (tokens * settings.epochs) for name, value in sums.items()}
        return {**means, "grad_norm": largest, "tokens": float(tokens)}

    def _pieces(
        self,
        trajectories: Sequence[Trajectory],
        groups: NDArray[np.int64],
        first: NDArray[np.int64],
        critic_alone: bool,
    ) -> list[_Piece]:
        """Args: see `update`; `first` are the trajectories of the first step, int64 [n]."""
        settings = self.settings
        texts = [each.texts for each in trajectories]
        turns = [
            np.concatenate([text.counted(all_tokens=settings.all_tokens) for text in each])
            for each in texts
        ]
        turns = [each[each >= 0] for each in turns]
        # Those of the first step are found there: until then the model stays as it was. In a later epoch another
        # process may have them.
        later = np.arange(0 if critic_alone else len(texts))
        if self.ranks.size == 1 or settings.epochs == 1:
            later = np.setdiff1d(later, first)
        old: list[Tensor | None] = [None] * len(texts)
        for i, each in zip(
            later, self._log_probs(self._scorer, [texts[i] for i in later]), strict=True
        ):
            old[i] = each
        reference: list[Tensor | None] = [None] * len(texts)
        if settings.kl_coef and not critic_alone:
            with self._before() as before:
                reference = self._log_probs(before, texts)
        returns: list[Tensor | None] = [None] * len(texts)
        if self.critic is not None:
            values = [each.cpu().numpy() for each in self._values(texts)]
            raw, returned = advantages.of_tokens(
                [each.rewards for each in trajectories], turns, values, credit=settings.credit,
                gamma=settings.gamma, gae_lambda=settings.gae_lambda,
            )  # fmt: skip
            everything = np.concatenate(raw)
            mean, spread = everything.mean(), everything.std() + 1e-8
            worth = [(each - mean) / spread for each in raw]
            returns = [torch.from_numpy(each).to(self._device) for each in returned]
        elif settings.estimator == "states":
            of_turns = self._of_turns(trajectories, groups)
            worth = [each[turn] for each, turn in zip(of_turns, turns, strict=True)]
        else:
            scores = np.array([each.score for each in trajectories])
            of = advantages.of_outcomes(settings.estimator, scores, groups)
            worth = [np.full(len(turn), a, np.float32) for turn, a in zip(turns, of, strict=True)]
        given = [torch.from_numpy(np.float32(each)).to(self._device) for each in worth]
        return [_Piece(*each) for each in zip(texts, given, returns, old, reference, strict=True)]

    def _of_turns(
        self, trajectories: Sequence[Trajectory], groups: NDArray[np.int64]
    ) -> list[NDArray[np.float64]]:
        """Advantages of each trajectory's turns, from those of the same game."""
        paths = [
            advantages.Path(
                each.told(), [turn.action for turn in each.turns], each.rewards, each.done, each.luck
            )
            for each in trajectories
        ]  # fmt: skip
        games = [np.flatnonzero(groups == group) for group in np.unique(groups)]
        judged = [
            advantages.of_turns([paths[i] for i in which], self.settings.gamma) for which in games
        ]
        spread = np.concatenate([turns.advantage for game in judged for turns in game]).std()
        found: list[NDArray[np.float64]] = [np.zeros(0)] * len(trajectories)
        for which, game in zip(games, judged, strict=True):
            for i, each in zip(which, advantages.preferred(game, spread), strict=True):
                found[i] = each
        return found

    def _step(self, pieces: list[_Piece], sums: dict[str, float], critic_alone: bool) -> float:
        """A step of the optimisers from a minibatch; returns the norm of the model's gradient."""
        settings, count = self.settings, sum(piece.count for piece in pieces)
        self.optimizer.zero_grad()
        if self.critic_optimizer:
            self.critic_optimizer.zero_grad()
        for chosen, counts in self.ranks.turns(self._together([piece.texts for piece in pieces])):
            part = [pieces[i] for i in chosen]
            # Gradients become the mean over the processes.
            weight = self.ranks.size * counts / count
            batch = self._batch([piece.texts for piece in part])
            found: dict[str, Tensor] = {}
            if not critic_alone:
                loss, found = self._loss(part, batch)
                (weight * loss).backward()
            if self.critic is not None:
                with self._cast():
                    values = self.critic(batch)
                off = (values - _joined(piece.returns for piece in part)) ** 2
                (0.5 * weight * off.sum()).backward()
                found["loss/value"] = off
            for name, each in found.items():
                sums[name] = sums.get(name, 0.0) + counts * float(each.detach().sum())
        norm = 0.0
        if not critic_alone:
            clipped = torch.nn.utils.clip_grad_norm_(self._weights, settings.grad_clip)
            norm = float(distributed.full(clipped))
            self.optimizer.step()
        if self.critic_optimizer:
            torch.nn.utils.clip_grad_norm_(self.critic.parameters(), settings.grad_clip)
            self.critic_optimizer.step()
        return norm

    def _loss(self, part: list[_Piece], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The model's loss, summed over tokens, and what is told of each of them [N]."""
        settings = self.settings
        advantage = torch.cat([piece.advantage for piece in part])
        with self._cast():
            logs, entropy = self._scorer(batch, settings.temperature)
        for piece, found_now in zip(
            part, logs.detach().split([piece.count for piece in part]), strict=True
        ):
            piece.old = found_now if piece.old is None else piece.old
        old = _joined(piece.old for piece in part)
        losses, clipped = policy_losses(logs, old, advantage, settings.clip_low, settings.clip_high)
        loss = losses.sum() - settings.entropy_coef * entropy.sum()
        found = {
            "loss/policy": losses,
            "entropy": entropy,
            "clipped": clipped,
            "kl/old": divergence(logs, old),
        }
        if settings.kl_coef:
            apart = divergence(logs, _joined(piece.reference for piece in part))
            loss = loss + settings.kl_coef * apart.sum()
            found["kl/reference"] = apart
        return loss, found

    @torch.no_grad()
    def _log_probs(self, scorer: Scorer, texts: Sequence[list[Text]]) -> list[Tensor]:
        """Log-probabilities of each trajectory's tokens."""
        return self._judged(texts, lambda batch: scorer(batch, self.settings.temperature)[0])

    @torch.no_grad()
    def _values(self, texts: Sequence[list[Text]]) -> list[Tensor]:
        """The critic's values before each trajectory's tokens."""
        return self._judged(texts, self.critic)

    def _judged(
        self, texts: Sequence[list[Text]], judge: Callable[[Batch], Tensor]
    ) -> list[Tensor]:
        if not texts:
            return []
        own: list[tuple[int, Tensor]] = []
        for part, counts in self.ranks.turns(self._together(texts)):
            batch = self._batch([texts[i] for i in part])
            with self._cast():
                judged = judge(batch)
            rows = iter(batch.counts)
            lengths = [sum(next(rows) for _ in texts[i]) for i in part]
            if counts:
                own += zip(part, judged.split(lengths), strict=True)
        found = dict(self._gathered(own))
        return [found[i] for i in range(len(texts))]

    def _gathered(self, own: list[tuple[int, Tensor]]) -> list[tuple[int, Tensor]]:
        """What all processes found, in each of them on its own device."""
        if self.ranks.size == 1:
            return own
        found = self.ranks.gather([(i, each.cpu()) for i, each in own])
        return [(i, each.to(self._device)) for i, each in found]

    @contextmanager
    def _before(self) -> Iterator[Scorer]:
        """The model as it was at first."""
        if self._reference is not None:
            yield self._reference
            return
        with self.model.disable_adapter():
            yield self._scorer

    def playing(self) -> AbstractContextManager[None]:
        """To be around what uses the model without learning."""
        return self.ranks.whole(self._scorer)

    def _together(self, texts: Sequence[list[Text]]) -> list[list[int]]:
        """Which trajectories are computed together: those of a game, and games of about the same length."""
        games = [each[0].tokens[: np.argmax(each[0].turns >= 0)].tobytes() for each in texts]
        longest: dict[bytes, int] = {}
        for game, each in zip(games, texts, strict=True):
            longest[game] = max(longest.get(game, 0), *(len(text.tokens) for text in each))
        order = sorted(
            range(len(texts)),
            key=lambda i: (longest[games[i]], games[i], texts[i][0].tokens.tobytes()),
        )
        return [
            order[start : start + self.settings.micro]
            for start in range(0, len(order), self.settings.micro)
        ]

    def _batch(self, texts: Sequence[list[Text]]) -> Batch:
        flat = [text for each in texts for text in each]
        return Batch.of(
            flat, self._device, all_tokens=self.settings.all_tokens, balance=balance(self.model)
        )

    def state(self) -> dict[str, Any]:
        """The optimisers', to go on to the bit."""
        found = {"optimizer": distributed.moments(self.optimizer)}
        if self.critic_optimizer:
            found["critic_optimizer"] = distributed.moments(self.critic_optimizer)
        return found

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state()`; weights are restored by whoever owns them."""
        distributed.restore_moments(self.optimizer, state["optimizer"])
        if self.critic_optimizer:
            distributed.restore_moments(self.critic_optimizer, state["critic_optimizer"])


def _shuffled(groups: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """A random order in which those of a group stand together: what they share is computed once."""
    order = rng.permutation(len(groups))
    _, first, of = np.unique(groups[order], return_index=True, return_inverse=True)
    return order[np.argsort(first[of], kind="stable")]


def _joined(tensors: Any) -> Tensor:
    return torch.cat(list(tensors))
