"""Histories: the record is what the agents did, also after a kill; and the script that records them."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from darkroom import train_sources
from darkroom.a2c import a2c, curves, evaluation, histories, video
from darkroom.rooms import grid
from darkroom.rooms.env import DarkKeyToDoor, DarkRoom, EpisodeLimit
from forked import kill_at_call, killed
from runcatalog.record import Seeds, UserError
from runcatalog.record.lifecycle.status import status_of
from small_disk import small_disk
from small_histories import run_main

SMALL = {
    "size": 4, "limit": 6, "env_steps": 3000, "history_steps": 2000, "test_tasks": 4, "lr": 1e-2,
    "save_interval": 10,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("sources") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        run_main(patch, folder, train_sources, **SMALL)
    return folder


def test_training_goes_on_after_the_recorded_steps(tmp_path, monkeypatch):
    """The recorded 12 steps of an environment end within a rollout of 5."""
    flags = SMALL | {"env_steps": 400, "history_steps": 120, "rollout": 5, "save_interval": 3}
    result = run_main(monkeypatch, tmp_path / "r", train_sources, **flags)
    assert result["status"] == "FINISHED"
    assert histories.Histories.open(tmp_path / "r").shape == (4, 15, 10, 12)


def test_a_history_obeys_the_rules_of_its_room(folder):
    kept = histories.Histories.open(folder)
    assert kept.shape == (4, 15, 10, 200)
    assert kept.rewards.sum() > 0
    for task, goal in enumerate(kept.about.goals):
        for env in (0, 9):
            room = EpisodeLimit(DarkRoom(4, divmod(goal, 4), terminate_on_goal=True), 6)
            cell, info = room.reset()
            for step in range(200):
                assert cell == kept.cells[task, env, step]
                assert info["time"] == kept.times[task, env, step]
                cell, reward, terminated, truncated, info = room.step(
                    int(kept.actions[task, env, step])
                )
                assert reward == kept.rewards[task, env, step]
                if terminated or truncated:
                    cell, info = room.reset()


WITH_KEY = SMALL | {
    "size": 3,
    "limit": 8,
    "key_tasks": 12,
    "test_tasks": 3,
    "env_steps": 20_000,
    "video": "none",
}


def test_a_history_with_a_key_obeys_the_rules_also_after_a_kill(tmp_path, monkeypatch):
    """Killed while agents have keys in hand."""
    folder = tmp_path / "killed"

    def run_until_killed():
        kill_at_call(monkeypatch, a2c.SourceAgents, "update", 25)
        run_main(monkeypatch, folder, train_sources, **WITH_KEY)

    killed(run_until_killed)
    continued = run_main(monkeypatch, folder, train_sources, **WITH_KEY)
    whole = run_main(monkeypatch, tmp_path / "whole", train_sources, **WITH_KEY)
    assert (continued["session"], continued["digest"]) == (2, whole["digest"])
    kept = histories.Histories.open(folder)
    assert (kept.cells == histories.Histories.open(tmp_path / "whole").cells).all()
    for task, number in enumerate(kept.about.goals):
        key, door = (divmod(cell, 3) for cell in grid.key_and_goal(number, 3))
        room = EpisodeLimit(DarkKeyToDoor(3, (door, key)), 8)
        cell, _ = room.reset()
        for step in range(200):
            assert cell == kept.cells[task, 4, step]
            cell, reward, terminated, truncated, _ = room.step(int(kept.actions[task, 4, step]))
            assert reward == kept.rewards[task, 4, step]
            if terminated or truncated:
                cell, _ = room.reset()
    metrics = whole["result"]["metrics"]
    assert metrics["optimal_return"] == 2
    assert 2 * metrics["success"] <= metrics["return"] <= 1 + metrics["success"]
    assert metrics["success"] > 0.9  # agents that learn
    test = histories.read_tasks(folder / "artifacts/test_tasks.txt", 3)
    assert len(test) == 3
    assert set(test) < set(kept.about.goals)


def test_a_killed_and_resumed_run_records_the_same(folder, tmp_path, monkeypatch):
    """Killed 7 updates after its second checkpoint, when the file has steps that are played again."""
    flags = SMALL | {"video": "none"}

    def run_until_killed():
        kill_at_call(monkeypatch, a2c.SourceAgents, "update", 28)
        run_main(monkeypatch, tmp_path / "killed", train_sources, **flags)

    killed(run_until_killed)
    assert not (tmp_path / "killed/result.json").exists()
    continued = run_main(monkeypatch, tmp_path / "killed", train_sources, **flags)
    whole = json.loads((folder / "result.json").read_text())
    assert (continued["session"], continued["resume_mismatch"]) == (2, 0)
    assert continued["digest"] == whole["digest"]
    assert continued["result"]["metrics"] == whole["result"]["metrics"]
    one, two = (histories.Histories.open(path) for path in (folder, tmp_path / "killed"))
    assert all((getattr(one, f) == getattr(two, f)).all() for f in histories.FIELDS)


def test_the_result_has_success_return_and_extra_steps(folder):
    result = json.loads((folder / "result.json").read_text())["result"]
    metrics = result["metrics"]
    assert result["env_steps"] == 15 * 3000
    assert 0 <= metrics["worst_success"] <= metrics["success"] <= 1
    assert metrics["return"] == metrics["success"]  # the goal ends an episode
    assert 0 <= metrics["extra_steps"] <= metrics["worst_extra_steps"]
    assert (folder / "artifacts/agents.mp4").stat().st_size > 1000
    assert (folder / "artifacts/sources.svg").exists()


def test_test_tasks_are_drawn_once_by_the_seed(folder, tmp_path):
    path = folder / "artifacts/test_tasks.txt"
    test = histories.read_tasks(path, 4)
    assert len(test) == 4
    assert set(test) < set(grid.tasks(4).tolist())
    again = histories.split(grid.tasks(4).tolist(), 4, Seeds(1).generator("split"))
    assert test == again[1]
    assert sorted(again[0] + again[1]) == grid.tasks(4).tolist()
    assert (
        histories.split(range(80), 23, Seeds(2).generator("split"))[1]
        != (histories.split(range(80), 23, Seeds(1).generator("split"))[1])
    )
    histories.write_tasks(tmp_path / "again.txt", test, 4)
    assert (tmp_path / "again.txt").read_text() == path.read_text()


def test_the_text_export_is_the_history(folder, tmp_path):
    kept = histories.Histories.open(folder)
    kept.export_text(3, tmp_path / "3.txt")
    table = np.loadtxt(tmp_path / "3.txt", dtype=int)
    assert table.shape == (2000, 5)
    assert (table[:, 0] == np.repeat(np.arange(10), 200)).all()
    for column, plane in enumerate((kept.cells, kept.actions, kept.rewards, kept.times), 1):
        assert (table[:, column] == plane[3].reshape(-1)).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9))
def test_the_curves_equal_those_of_a_loop(seed, points):
    """The second task has a key, whose reward is no success."""
    config = train_sources.Config(size=3, limit=4, hidden=4, envs=3, rollout=5, test_tasks=0)
    tasks = np.array([0, grid.task_with_key(5, 2, 3)])
    agents = a2c.SourceAgents(tasks, config.settings(), Seeds(seed))
    ours, updates = curves.Curves(tasks, 3, 3, 9, points), 9
    ended = {task: [] for task in range(2)}
    returns = np.zeros((2, 3))
    points_seen = 0
    for update in range(1, updates + 1):
        played = agents.update()
        for step in range(5):
            returns += played.rewards[step]
            for task, env in zip(*np.nonzero(played.ended[step]), strict=True):
                length = played.times[step, task, env] + 1
                ended[task].append((returns[task, env], returns[task, env] > task, length))
                returns[task, env] = 0
        means = ours.add(update, played)
        assert (means is not None) == (update in ours.at)
        if means:
            for task in range(2):
                for name, mean in zip(curves.NAMES, np.mean(ended[task], axis=0), strict=True):
                    assert ours.means[name][points_seen, task] == pytest.approx(mean)
            ended = {task: [] for task in range(2)}
            points_seen += 1
    assert points_seen == len(ours.at) == min(points, 9)


def test_final_agents_are_evaluated_by_whole_episodes():
    config = train_sources.Config(size=5, limit=8, hidden=4, terminating=False, test_tasks=0)
    agents = a2c.SourceAgents(np.array([0, 13, 24]), config.settings(), Seeds(0))
    # An embedding and weights that make an agent go right and down for ever.
    agents.parameters[0][:], agents.parameters[1][:], agents.parameters[2][:] = 0, 0, -1e4
    agents.parameters[2][..., grid.RIGHT] = agents.parameters[2][..., grid.DOWN] = 0
    scored = evaluation.evaluate(agents, np.random.default_rng(0), 50)
    assert (scored.lengths == 8).all()
    assert (scored.returns[0] == 0).all()  # the corner at the other end
    assert scored.returns[2].mean() > 2
    frames = video.paths(agents, np.random.default_rng(0), 2)
    assert frames.shape == (2 * 9, 3)
    image = video.picture(5, agents.goals, frames[0])
    assert image.shape[0] % 2 == image.shape[1] % 2 == 0


def test_final_agents_with_a_key_are_judged_by_the_way_to_the_door():
    """Agents that go left, and with the key right; the second door is not on their way."""
    config = train_sources.Config(size=5, limit=20, hidden=4, test_tasks=0)
    tasks = np.array([grid.task_with_key(10, door, 5) for door in (14, 2)])
    agents = a2c.SourceAgents(tasks, config.settings(), Seeds(0))
    agents.parameters[0][:], agents.parameters[1][:], agents.parameters[2][:] = 0, 0, -1e4
    agents.parameters[0][:, :25, 0], agents.parameters[0][:, 25:, 0] = 1, -1
    agents.parameters[1][:, 0, grid.LEFT], agents.parameters[1][:, 0, grid.RIGHT] = 100, -100
    agents.parameters[2][..., [grid.LEFT, grid.RIGHT]] = 0
    scored = evaluation.evaluate(agents, np.random.default_rng(0), 3)
    assert scored.returns.tolist() == [[2] * 3, [1] * 3]
    assert scored.success.tolist() == [1, 0]
    assert scored.lengths.tolist() == [[6] * 3, [20] * 3]
    metrics = evaluation.scores(agents, scored)
    assert (metrics["success"], metrics["extra_steps"], metrics["return"]) == (0.5, 0, 1.5)
    image = video.picture(5, tasks[:1], np.array([12]))
    colours = {tuple(pixel) for pixel in image.reshape(-1, 3).tolist()}
    assert {video._KEY, video._GOAL, video._AGENT} <= colours


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"tasks": "0,9"}, "'0,9' is no task of a 9 x 9 room"),
        ({"tasks": "0,0 0,0"}, "or a task twice"),
        ({"tasks": ""}, "names no task"),
        ({"size": 3, "test_tasks": 8}, "leave none for training"),
        ({"size": 1}, "--size"),
        ({"size": 3, "key_tasks": 57}, "--key-tasks: 57, but a 3 x 3 room has 56 tasks with a key"),
        ({"key_tasks": 5, "tasks": "1,2"}, "--key-tasks: draws the tasks itself"),
        ({"limit": 20, "key_tasks": 5000}, "cannot be reached in 20 steps"),
        ({"tasks": "1,2,1,2"}, "has the key in the cell of the goal"),
        ({"limit": 300}, "--limit"),
        ({"limit": 7}, "--limit: the farthest goal of a 9 x 9 room cannot be reached in 7 steps"),
    ],
)
def test_a_wrong_flag_is_a_one_line_error(words, message):
    with pytest.raises(UserError, match="--") as error:
        train_sources.Config(**words)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_histories_that_the_disk_has_no_space_for_end_the_run_with_the_reason(
    tmp_path, monkeypatch
):
    """Also of a run that is continued, whose file has holes."""
    about = histories.About(4, 6, True, tuple(grid.tasks(4).tolist()), 1)
    with small_disk(tmp_path / "small", 1024) as disk:
        with pytest.raises(OSError, match=r"No space left on device: .*histories\.npy"):
            histories.Histories.create(disk / "new", about, 10, 2000)
        histories.Histories.create(disk / "old", about, 10, 1000)
        size = (disk / "old" / histories.FILE).stat().st_size
        for end in (128, size):
            os.truncate(disk / "old" / histories.FILE, end)
        histories.Histories.create(disk / "other", about, 10, 1000)
        with pytest.raises(OSError, match="No space left on device"):
            histories.Histories.create(disk / "old", about, 10, 1000)
        flags = SMALL | {"env_steps": 20_000, "history_steps": 20_000}
        with pytest.raises(OSError, match="No space left on device"):
            run_main(monkeypatch, disk / "r", train_sources, **flags)
        ended = status_of(disk / "r")
        assert ended[:2] == ("FAILED", "disk full: cannot write histories.npy")


def test_damaged_files_are_named(folder, tmp_path):
    with pytest.raises(ValueError, match="no histories"):
        histories.Histories.open(tmp_path)
    for name, content in (("histories.json", "{"), ("histories.json", '{"version": 9}')):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match="histories"):
            histories.Histories.open(tmp_path)
    about = histories.Histories.open(folder).about
    with pytest.raises(ValueError, match="another kind"):
        histories.Histories.create(folder / "histories", about, 10, 100)
    for text in ("1 x\n", "4 0\n", "1 1\n1 1\n"):
        (tmp_path / "tasks.txt").write_text(text)
        with pytest.raises(ValueError, match=r"tasks\.txt:"):
            histories.read_tasks(tmp_path / "tasks.txt", 4)
    for test in (0, 15):
        with pytest.raises(ValueError, match="both parts"):
            histories.split(range(15), test, np.random.default_rng(0))


def test_a_file_of_histories_that_was_cut_is_named(tmp_path):
    about = histories.About(3, 4, False, (0, 1), 1)
    histories.Histories.create(tmp_path, about, 2, 5)
    file = tmp_path / "histories.npy"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"histories\.npy: damaged \(mmap length"):
        histories.Histories.open(tmp_path)
