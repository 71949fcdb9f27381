"""The rooms: the rules, the closed forms, and that one room and many rooms are the same."""

import itertools

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import darkroom
from darkroom.rooms import grid
from darkroom.rooms.batch import RoomBatch
from darkroom.rooms.env import DarkKeyToDoor, DarkRoom, EpisodeLimit

SIZES = st.integers(2, 17)


def play(env, actions):
    """All that an environment gives, with an episode begun wherever one has ended."""
    cells = [env.reset()[0]]
    for action in actions:
        cell, reward, terminated, truncated, info = env.step(int(action))
        after = env.reset()[0] if terminated or truncated else cell
        yield after, reward, terminated, truncated, cell, info
        cells.append(cell)


@given(SIZES, st.data())
def test_a_move_is_one_cell_or_stopped_by_a_wall(size, data):
    row, column = (data.draw(st.integers(0, size - 1)) for _ in range(2))
    table = grid.transitions(size)
    for action, (down, right) in enumerate(grid.MOVES):
        expected = min(max(row + down, 0), size - 1), min(max(column + right, 0), size - 1)
        assert divmod(int(table[row * size + column, action]), size) == expected


@settings(max_examples=30, deadline=None)
@given(SIZES, st.integers(1, 30), st.booleans(), st.integers(0, 2**32 - 1))
def test_batched_rooms_equal_single_rooms(size, limit, terminating, seed):
    rng = np.random.default_rng(seed)
    goals = rng.integers(size * size, size=6)
    actions = rng.integers(grid.ACTIONS, size=(50, 6))
    batch = RoomBatch(goals, size, limit=limit, terminating=terminating)
    steps = [batch.step(step_actions) for step_actions in actions]
    for i, goal in enumerate(goals):
        room = DarkRoom(size, divmod(int(goal), size), terminate_on_goal=terminating)
        for step, (after, reward, terminated, truncated, cell, _) in zip(
            steps, play(EpisodeLimit(room, limit), actions[:, i]), strict=True
        ):
            assert (step.cells[i], step.rewards[i], step.final[i]) == (after, reward, cell)
            assert (step.terminated[i], step.truncated[i]) == (terminated, truncated)


@given(SIZES, st.integers(1, 20), st.data())
def test_goals_beyond_an_episode_are_named(size, limit, data):
    reached = {grid.centre(size)}
    for _ in range(limit):
        reached |= {int(cell) for start in reached for cell in grid.transitions(size)[start]}
    every = set(grid.tasks(size).tolist())
    some = data.draw(st.sets(st.sampled_from(sorted(every)), min_size=1))
    said = f"the farthest goal of a {size} x {size} room cannot be reached in {limit} steps"
    for given_goals, goals in ((None, every), (sorted(some), some)):
        expected = "" if goals <= reached else said
        assert grid.reach_problem(size, limit, given_goals) == expected


def test_the_door_pays_only_with_the_key_and_ends_the_episode():
    env = DarkKeyToDoor(3, ((1, 2), (1, 0)))  # door right of the centre, key left of it
    moves = grid.RIGHT, grid.LEFT, grid.LEFT, grid.STAY, grid.RIGHT, grid.RIGHT
    cell, info = env.reset()
    assert (cell, info["has_key"]) == (4, False)
    steps = [env.step(move) for move in moves]
    assert [step[0] for step in steps] == [5, 4, 3, 3, 4, 5]
    assert [step[1] for step in steps] == [0, 0, 1, 0, 0, 1]
    assert [step[2] for step in steps] == [False] * 5 + [True]
    assert [step[4]["has_key"] for step in steps] == [False] * 2 + [True] * 4
    assert env.reset()[1]["has_key"] is False


def test_rooms_of_several_sizes_step_together():
    sizes, goals = np.array([3, 9, 5, 9]), np.array([8, 80, 0, 3])
    actions = np.random.default_rng(0).integers(grid.ACTIONS, size=(40, 4))
    together = RoomBatch(goals, sizes, limit=7)
    alone = [RoomBatch(goals[i : i + 1], int(sizes[i]), limit=7) for i in range(4)]
    for step_actions in actions:
        step = together.step(step_actions)
        apart = [room.step(step_actions[i : i + 1]) for i, room in enumerate(alone)]
        for name in ("cells", "rewards", "truncated", "final"):
            assert getattr(step, name).tolist() == [getattr(a, name)[0] for a in apart]


def test_the_time_is_in_info_and_the_last_step_truncated():
    env = EpisodeLimit(DarkRoom(5, (0, 0)), limit=3)
    assert env.reset()[1]["time"] == 0
    steps = [env.step(grid.STAY) for _ in range(3)]
    assert [info["time"] for *_, info in steps] == [1, 2, 3]
    assert [truncated for *_, truncated, _ in steps] == [False, False, True]
    assert env.reset()[1]["time"] == 0


def test_random_starts_reach_every_cell_and_repeat():
    def starts(seed):
        env = DarkRoom(3, (0, 0), random_start=True)
        return [env.reset(seed=seed if i == 0 else None)[0] for i in range(200)]

    assert starts(1) == starts(1) != starts(2)
    assert set(starts(1)) == set(range(9))
    many = RoomBatch(np.zeros(500), 3, random_start=True, rng=np.random.default_rng(0))
    assert set(many.cells.tolist()) == set(range(9))


def test_a_random_goal_is_drawn_once():
    drawn = {DarkRoom(9, seed=i).goal for i in range(40)}
    assert len(drawn) > 20
    env = DarkRoom(9, seed=3)
    before = env.goal
    env.reset(seed=5)
    assert env.goal == before == DarkRoom(9, seed=3).goal
    door = DarkKeyToDoor(3, seed=4)
    assert door.door != door.key


@pytest.mark.parametrize("size", [3, 4, 9])
@pytest.mark.parametrize("terminating", [False, True])
@pytest.mark.parametrize("limit", [1, 5, 20])
def test_the_best_return_is_what_search_finds_and_chance_what_enumeration_gives(
    size, terminating, limit
):
    goals = np.arange(size * size)
    best = grid.optimal_return(size, goals, limit, terminating=terminating)
    # Value iteration knows nothing of distances.
    table = grid.transitions(size)
    for goal in goals:
        value, chance = np.zeros(size * size), np.zeros(size * size)
        for _ in range(limit):
            pay = table == goal
            on = np.where(pay & terminating, 0.0, 1.0)
            value = (pay + on * value[table]).max(axis=1)
            chance = (pay + on * chance[table]).mean(axis=1)
        start = grid.centre(size)
        assert best[goal] == value[start]
        random_return = grid.random_return(
            size, goals[goal : goal + 1], limit, terminating=terminating
        )[0]
        assert random_return == pytest.approx(chance[start], abs=1e-12)


def test_the_numbers_of_the_9_by_9_room():
    tasks = grid.tasks(9)
    assert len(tasks) == 80
    assert grid.distances(9)[tasks].mean() == 4.5
    assert grid.optimal_return(9, tasks, 20, terminating=False).mean() == 16.5
    assert grid.random_return(9, tasks, 20, terminating=True).mean() == pytest.approx(
        0.120, abs=5e-4
    )
    assert grid.random_return(9, tasks, 20, terminating=False).mean() == pytest.approx(
        0.235, abs=5e-4
    )
    returns = grid.optimal_return(9, tasks, 20, terminating=False)
    assert (grid.normalised_return(returns, 9, tasks, 20, terminating=False) == 1).all()


def test_gymnasium_makes_them():
    darkroom.register_envs()  # twice
    for name in darkroom._ROOMS:
        env = gymnasium.make(f"catalog/{name}")
        check_env(env.unwrapped, skip_render_check=True)
        assert env.reset(seed=0)[1]["time"] == 0
        for i in itertools.count(1):
            *_, truncated, info = env.step(grid.STAY)
            assert info["time"] == i
            if truncated:
                break
        assert i == darkroom._ROOMS[name][1]


def test_a_picture_shows_goal_and_agent():
    env = DarkRoom(4, (0, 3), render_mode="rgb_array")
    env.reset()
    image = env.render()
    assert image.shape == (4, 4, 3)
    assert image[0, 3].tolist() == [255, 0, 0]
    assert image[2, 2].tolist() == [0, 255, 0]
    assert (image == 255).all(axis=2).sum() == 14
    assert DarkRoom(4, (0, 3)).render() is None
    keyed = DarkKeyToDoor(4, ((0, 0), (0, 1)), render_mode="rgb_array")
    keyed.reset()
    assert keyed.render()[0, 1].tolist() == [255, 255, 0]


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: DarkRoom(9, (9, 0)), "outside"),
        (lambda: DarkRoom(1), "size 1"),
        (lambda: DarkRoom(9, render_mode="human"), "render_mode"),
        (lambda: EpisodeLimit(DarkRoom(9), 0), "limit 0"),
        (lambda: RoomBatch(np.array([81]), 9), "outside"),
        (lambda: RoomBatch(np.array([1]), 9, random_start=True), "rng"),
        (lambda: DarkRoom(9).step(5), "action 5"),
    ],
)
def test_impossible_rooms_are_refused(make, word):
    with pytest.raises(ValueError, match=word):
        make()
