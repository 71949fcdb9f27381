"""Windows: against a loop that follows the episodes one by one, and what may be drawn."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from darkroom import train_sources
from darkroom.a2c import curves, histories
from darkroom.distillation import windows
from darkroom.distillation.ad_options import Config
from darkroom.distillation.context import NO_ACTION, NO_CELL, NO_REWARD, Context
from darkroom.distillation.windows import Explorations
from darkroom.rooms import grid
from darkroom.rooms.grid import transitions
from small_histories import recorded_by

GOALS = (0, 3, 7, 12)


def sampling_of(**changed) -> windows.Sampling:
    """The default sampling, with some values changed."""
    return replace(Config().sampling(), **changed)


def recorded(
    folder: Path, *, terminating: bool, size: int = 4, steps: int = 300
) -> histories.Histories:
    """Histories of agents that learn a little."""
    config = train_sources.Config(
        size=size,
        limit=6,
        hidden=8,
        envs=3,
        rollout=5,
        lr=1e-2,
        terminating=terminating,
        test_tasks=0,
    )
    return recorded_by(config, np.array(GOALS), folder, steps)


@pytest.fixture(scope="module", params=[True, False], ids=["terminating", "not"])
def kept(request, tmp_path_factory) -> histories.Histories:
    return recorded(tmp_path_factory.mktemp("windows") / "h", terminating=request.param)


def episodes_of(kept: histories.Histories, task: int, env: int) -> list[tuple[int, int]]:
    """(begin, end) of the whole episodes of a stream, followed step by step."""
    begins = [step for step in range(kept.shape[3]) if kept.times[task, env, step] == 0]
    return list(itertools.pairwise(begins))


def test_the_index_is_that_of_a_loop(kept):
    index = windows.Episodes(kept, np.array([1, 3]), 200)
    place = 0
    for row, (task, env) in enumerate((t, e) for t in (1, 3) for e in range(3)):
        expected = [(b, e) for b, e in episodes_of(kept, task, env) if e < 200]
        assert index.count[row] == len(expected)
        assert index.first[row] == place
        for begin, end in expected:
            assert (index.starts[place], index.lengths[place]) == (begin, end - begin)
            place += 1


def spans(context: Context, row: int) -> list[tuple[int, int]]:
    """(begin, end) of a window's episodes; those at its ends may be cut."""
    n = len(context)
    begins = {0, *(t for t in range(n) if context.times[row, t] == 0)}
    return list(itertools.pairwise([*sorted(begins), n]))


def matches(kept, task, window, row, begin, end) -> list[tuple[int, int]]:
    """(environment, number) of a task's episodes that are what a window shows from `begin` to `end`."""
    context, places = window.context, []
    for env in range(kept.shape[2]):
        for number, (first, last) in enumerate(episodes_of(kept, task, env)):
            here = first + int(context.times[row, begin])
            there = here + end - begin
            if there > last or (end < len(context) and there != last):
                continue
            same = all(
                (getattr(kept, f)[task, env, here:there] == values[row, begin:end]).all()
                for f, values in (
                    ("cells", context.cells),
                    ("times", context.times),
                    ("actions", window.targets),
                )
            )
            if same:
                places.append((env, number))
    assert places, f"steps {begin} to {end} are no episode of task {task}"
    return places


def in_order(kept, matching, late: float) -> bool:
    """Whether episodes can be of one environment, in increasing order, or of its history's end."""
    envs = set.intersection(*({env for env, _ in stretches} for stretches in matching))
    assert envs, "a window mixes environments"
    numbers = ([[n for e, n in episodes if e == env] for episodes in matching] for env in envs)
    return any(
        all(max(b) > min(a) or max(b) >= late for a, b in itertools.pairwise(episodes))
        for episodes in numbers
    )


def test_subsampled_windows_are_episodes_of_one_stream_in_their_order(kept):
    sampling = sampling_of(length=40, stride=0.2, jitter=0.7, fresh=0.5, exploring=0.0)
    for task in range(4):
        source = windows.Episodes(kept, np.array([task]), kept.shape[3])
        sampler = windows.Sampler([source], sampling, np.random.default_rng(task))
        drawn = sampler.draw(8)
        for row in range(8):
            matching = [
                matches(kept, task, drawn, row, *span) for span in spans(drawn.context, row)
            ]
            assert in_order(kept, matching, repeated_share(source, task=0, sampling=sampling))


def repeated_share(source: windows.Episodes, task: int, sampling: windows.Sampling) -> float:
    """Number of the first episode of a history's last strides, from which windows are filled up."""
    stream = task * source.histories.shape[2]
    stride = max(1, sampling.stride * source.to_learn[stream] * np.exp(sampling.jitter))
    return source.count[stream:][: source.histories.shape[2]].min() - stride - 2


def unrewarded(kept: histories.Histories, task: int) -> set[tuple[int, int]]:
    """(environment, number) of the episodes up to which the environment has shown no reward, followed one by one."""
    episodes = set()
    for env in range(kept.shape[2]):
        for number, (begin, end) in enumerate(episodes_of(kept, task, env)):
            if kept.rewards[task, env, begin:end].any():
                break
            episodes.add((env, number))
    return episodes


def walked(kept: histories.Histories, task: int, env: int, number: int) -> set[int]:
    """Cells of an episode, move by move, with the one in which its last move ended."""
    begin, end = episodes_of(kept, task, env)[number]
    cell, cells = int(kept.cells[task, env, begin]), set()
    for step in range(begin, end):
        assert cell == kept.cells[task, env, step]
        cells.add(cell)
        cell = int(transitions(kept.about.size)[cell, kept.actions[task, env, step]])
    return cells | {cell}


def named(kept: histories.Histories, index: windows.Episodes, episode: int) -> tuple[int, int, int]:
    """(task, environment, number) of an episode of an index."""
    stream = int(index.stream[episode])
    return (*divmod(stream, kept.shape[2]), int(episode - index.first[stream]))


def test_explorations_have_episodes_before_their_environments_first_reward(kept):
    index = windows.Episodes(kept, np.arange(4), kept.shape[3])
    expected = {(task, *episode) for task in range(4) for episode in unrewarded(kept, task)}
    explorations = Explorations(index, 1)
    assert {named(kept, index, episode) for episode in explorations.pool} == expected
    for episode in explorations.pool:
        assert set(explorations.cells(episode)) == walked(kept, *named(kept, index, episode))
    for task in range(4):
        numbers = [number for owner, _, number in expected if owner == task]
        assert index.task_unrewarded[task * kept.shape[2]] == max(numbers, default=-1) + 1


@pytest.mark.parametrize("candidates", [1, 3])
def test_an_exploration_takes_the_episode_with_most_new_cells_and_never_touches_the_goal(
    kept, candidates
):
    """Beside a loop that walks through the same candidates."""
    index = windows.Episodes(kept, np.arange(4), kept.shape[3])
    explorations = Explorations(index, candidates)
    goals, limits = np.repeat([0, 6, 11, 15], 6), np.tile([0, 1, 3, 5, 5, 5], 4)
    chosen, counts = explorations.draw(goals, limits, np.random.default_rng(3))
    rng = np.random.default_rng(3)
    offered = [
        explorations.pool[rng.integers(len(explorations.pool), size=(len(goals), candidates))]
        for _ in range(5)
    ]
    for row, (goal, most) in enumerate(zip(goals, limits, strict=True)):
        visited: set[int] = set()
        taken = []
        for candidates_of_rows in offered[:most]:
            walks = [
                walked(kept, *named(kept, index, episode)) for episode in candidates_of_rows[row]
            ]
            new = [-1 if goal in walk else len(walk - visited) for walk in walks]
            best = new.index(max(new))
            if new[best] < 0:
                break
            taken.append(candidates_of_rows[row][best])
            visited |= walks[best]
        assert counts[row] == len(taken)
        assert chosen[row, : counts[row]].tolist() == taken
    assert (counts < limits).any()  # where all that were drawn had touched the goal
    assert counts.max() == 5


def test_an_exploration_before_a_key_never_touches_the_key(tmp_path, monkeypatch):
    config = train_sources.Config(size=4, limit=12, hidden=8, envs=3, test_tasks=0)
    pairs = {(1, 14), (14, 1), (6, 9)}
    tasks = np.array(sorted(grid.task_with_key(key, door, 4) for key, door in pairs))
    opened = recorded_by(config, tasks, tmp_path / "h", 400)
    asked = []

    def draw(self, goals, counts, rng, original=Explorations.draw):
        chosen, counts = original(self, goals, counts, rng)
        for goal, episodes, count in zip(goals, chosen, counts, strict=True):
            asked.append((int(goal), set(self.cells(episodes[:count]).flat)))
        return chosen, counts

    monkeypatch.setattr(Explorations, "draw", draw)
    source = windows.Episodes(opened, np.arange(3), 400)
    sampling = sampling_of(length=60, exploring=1.0)
    drawn = windows.Sampler([source], sampling, np.random.default_rng(0)).draw(200)
    assert {goal for goal, _ in asked} == {key for key, _ in pairs}
    assert all(goal not in cells for goal, cells in asked)
    assert sum(map(len, (cells for _, cells in asked))) > 200
    assert set(np.unique(drawn.context.rewards)) == {0, 1, NO_REWARD}


def test_without_episodes_without_a_reward_nothing_is_explored(tmp_path):
    about = histories.About(3, 2, False, (5,), 1)
    opened = histories.Histories.create(tmp_path / "h", about, 1, 9)
    opened.cells[:], opened.actions[:], opened.rewards[:] = 4, 2, 1
    opened.times[:] = np.arange(9) % 2
    source = windows.Episodes(opened, np.array([0]), 9)
    sampling = sampling_of(length=4, exploring=1.0)
    drawn = windows.Sampler([source], sampling, np.random.default_rng(0)).draw(5)
    assert (drawn.targets == 2).all()
    _, counts = Explorations(source, 4).draw(np.full(3, 5), np.full(3, 2), np.random.default_rng(0))
    assert counts.tolist() == [0, 0, 0]


def test_windows_begin_with_the_exploration_and_continue_in_one_stream(kept, monkeypatch):
    calls = []

    def draw(self, goals, counts, rng, original=Explorations.draw):
        drawn = original(self, goals, counts, rng)
        calls.append((goals, *drawn))
        return drawn

    monkeypatch.setattr(Explorations, "draw", draw)
    sampling = sampling_of(length=42, stride=0.1, fresh=1.0, exploring=0.9)
    source = windows.Episodes(kept, np.arange(4), kept.shape[3])
    drawn = windows.Sampler([source], sampling, np.random.default_rng(1)).draw(80)
    [(goals, explorations, counts)] = calls
    for row in range(80):
        task, episodes = GOALS.index(goals[row]), spans(drawn.context, row)
        for span, episode in zip(episodes[: counts[row]], explorations[row], strict=False):
            owner, env, number = named(kept, source, episode)
            assert (env, number) in matches(kept, owner, drawn, row, *span)
        if rest := episodes[counts[row] :]:
            matching = [matches(kept, task, drawn, row, *span) for span in rest]
            late = repeated_share(source, task, sampling)
            assert in_order(kept, matching, late)
            if counts[row]:
                searched = source.task_unrewarded[task * kept.shape[2]]
                assert all(max(n for _, n in e) >= min(searched, late) for e in matching)
        ended = episodes[counts[row] - 1][1] if counts[row] else 0
        assert (drawn.context.rewards[row, 1:ended] == 0).all()
    assert set(counts) == set(range(8))


def test_the_context_has_the_previous_transition(kept):
    for kind in windows.KINDS:
        source = windows.Episodes(kept, np.arange(4), kept.shape[3])
        sampler = windows.Sampler(
            [source], sampling_of(kind=kind, length=30), np.random.default_rng(1)
        )
        drawn = sampler.draw(64)
        context = drawn.context
        assert (context.actions[:, 1:] == drawn.targets[:, :-1]).all()
        assert (context.previous_cells[:, 1:] == context.cells[:, :-1]).all()
        assert (context.previous_times[:, 1:] == context.times[:, :-1]).all()
        assert set(np.unique(context.rewards)) <= {0, 1, NO_REWARD}
        assert context.rewards.max(where=context.rewards < 2, initial=0) == 1
        first = context.actions[:, 0] == NO_ACTION
        assert (context.previous_cells[first, 0] == NO_CELL).all()
        assert (context.rewards[first, 0] == NO_REWARD).all()
        assert (context.times[first, 0] == 0).all()
        if kind == "subsampled":
            assert 10 < first.sum() < 54  # half begin with the agent
        inside = context.times > 0
        assert (context.previous_times[inside] + 1 == context.times[inside]).all()


def test_rewards_are_those_of_the_step_before(kept):
    goals = np.array(kept.about.goals)
    for task, goal in enumerate(goals):
        source = windows.Episodes(kept, np.array([task]), kept.shape[3])
        drawn = windows.Sampler([source], sampling_of(length=30), np.random.default_rng(2)).draw(20)
        going = drawn.context.times > 0
        at_goal = drawn.context.cells == goal
        assert ((drawn.context.rewards == 1) == at_goal)[going].all()


def numbers_shown(kept, task: int, sampling: windows.Sampling, count: int) -> list[list[set[int]]]:
    """Numbers that every episode of `count` windows can have in its environment; the last one may be cut."""
    source = windows.Episodes(kept, np.array([task]), kept.shape[3])
    drawn = windows.Sampler([source], sampling, np.random.default_rng(task)).draw(count)
    return [
        [
            {number for _, number in matches(kept, task, drawn, row, *span)}
            for span in spans(drawn.context, row)[:-1]
        ]
        for row in range(count)
    ]


def test_shuffled_windows_are_the_same_episodes_in_any_order(kept):
    # A stride below one takes adjacent episodes from the first on.
    ordered = sampling_of(length=40, stride=0.0, jitter=0.0, fresh=1.0, exploring=0.0)
    rows = numbers_shown(kept, 2, ordered, 20)
    assert all(number in possible for row in rows for number, possible in enumerate(row))
    chosen = set(range(max(map(len, rows)) + 1))
    shuffled = numbers_shown(kept, 2, replace(ordered, kind="shuffled"), 200)
    assert all(possible & chosen for row in shuffled for possible in row)
    first = [min(row[0] & chosen) for row in shuffled]
    assert len(set(first)) > len(chosen) / 3
    descents = [
        min(a & chosen) > max(b & chosen) for row in shuffled for a, b in itertools.pairwise(row)
    ]
    assert 0.3 < np.mean(descents) < 0.6


def test_expert_windows_are_episodes_of_trained_agents(kept):
    sampling = sampling_of(kind="expert", length=40, stride=0.2, jitter=0.7, exploring=0.0)
    for task in range(4):
        source = windows.Episodes(kept, np.array([task]), kept.shape[3])
        earliest = repeated_share(source, task=0, sampling=sampling)
        for row in numbers_shown(kept, task, sampling, 20):
            assert all(max(possible) >= earliest for possible in row)


def test_consecutive_windows_are_the_steps_of_a_stream(kept):
    source = windows.Episodes(kept, np.array([2]), 100)
    sampler = windows.Sampler(
        [source], sampling_of(kind="consecutive", length=30), np.random.default_rng(3)
    )
    drawn = sampler.draw(200)
    begins = set()
    for row in range(200):
        where = [
            begin
            for env in range(3)
            for begin in range(100 - 30 + 1)
            if (kept.cells[2, env, begin : begin + 30] == drawn.context.cells[row]).all()
            and (kept.actions[2, env, begin : begin + 30] == drawn.targets[row]).all()
        ]
        assert where
        begins |= set(where)
    assert min(begins) < 8
    assert max(begins) > 62


def test_fresh_windows_begin_with_the_agent(kept):
    source = windows.Episodes(kept, np.array([0]), kept.shape[3])
    sampling = sampling_of(length=20, fresh=1.0, jitter=0.0, stride=0.0, exploring=0.0)
    drawn = windows.Sampler([source], sampling, np.random.default_rng(0)).draw(12)
    for row in range(12):
        # With stride 0 an episode after the other
        assert any((kept.actions[0, env, :20] == drawn.targets[row]).all() for env in range(3))


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 40))
def test_a_restored_sampler_continues_bit_equal(seed, count):
    source = FIXED[0]
    one = windows.Sampler(FIXED, sampling_of(length=24), np.random.default_rng(seed))
    one.draw(3)
    state = one.state()
    expected = one.draw(count)
    two = windows.Sampler([source, FIXED[1]], sampling_of(length=24), np.random.default_rng(0))
    two.restore(state)
    again = two.draw(count)
    assert (again.targets == expected.targets).all()
    for field, values in vars(expected.context).items():
        assert (getattr(again.context, field) == values).all()


FIXED: list[windows.Episodes] = []


@pytest.fixture(scope="module", autouse=True)
def two_sizes(tmp_path_factory):
    """Files of rooms of two sizes."""
    folder = tmp_path_factory.mktemp("sizes")
    for size in (4, 5):
        opened = recorded(folder / str(size), terminating=False, size=size)
        FIXED.append(windows.Episodes(opened, np.arange(4), opened.shape[3]))
    yield
    FIXED.clear()


def test_rooms_of_several_sizes_share_a_batch():
    sampler = windows.Sampler(FIXED, sampling_of(length=24), np.random.default_rng(0))
    drawn = sampler.draw(400)
    sizes, counts = np.unique(drawn.context.sizes, return_counts=True)
    assert sizes.tolist() == [4, 5]
    assert counts.min() > 140
    centre = np.where(drawn.context.sizes == 4, 10, 12)[:, None]
    begun = drawn.context.times == 0
    assert (drawn.context.cells == centre)[begun].all()


def test_only_the_tasks_for_training_are_drawn(kept):
    source = windows.Episodes(kept, np.array([0, 3]), kept.shape[3])
    sampling = sampling_of(length=30, fresh=0)
    drawn = windows.Sampler([source], sampling, np.random.default_rng(0)).draw(100)
    context = drawn.context
    paid = transitions(4)[context.previous_cells, context.actions % 5][context.rewards == 1]
    assert set(np.unique(paid)) == {GOALS[0], GOALS[3]}


def test_a_task_counts_as_learned_once_returns_are_near_the_final_ones():
    rising = np.concatenate([np.zeros(50), np.linspace(0, 10, 51), np.full(300, 10.0)])
    count = windows.episodes_to_learn([rising, rising])
    reached = next(i for i in range(len(rising)) if rising[max(0, i - 9) : i + 1].mean() >= 9)
    assert abs(count - (reached + 1)) <= 1
    assert windows.episodes_to_learn([np.ones(5)]) == 5


def test_the_sources_curve_is_the_mean_return_of_the_episodes_of_a_block(kept):
    """Of a history with fewer episodes than a curve has points, a block is as long as an episode can be."""
    by_episode, limit = curves.by_episode(kept), kept.about.limit
    blocks = 300 // limit
    assert by_episode["steps"] == pytest.approx(
        [3 * 300 * (k + 1) / blocks for k in range(blocks)], abs=3
    )
    edges = np.linspace(0, 300, blocks + 1).astype(int)
    for task, block in itertools.product(range(len(GOALS)), range(blocks)):
        part = slice(edges[block], edges[block + 1])
        begun = (kept.times[task, :, part] == 0).sum(axis=1)
        assert begun.all()
        paid = kept.rewards[task, :, part].sum(dtype=float)
        assert by_episode["returns"][task, block] == pytest.approx(paid / begun.sum())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0]))
def test_coordinates_keep_the_order_of_rows_and_columns(seed, shift, stretch):
    sizes = np.array([5, 9, 4, 9])
    places = windows.draw_coordinates(np.random.default_rng(seed), sizes, 12, shift, stretch)
    assert places.shape == (4, 2, 9)
    for room, size in enumerate(sizes):
        for line in places[room, :, :size]:
            gaps = np.diff(line)
            assert set(gaps.tolist()) <= ({1, 2} if stretch else {1})
            assert abs(line[size // 2] - 12) <= shift
    assert places.min() >= 0
    assert places.max() <= 24


def test_rooms_are_shifted_and_stretched_as_specified():
    places = windows.draw_coordinates(np.random.default_rng(0), np.full(4000, 9), 12, 3, 0.5)
    gaps = np.diff(places, axis=2) == 2
    assert abs(gaps.mean() - 0.25) < 0.01  # shares are uniform from 0 to 0.5
    shares = gaps.mean(axis=(1, 2))
    assert shares.std() > 0.14  # and a room's own: the same share for both of its sides
    centres, counts = np.unique(places[:, 0, 4], return_counts=True)
    assert centres.tolist() == list(range(9, 16))
    assert counts.min() > 4000 / 7 * 0.8


@pytest.mark.parametrize("steps", [7, 40, 390, 400, 900])
def test_what_an_agent_has_learned(steps):
    """Against a loop: the reward rate of the last ten blocks, as a share of that of the last tenth of them."""
    rewards = np.random.default_rng(steps).random((3, steps)) < np.linspace(0.05, 0.9, steps)
    blocks = [
        rewards[:, max(0, end - 100) : min(end, steps)].mean() for end in range(10, steps + 10, 10)
    ]
    partly = len(blocks) * 10 - steps  # the last block is short, so its ten blocks are
    if len(blocks) > 10:
        blocks[-1] = rewards[:, steps - 100 + partly :].mean()
    final = np.mean(blocks[-max(1, len(blocks) // 10) :])
    learned = windows.learned_share(rewards.astype(np.int64), 10)
    np.testing.assert_allclose(learned, np.clip(np.array(blocks) / final, 0, 1), rtol=1e-6)


def test_an_agent_without_a_reward_has_learned_nothing():
    assert (windows.learned_share(np.zeros((3, 100), np.int64), 10) == 0).all()
