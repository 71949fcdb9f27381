"""Proximal policy optimisation (PPO, Schulman et al. 2017, arXiv 1707.06347) of the tokens of a language model.

Every token a_t that the model wrote in the context s_t is an action. With the policy pi, the policy pi_old that
sampled the token, the reference pi_ref (the policy before training), the advantage A_t and the return R_t:

    r_t    = pi(a_t | s_t) / pi_old(a_t | s_t)
    L_t    = -min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t)
    KL_t   = q_t - log q_t - 1,   q_t = pi_ref(a_t | s_t) / pi(a_t | s_t)          (k3, Schulman 2020)
    policy loss = mean_t [L_t - entropy_coef H(pi(. | s_t)) + kl_coef KL_t]
    critic loss = mean_t [(V(s_t) - R_t)^2] / 2

The means are over all tokens of a minibatch of trajectories, in however many micro-batches it is computed. Compared
with RAGEN's code of February 2025 the sign of the KL term is corrected: divergence is penalised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from textgames.learning.advantages import Estimates
from textgames.learning.networks import Networks
from textgames.models import distributed
from textgames.models.scoring import Batch
from textgames.models.trajectories import Text, Trajectory

KL_LIMIT = 10.0
_WEIGHT_DECAY = 0.01


@dataclass(frozen=True, kw_only=True)
class PPOSettings:
    """Settings of PPO.

    Attributes:
        clip_low, clip_high: How far the probability ratio may fall below and rise above 1.
        entropy_coef: Coefficient of the entropy bonus.
        kl_coef: Coefficient of the divergence from the reference; 0: no reference.
        minibatch_size: Trajectories per optimizer step.
        epochs: Passes over the trajectories.
        grad_clip: Largest norm of the gradient.
        actor_lr, critic_lr: AdamW's learning rates.
    """

    clip_low: float
    clip_high: float
    entropy_coef: float
    kl_coef: float
    minibatch_size: int
    epochs: int
    grad_clip: float
    actor_lr: float
    critic_lr: float


def policy_losses(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """Return the losses L_t of PPO's clipped objective, and whether they were clipped; [N] each."""
    ratio = (log_probs - old_log_probs).exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.maximum(unclipped, clipped), clipped > unclipped


def kl_divergence(log_probs: Tensor, reference_log_probs: Tensor) -> Tensor:
    """Return unbiased estimates KL_t of the divergence from the reference, 0 to `KL_LIMIT` [N].

    Args:
        log_probs: Log-probabilities of the tokens with the policy that sampled them [N].
        reference_log_probs: With the reference [N].
    """
    log_q = reference_log_probs - log_probs
    return (log_q.exp() - log_q - 1).clamp(max=KL_LIMIT)


@dataclass
class Sample:
    """A trajectory as PPO reads it; tensors are float32 [N], a number per trained token.

    Attributes:
        texts: Its tokens.
        advantages: A_t.
        returns: R_t; None without a critic.
        old_log_probs: log pi_old. None until the first minibatch, which computes them: until then pi is pi_old.
        reference_log_probs: log pi_ref; None without a KL term.
    """

    texts: list[Text]
    advantages: Tensor
    returns: Tensor | None
    old_log_probs: Tensor | None
    reference_log_probs: Tensor | None

    @property
    def tokens(self) -> int:
        """Number of trained tokens."""
        return len(self.advantages)


class Learner:
    """Networks with their optimizers, updated by PPO.

    Args:
        networks: Policy, reference and critic.
        settings: See `PPOSettings`.
    """

    def __init__(self, networks: Networks, settings: PPOSettings) -> None:
        self.networks, self.settings = networks, settings
        self.optimizer = torch.optim.AdamW(
            networks.trained, lr=settings.actor_lr, weight_decay=_WEIGHT_DECAY
        )
        self.critic_optimizer = None
        if networks.critic is not None:
            self.critic_optimizer = torch.optim.AdamW(
                networks.critic.parameters(), lr=settings.critic_lr, weight_decay=_WEIGHT_DECAY
            )

    def update(
        self,
        trajectories: Sequence[Trajectory],
        estimates: Estimates,
        groups: NDArray[np.int64],
        rng: np.random.Generator,
        *,
        critic_only: bool = False,
        lr_scale: float = 1.0,
    ) -> dict[str, float]:
        """Update policy and critic for some epochs of minibatches.

        Args:
            trajectories: At least one; the same in every process.
            estimates: Their advantages and returns.
            groups: Number of the game of every trajectory, int64 [B].
            rng: Random numbers of the order of trajectories.
            critic_only: Warm-up of the critic: the policy is not updated, its gradient norm is reported as 0.
            lr_scale: Factor of `actor_lr`.

        Returns:
            Metrics: means over tokens, the largest norm of the policy's gradient, and the number of tokens.
        """
        settings = self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = lr_scale * settings.actor_lr
        orders = [shuffled_by_group(groups, rng) for _ in range(settings.epochs)]
        first_minibatch = orders[0][: settings.minibatch_size]
        samples = self._samples(trajectories, estimates, first_minibatch, critic_only)
        sums: dict[str, float] = {}
        grad_norm = 0.0
        self.networks.policy.train()
        for order in orders:
            for start in range(0, len(order), settings.minibatch_size):
                minibatch = [samples[i] for i in order[start : start + settings.minibatch_size]]
                grad_norm = max(grad_norm, self._step(minibatch, sums, critic_only))
        tokens = sum(sample.tokens for sample in samples)
        sums = self.networks.ranks.sums(sums)
        means = {name: value / (tokens * settings.epochs) for name, value in sums.items()}
        return {**means, "grad_norm": grad_norm, "tokens": float(tokens)}

    def _step(self, minibatch: list[Sample], sums: dict[str, float], critic_only: bool) -> float:
        """Make an optimizer step, add the metrics of all tokens to `sums`, and return the gradient norm."""
        networks, settings = self.networks, self.settings
        tokens = sum(sample.tokens for sample in minibatch)
        self.optimizer.zero_grad()
        if self.critic_optimizer:
            self.critic_optimizer.zero_grad()
        for rows, batch, counts in networks.micro_batches([sample.texts for sample in minibatch]):
            samples = [minibatch[row] for row in rows]
            # Gradients are averaged over processes, so the sum over tokens is multiplied by their number.
            weight = networks.ranks.size * counts / tokens
            metrics: dict[str, Tensor] = {}
            if not critic_only:
                loss, metrics = self._policy_loss(samples, batch)
                (weight * loss).backward()
            if self.critic_optimizer:
                errors = networks.batch_values(batch) - _joined(s.returns for s in samples)
                squares = errors**2
                (0.5 * weight * squares.sum()).backward()
                metrics["loss/value"] = squares
            for name, values in metrics.items():
                sums[name] = sums.get(name, 0.0) + counts * float(values.detach().sum())
        grad_norm = 0.0
        if not critic_only:
            norm = torch.nn.utils.clip_grad_norm_(networks.trained, settings.grad_clip)
            grad_norm = float(distributed.full_tensor(norm))
            self.optimizer.step()
        if self.critic_optimizer:
            torch.nn.utils.clip_grad_norm_(networks.critic.parameters(), settings.grad_clip)
            self.critic_optimizer.step()
        return grad_norm

    def _policy_loss(self, samples: list[Sample], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the policy loss, summed over tokens, and the metrics of the tokens, [N] each."""
        settings = self.settings
        log_probs, entropy = self.networks.log_probs_and_entropy(batch)
        for sample, current in zip(
            samples, log_probs.detach().split([sample.tokens for sample in samples]), strict=True
        ):
            if sample.old_log_probs is None:
                sample.old_log_probs = current
        old_log_probs = _joined(sample.old_log_probs for sample in samples)
        advantages = _joined(sample.advantages for sample in samples)
        losses, clipped = policy_losses(
            log_probs, old_log_probs, advantages, settings.clip_low, settings.clip_high
        )
        loss = losses.sum() - settings.entropy_coef * entropy.sum()
        metrics = {
            "loss/policy": losses,
            "entropy": entropy,
            "clipped": clipped,
            "kl/old": kl_divergence(old_log_probs, log_probs),
        }
        if settings.kl_coef:
            kl = kl_divergence(log_probs, _joined(s.reference_log_probs for s in samples))
            loss = loss + settings.kl_coef * kl.sum()
            metrics["kl/reference"] = kl
        return loss, metrics

    def _samples(
        self,
        trajectories: Sequence[Trajectory],
        estimates: Estimates,
        first_minibatch: NDArray[np.int64],
        critic_only: bool,
    ) -> list[Sample]:
        """Return trajectories with estimates and the log-probabilities of pi_old and pi_ref."""
        networks, settings = self.networks, self.settings
        texts = [trajectory.texts for trajectory in trajectories]
        samples = [
            Sample(text, self._tensor(advantages), None, None, None)
            for text, advantages in zip(texts, estimates.advantages, strict=True)
        ]
        for sample, returns in zip(samples, estimates.returns or (), strict=False):
            sample.returns = self._tensor(returns)
        if critic_only:
            return samples
        later = np.arange(len(samples))
        # In a later epoch another process may compute a trajectory, so all processes need its log-probabilities.
        if networks.ranks.size == 1 or settings.epochs == 1:
            later = np.setdiff1d(later, first_minibatch)
        for i, log_probs in zip(later, networks.log_probs([texts[i] for i in later]), strict=True):
            samples[i].old_log_probs = log_probs
        if settings.kl_coef:
            reference = networks.reference_log_probs(texts)
            for sample, log_probs in zip(samples, reference, strict=True):
                sample.reference_log_probs = log_probs
        return samples

    def _tensor(self, values: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(np.float32(values)).to(self.networks.device)

    def state(self) -> dict[str, Any]:
        """Return the optimizers' states, for a checkpoint."""
        state = {"optimizer": distributed.optimizer_state(self.optimizer)}
        if self.critic_optimizer:
            state["critic_optimizer"] = distributed.optimizer_state(self.critic_optimizer)
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the optimizers from `state()`; weights are restored elsewhere."""
        distributed.restore_optimizer(self.optimizer, state["optimizer"])
        if self.critic_optimizer:
            distributed.restore_optimizer(self.critic_optimizer, state["critic_optimizer"])


def shuffled_by_group(groups: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a random order in which the trajectories of a game are neighbours, so that common prefixes are shared."""
    order = rng.permutation(len(groups))
    _, first, group = np.unique(groups[order], return_index=True, return_inverse=True)
    return order[np.argsort(first[group], kind="stable")]


def _joined(tensors: Any) -> Tensor:
    return torch.cat(list(tensors))
