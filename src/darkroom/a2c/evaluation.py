"""Evaluation of source agents by complete episodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from darkroom.a2c.a2c import ActionSampler, SourceAgents
from darkroom.rooms import grid
from darkroom.rooms.batch import Step

EPISODES = 100  # of a task


@dataclass(frozen=True)
class Evaluation:
    """Episodes of agents, float [T, episodes].

    Attributes:
        returns: Sums of rewards.
        lengths: Steps.
        reached: Whether the goal was met and counted.
    """

    returns: np.ndarray
    lengths: np.ndarray
    reached: np.ndarray

    @property
    def success(self) -> np.ndarray:
        """Share of episodes that reached the goal, float [T]."""
        return self.reached.mean(axis=1)


def evaluate(
    agents: SourceAgents, rng: np.random.Generator, episodes: int = EPISODES
) -> Evaluation:
    """Play complete episodes in every task with actions sampled from the policies."""
    tasks = len(agents.goals)
    returns, lengths = np.zeros((2, tasks * episodes))
    for step, running in complete_episodes(agents, rng, episodes):
        returns += np.where(running, step.rewards, 0)
        lengths += running
    returns, lengths = returns.reshape(tasks, -1), lengths.reshape(tasks, -1)
    return Evaluation(
        returns, lengths, grid.reached_goal(agents.settings.size, agents.goals, returns.T).T
    )


def complete_episodes(
    agents: SourceAgents, rng: np.random.Generator, count: int
) -> Iterator[tuple[Step, np.ndarray]]:
    """Play `count` episodes in parallel in every task, until the last of them ends.

    Yields:
        The step of all rooms, task by task, and in which of them the episode is still running, bool [T x count].
    """
    rooms = agents.settings.rooms(np.repeat(agents.goals, count))
    sampler = ActionSampler(agents.outputs().policy, count)
    running = np.ones(len(rooms), bool)
    while running.any():
        step = rooms.step(sampler.sample(rooms.states, rng.random(len(rooms), np.float32)))
        yield step, running
        running = running & ~(step.terminated | step.truncated)


def scores(agents: SourceAgents, evaluation: Evaluation) -> dict[str, float]:
    """Return the metrics of agents: success, returns, and where the goal ends an episode, their lengths.

    `extra_steps` are those beyond the shortest way, over episodes that reached the goal, mean over tasks.
    """
    settings, goals = agents.settings, agents.goals
    size, limit, terminating = settings.size, settings.limit, settings.terminating
    optimal = grid.optimal_return(size, goals, limit, terminating=terminating)
    normalised = grid.normalised_return(
        evaluation.returns.mean(axis=1), size, goals, limit, terminating=terminating
    )
    metrics = {
        "success": float(evaluation.success.mean()),
        "worst_success": float(evaluation.success.min()),
        "return": float(evaluation.returns.mean()),
        "optimal_return": float(optimal.mean()),
        "normalised_return": float(normalised.mean()),
        "worst_normalised_return": float(normalised.min()),
    }
    if not terminating:
        return metrics
    reached = evaluation.reached
    if not reached.any():
        return metrics | {"extra_steps": float(limit), "worst_extra_steps": float(limit)}
    extra = np.where(
        reached, evaluation.lengths - grid.steps_to_rewards(size, goals)[1][:, None], np.nan
    )
    by_task = [float(np.nanmean(row)) for row in extra if np.isfinite(row).any()]
    return metrics | {
        "length": float(evaluation.lengths[reached].mean()),
        "extra_steps": float(np.mean(by_task)),
        "worst_extra_steps": max(by_task),
    }
