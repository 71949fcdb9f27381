"""`pg:train` at a small size: its results, its errors, and that a killed run ends with the same bits."""

import argparse
import json

import numpy as np
import pytest

from cartpole import train
from cartpole.policy_gradient.reinforce import Learner
from runcatalog import record

RUN_VARIABLES = ("RUN_DIR", "RUN_ID", "GUILD_OP", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "RECORD")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project without MLflow."""
    for name in RUN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "guild.yml").write_text("")
    monkeypatch.setenv("PROJECT_DIR", str(tmp_path))
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    return tmp_path


def run(directory, monkeypatch, **flags):
    monkeypatch.setenv("RUN_DIR", str(directory))
    return train.main(train.Config(**flags))


def test_a_run_has_a_result_a_checkpoint_and_a_curve(project, monkeypatch):
    written = run(
        project / "run", monkeypatch, algo="rloo", updates=6, lr=0.01, hidden="16", seed=3
    )
    assert written["status"] == "FINISHED"
    result = written["result"]
    config = train.Config(algo="rloo", lr=0.01, hidden="16", seed=3)
    learner = Learner([config.run_settings], config.widths, config.batch)
    lengths = []
    for _ in range(6):
        rollout = learner.collect()
        learner.update(rollout)
        lengths.extend(rollout.lengths[0])
    lengths = np.array(lengths)
    assert result["objective"] == {
        "name": "length_mean100", "value": lengths.mean(), "kind": "mean", "goal": "max",
        "at": 60, "axis": "episode",
    }  # fmt: skip
    assert result["env_steps"] == lengths.sum()
    assert "60 episodes (6 updates); no plateau" in result["summary"]
    checkpoint = record.load_checkpoint(project / "run")
    assert checkpoint.step == 6
    assert checkpoint.state["hidden"] == "16"
    assert checkpoint.tensors["policy.w0"].shape == (4, 16)
    for name, value in learner.policy.items():
        assert (checkpoint.tensors[f"policy.{name}"].numpy() == value[0]).all()
    lines = (project / "run/journal/metrics.jsonl").read_text().splitlines()
    points = {e["step"]: e["m"] for e in map(json.loads, lines) if "updates" in e["m"]}
    assert {step: m["updates"] for step, m in points.items()} == {10 * u: u for u in range(1, 7)}


def test_a_budget_in_episodes_ends_with_a_whole_update(project, monkeypatch):
    """The result is that of all episodes, as the last point of the curve is."""
    written = run(project / "run", monkeypatch, algo="rloo", episodes=105)
    assert written["result"]["objective"]["at"] == 110
    lines = (project / "run/journal/metrics.jsonl").read_text().splitlines()
    points = [e for e in map(json.loads, lines) if "length_mean100" in e["m"]]
    last = next(e for e in reversed(points) if e["step"] == 110)["m"]
    assert written["result"]["objective"]["value"] == last["length_mean100"]
    assert written["result"]["env_steps"] == last["env_steps"]


def test_the_result_names_the_plateau_on_both_axes():
    lengths = np.where(np.arange(1300) < 705, 20, 500)
    config = train.Config(algo="rloo", episodes=1300)
    result = train.result_of(config, lengths, 499.5)
    assert "plateau at episode 800, update 80; greedy 499.5" in result["summary"]
    assert result["metrics"]["plateau_episode"] == 800
    assert result["metrics"]["plateau_update"] == 80


def test_the_greedy_length_of_known_policies():
    def push_with(*gains):
        """A network that pushes right if the weighted sum of the state is above 0."""
        towards = np.array([gains], np.float32)[..., None]
        return {
            "w0": np.concatenate([-towards, towards], axis=-1),
            "b0": np.zeros((1, 2), np.float32),
            "w1": np.eye(2, dtype=np.float32)[None],
            "b1": np.zeros((1, 2), np.float32),
        }

    rng = np.random.default_rng(0)
    assert train.greedy_length(push_with(0.1, 0.5, 3, 1), rng) == 500
    assert train.greedy_length(push_with(0, 0, -1, 0), rng) < 15


def test_a_killed_run_resumes_and_ends_with_the_same_bits(project, monkeypatch):
    flags = {"algo": "value", "updates": 80, "lr": 0.01, "reset": "random", "save_interval": 20}
    whole = run(project / "whole", monkeypatch, **flags)
    save, saved = train.save, []

    def save_and_die(*arguments):
        save(*arguments)
        saved.append(1)
        if len(saved) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(train, "save", save_and_die)
    with pytest.raises(KeyboardInterrupt):
        run(project / "killed", monkeypatch, **flags)
    assert json.loads((project / "killed/result.json").read_text())["status"] == "KILLED"
    monkeypatch.setattr(train, "save", save)
    resumed = run(project / "killed", monkeypatch, **flags)
    assert resumed["digest"] == whole["digest"]
    assert resumed["result"] == whole["result"]
    assert resumed["resume_mismatch"] == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--algo ppo", "vpg"),
        ("--gamma 1.5", "--gamma: 1.5 is not in [0, 1]"),
        ("--lr 0", "--lr: 0.0 is not in (0, 1]"),
        ("--hidden wide", "--hidden: 'wide' is no list"),
        ("--updates 3 --episodes 4", "give only one of the two"),
        ("--algo rloo --episodes-per-update 1", "at least 2"),
    ],
)
def test_a_wrong_flag_is_a_one_line_error(project, capsys, flags, words):
    with pytest.raises(SystemExit) as end:
        record.run_script(train.main, train.Config, argparse.ArgumentParser(), flags.split())
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert not (project / "runs").exists()


def test_budgets_in_updates_and_in_episodes():
    assert train.Config(algo="vpg").episode_count == 5000
    assert train.Config(algo="rloo").episode_count == 50_000
    odd = train.Config(algo="rloo", episodes=1234)
    assert (odd.update_count, odd.episode_count) == (124, 1234)
    assert train.Config(algo="mean", episodes_per_update=3, updates=7).episode_count == 21
