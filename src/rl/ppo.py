"""Proximal policy optimisation (PPO; Schulman et al. 2017, arXiv 1707.06347): advantages, losses and update.

Details follow a2c_ppo_acktr (github.com/ikostrikov/pytorch-a2c-ppo-acktr-gail). The gradients of the losses are written
out; tests compare them with autograd.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rl.actor_critic import Forward
from rl.gae import gae
from rl.rollout import NonFiniteError, Rollout
from rl.variants import VALUE_LOSSES

STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
_KL = STATISTICS.index("approx_kl")


@dataclass(frozen=True)
class PPOSettings:
    """Hyperparameters of an update.

    Attributes:
        clip_coef: Half-width of the trust region of the probability ratio.
        epochs: Passes over the rollout.
        minibatch_size: Samples per gradient step.
        value_coef, entropy_coef: Weights in the total loss.
        value_loss: See `value_loss`.
        gamma, gae_lambda, time_limit: See `rl.gae.gae`.
        target_kl: The update ends after an epoch whose mean approximate KL divergence (nats) is above this; 0: never.
    """

    clip_coef: float
    epochs: int
    minibatch_size: int
    value_coef: float
    entropy_coef: float
    value_loss: str
    gamma: float
    gae_lambda: float
    time_limit: str
    target_kl: float


@dataclass
class Targets:
    """What the PPO loss compares the outputs of B samples with: tensors [B].

    `log_probs` and `values` are those of the policy and critic that collected the rollout.
    """

    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor


@dataclass
class Batch(Targets):
    """The samples of a rollout, T * N in number: tensors [T * N, ...]."""

    observations: Tensor
    actions: Tensor

    def minibatches(self, size: int, rng: np.random.Generator) -> Iterator[Batch]:
        """Shuffle the samples and yield them in batches of `size`; the last batch may be smaller."""
        index = torch.from_numpy(rng.permutation(len(self.returns)))
        shuffled = [tensor.index_select(0, index) for tensor in vars(self).values()]
        for start in range(0, len(index), size):
            yield Batch(*(tensor[start : start + size] for tensor in shuffled))


@dataclass(frozen=True)
class Loss:
    """The PPO loss of a minibatch of B samples and its derivatives with respect to the outputs of actor and critic.

    Attributes:
        statistics: [5], the values named by `STATISTICS`.
        d_log_probs: [B], derivative of the total loss with respect to the log-probabilities of the actions.
        d_entropy: Derivative with respect to the mean entropy.
        d_values: [B], derivative with respect to the values.
    """

    statistics: Tensor
    d_log_probs: Tensor
    d_entropy: float
    d_values: Tensor


class Agent(Protocol):
    """Actor and critic with their optimiser, as `update` uses them."""

    def values(self, observations: Tensor) -> Tensor:
        """Return the critic's values [B] of observations [B, O]."""

    def forward(self, observations: Tensor, actions: Tensor) -> Forward:
        """Evaluate actor and critic on a minibatch."""

    def gradient_step(self, forward: Forward, loss: Loss) -> float:
        """Backpropagate a loss, clip the gradient and step the optimiser.

        Args:
            forward: The result of `forward` with the current weights.
            loss: The loss of these outputs.

        Returns:
            Norm of the gradient before clipping.
        """

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of the last loss by name, for the error message of a non-finite value."""


def update(
    agent: Agent, batch: Batch, settings: PPOSettings, rng: np.random.Generator
) -> dict[str, float]:
    """Run the epochs of one PPO update.

    Args:
        agent: Its weights are changed in place.
        batch: Samples of the latest rollout, from `compute_advantages`.
        settings: Hyperparameters.
        rng: Source of the order of the samples.

    Returns:
        Means of `STATISTICS` and of `grad_norm` over the gradient steps, and their number `gradient_steps`.

    Raises:
        NonFiniteError: A loss or a gradient is not finite. The agent's weights are then unusable.
    """
    history: list[Tensor] = []
    norms: list[float] = []
    for _ in range(settings.epochs):
        epoch_start = len(history)
        for sample in batch.minibatches(settings.minibatch_size, rng):
            forward = agent.forward(sample.observations, sample.actions)
            loss = ppo_loss(forward.log_probs, forward.entropy, forward.values, sample, settings)
            norms.append(agent.gradient_step(forward, loss))
            history.append(loss.statistics)
            if not np.isfinite(norms[-1]):
                raise NonFiniteError(_first_non_finite(loss.statistics, agent))
        epoch_kl = torch.stack(history[epoch_start:])[:, _KL].mean()
        if settings.target_kl and epoch_kl > settings.target_kl:
            break
    means = torch.stack(history).mean(dim=0).tolist()
    if not np.isfinite(means).all():
        raise NonFiniteError(_first_non_finite(torch.tensor(means), agent))
    result = dict(zip(STATISTICS, means, strict=True))
    return result | {
        "grad_norm": float(np.mean(norms)),
        "gradient_steps": float(len(norms)),
    }


def compute_advantages(
    agent: Agent, rollout: Rollout, rewards: np.ndarray, settings: PPOSettings
) -> Batch:
    """Estimate advantages and returns of a rollout, A_t = delta_t + gamma lambda A_(t+1) (see `rl.gae.gae`).

    Args:
        agent: Its critic gives the values.
        rollout: T steps of N environments.
        rewards: [T, N], scaled for training.
        settings: Hyperparameters.

    Raises:
        NonFiniteError: A value is not finite.
    """
    observations = torch.from_numpy(rollout.observations)
    values = agent.values(observations.flatten(0, 1)).view(observations.shape[:2]).numpy()
    final_values = None
    if rollout.final_observations is not None:
        final = torch.from_numpy(rollout.final_observations)
        final_values = agent.values(final.flatten(0, 1)).view(final.shape[:2]).numpy()
    if not np.isfinite(values).all():
        raise NonFiniteError("values")
    advantages, returns = gae(
        rewards,
        values,
        rollout.terminated,
        rollout.truncated,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        time_limit=settings.time_limit,
        final_values=final_values,
    )
    # To mean 0 and standard deviation 1 over the whole rollout.
    advantages = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-5)
    return Batch(
        observations=torch.from_numpy(rollout.observations[:-1]).flatten(0, 1),
        actions=torch.from_numpy(rollout.actions).flatten(0, 1),
        log_probs=torch.from_numpy(rollout.log_probs).flatten(),
        values=torch.from_numpy(values[:-1]).flatten(),
        advantages=torch.from_numpy(advantages).flatten(),
        returns=torch.from_numpy(returns).flatten(),
    )


def ppo_loss(
    log_probs: Tensor, entropy: Tensor, values: Tensor, sample: Targets, settings: PPOSettings
) -> Loss:
    """Return policy loss + value_coef * value loss - entropy_coef * entropy, as derivatives.

    Args:
        log_probs: [B], of the actions under the current policy.
        entropy: Scalar, mean over the samples.
        values: [B], of the current critic.
        sample: The minibatch.
        settings: Hyperparameters.
    """
    log_ratio = log_probs - sample.log_probs
    policy, d_log_probs = policy_loss(log_ratio, sample.advantages, settings.clip_coef)
    value, d_values = value_loss(
        values, sample.values, sample.returns, settings.clip_coef, settings.value_loss
    )
    ratio_minus_1 = torch.expm1(log_ratio)
    # Schulman, "Approximating KL Divergence" (2020): an estimator of low variance that is never negative.
    approx_kl = (ratio_minus_1 - log_ratio).mean()
    clip_fraction = (ratio_minus_1.abs() > settings.clip_coef).float().mean()
    return Loss(
        statistics=torch.stack((policy, value, entropy, approx_kl, clip_fraction)),
        d_log_probs=d_log_probs,
        d_entropy=-settings.entropy_coef,
        d_values=d_values.mul_(settings.value_coef),
    )


def policy_loss(log_ratio: Tensor, advantages: Tensor, clip_coef: float) -> tuple[Tensor, Tensor]:
    """Return the negated clipped surrogate, -mean(min(r A, clip(r, 1 - c, 1 + c) A)) (Schulman et al. 2017, eq. 7).

    Args:
        log_ratio: [B], log r: log-probability now minus that of the rollout.
        advantages: [B], A.
        clip_coef: c.

    Returns:
        The loss, and its derivative with respect to the log-probabilities [B].
    """
    ratio = torch.exp(log_ratio)
    unclipped = ratio * advantages
    clipped = ratio.clamp(1 - clip_coef, 1 + clip_coef) * advantages
    gradient = torch.where(unclipped <= clipped, unclipped, 0.0).mul_(-1 / len(unclipped))
    return -torch.minimum(unclipped, clipped).mean(), gradient


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip_coef: float, kind: str
) -> tuple[Tensor, Tensor]:
    """Return half the mean squared error of the values, in a variant.

    - `max`: the larger of the clipped and the unclipped error (a2c_ppo_acktr, OpenAI baselines).
    - `clipped`: the clipped error alone, as in the source of HN-PPO. Its gradient is zero for values that have changed
      by more than `clip_coef`, even in the wrong direction.
    - `plain`: no clipping.

    Returns:
        The loss, and its derivative with respect to the values [B].

    Raises:
        ValueError: Unknown variant.
    """
    if kind not in VALUE_LOSSES:
        raise ValueError(f"value_loss is {kind!r}, not one of {', '.join(VALUE_LOSSES)}")
    error, size = values - returns, len(values)
    if kind == "plain":
        return 0.5 * error.square().mean(), error / size
    change = values - old_values
    limited = change.clamp(-clip_coef, clip_coef)
    # Within the range the two errors are equal; outside it the clipped error does not depend on the value.
    within, clipped = limited == change, old_values + limited - returns
    if kind == "clipped":
        return 0.5 * clipped.square().mean(), torch.where(within, error, 0.0).div_(size)
    square, clipped_square = error.square(), clipped.square()
    gradient = torch.where(within | (square > clipped_square), error, 0.0).div_(size)
    return 0.5 * torch.maximum(square, clipped_square).mean(), gradient


def _first_non_finite(statistics: Tensor, agent: Agent) -> str:
    """Return the name of the first loss or gradient that is not finite."""
    for name, value in zip(STATISTICS, statistics.tolist(), strict=True):
        if not np.isfinite(value):
            return name
    for name, gradient in agent.gradients().items():
        if not bool(gradient.isfinite().all()):
            return f"gradient of {name}"
    return "gradient norm"
