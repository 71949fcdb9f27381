"""Windows of learning histories, as the transformer is trained on them.

`subsampled` takes every k-th episode of a history, so that a window spans the whole of a source agent's learning. k is
a share of the episodes that the agent's task took to be learned, times exp(U(-jitter, jitter)), and a share of the
windows begins with the agent, with an empty context.

Such windows rarely show an agent that goes without a reward for long: among an agent's ten environments one meets the
goal early, and all ten share the weights. So a share of the windows begins with a search: episodes without a reward,
put together so that each looks where those before it did not (`Searches`).

`consecutive` takes the steps as they came, as the source of this study does: a dozen episodes of an agent that needs a
hundred, in which hardly anything is learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from darkroom.a2c.histories import Histories
from darkroom.distillation.context import NO_ACTION, NO_CELL, NO_REWARD, Context
from darkroom.rooms.grid import transitions

KINDS = ("subsampled", "consecutive")
LEARNED = 0.9  # share of the final return at which a task counts as learned
SMOOTHED = 10  # episodes of each environment that are averaged to tell


@dataclass(frozen=True)
class Sampling:
    """How windows are drawn.

    Attributes:
        kind: See KINDS.
        length: Steps of a window.
        stride: Episodes from one to the next, as a share of those that the task took to be learned.
        jitter: Of the stride, in its logarithm.
        fresh: Share of the windows that begin with the agent.
        searching: Share of the windows that begin with a search, of up to as many episodes as a window has.
        candidates: Of how many episodes each one of a search is chosen.
    """

    kind: str = "subsampled"
    length: int = 256
    stride: float = 0.3
    jitter: float = 0.7
    fresh: float = 0.5
    searching: float = 0.5
    candidates: int = 32


@dataclass(frozen=True)
class Windows:
    """R windows of n steps.

    Attributes:
        context: What is seen.
        targets: What the source agent did then, int64 [R, n].
    """

    context: Context
    targets: np.ndarray


class Episodes:
    """Where the whole episodes of one file's streams are; a stream is one environment of one task.

    Args:
        histories: See there.
        tasks: Which of them are used, indices.
        steps: Steps of each stream that are used, from the first on.

    Attributes:
        starts: Step at which each episode begins, int64 [episodes], stream by stream.
        lengths: Steps of each, int64 [episodes].
        first, count: Of each stream's episodes, int64 [streams].
        stream: Of each episode, int64 [episodes].
        learned: Episodes that each stream's task took to be learned, float64 [streams].
        unmet: Episodes before each stream's first reward, int64 [streams].
        searched: Episodes until each stream's task had shown a reward in every environment, int64 [streams].
    """

    def __init__(self, histories: Histories, tasks: np.ndarray, steps: int) -> None:
        self.histories, self.tasks, self.steps = histories, np.asarray(tasks), steps
        envs = histories.shape[2]
        starts, lengths, unmet, learned = [], [], [], []
        for task in self.tasks:
            times = np.asarray(histories.times[task, :, :steps])
            rewards = np.asarray(histories.rewards[task, :, :steps], np.int64)
            returns = []
            for env in range(envs):
                begins = np.flatnonzero(times[env] == 0)
                starts.append(begins[:-1])
                lengths.append(np.diff(begins))
                returns.append(np.add.reduceat(rewards[env], begins)[:-1])
                unmet.append(np.append(returns[-1] > 0, True).argmax())
            learned += [episodes_to_learn(returns)] * envs
        self.count = np.array([len(each) for each in starts])
        self.first = np.cumsum(self.count) - self.count
        self.starts, self.lengths = np.concatenate(starts), np.concatenate(lengths)
        self.learned = np.array(learned)
        self.stream = np.repeat(np.arange(len(self.count)), self.count)
        self.unmet = np.array(unmet)
        self.searched = np.repeat(self.unmet.reshape(-1, envs).max(axis=1), envs)


def episodes_to_learn(returns: Sequence[np.ndarray]) -> float:
    """Returns after how many episodes the mean over streams came to LEARNED of what it is in the end.

    Args:
        returns: Of each stream's episodes.
    """
    shortest = min(len(each) for each in returns)
    if shortest < 2 * SMOOTHED:
        return float(max(1, shortest))
    mean = np.mean([each[:shortest] for each in returns], axis=0)
    smooth = np.convolve(mean, np.full(SMOOTHED, 1 / SMOOTHED), mode="valid")
    final = smooth[-max(1, len(smooth) // 10) :].mean()
    return float(np.argmax(smooth >= LEARNED * final) + SMOOTHED)


class Searches:
    """Searches for any goal, put together from the episodes of one file that have no reward.

    An episode that never touches a cell is the same in the room whose goal lies there, to the last reward. So the
    episodes before the first reward of their environment are one store for all tasks. The next episode of a search is,
    of some that are drawn, the one with the most cells that the search has not visited. No step is changed, and none
    shows the goal. (The agent of an environment without a reward may have met its goal in another one. It leans towards
    that, which in the room of another goal is a direction like any other.)

    A model that is trained on windows that begin so learns to go where its context has not been; one that sees each
    agent's episodes in their order learns to move at random until it meets the goal, as the agents did.

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


class Sampler:
    """Draws windows; every file is as likely as any other, and so is every stream of it.

    Args:
        sources: Of each file.
        sampling: See there.
        rng: Decides all.
    """

    def __init__(
        self, sources: Sequence[Episodes], sampling: Sampling, rng: np.random.Generator
    ) -> None:
        self.sampling, self.rng = sampling, rng
        self.searches = [Searches(source, sampling.candidates) for source in sources]

    def draw(self, count: int) -> Windows:
        """Returns `count` windows."""
        which = np.sort(self.rng.integers(len(self.searches), size=count))
        parts = [
            self._from(searches, int((which == index).sum()))
            for index, searches in enumerate(self.searches)
            if (which == index).any()
        ]
        if len(parts) == 1:
            return parts[0]
        contexts = [vars(part.context) for part in parts]
        joined = {name: np.concatenate([c[name] for c in contexts]) for name in contexts[0]}
        return Windows(Context(**joined), np.concatenate([part.targets for part in parts]))

    def state(self) -> dict[str, Any]:
        """What is needed to go on to the bit."""
        return self.rng.bit_generator.state

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state()`."""
        self.rng.bit_generator.state = state

    def _from(self, searches: Searches, count: int) -> Windows:
        source = searches.source
        streams = self.rng.integers(len(source.count), size=count)
        if self.sampling.kind == "consecutive":
            return gather(source, streams[:, None], self._consecutive(source, count))
        return gather(source, *self._subsampled(searches, streams))

    def _consecutive(self, source: Episodes, count: int) -> np.ndarray:
        """Steps of the streams, int64 [R, 1 + n]; the first is the one before the window, or -1."""
        begin = self.rng.integers(source.steps - self.sampling.length + 1, size=count)
        return begin[:, None] + np.arange(-1, self.sampling.length)

    def _subsampled(self, searches: Searches, streams: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The stream of each step, and steps as `_consecutive`; both int64 [R, 1 + n]."""
        source, length, rng = searches.source, self.sampling.length, self.rng
        jitter = np.exp(rng.uniform(-self.sampling.jitter, self.sampling.jitter, len(streams)))
        stride = np.maximum(1.0, self.sampling.stride * source.learned[streams] * jitter)
        fresh = rng.random(len(streams)) < self.sampling.fresh
        # Cubed: as often while an agent learns as in the long time after it has.
        begin = np.where(fresh, 0, rng.random(len(streams)) ** 3 * source.count[streams])
        across = length // int(source.lengths.min()) + 2
        column, last = np.arange(across), source.count[streams, None] - 1
        search, searched = self._search(searches, streams)
        # The stream goes on a stride behind what its task was searched.
        behind = source.searched[streams] + stride * (1 - searched)
        begin = np.where(searched > 0, behind, begin)
        episodes = begin[:, None] + stride[:, None] * column
        # Beyond the end of a history its last strides are seen again, in which the agent no longer changes.
        late = last - rng.random(episodes.shape) * np.minimum(stride[:, None], last + 1)
        episodes = np.where(episodes > last, late, np.maximum(episodes, 0)).astype(np.int64)
        chosen = source.first[streams, None] + episodes
        of_search = column[: search.shape[1]] < searched[:, None]
        chosen[:, : search.shape[1]][of_search] = search[of_search]
        starts, lengths = source.starts[chosen], source.lengths[chosen]
        # Steps of the first episode that lie before the window; a window that is not fresh begins anywhere in it.
        before = np.where(fresh, 0, 1 + (rng.random(len(streams)) * lengths[:, 0]).astype(np.int64))
        offsets = lengths.cumsum(axis=1) - lengths - before[:, None]
        marks = np.zeros((len(streams), length + 1), np.int64)
        row, episode = np.nonzero((offsets > -1) & (offsets < length))
        marks[row, offsets[row, episode] + 1] = 1
        place = np.maximum(marks.cumsum(axis=1) - (offsets[:, :1] >= 0), 0)
        at = np.arange(-1, length) - np.take_along_axis(offsets, place, 1)
        steps = np.take_along_axis(starts, place, 1) + at
        steps[fresh, 0] = -1
        return np.take_along_axis(source.stream[chosen], place, 1), steps

    def _search(self, searches: Searches, streams: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Episodes that the windows begin with, int64 [R, most], and how many of them do, int64 [R]."""
        histories, tasks = searches.source.histories, searches.source.tasks
        most = self.sampling.length // histories.about.limit
        searching = self.rng.random(len(streams)) < self.sampling.searching
        counts = self.rng.integers(min(1, most), most + 1, len(streams)) * searching
        goals = np.array(histories.about.goals)[tasks[streams // histories.shape[2]]]
        return searches.draw(goals, counts, self.rng)


def moved(
    rng: np.random.Generator, sizes: np.ndarray, reach: int, shift: int, stretch: float
) -> np.ndarray:
    """Draws where the rows and columns of each window's room lie, so that a goal is known by what was seen alone.

    Rows stay in their order, so that up is up; but a room is moved, and the next row is one or two away.

    Args:
        rng: Decides.
        sizes: Sides, int [R].
        reach: Places on each side of the centre's.
        shift: Most that the centre is moved by.
        stretch: Highest share of steps of two in a room; each room draws its own share from 0 on.

    Returns:
        int64 [R, 2, largest side], from 0 to 2 reach.
    """
    widest = int(sizes.max())
    shares = rng.uniform(0, stretch, (len(sizes), 1, 1))
    steps = 1 + (rng.random((len(sizes), 2, widest)) < shares)
    places = steps.cumsum(axis=2)
    centre = np.broadcast_to((sizes // 2)[:, None, None], (len(sizes), 2, 1))
    places = places - np.take_along_axis(places, centre, 2)
    places += reach + rng.integers(-shift, shift + 1, (len(sizes), 2, 1))
    return np.clip(places, 0, 2 * reach)  # what is cut lies beyond smaller rooms


def gather(source: Episodes, streams: np.ndarray, steps: np.ndarray) -> Windows:
    """Returns windows.

    Args:
        source: Of the streams.
        streams: Of each window's steps, int [R, 1 + n], or [R, 1] if they are of one.
        steps: Their places in them, int64 [R, 1 + n]; the first is the one before the window, -1 if there is none.
    """
    histories = source.histories
    envs = histories.shape[2]
    task, env = source.tasks[streams // envs], streams % envs
    cells, actions, rewards, times = (
        plane[task, env, steps].astype(np.int64)
        for plane in (histories.cells, histories.actions, histories.rewards, histories.times)
    )
    none = steps[:, 0] < 0
    seen = [each[:, :-1].copy() for each in (cells, times, actions, rewards)]
    for each, missing in zip(seen, (NO_CELL, 0, NO_ACTION, NO_REWARD), strict=True):
        each[none, 0] = missing
    before, acted, did, gave = seen
    sizes = np.full(len(streams), histories.about.size, np.int64)
    context = Context(before, acted, did, gave, cells[:, 1:], times[:, 1:], sizes)
    return Windows(context, actions[:, 1:])
