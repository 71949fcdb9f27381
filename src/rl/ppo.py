"""Proximal policy optimisation (Schulman et al. 2017), after a2c_ppo_acktr: losses and update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rl.gae import gae
from rl.rollout import NonFiniteError, Rollout

VALUE_LOSSES = ("max", "clipped", "plain")


@dataclass(frozen=True)
class PPOSettings:
    """What an update needs to know.

    Attributes:
        clip_coef: half-width of the trust region of the probability ratio.
        epochs: passes over the rollout.
        minibatch_size: samples per gradient step.
        value_coef, entropy_coef: weights in the total loss.
        value_loss: see `value_loss`.
        gamma, gae_lambda, time_limit: see `rl.gae.gae`.
        normalise_advantages: to mean 0 and spread 1 over the whole rollout.
        target_kl: no further epoch once the approximate KL divergence of the last one is above
            this (nats); 0: all epochs.
    """

    clip_coef: float = 0.2
    epochs: int = 6
    minibatch_size: int = 512
    value_coef: float = 0.5
    entropy_coef: float = 0.0
    value_loss: str = "max"
    gamma: float = 0.99
    gae_lambda: float = 0.95
    time_limit: str = "cut"
    normalise_advantages: bool = True
    target_kl: float = 0.0


class Agent(Protocol):
    """What an update acts upon: an actor and a critic and the way to step them."""

    def evaluate_actions(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, ...]:
        """Log-probabilities [B], entropy (scalar) and values [B]."""

    def values(self, observations: Tensor) -> Tensor:
        """Values [B]."""

    def optimise(self, of_log_probs: Tensor, of_entropy: float, of_values: Tensor) -> float:
        """One optimiser step from the loss's gradients in the last `evaluate_actions`.

        Args:
            of_log_probs, of_values: [B].
            of_entropy: scalar.

        Returns:
            Norm of the weights' gradient before clipping.
        """

    def gradients(self) -> dict[str, Tensor]:
        """Gradients of the last loss by name, to say which one broke."""


@dataclass
class Batch:
    """A rollout made flat: T * N samples, tensors [T * N, ...]."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor

    def take(self, index: Tensor) -> Batch:
        """The samples at `index`."""
        return Batch(*(tensor.index_select(0, index) for tensor in vars(self).values()))

    def part(self, start: int, stop: int) -> Batch:
        """A slice."""
        return Batch(*(tensor[start:stop] for tensor in vars(self).values()))


def make_batch(agent: Agent, rollout: Rollout, rewards: np.ndarray, settings: PPOSettings) -> Batch:
    """Values, advantages and returns of a rollout, whose (scaled) rewards are given apart."""
    values = agent.values(torch.from_numpy(rollout.observations).flatten(0, 1))
    values = values.view(rollout.observations.shape[:2]).numpy()
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
    if settings.normalise_advantages:
        advantages = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-5)
    return Batch(
        observations=torch.from_numpy(rollout.observations[:-1]).flatten(0, 1),
        actions=torch.from_numpy(rollout.actions).flatten(0, 1),
        log_probs=torch.from_numpy(rollout.log_probs).flatten(),
        values=torch.from_numpy(values[:-1]).flatten(),
        advantages=torch.from_numpy(advantages).flatten(),
        returns=torch.from_numpy(returns).flatten(),
    )


def policy_loss(log_ratio: Tensor, advantages: Tensor, clip_coef: float) -> tuple[Tensor, Tensor]:
    """Clipped surrogate (Schulman et al. 2017, eq. 7), negated for descent.

    Args:
        log_ratio: [B], log-probability now less that of the rollout.
        advantages: [B].
        clip_coef: half-width of the range of the ratio.

    Returns:
        The loss, and its gradient with respect to the log-probabilities [B].
    """
    ratio = torch.exp(log_ratio)
    gain = ratio * advantages
    clipped = ratio.clamp(1 - clip_coef, 1 + clip_coef) * advantages
    gradient = torch.where(gain <= clipped, gain, 0.0).mul_(-1 / len(gain))
    return -torch.minimum(gain, clipped).mean(), gradient


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip_coef: float, kind: str
) -> tuple[Tensor, Tensor]:
    """Half the mean squared error of the value, in one of three ways.

    - `max`: the larger of the clipped and the unclipped error (a2c_ppo_acktr, OpenAI baselines).
    - `clipped`: the clipped error alone, as the HN-PPO source has it. Its gradient is zero for
      values that have moved by more than `clip_coef`, also where they moved the wrong way.
    - `plain`: no clipping.

    Returns:
        The loss, and its gradient with respect to the values [B].

    Raises:
        ValueError: an unknown kind.
    """
    if kind not in VALUE_LOSSES:
        raise ValueError(f"value_loss is {kind!r}, not one of {', '.join(VALUE_LOSSES)}")
    error, size = values - returns, len(values)
    if kind == "plain":
        return 0.5 * error.square().mean(), error / size
    moved = values - old_values
    limited = moved.clamp(-clip_coef, clip_coef)
    # Within the range both errors are one; beyond it the clipped one does not move with the value.
    within, clipped = limited == moved, old_values + limited - returns
    if kind == "clipped":
        return 0.5 * clipped.square().mean(), torch.where(within, error, 0.0).div_(size)
    plain, other = error.square(), clipped.square()
    gradient = torch.where(within | (plain > other), error, 0.0).div_(size)
    return 0.5 * torch.maximum(plain, other).mean(), gradient


def update(
    agent: Agent, batch: Batch, settings: PPOSettings, rng: np.random.Generator
) -> dict[str, float]:
    """All epochs of one PPO update.

    Args:
        agent: stepped in place.
        batch: samples of the latest rollout.
        settings: see `PPOSettings`.
        rng: source of the order of the samples.

    Returns:
        Means over the gradient steps: policy_loss, value_loss, entropy, approx_kl,
        clip_fraction, grad_norm; and the number of gradient_steps.

    Raises:
        NonFiniteError: a loss or a gradient is not finite; the agent is then left as it was
            before or after that step, and is of no further use.
    """
    size = len(batch.returns)
    history: list[Tensor] = []
    norms: list[float] = []
    for _ in range(settings.epochs):
        shuffled = batch.take(torch.from_numpy(rng.permutation(size)))
        first = len(history)
        for start in range(0, size, settings.minibatch_size):
            sample = shuffled.part(start, start + settings.minibatch_size)
            statistics, gradients = _loss(agent, sample, settings)
            norms.append(agent.optimise(*gradients))
            history.append(statistics)
            if not np.isfinite(norms[-1]):
                raise NonFiniteError(_broken(statistics, agent))
        epoch_kl = torch.stack(history[first:])[:, 3].mean()
        if settings.target_kl and epoch_kl > settings.target_kl:
            break
    means = torch.stack(history).mean(dim=0).tolist()
    result = dict(zip(STATISTICS, means, strict=True))
    result["grad_norm"] = float(np.mean(norms))
    result["gradient_steps"] = float(len(norms))
    if not np.isfinite(means).all():
        raise NonFiniteError(_broken(torch.tensor(means), agent))
    return result


STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


def losses(
    log_probs: Tensor, entropy: Tensor, values: Tensor, sample: Batch, settings: PPOSettings
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Losses of a policy and a value function on samples that an older policy has taken.

    Args:
        log_probs: [B], of the actions, now.
        entropy: scalar, mean over the samples, now.
        values: [B], now.
        sample: what they were, advantages and returns.
        settings: see `PPOSettings`.

    Returns:
        `STATISTICS` [5], and the total loss's gradients with respect to the log-probabilities and the
        values, [B] each.
    """
    log_ratio = log_probs - sample.log_probs
    of_policy, by_log_prob = policy_loss(log_ratio, sample.advantages, settings.clip_coef)
    of_value, by_value = value_loss(
        values, sample.values, sample.returns, settings.clip_coef, settings.value_loss
    )
    change = torch.expm1(log_ratio)
    # Schulman, "Approximating KL Divergence" (2020): low variance and never negative.
    difference = change - log_ratio
    outside = (change.abs() > settings.clip_coef).float()
    statistics = torch.stack((of_policy, of_value, entropy, difference.mean(), outside.mean()))
    return statistics, (by_log_prob, by_value.mul_(settings.value_coef))


def _loss(
    agent: Agent, sample: Batch, settings: PPOSettings
) -> tuple[Tensor, tuple[Tensor, float, Tensor]]:
    """The statistics, and the total loss's gradients as `Agent.optimise` takes them."""
    log_probs, entropy, values = agent.evaluate_actions(sample.observations, sample.actions)
    statistics, (by_log_prob, by_value) = losses(log_probs, entropy, values, sample, settings)
    return statistics, (by_log_prob, -settings.entropy_coef, by_value)


def _broken(statistics: Tensor, agent: Agent) -> str:
    """Name of the first loss or gradient that is not finite."""
    for name, value in zip(STATISTICS, statistics.tolist(), strict=True):
        if not np.isfinite(value):
            return name
    for name, gradient in agent.gradients().items():
        if not bool(gradient.isfinite().all()):
            return f"gradient of {name}"
    return "gradient norm"
