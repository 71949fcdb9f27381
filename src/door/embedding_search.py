"""Where a further task's embedding begins: at that of an earlier task whose policy opens all its doors already.

A few trials tell. A policy that opens most of them is no such start: it explores too little to learn the rest, and a
neutral start is soon ahead of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from door.evaluate import DECISIONS
from door.held_out import HeldOutWorlds

if TYPE_CHECKING:
    from door.hyper_agent import HyperAgent
    from door.training import Training

SEARCH = 2  # set of worlds; neither those that are reported nor those that stop a run
WORLDS = 20  # in which each embedding is tried
SHARE = 0.25  # of the run's budget that may be spent


def search(agent: HyperAgent, training: Training) -> bool:
    """Moves the embedding of a task that has just begun, if there is a good place for it.

    The trials count: as the updates that could have been made with them.

    Args:
        agent: Its last task is the new one.
        training: The run.

    Returns:
        Whether an earlier embedding opens the doors of all trials.
    """
    config, old = training.config, len(agent.tasks) - 1
    cost = old * WORLDS * DECISIONS
    if cost > SHARE * config.env_steps:
        training.run.event("too small a budget for a search: the task begins anew")
        return False
    about = {"seeds": training.run.seeds, "start": config.start, "threads": config.threads}
    with HeldOutWorlds(config.robot, worlds=WORLDS, index=SEARCH, **about) as worlds:
        seen = [worlds.evaluate(agent.policy(task), config.task) for task in range(old)]
    training.spend(cost)
    ranks = [(each.opening_rate, each.episode_return) for each in seen]
    best = max(range(old), key=ranks.__getitem__)
    found = ranks[best][0] == 1
    where = f"of {old} embeddings {agent.tasks[best]}'s is the best and opens {ranks[best][0]:.0%}"
    training.run.event(where if found else f"{where}: the task begins anew")
    if found:
        agent.begin_at(best)
    return found
