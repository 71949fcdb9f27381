"""The study's scripts, at a small size."""

import json
from pathlib import Path

import pytest
from matplotlib.image import imread

from runcatalog.record import UserError
from skills import check_engine, show_levels
from skills.levels.minigrid import comparison
from skills.levels.stages import STAGES


def done(monkeypatch, folder: Path, script, **flags) -> dict:
    """Runs a script's `main` into a directory; what it recorded."""
    for name in ("RUN_ID", "GUILD_OP", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "RECORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RUN_DIR", str(folder))
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    script.main(script.Config(**flags))
    return json.loads((folder / "result.json").read_text())["result"]


def test_levels_are_measured_and_shown(monkeypatch, tmp_path):
    found = done(monkeypatch, tmp_path, show_levels, episodes=200, solved=10)
    assert found["objective"]["value"] == 1.0
    assert found["objective"]["count"] == 10 * len(STAGES)
    table = found["table"]
    assert [row[0] for row in table["rows"]] == list(STAGES)
    assert {len(row) for row in table["rows"]} == {len(table["columns"])}
    assert found["metrics"]["random/pkp0"] > found["metrics"]["random/pkp4"]
    picture = imread(tmp_path / "artifacts" / "levels.png")
    assert picture.shape[0] > 300
    assert picture.std() > 0.1


def test_a_check_counts_what_it_compared(monkeypatch, tmp_path):
    monkeypatch.setattr(comparison, "BABYAI", comparison.BABYAI[:1])
    found = done(monkeypatch, tmp_path, check_engine, transitions=10_000, envs=8)
    assert found["metrics"]["mismatches"] == 0
    assert found["metrics"]["transitions"] >= 10_000
    parts = json.loads((tmp_path / "artifacts" / "environments.json").read_text())
    assert sum(each["transitions"] for each in parts) == found["metrics"]["transitions"]
    assert len(parts) == len(STAGES) + 1 + len(comparison.MINIGRID)


def test_a_check_of_nothing_is_refused():
    with pytest.raises(UserError, match="transitions"):
        check_engine.Config(transitions=5)
