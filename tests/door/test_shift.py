"""Domain shift: what is moved lies outside, the rest stays, and inside is the run's own number."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from door import shift, train_ppo
from door.env.tasks import TASKS
from door.env.worlds import World, parameters, sample_world
from door.training import summary, trainer
from runcatalog import record
from world_ranges import RANGES

WORLDS = 6  # instead of 100
ALL = RANGES | {"standoff": (0.055, 0.065)}  # which stands for the source's meshes
PULL = {
    "shift_y": (-0.05, 0.15),
    "shift_z": (-0.15, 0.15),
    "reach": (0.09, 0.15),
    "grip": (0.008, 0.011),
}
LEVER = {"shift_y": (-0.15, 0.15), "reach": (0.11, 0.14), "grip": (0.008, 0.011)}


def draw(task: str, *outside: str) -> list[World]:
    rng = np.random.default_rng(5)
    return [sample_world(TASKS[task], rng, outside) for _ in range(300)]


def numbers(worlds: list[World]) -> dict[str, np.ndarray]:
    """Every number of the worlds by name, [n]; shift and friction in parts."""
    plain = [f.name for f in fields(World) if f.name not in ("task", "shift", "friction")]
    values = {name: np.array([getattr(world, name) for world in worlds]) for name in plain}
    values["shift_y"], values["shift_z"] = np.array([world.shift for world in worlds]).T
    parts = np.array([world.friction for world in worlds]).T
    return values | {f"friction {index}": part for index, part in enumerate(parts)}


def is_outside(values: np.ndarray, low: float, high: float) -> None:
    """All outside [low, high], on both sides, and within 1.5 of its width about its middle."""
    quarter = (high - low) / 4
    assert ((values < low) | (values > high)).all()
    assert low - quarter <= values.min() < low - 0.9 * quarter
    assert high + 0.9 * quarter < values.max() <= high + quarter


@pytest.mark.parametrize("task", TASKS)
def test_only_the_shifted_parameter_changes(task: str):
    inside = numbers(draw(task))
    for name in parameters(TASKS[task]):
        outside = numbers(draw(task, name))
        moved = {key for key in inside if not np.array_equal(inside[key], outside[key])}
        assert {key.split()[0] for key in moved} == {name}
        assert all((outside[key] > 0).all() for key in moved if not key.startswith("shift"))


@pytest.mark.parametrize(("task", "own"), [("pull", PULL), ("lever_push_left", LEVER)])
def test_with_all_outside_no_parameter_is_in_its_training_range(task: str, own: dict):
    names = parameters(TASKS[task])
    outside = numbers(draw(task, *names))
    friction = {
        "friction 0": (0.5, 1.0),
        "friction 1": (0.001, 0.005),
        "friction 2": (0.001, 0.005),
    }
    ranges = ALL | own | friction
    for key, values in outside.items():
        if key.split()[0] in names:
            is_outside(values, *ranges[key])
    assert set(names) <= {key.split()[0] for key in ranges}
    latched = TASKS[task].latched
    assert set(outside) - set(ranges) == ({"look", "shift_z"} if latched else {"look"})


def test_a_parameter_that_a_task_does_not_have_is_named():
    with pytest.raises(ValueError, match=r"no parameter handle_limit in pull: shift_y, "):
        sample_world(TASKS["pull"], np.random.default_rng(0), ["handle_limit"])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate project, without MLflow."""
    for name in ("RUN_ID", "GUILD_OP", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "RECORD"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "guild.yml").write_text("")
    monkeypatch.setenv("PROJECT_DIR", str(tmp_path))
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    return tmp_path


def test_the_result_inside_equals_the_runs_own(project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trainer, "WORLDS", WORLDS)
    monkeypatch.setattr(summary, "learning_curve", lambda *arguments: None)
    monkeypatch.setenv("RUN_DIR", str(project / "run"))
    trained = train_ppo.main(
        train_ppo.Config(
            task="pull", seed=31, num_envs=8, num_steps=16, env_steps=128, minibatch_size=64,
            epochs=1, eval_interval=0, video=False, mean_gain=4.0, lr=1e-9, network_size="16 16",
        )
    )["result"]["metrics"]  # fmt: skip
    monkeypatch.setenv("RUN_DIR", str(project / "shift"))
    written = shift.main(shift.Config(run=str(project / "run"), worlds=WORLDS, seed=7))["result"]
    metrics = written["metrics"]
    assert metrics["opening_rate/none"] == trained["opening_rate"]
    assert metrics["max_penetration/none"] == trained["max_penetration"]
    names = parameters(TASKS["pull"])
    assert set(metrics) == {
        f"{metric}/{name}"
        for metric in ("opening_rate", "max_penetration")
        for name in ("none", "all", *names)
    }
    assert written["objective"]["value"] == metrics["opening_rate/all"]
    assert written["objective"]["count"] == WORLDS
    assert [row[0] for row in written["table"]["rows"]] == ["none", "all", *names]


def test_a_folder_without_a_run_is_named(project: Path):
    with pytest.raises(record.UserError, match="nowhere: not a run of door training"):
        shift.main(shift.Config(run=str(project / "nowhere")))
