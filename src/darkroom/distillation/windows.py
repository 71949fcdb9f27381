"""Training windows: a few episodes of a learning history, so far apart that the agent improves within the window.

`subsampled` takes every k-th episode of one environment of a source agent,

    k = stride x (episodes until the agent's task is learned) x exp(U(-jitter, jitter)),

and a share of the windows begins at the first step of a history, with an empty context. `consecutive` takes adjacent
steps, as the source of this study does: a dozen episodes of an agent that needs a hundred. Two kinds ask what the order
of learning is worth: `shuffled` has the episodes of `subsampled` in a random order, explorations included; `expert` has
only episodes of trained agents, as in behaviour cloning, after an exploration where there is one.

A source agent shares the experience of ten environments, so a single environment rarely shows a long time without a
reward. A share of the subsampled windows therefore begins with exploration (:class:`Explorations`): episodes without a
reward, chosen so that each visits cells that those before it did not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from darkroom.a2c.histories import Histories
from darkroom.distillation.context import NO_ACTION, NO_CELL, NO_REWARD, Context
from darkroom.rooms.grid import NO_KEY, key_and_goal, transitions

KINDS = ("subsampled", "consecutive", "shuffled", "expert")
LEARNED = 0.9  # share of the final return at which a task counts as learned
SMOOTHED = 10  # episodes of the moving average that is compared with it


@dataclass(frozen=True)
class Sampling:
    """How windows are drawn.

    Attributes:
        kind: One of KINDS.
        length: Steps of a window.
        stride: Episodes from one to the next, as a share of those that the task took to be learned.
        jitter: Half width of the uniform noise of the stride's logarithm.
        fresh: Share of the windows that begin at the first step of a history.
        exploring: Share of the windows that begin with exploration, of up to as many episodes as a window has.
        candidates: Number of episodes from which the next one of an exploration is chosen.
        learned_weight: Weight in the loss of the actions of an agent that has learned, relative to those of one that
            has not begun to.
    """

    kind: str
    length: int
    stride: float
    jitter: float
    fresh: float
    exploring: float
    candidates: int
    learned_weight: float


@dataclass(frozen=True)
class Windows:
    """R windows of n steps.

    Attributes:
        context: The transformer's input.
        targets: The source agent's action at every step, int64 [R, n].
        weights: Their weights in the loss, float32 [R, n].
    """

    context: Context
    targets: np.ndarray
    weights: np.ndarray


class Episodes:
    """Index of the complete episodes of one history file, stream by stream; a stream is one environment of one task.

    Args:
        histories: The file.
        tasks: Indices of the tasks that are used.
        steps: First steps of a stream that are used.

    Attributes:
        starts: First step of every episode, int64 [episodes].
        lengths: Its steps, int64 [episodes].
        stream: Its stream, int64 [episodes].
        first: First episode of every stream, int64 [streams].
        count: Number of its episodes, int64 [streams].
        to_learn: Episodes until its task is learned, float64 [streams].
        unrewarded: Episodes before its first reward, int64 [streams].
        task_unrewarded: The largest of these numbers in all streams of its task, int64 [streams].
        learned: What the agent of a task has learned in every `limit` steps of its streams, see :func:`learned_share`,
            float32 [tasks, steps / limit].
    """

    def __init__(self, histories: Histories, tasks: np.ndarray, steps: int) -> None:
        self.histories, self.tasks, self.steps = histories, np.asarray(tasks), steps
        envs = histories.shape[2]
        starts, lengths, unrewarded, to_learn, learned = [], [], [], [], []
        for task in self.tasks:
            times = np.asarray(histories.times[task, :, :steps])
            rewards = np.asarray(histories.rewards[task, :, :steps], np.int64)
            returns = []
            for env in range(envs):
                begins = np.flatnonzero(times[env] == 0)
                starts.append(begins[:-1])
                lengths.append(np.diff(begins))
                returns.append(np.add.reduceat(rewards[env], begins)[:-1])
                unrewarded.append(np.append(returns[-1] > 0, True).argmax())
            to_learn += [episodes_to_learn(returns)] * envs
            learned.append(learned_share(rewards, histories.about.limit))
        self.count = np.array([len(begins) for begins in starts])
        self.first = np.cumsum(self.count) - self.count
        self.starts, self.lengths = np.concatenate(starts), np.concatenate(lengths)
        self.to_learn = np.array(to_learn)
        self.stream = np.repeat(np.arange(len(self.count)), self.count)
        self.unrewarded, self.learned = np.array(unrewarded), np.stack(learned)
        self.task_unrewarded = np.repeat(self.unrewarded.reshape(-1, envs).max(axis=1), envs)


def episodes_to_learn(returns: Sequence[np.ndarray]) -> float:
    """Return the number of episodes until the moving average of the return reaches LEARNED of its final value.

    Args:
        returns: Returns of the episodes of every stream of a task.
    """
    shortest = min(map(len, returns))
    if shortest < 2 * SMOOTHED:
        return float(max(1, shortest))
    mean = np.mean([values[:shortest] for values in returns], axis=0)
    smooth = np.convolve(mean, np.full(SMOOTHED, 1 / SMOOTHED), mode="valid")
    final = smooth[-max(1, len(smooth) // 10) :].mean()
    return float(np.argmax(smooth >= LEARNED * final) + SMOOTHED)


def learned_share(rewards: np.ndarray, block: int) -> np.ndarray:
    """Return what share of its final reward rate a source agent has reached, from 0 to 1, as it learns.

    Args:
        rewards: Rewards of the task's environments, which learn together, int [environments, steps].
        block: Steps over which a rate is taken; a share is that of the last SMOOTHED blocks.

    Returns:
        The share in every block, the last of which may be incomplete, float32 [blocks].
    """
    begins = np.arange(0, rewards.shape[1], block)
    gained = np.add.reduceat(rewards.sum(axis=0), begins).cumsum()
    steps = np.minimum(begins + block, rewards.shape[1])
    rate = gained / steps  # of all blocks so far, where there are no more than SMOOTHED
    rate[SMOOTHED:] = (gained[SMOOTHED:] - gained[:-SMOOTHED]) / (
        steps[SMOOTHED:] - steps[:-SMOOTHED]
    )
    final = rate[-max(1, len(rate) // 10) :].mean()
    return np.clip(rate / final if final > 0 else rate, 0, 1).astype(np.float32)


class Explorations:
    """Sequences of episodes without a reward that together visit many cells, for any goal.

    An episode that never touches a cell is the same in the room whose goal, or whose key, is that cell. So the
    episodes before the first reward of their stream are one pool for all tasks. The next episode is, of some that are
    drawn, the one with most cells that the sequence has not visited; those that touch the goal are left out. Steps
    are not changed. (The agent of a stream without a reward may have met its goal in another environment and prefer
    that direction; in the room of another goal it is a direction like any other.)

    A model trained on windows that begin like this explores where its context has not been. A model trained on the
    agents' own order explores at random, as they did.

    Args:
        source: The episodes; only those of its tasks are used.
        candidates: Number of episodes from which the next one is chosen; 1: a random one.

    Attributes:
        pool: Episodes before the first reward of their stream, int64 [U].
    """

    def __init__(self, source: Episodes, candidates: int) -> None:
        self.source, self.candidates = source, candidates
        numbers = np.arange(len(source.stream)) - source.first[source.stream]
        self.pool = np.flatnonzero(numbers < source.unrewarded[source.stream])

    def draw(
        self, goals: np.ndarray, counts: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw one exploration per goal.

        Args:
            goals: Cells of the first reward, int [R].
            counts: Wanted episodes, int [R].
            rng: Source of the candidates.

        Returns:
            Episodes, int64 [R, largest count], and their numbers, int64 [R]: less than wanted where every candidate
            touched the goal.
        """
        counts = np.array(counts if len(self.pool) else np.zeros_like(counts))
        chosen = np.zeros((len(goals), int(counts.max(initial=0))), np.int64)
        visited = np.zeros((len(goals), self.source.histories.about.size**2), bool)
        for place in range(chosen.shape[1]):
            drawn = self.pool[rng.integers(len(self.pool), size=(len(goals), self.candidates))]
            rows = np.flatnonzero(counts > place)
            row, drawn = np.arange(len(rows)), drawn[rows]
            touched = np.zeros((*drawn.shape, visited.shape[1]), bool)
            np.put_along_axis(touched, self.cells(drawn), True, axis=2)
            new = (touched & ~visited[rows, None]).sum(axis=2)
            new[touched[row, :, goals[rows]]] = -1
            best = new.argmax(axis=1)
            counts[rows[new[row, best] < 0]] = place
            chosen[rows, place] = drawn[row, best]
            visited[rows] |= touched[row, best]
        return chosen, counts

    def cells(self, episodes: np.ndarray) -> np.ndarray:
        """Return the cells of episodes of the pool, int64 [..., limit + 1]; the last is where they ended."""
        source, about = self.source, self.source.histories.about
        task, env = np.divmod(source.stream[episodes], source.histories.shape[2])
        # Without a reward, an episode has all its steps.
        steps = source.starts[episodes][..., None] + np.arange(about.limit)
        at = source.tasks[task][..., None], env[..., None], steps
        cells = source.histories.cells[at].astype(np.int64)
        last_actions = source.histories.actions[at][..., -1]
        ends = transitions(about.size)[cells[..., -1], last_actions]
        return np.concatenate([cells, ends[..., None]], axis=-1)


class Sampler:
    """Sampler of windows, uniform over files and over the streams of a file.

    Args:
        sources: Episodes of every file.
        sampling: How windows are drawn.
        rng: Source of all random numbers.
    """

    def __init__(
        self, sources: Sequence[Episodes], sampling: Sampling, rng: np.random.Generator
    ) -> None:
        self.sampling, self.rng = sampling, rng
        self.explorations = [Explorations(source, sampling.candidates) for source in sources]

    def draw(self, count: int) -> Windows:
        """Draw `count` windows, sorted by file."""
        files = np.sort(self.rng.integers(len(self.explorations), size=count))
        parts = [
            self._draw_from(explorations, int((files == file).sum()))
            for file, explorations in enumerate(self.explorations)
            if (files == file).any()
        ]
        if len(parts) == 1:
            return parts[0]
        contexts = [vars(part.context) for part in parts]
        joined = {name: np.concatenate([c[name] for c in contexts]) for name in contexts[0]}
        return Windows(
            Context(**joined),
            np.concatenate([part.targets for part in parts]),
            np.concatenate([part.weights for part in parts]),
        )

    def state(self) -> dict[str, Any]:
        """Return what continues the sequence bit for bit."""
        return self.rng.bit_generator.state

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state()`."""
        self.rng.bit_generator.state = state

    def _draw_from(self, explorations: Explorations, count: int) -> Windows:
        source = explorations.source
        streams = self.rng.integers(len(source.count), size=count)
        if self.sampling.kind == "consecutive":
            steps = streams[:, None], self._consecutive(source, count)
        else:
            steps = self._subsampled(explorations, streams)
        return gather(source, *steps, self.sampling.learned_weight)

    def _consecutive(self, source: Episodes, count: int) -> np.ndarray:
        """Return steps of the streams, int64 [R, 1 + n]; the first is the one before the window, or -1."""
        begin = self.rng.integers(source.steps - self.sampling.length + 1, size=count)
        return begin[:, None] + np.arange(-1, self.sampling.length)

    def _subsampled(
        self, explorations: Explorations, streams: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the stream of every step, and steps as `_consecutive`; both int64 [R, 1 + n]."""
        source, length = explorations.source, self.sampling.length
        fresh, chosen = self._choose_episodes(explorations, streams)
        starts, lengths = source.starts[chosen], source.lengths[chosen]
        # Steps of the first episode that lie before the window; one that is not fresh begins anywhere in it.
        skipped = 1 + (self.rng.random(len(streams)) * lengths[:, 0]).astype(np.int64)
        offsets = lengths.cumsum(axis=1) - lengths - np.where(fresh, 0, skipped)[:, None]
        marks = np.zeros((len(streams), length + 1), np.int64)
        row, episode = np.nonzero((offsets > -1) & (offsets < length))
        marks[row, offsets[row, episode] + 1] = 1
        place = np.maximum(marks.cumsum(axis=1) - (offsets[:, :1] >= 0), 0)
        at = np.arange(-1, length) - np.take_along_axis(offsets, place, 1)
        steps = np.take_along_axis(starts, place, 1) + at
        steps[fresh, 0] = -1
        return np.take_along_axis(source.stream[chosen], place, 1), steps

    def _choose_episodes(
        self, explorations: Explorations, streams: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return which windows begin at the first step, bool [R], and the episodes of all, int64 [R, most]."""
        source, length, rng = explorations.source, self.sampling.length, self.rng
        jitter = np.exp(rng.uniform(-self.sampling.jitter, self.sampling.jitter, len(streams)))
        stride = np.maximum(1.0, self.sampling.stride * source.to_learn[streams] * jitter)
        fresh = rng.random(len(streams)) < self.sampling.fresh
        # u^3: as often while an agent learns as in the long time after it.
        begin = np.where(fresh, 0, rng.random(len(streams)) ** 3 * source.count[streams])
        most = length // int(source.lengths.min()) + 2
        column, last = np.arange(most), source.count[streams, None] - 1
        explored, explored_count = self._explore(explorations, streams)
        # After an exploration the stream continues a stride after all streams of its task had a reward.
        after = source.task_unrewarded[streams] + stride * (1 - explored_count)
        begin = np.where(explored_count > 0, after, begin)
        if self.sampling.kind == "expert":
            begin = source.count[streams]  # beyond the end are episodes of the trained agent
        episodes = begin[:, None] + stride[:, None] * column
        # Beyond the end of a history, episodes of its last stride, in which the agent no longer changes.
        late = last - rng.random(episodes.shape) * np.minimum(stride[:, None], last + 1)
        episodes = np.where(episodes > last, late, np.maximum(episodes, 0)).astype(np.int64)
        chosen = source.first[streams, None] + episodes
        exploring = column[: explored.shape[1]] < explored_count[:, None]
        chosen[:, : explored.shape[1]][exploring] = explored[exploring]
        if self.sampling.kind == "shuffled":
            lengths = source.lengths[chosen]
            used = lengths.cumsum(axis=1) - lengths < length
            places = np.where(used, rng.random(chosen.shape), 1 + column)
            chosen = np.take_along_axis(chosen, places.argsort(axis=1), axis=1)
        return fresh, chosen

    def _explore(
        self, explorations: Explorations, streams: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw the explorations that windows begin with: episodes, int64 [R, most], and their numbers, int64 [R]."""
        histories, tasks = explorations.source.histories, explorations.source.tasks
        most = self.sampling.length // histories.about.limit
        exploring = self.rng.random(len(streams)) < self.sampling.exploring
        counts = self.rng.integers(min(1, most), most + 1, len(streams)) * exploring
        numbers = np.array(histories.about.goals)[tasks[streams // histories.shape[2]]]
        keys, goals = key_and_goal(numbers, histories.about.size)
        return explorations.draw(np.where(keys == NO_KEY, goals, keys), counts, self.rng)


def draw_coordinates(
    rng: np.random.Generator, sizes: np.ndarray, reach: int, shift: int, stretch: float
) -> np.ndarray:
    """Draw coordinates for the rows and columns of every window's room: data augmentation.

    The order of rows and columns stays, so that up is up. But the room is shifted, and the next row is one or two away,
    so that a model cannot learn goals by heart.

    Args:
        rng: Source of the numbers.
        sizes: Sides, int [R].
        reach: Coordinates on each side of the centre's.
        shift: Largest shift of the centre.
        stretch: Largest share of distances of two; every room draws its own share from 0 on.

    Returns:
        int64 [R, 2, largest side], from 0 to 2 reach.
    """
    widest = int(sizes.max())
    shares = rng.uniform(0, stretch, (len(sizes), 1, 1))
    distances = 1 + (rng.random((len(sizes), 2, widest)) < shares)
    coordinates = distances.cumsum(axis=2)
    centre = np.broadcast_to((sizes // 2)[:, None, None], (len(sizes), 2, 1))
    coordinates = coordinates - np.take_along_axis(coordinates, centre, 2)
    coordinates += reach + rng.integers(-shift, shift + 1, (len(sizes), 2, 1))
    return np.clip(coordinates, 0, 2 * reach)  # beyond the walls of smaller rooms


def gather(
    source: Episodes, streams: np.ndarray, steps: np.ndarray, learned_weight: float
) -> Windows:
    """Read windows from a history file.

    Args:
        source: Its episodes.
        streams: Stream of every step, int [R, 1 + n], or [R, 1] if a window has one stream.
        steps: Steps of the streams, int64 [R, 1 + n]; the first is the one before the window, -1 if there is none.
        learned_weight: See :class:`Sampling`.
    """
    histories = source.histories
    envs = histories.shape[2]
    task, env = source.tasks[streams // envs], streams % envs
    cells, actions, rewards, times = (
        plane[task, env, steps].astype(np.int64)
        for plane in (histories.cells, histories.actions, histories.rewards, histories.times)
    )
    context = Context(
        previous_cells=cells[:, :-1].copy(),
        previous_times=times[:, :-1].copy(),
        actions=actions[:, :-1].copy(),
        rewards=rewards[:, :-1].copy(),
        cells=cells[:, 1:],
        times=times[:, 1:],
        sizes=np.full(len(streams), histories.about.size, np.int64),
    )
    first = steps[:, 0] < 0
    context.previous_cells[first, 0], context.previous_times[first, 0] = NO_CELL, 0
    context.actions[first, 0], context.rewards[first, 0] = NO_ACTION, NO_REWARD
    learned = source.learned[streams // envs, steps // histories.about.limit][:, 1:]
    weights = 1 + np.float32(learned_weight - 1) * learned
    return Windows(context, actions[:, 1:], weights)
