"""Searches: episodes without a reward, put together so that each looks where those before it did not.

An episode that never touches a cell is the same in the room whose goal lies there, to the last reward. So the episodes
that came before the first reward of their environment are one store for all tasks, from which a search is made up for
any goal: the next episode is, of some that are drawn, the one with the most cells that the search has not visited. No
step is changed, and none shows the goal. (The agent of an environment without a reward may have met its goal in another
one. It leans towards that, which in the room of another goal is a direction like any other.)

A model that is trained on windows that begin so learns to go where its context has not been; one that sees each agent's
episodes as they came learns to move at random until it meets the goal, as the agents did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from darkroom.grid import transitions

if TYPE_CHECKING:
    from darkroom.windows import Episodes


class Searches:
    """Makes up searches from the episodes of one file.

    Args:
        source: The episodes; those of its tasks alone are used.
        candidates: Of how many episodes the next one is chosen; 1: as it is drawn.

    Attributes:
        store: Episodes before the first reward of their stream, int64 [U].
    """

    def __init__(self, source: Episodes, candidates: int) -> None:
        self.source, self.candidates = source, candidates
        numbers = np.arange(len(source.stream)) - source.first[source.stream]
        self.store = np.flatnonzero(numbers < source.unmet[source.stream])

    def draw(
        self, goals: np.ndarray, counts: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Makes up a search for each goal.

        Args:
            goals: Cells, int [R].
            counts: Episodes that are wanted, int [R].
            rng: Decides.

        Returns:
            Episodes, int64 [R, largest count], and how many of them are the search, int64 [R]: fewer than wanted where
            all that were drawn had touched the goal.
        """
        counts = np.array(counts if len(self.store) else np.zeros_like(counts))
        chosen = np.zeros((len(goals), int(counts.max(initial=0))), np.int64)
        seen = np.zeros((len(goals), self.source.histories.about.size**2), bool)
        for column in range(chosen.shape[1]):
            drawn = self.store[rng.integers(len(self.store), size=(len(goals), self.candidates))]
            rows = np.flatnonzero(counts > column)
            each, drawn = np.arange(len(rows)), drawn[rows]
            visited = np.zeros((*drawn.shape, seen.shape[1]), bool)
            np.put_along_axis(visited, self.cells(drawn), True, axis=2)
            new = (visited & ~seen[rows, None]).sum(axis=2)
            new[visited[each, :, goals[rows]]] = -1
            best = new.argmax(axis=1)
            counts[rows[new[each, best] < 0]] = column
            chosen[rows, column] = drawn[each, best]
            seen[rows] |= visited[each, best]
        return chosen, counts

    def cells(self, episodes: np.ndarray) -> np.ndarray:
        """Returns the cells of episodes of the store, int64 [..., limit + 1]; the last is where they ended."""
        source, about = self.source, self.source.histories.about
        task, env = np.divmod(source.stream[episodes], source.histories.shape[2])
        # Without a reward, an episode has all its steps.
        steps = source.starts[episodes][..., None] + np.arange(about.limit)
        at = source.tasks[task][..., None], env[..., None], steps
        cells = source.histories.cells[at].astype(np.int64)
        last = source.histories.actions[at][..., -1]
        ended = transitions(about.size)[cells[..., -1], last]
        return np.concatenate([cells, ended[..., None]], axis=-1)
