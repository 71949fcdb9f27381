"""The study's scripts, at a small size."""

import json

import pytest
from matplotlib.image import imread

from runcatalog.record import UserError
from skills import benchmark, check_engine, curriculum, llm, show_levels, train
from skills.levels.minigrid import comparison
from skills.levels.stages import STAGES


def test_levels_are_measured_and_shown(run_main, tmp_path):
    result = run_main(tmp_path, show_levels, episodes=200, solved=10, training=100)["result"]
    assert result["objective"]["value"] == 1.0
    assert result["objective"]["count"] == 10 * len(STAGES)
    table = result["table"]
    assert [row[0] for row in table["rows"]] == list(STAGES)
    assert {len(row) for row in table["rows"]} == {len(table["columns"])}
    assert result["metrics"]["random/pkp0"] > result["metrics"]["random/pkp4"]
    picture = imread(tmp_path / "artifacts" / "levels.png")
    assert picture.shape[0] > 300
    assert picture.std() > 0.1


def test_a_check_counts_what_it_compared(run_main, monkeypatch, tmp_path):
    monkeypatch.setattr(comparison, "BABYAI", comparison.BABYAI[:1])
    result = run_main(tmp_path, check_engine, transitions=10_000, envs=8)["result"]
    assert result["metrics"]["mismatches"] == 0
    assert result["metrics"]["transitions"] >= 10_000
    parts = json.loads((tmp_path / "artifacts" / "environments.json").read_text())
    assert sum(part["transitions"] for part in parts) == result["metrics"]["transitions"]
    assert len(parts) == len(STAGES) + 1 + len(comparison.MINIGRID)


def test_a_check_of_nothing_is_refused():
    with pytest.raises(UserError, match="transitions"):
        check_engine.Config(transitions=5)


@pytest.mark.parametrize("flags", ["seed=2", "stage=pkp0", "pretrained=here", "lr", "lr=1 lr=2"])
def test_flags_that_a_curriculum_sets_itself_are_refused(flags):
    with pytest.raises(UserError, match="--train-flags"):
        curriculum.Config(train_flags=flags)


def test_a_curriculum_needs_guild(monkeypatch):
    monkeypatch.delenv("GUILD_HOME", raising=False)
    with pytest.raises(UserError, match="guild run skill:curriculum"):
        curriculum.main(curriculum.Config())


def test_a_benchmark_names_unknown_agents_and_stages(run_main, monkeypatch, tmp_path):
    with pytest.raises(UserError, match="--stages: no stage 'gtg9'"):
        benchmark.Config(stages="gtg9")
    with pytest.raises(UserError, match="--agents: none"):
        benchmark.Config(agents="")
    with pytest.raises(UserError, match="--agents: 00000040 is the name of two"):
        benchmark.Config(agents="a/checkpoints/00000040 b/checkpoints/00000040")
    with pytest.raises(UserError, match="--more: a single level"):
        llm.Config(planner="oracle", more=1)
    with pytest.raises(UserError, match="--rollout: a single sample"):
        train.Config(envs=1, workers=1, minibatches=1, rollout=1)
    (tmp_path / "home/runs").mkdir(parents=True)
    monkeypatch.setenv("GUILD_HOME", str(tmp_path / "home"))
    with pytest.raises(UserError, match="no finished run of skill:pkp4"):
        run_main(tmp_path / "run", benchmark, agents="pkp4")
    with pytest.raises(UserError, match="--agents: 'nothing' is neither a folder"):
        run_main(tmp_path / "other", benchmark, agents="nothing")
