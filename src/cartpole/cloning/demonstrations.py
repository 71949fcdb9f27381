"""Demonstrations: state-action pairs of experts, and the restrictions that select from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from cartpole.cloning.options import CloneConfig
from cartpole.policy_gradient import networks
from cartpole.policy_gradient.env import STATE, CartPoleBatch, random_starts
from cartpole.policy_gradient.networks import Params
from runcatalog import record

VARIABLES = ("position", "velocity", "angle", "angular_velocity")  # in the order of an observation
UNITS = ("m", "m/s", "rad", "rad/s")

# (observations float32 [R, N, 4], the expert's labels bool [R, N], step) -> actions bool [R, N]
Actor = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


@dataclass(frozen=True)
class Restriction:
    """Selects pairs whose state variable lies within an open interval.

    Attributes:
        variable: Column of the observation.
        centre, half_width: Of the interval, in the variable's unit.
    """

    variable: int
    centre: float
    half_width: float

    def scaled(self, scale: float) -> Restriction:
        """Return the restriction with its half-width multiplied by `scale`."""
        return replace(self, half_width=scale * self.half_width)

    def __str__(self) -> str:
        shift = f" {'-' if self.centre > 0 else '+'} {abs(self.centre):g}" if self.centre else ""
        name = VARIABLES[self.variable].replace("_", " ")
        return f"|{name}{shift}| < {self.half_width:g} {UNITS[self.variable]}"


# The source's values; None selects all pairs.
RESTRICTIONS: dict[str, Restriction | None] = {
    "none": None,
    "position": Restriction(0, 0.0, 0.05),
    "velocity": Restriction(1, 0.0, 0.1),
    "angle": Restriction(2, 0.0, 0.005),
    "angular_velocity": Restriction(3, -0.05, 0.1),
}


@dataclass(frozen=True)
class Pairs:
    """State-action pairs in playing order, episode after episode.

    Attributes:
        observations: float32 [R, N, T, 4]: data sets, episodes, steps.
        labels: The expert's greedy action, bool [R, N, T].
        valid: bool [R, N, T]; false after an episode's end, where the other arrays are meaningless.
    """

    observations: np.ndarray
    labels: np.ndarray
    valid: np.ndarray

    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """Return observations [R, N T, 4] and labels [R, N T]; index e T + t is step t of episode e."""
        sets = len(self.labels)
        return self.observations.reshape(sets, -1, STATE), self.labels.reshape(sets, -1)


def demonstrate(experts: Params, config: CloneConfig, seeds: record.Seeds) -> Pairs:
    """Return pairs of the experts' episodes from random starts, [K, episodes, horizon]."""
    count = len(experts["w0"])
    starts = np.stack(
        [random_starts(seeds.generator("demonstrations", k), config.episodes) for k in range(count)]
    )
    actor = expert_actor
    if config.acting == "sampled":
        shape = (config.episodes, config.horizon)
        draws = [seeds.generator("demonstration actions", k).random(shape) for k in range(count)]
        actor = sampling_actor(experts, np.stack(draws))
    return play(experts, starts, config.horizon, actor)


def play(experts: Params, starts: np.ndarray, steps: int, actor: Actor) -> Pairs:
    """Play one episode from each start state; the expert labels all visited states.

    Args:
        experts: Stacked policies [R, …].
        starts: float64 [R, N, 4].
        steps: Maximum length of an episode, at most 500.
        actor: Chooses the actions.
    """
    sets, episodes = starts.shape[:2]
    shape = (steps, sets, episodes)
    observations, labels = np.zeros((*shape, STATE), np.float32), np.zeros(shape, bool)
    valid = np.zeros(shape, bool)
    env = CartPoleBatch(sets * episodes)
    observed = env.reset(starts.reshape(-1, STATE))
    for step in range(steps):
        observed = observed.reshape(sets, episodes, STATE)
        observations[step], valid[step] = observed, env.alive.reshape(sets, episodes)
        labels[step] = networks.greedy(experts, observed)
        observed, *_ = env.step(actor(observed, labels[step], step).ravel())
        if not env.alive.any():
            break
    return Pairs(
        np.ascontiguousarray(observations.transpose(1, 2, 0, 3)),
        np.ascontiguousarray(labels.transpose(1, 2, 0)),
        np.ascontiguousarray(valid.transpose(1, 2, 0)),
    )


def expert_actor(observations: np.ndarray, labels: np.ndarray, step: int) -> np.ndarray:
    """Return the expert's greedy actions (an Actor)."""
    return labels


def sampling_actor(experts: Params, draws: np.ndarray) -> Actor:
    """Return an actor that samples actions from the expert's policy, as in its training.

    Args:
        experts: Stacked policies [R, …].
        draws: Uniform numbers, float64 [R, N, T].
    """
    with np.errstate(divide="ignore"):
        noise = np.log(draws) - np.log1p(-draws)

    def act(observations: np.ndarray, labels: np.ndarray, step: int) -> np.ndarray:
        logits = networks.forward(experts, observations)
        return (logits[..., 1] - logits[..., 0]) > noise[..., step]

    return act


def within(observations: np.ndarray, name: str, scale: float = 1.0) -> np.ndarray:
    """Return which observations a restriction selects, bool [...].

    Args:
        observations: float32 [..., 4].
        name: Key of RESTRICTIONS.
        scale: Factor of the interval's half-width.
    """
    restriction = RESTRICTIONS[name]
    if restriction is None:
        return np.ones(observations.shape[:-1], bool)
    values = observations[..., restriction.variable].astype(np.float64)
    return np.abs(values - restriction.centre) < restriction.scaled(scale).half_width


def selected(pairs: Pairs, name: str, scale: float = 1.0) -> list[np.ndarray]:
    """Return the indices into `pairs.flat()` that a restriction selects, by data set, in playing order.

    Raises:
        RunFailed: It selects no pair of a data set.
    """
    restriction = RESTRICTIONS[name]
    interval = str(restriction.scaled(scale)) if restriction else "everything"
    masks = within(pairs.observations, name, scale) & pairs.valid
    selection = [np.flatnonzero(mask) for mask in masks]
    for expert, indices in enumerate(selection):
        if not len(indices):
            total = int(pairs.valid[expert].sum())
            raise record.RunFailed(
                f"restriction {name} ({interval}) leaves none of {total} pairs of "
                f"expert {expert + 1}: use a larger --scale or more --episodes"
            )
    return selection
