"""Windows of learning histories, as the transformer is trained on them.

`subsampled` takes every k-th episode of a history, so that a window spans the whole of a source agent's learning. k is
a share of the episodes that the agent's task took to be learned, times exp(U(-jitter, jitter)), and a share of the
windows begins with the agent, with an empty context.

Such windows hardly ever show someone who has not met the goal for long: among an agent's ten environments one meets it
early, and then all are told. So a share of the windows begins with episodes of a search: of the same agent at the same
time, but each of an environment that has not shown it a reward yet. At first they move at random, later by what the
others found.

`consecutive` takes the steps as they came, as the source of this study does: a dozen episodes of an agent that needs a
hundred, in which hardly anything is learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from darkroom.context import NO_ACTION, NO_CELL, NO_REWARD, Context
from darkroom.histories import Histories

KINDS = ("subsampled", "consecutive")
LEARNED = 0.9  # share of the final return at which a task counts as learned
SMOOTHED = 10  # episodes of each environment that are averaged to tell
FOUND_BY_OTHERS = 0.4  # part of a task's search before which agents are much as they began


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
    """

    kind: str = "subsampled"
    length: int = 256
    stride: float = 0.3
    jitter: float = 0.7
    fresh: float = 0.5
    searching: float = 0.5


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
                # How many episodes there were before one with a reward.
                unmet.append(np.append(returns[-1] > 0, True).argmax())
            learned += [episodes_to_learn(returns)] * envs
        self.count = np.array([len(each) for each in starts])
        self.first = np.cumsum(self.count) - self.count
        self.starts, self.lengths = np.concatenate(starts), np.concatenate(lengths)
        self.learned = np.array(learned)
        self.stream = np.repeat(np.arange(len(self.count)), self.count)
        numbers = np.arange(len(self.starts)) - self.first[self.stream]
        self.searched = np.repeat(np.reshape(unmet, (-1, envs)).max(axis=1), envs)
        # By task and number: a task has one of each number below `searched`, or more.
        unrewarded = np.flatnonzero(numbers < np.array(unmet)[self.stream])
        self._most = int(self.count.max()) + 1
        keys = self._key(self.stream[unrewarded], numbers[unrewarded])
        order = np.argsort(keys, kind="stable")
        self._keys, self._unrewarded = keys[order], unrewarded[order]

    def unrewarded(
        self, streams: np.ndarray, numbers: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Draws episodes of these numbers, each of any stream of the task that has shown no reward until then.

        Args:
            streams: Of the task, any one, int [n].
            numbers: Of the episodes in their stream, from 0 to below `searched`, int [n].
            rng: Decides.

        Returns:
            int64 [n].
        """
        key = self._key(streams, numbers)
        low, high = np.searchsorted(self._keys, key), np.searchsorted(self._keys, key + 1)
        return self._unrewarded[low + (rng.random(key.shape) * (high - low)).astype(np.int64)]

    def _key(self, streams: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return streams // self.histories.shape[2] * self._most + numbers


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
        self.sources, self.sampling, self.rng = list(sources), sampling, rng

    def draw(self, count: int) -> Windows:
        """Returns `count` windows."""
        which = np.sort(self.rng.integers(len(self.sources), size=count))
        parts = [
            self._from(source, int((which == index).sum()))
            for index, source in enumerate(self.sources)
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

    def _from(self, source: Episodes, count: int) -> Windows:
        streams = self.rng.integers(len(source.count), size=count)
        if self.sampling.kind == "consecutive":
            return gather(source, streams[:, None], self._consecutive(source, count))
        return gather(source, *self._subsampled(source, streams))

    def _consecutive(self, source: Episodes, count: int) -> np.ndarray:
        """Steps of the streams, int64 [R, 1 + n]; the first is the one before the window, or -1."""
        begin = self.rng.integers(source.steps - self.sampling.length + 1, size=count)
        return begin[:, None] + np.arange(-1, self.sampling.length)

    def _subsampled(self, source: Episodes, streams: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The stream of each step, and steps as `_consecutive`; both int64 [R, 1 + n]."""
        length, rng = self.sampling.length, self.rng
        jitter = np.exp(rng.uniform(-self.sampling.jitter, self.sampling.jitter, len(streams)))
        stride = np.maximum(1.0, self.sampling.stride * source.learned[streams] * jitter)
        fresh = rng.random(len(streams)) < self.sampling.fresh
        # Cubed: as often while an agent learns as in the long time after it has.
        begin = np.where(fresh, 0, rng.random(len(streams)) ** 3 * source.count[streams])
        across = length // int(source.lengths.min()) + 2
        column, last = np.arange(across), source.count[streams, None] - 1
        searched, numbers = self._search(source, streams, fresh, across)
        # The stream goes on a stride behind its search.
        behind = numbers.max(axis=1) + stride * (1 - searched)
        begin = np.where(searched > 0, behind, begin)
        episodes = begin[:, None] + stride[:, None] * column
        # Beyond the end of a history its last strides are seen again, in which the agent no longer changes.
        late = last - rng.random(episodes.shape) * np.minimum(stride[:, None], last + 1)
        episodes = np.where(episodes > last, late, np.maximum(episodes, 0)).astype(np.int64)
        chosen = source.first[streams, None] + episodes
        of_search = column < searched[:, None]
        rows = np.nonzero(of_search)[0]
        chosen[of_search] = source.unrewarded(streams[rows], numbers[of_search], rng)
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

    def _search(
        self, source: Episodes, streams: np.ndarray, fresh: np.ndarray, across: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """With how many episodes of a search each window begins, int64 [R]; their numbers, then 0, [R, across]."""
        rng, most = self.rng, self.sampling.length // source.histories.about.limit
        count = np.zeros(len(streams), np.int64)
        numbers = np.zeros((len(streams), across), np.int64)
        if self.sampling.searching:
            searching = rng.random(len(streams)) < self.sampling.searching
            searching &= (most > 0) & (source.searched[streams] > 0)
            count[searching] = rng.integers(1, most + 1, searching.sum())
            part = FOUND_BY_OTHERS + (1 - FOUND_BY_OTHERS) * rng.random(numbers.shape)
            part[fresh, 0] = 0.0
            part = np.where(np.arange(across) < count[:, None], part, np.inf)
            part.sort(axis=1)
            part[np.isinf(part)] = 0.0
            numbers = (part * source.searched[streams, None]).astype(np.int64)
        return count, numbers


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
