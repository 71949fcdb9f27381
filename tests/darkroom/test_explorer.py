"""Scripted explorers, judged by searches in single rooms, and the operation that records them."""

import itertools
import json
from collections import deque

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from darkroom import explore
from darkroom.rooms import explorer, grid
from darkroom.rooms.play import Tasks, steps_of
from runcatalog.record import UserError
from small_histories import run_main


def moves_to(cell: int, targets: set[int], size: int) -> int:
    """Moves to the nearest of some cells, by breadth-first search."""
    table, seen, queue = grid.transitions(size), {cell}, deque([(cell, 0)])
    while queue:
        at, moves = queue.popleft()
        if at in targets:
            return moves
        for after in table[at].tolist():
            if after not in seen:
                seen.add(after)
                queue.append((after, moves + 1))
    raise AssertionError("no way")


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(2, 7), st.integers(0, 48)), min_size=1, max_size=5),
    st.integers(1, 25), st.booleans(), st.integers(0, 2**32 - 1),
)  # fmt: skip
@example([(2, 3), (3, 4), (5, 12)], 20, False, 0)  # goals where episodes begin
def test_every_step_nears_an_unknown_cell_or_the_known_goal(rooms, limit, terminating, seed):
    sizes = np.array([size for size, _ in rooms])
    goals = np.array([goal % size**2 for size, goal in rooms])
    batch = Tasks(goals, sizes, limit, terminating).rooms()
    agents = explorer.Explorers(batch, np.random.default_rng(seed))
    cells = batch.cells.tolist()
    unknown = [set(range(size**2)) - {cell} for size, cell in zip(sizes, cells, strict=True)]
    met = [False] * len(rooms)
    for _, _, step in steps_of(batch, agents, 6):
        for i, size in enumerate(sizes):
            wanted = {int(goals[i])} if met[i] else unknown[i] or {grid.centre(int(size))}
            before, after = (moves_to(c, wanted, size) for c in (cells[i], int(step.final[i])))
            assert after == max(0, before - 1)
            met[i] |= step.final[i] == goals[i]
            unknown[i] -= {int(step.final[i]), int(step.cells[i])}
            cells[i] = int(step.cells[i])


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(2, 6), st.integers(0, 10**6)), min_size=1, max_size=5),
    st.integers(1, 40), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_with_a_key_it_nears_the_key_and_then_the_door(rooms, limit, seed):
    sizes = np.array([size for size, _ in rooms])
    pairs = [list(itertools.permutations(range(size**2), 2)) for size in sizes]
    tasks = [
        grid.task_with_key(*of_room[pick % len(of_room)], size)
        for of_room, (size, pick) in zip(pairs, rooms, strict=True)
    ]
    tasks = np.array(tasks)
    batch = Tasks(tasks, sizes, limit, terminating=True).rooms()
    agents = explorer.Explorers(batch, np.random.default_rng(seed))
    keys, doors = grid.key_and_goal(tasks, sizes)
    cells = batch.cells.tolist()
    # Cells that may still have the key, and with it the door.
    unknown = [[set(range(size**2)) for _ in range(2)] for size in sizes]
    has_key, found = [0] * len(rooms), [[False, False] for _ in rooms]
    for i, cell in enumerate(cells):
        unknown[i][0].discard(cell)
    for _, _, step in steps_of(batch, agents, 8):
        for i, size in enumerate(sizes):
            sought = int((keys, doors)[has_key[i]][i])
            wanted = {sought} if found[i][has_key[i]] else unknown[i][has_key[i]]
            wanted = wanted or {grid.centre(int(size))}
            before, after = (moves_to(c, wanted, size) for c in (cells[i], int(step.final[i])))
            assert after == max(0, before - 1)
            if step.final[i] == sought:
                assert step.rewards[i] == 1
                found[i][has_key[i]] = True
                has_key[i] = 1
            unknown[i][has_key[i]].discard(int(step.final[i]))
            if step.terminated[i] or step.truncated[i]:
                has_key[i] = 0
                unknown[i][0].discard(int(step.cells[i]))
            cells[i] = int(step.cells[i])


def test_all_keys_and_doors_are_met_and_then_the_return_is_the_best():
    tasks = Tasks.of_rooms([(5, grid.tasks_with_key(5)[::7])], 40, terminating=True)
    returns, lengths = explorer.explore(tasks, 6, 2, np.random.default_rng(1))
    assert (returns[:, :, -1] == 2).all()
    shortest = grid.steps_to_rewards(5, tasks.goals)[1]
    later = np.logical_or.accumulate(returns == 2, axis=2)[:, :, :-1]
    assert (
        lengths[:, :, 1:][later] == np.broadcast_to(shortest[:, None, None], later.shape)[later]
    ).all()
    assert set(np.unique(returns)) <= {0, 1, 2}


def test_a_goal_or_key_where_episodes_begin_is_met_by_returning_there():
    """When all other cells are visited; test tasks from a file may be such."""
    centre = grid.centre(5)
    pairs = (grid.task_with_key(centre, 0, 5), grid.task_with_key(0, centre, 5))
    tasks = Tasks.of_rooms([(5, [centre, *pairs])], 30, terminating=True)
    returns, _ = explorer.explore(tasks, 8, 20, np.random.default_rng(1))
    assert returns[:, :, -1].min(axis=1).tolist() == [1, 2, 2]


@pytest.mark.parametrize("terminating", [False, True])
def test_all_goals_are_met_and_then_the_return_is_the_best(terminating):
    tasks = Tasks.of_rooms([(5, grid.tasks(5)), (7, grid.tasks(7))], 20, terminating)
    returns, lengths = explorer.explore(tasks, 9, 3, np.random.default_rng(1))
    assert returns.shape == lengths.shape == (24 + 48, 3, 9)
    normalised = tasks.normalised(returns)
    later = np.logical_or.accumulate(returns > 0, axis=2)[:, :, :-1]
    np.testing.assert_allclose(normalised[:, :, 1:][later], 1)
    assert later[:, :, -1].all()
    # 20 steps of the first episode enter 20 new cells of the 24, and fewer than 20 of the others.
    assert (returns[:24, :, 0] > 0).mean() == pytest.approx(20 / 24, abs=0.1)
    assert (lengths == 20).all() != terminating


def test_the_operation_records_its_curve_and_repeats(tmp_path, monkeypatch):
    flags = {"sizes": "5 3", "episodes": 10, "copies": 2}
    first, again = (run_main(monkeypatch, tmp_path / n, explore, **flags) for n in "ab")
    assert first["digest"] == again["digest"]
    result = first["result"]
    assert result["objective"]["name"] == "explorer_5/episodes_1_5"
    assert result["metrics"]["explorer_5/episodes_6_10"] == 1
    assert result["metrics"]["explorer_3/solved"] == 1
    assert result["env_steps"] == (24 + 8) * 2 * 10 * 20
    points = map(json.loads, (tmp_path / "a/journal/metrics.jsonl").read_text().splitlines())
    curve = [p for p in points if "explorer_5/return" in str(p)]
    assert len(curve) == 10
    assert (tmp_path / "a/artifacts/in_context.svg").stat().st_size > 5000


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"sizes": "9 x"}, "--sizes: 'x'"),
        ({"sizes": ""}, "--sizes: ''"),
        ({"sizes": "9", "limit": 7}, "cannot be reached in 7 steps"),
        ({"sizes": "3", "limit": 50, "key_tasks": 57}, "a 3 x 3 room has 56 tasks with a key"),
    ],
)
def test_impossible_rooms_are_one_line_errors(flags, message):
    with pytest.raises(UserError, match=message):
        explore.Config(**flags)
