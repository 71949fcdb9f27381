"""Where a further task's embedding begins: at the point of what was learned that opens most of its doors.

The embeddings of earlier tasks, and points near them, give policies that do something to a door, of which one
may open the new ones already: a few trials tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from door.evaluate import DECISIONS
from door.held_out import HeldOutWorlds

if TYPE_CHECKING:
    from door.hyper_agent import HyperAgent
    from door.training import Training

SEARCH = 2  # set of worlds; neither those that are reported nor those that stop a run
WORLDS = 20  # in which each embedding is tried
AROUND = 2  # of the earlier tasks
SHARE = 0.25  # of the run's budget that may be spent
ENOUGH = 0.3  # opening rate: a policy that does something else is a worse start than none


def search(agent: HyperAgent, training: Training, draws: int, spread: float) -> bool:
    """Moves the embedding of a task that has just begun, if there is a good place for it.

    The trials count: as the updates that could have been made with them.

    Args:
        agent: Its last task is the new one.
        training: The run.
        draws: Embeddings that are tried around each of the two best earlier ones, if the best opens
            some doors and not all; fewer where that would be more than a quarter of the run's budget.
        spread: Standard deviation of these draws.

    Returns:
        Whether one opens 30 % of the doors.
    """
    config, old = training.config, len(agent.tasks) - 1
    affordable = int(SHARE * config.env_steps) // (WORLDS * DECISIONS)
    if affordable < old:
        training.run.event("too small a budget for a search: the task begins anew")
        return False
    draws = min(draws, (affordable - old) // AROUND)
    about = {"seeds": training.run.seeds, "start": config.start, "threads": config.threads}
    generator = training.run.seeds.torch("embeddings")
    tried: list[tuple[tuple[float, float], int, Tensor]] = []
    with HeldOutWorlds(config.robot, worlds=WORLDS, index=SEARCH, **about) as worlds:

        def look(embedding: Tensor, like: int) -> None:
            seen = worlds.evaluate(agent.policy_at(embedding, like), config.task)
            tried.append(((seen.opening_rate, seen.episode_return), like, embedding))

        for task in range(old):
            look(agent.embeddings[task].clone(), task)
        best = sorted(tried, key=lambda each: each[0], reverse=True)[:AROUND]
        if (
            not 0 < best[0][0][0] < 1
        ):  # around one that opens none there is hardly one that opens enough
            draws = 0
        for _, task, centre in best:
            for _ in range(draws):
                look(centre + spread * torch.randn(len(centre), generator=generator), task)
    training.spend(len(tried) * WORLDS * DECISIONS)
    (rate, _), like, embedding = max(tried, key=lambda each: each[0])
    found = rate >= ENOUGH
    where = (
        f"the best of {len(tried)} embeddings is near {agent.tasks[like]}'s and opens {rate:.0%}"
    )
    training.run.event(where if found else f"{where}: the task begins anew")
    if found:
        agent.place(embedding, like)
    return found
