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


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 9), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_batched_rooms_with_a_key_equal_single_rooms(size, limit, seed):
    rng = np.random.default_rng(seed)
    pairs = np.array([rng.choice(size * size, 2, replace=False) for _ in range(6)])
    keys, doors = pairs.T
    actions = rng.integers(grid.ACTIONS, size=(50, 6))
    batch = RoomBatch(grid.task_with_key(keys, doors, size), size, limit=limit, terminating=True)
    states, steps = [], []
    for step_actions in actions:
        states.append(batch.states.copy())
        steps.append(batch.step(step_actions))
    for i, (key, door) in enumerate(pairs):
        goal = tuple(divmod(int(cell), size) for cell in (door, key))
        env, before = EpisodeLimit(DarkKeyToDoor(size, goal), limit), grid.centre(size)
        for state, step, (after, reward, terminated, truncated, cell, info) in zip(
            states, steps, play(env, actions[:, i]), strict=True
        ):
            assert (step.cells[i], step.rewards[i], step.final[i]) == (after, reward, cell)
            assert (step.terminated[i], step.truncated[i]) == (terminated, truncated)
            assert step.final_states[i] == cell + size**2 * info["has_key"]
            assert state[i] == before
            before = after if terminated or truncated else step.final_states[i]


@given(st.integers(2, 9), st.integers(2, 9), st.data())
def test_a_task_has_a_number_and_a_text(size, other, data):
    every = [*grid.tasks(size).tolist(), *grid.tasks_with_key(size).tolist()]
    cells = size**2 - 1
    assert len(set(every)) == len(every) == cells + cells * (cells - 1)
    task = data.draw(st.sampled_from(every))
    key, goal = grid.key_and_goal(task, size)
    assert (key == grid.NO_KEY) == (task < size**2)
    words = grid.task_text(task, size).split()
    assert grid.read_task(words, size) == task
    numbers = [list(divmod(cell, size)) for cell in (key, goal) if cell != grid.NO_KEY]
    assert list(map(int, words)) == [place for cell in numbers for place in cell]
    moved = grid.task_in_room(task, size, other)
    offsets = [tuple(place - size // 2 for place in cell) for cell in numbers]
    inside = all(0 <= place + other // 2 < other for offset in offsets for place in offset)
    assert (moved >= 0) == inside
    if inside:
        there = [divmod(cell, other) for cell in grid.key_and_goal(moved, other)]
        there = there[-len(numbers) :]
        assert [tuple(place - other // 2 for place in cell) for cell in there] == offsets


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


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("terminating", [False, True])
@pytest.mark.parametrize("limit", [1, 4, 9])
def test_the_same_holds_with_a_key(size, terminating, limit):
    pairs = [(k, g) for k in range(size**2) for g in range(size**2) if k != g]
    tasks = np.array([grid.task_with_key(key, goal, size) for key, goal in pairs])
    best = grid.optimal_return(size, tasks, limit, terminating=terminating)
    random_return = grid.random_return(size, tasks, limit, terminating=terminating)
    success = grid.random_success(size, tasks, limit)
    table, start = grid.transitions(size), grid.centre(size)
    for i, (key, goal) in enumerate(pairs):
        # Values of every cell without and with the key, by the number of steps that are left.
        value, chance, reached = np.zeros((3, 2, size**2))
        for _ in range(limit):
            without, has = table == key, table == goal
            on = np.where(has & terminating, 0.0, 1.0)
            value = np.stack(
                [
                    np.where(without, 1 + value[1][table], value[0][table]).max(axis=1),
                    (has + on * value[1][table]).max(axis=1),
                ]
            )
            chance = np.stack(
                [
                    np.where(without, 1 + chance[1][table], chance[0][table]).mean(axis=1),
                    (has + on * chance[1][table]).mean(axis=1),
                ]
            )
            reached = np.stack(
                [
                    np.where(without, reached[1][table], reached[0][table]).mean(axis=1),
                    np.where(has, 1, reached[1][table]).mean(axis=1),
                ]
            )
        assert best[i] == value[0, start]
        assert random_return[i] == pytest.approx(chance[0, start], abs=1e-12)
        assert success[i] == pytest.approx(reached[0, start], abs=1e-12)


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
        again = gymnasium.make(env.spec)
        assert again.spec == env.spec
        assert again.get_wrapper_attr("limit") == i


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
        (lambda: RoomBatch(np.array([82 * 81]), 9), "outside"),
        (lambda: RoomBatch(np.array([81]), 9), "in one cell"),
        (lambda: grid.read_task(["1", "2", "1", "2"], 9), "key in the cell of the goal"),
        (lambda: grid.read_task(["1", "2", "3"], 9), "is no row and column"),
        (lambda: grid.read_task(["1", "2", "9", "0"], 9), "outside"),
        (lambda: DarkRoom(9).step(5), "action 5"),
    ],
)
def test_impossible_rooms_are_refused(make, word):
    with pytest.raises(ValueError, match=word):
        make()
