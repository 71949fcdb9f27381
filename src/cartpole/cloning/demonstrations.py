"""State-action pairs of experts: who plays, what is recorded, and what a restriction leaves of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from cartpole.cloning.expert_policies import greedy
from cartpole.policy_gradient import networks
from cartpole.policy_gradient.env import STATE, CartPoleBatch
from cartpole.policy_gradient.networks import Params
from runcatalog import record

VARIABLES = ("position", "velocity", "angle", "angular_velocity")  # in the order of an observation
UNITS = ("m", "m/s", "rad", "rad/s")
ACTING = ("greedy", "sampled")

# Actions bool [R, N] from observations float32 [R, N, 4], the expert's labels bool [R, N] and the step.
Actor = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


@dataclass(frozen=True)
class Restriction:
    """Pairs whose state variable lies within an open interval are kept.

    Attributes:
        variable: Column of the observation.
        centre, half_width: Of the interval, in the variable's unit.
    """

    variable: int
    centre: float
    half_width: float

    def scaled(self, scale: float) -> Restriction:
        """The same with another half-width."""
        return replace(self, half_width=scale * self.half_width)

    def __str__(self) -> str:
        shift = f" {'-' if self.centre > 0 else '+'} {abs(self.centre):g}" if self.centre else ""
        name = VARIABLES[self.variable].replace("_", " ")
        return f"|{name}{shift}| < {self.half_width:g} {UNITS[self.variable]}"


# The source's values (fact sheet, section 5); None keeps everything.
RESTRICTIONS: dict[str, Restriction | None] = {
    "none": None,
    "position": Restriction(0, 0.0, 0.05),
    "velocity": Restriction(1, 0.0, 0.1),
    "angle": Restriction(2, 0.0, 0.005),
    "angular_velocity": Restriction(3, -0.05, 0.1),
}


@dataclass(frozen=True)
class Pairs:
    """Pairs in the order in which they were played, episode after episode.

    Attributes:
        observations: float32 [R, N, T, 4]: data sets, episodes, steps.
        labels: The expert's greedy action, bool [R, N, T].
        happened: bool [R, N, T]; false after an episode's end, where the rest is meaningless.
    """

    observations: np.ndarray
    labels: np.ndarray
    happened: np.ndarray

    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """Observations [R, N T, 4] and labels [R, N T]; index e T + t is step t of episode e."""
        sets = len(self.labels)
        return self.observations.reshape(sets, -1, STATE), self.labels.reshape(sets, -1)


def play(experts: Params, starts: np.ndarray, steps: int, actor: Actor) -> Pairs:
    """Plays one episode from each start and has the expert label every state on the way.

    Args:
        experts: Stacked policies [R, …].
        starts: float64 [R, N, 4].
        steps: Decisions of an episode, at most 500.
        actor: Who chooses the actions.
    """
    sets, episodes = starts.shape[:2]
    shape = (steps, sets, episodes)
    observations, labels = np.zeros((*shape, STATE), np.float32), np.zeros(shape, bool)
    happened = np.zeros(shape, bool)
    env = CartPoleBatch(sets * episodes)
    seen = env.reset(starts.reshape(-1, STATE))
    for step in range(steps):
        seen = seen.reshape(sets, episodes, STATE)
        observations[step], happened[step] = seen, env.alive.reshape(sets, episodes)
        labels[step] = greedy(experts, seen)
        seen, *_ = env.step(actor(seen, labels[step], step).ravel())
        if not env.alive.any():
            break
    return Pairs(
        np.ascontiguousarray(observations.transpose(1, 2, 0, 3)),
        np.ascontiguousarray(labels.transpose(1, 2, 0)),
        np.ascontiguousarray(happened.transpose(1, 2, 0)),
    )


def as_labelled(observations: np.ndarray, labels: np.ndarray, step: int) -> np.ndarray:
    """The expert itself, greedily."""
    return labels


def sampling(experts: Params, draws: np.ndarray) -> Actor:
    """The expert as it was trained, with actions sampled from its policy.

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
    """Which observations [..., 4] a restriction keeps, bool [...].

    Args:
        observations: Any shape before the last axis.
        name: Of RESTRICTIONS.
        scale: Factor of the interval's half-width.
    """
    restriction = RESTRICTIONS[name]
    if restriction is None:
        return np.ones(observations.shape[:-1], bool)
    values = observations[..., restriction.variable].astype(np.float64)
    return np.abs(values - restriction.centre) < restriction.scaled(scale).half_width


def left(pairs: Pairs, name: str, scale: float = 1.0) -> list[np.ndarray]:
    """Indices into `pairs.flat()` of what a restriction leaves of each data set, in playing order.

    Raises:
        RunFailed: It leaves nothing of one of them.
    """
    restriction = RESTRICTIONS[name]
    kept = str(restriction.scaled(scale)) if restriction else "everything"
    keeps = within(pairs.observations, name, scale) & pairs.happened
    found = [np.flatnonzero(each) for each in keeps]
    for expert, indices in enumerate(found):
        if not len(indices):
            total = int(pairs.happened[expert].sum())
            raise record.RunFailed(
                f"restriction {name} ({kept}) leaves none of {total} pairs of "
                f"expert {expert + 1}: use a larger --scale or more --episodes"
            )
    return found
