"""The study's table of levels, at a small size."""

import json

import numpy as np
import pytest

from runcatalog.record import UserError
from textgames import show_levels
from textgames.games import levels


def done(monkeypatch, folder, **flags) -> dict:
    """Run the script's `main` into a directory; return its record."""
    for name in ("RUN_ID", "GUILD_OP", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "RECORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RUN_DIR", str(folder))
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    show_levels.main(show_levels.Config(**flags))
    return json.loads((folder / "result.json").read_text())["result"]


@pytest.mark.parametrize(
    "flags", [{"boxes": 2, "size": 7}, {"env": "frozenlake", "slippery": False}]
)
def test_levels_are_measured_and_shown(monkeypatch, tmp_path, flags):
    result = done(monkeypatch, tmp_path, levels=300, validation=50, **flags)
    chances, alike = result["table"]
    for table in result["table"]:
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}
    assert [row[0] for row in chances["rows"]] == ["1", "2", "5", "10", "25"]
    metrics = result["metrics"]
    for turns in (1, 2, 5, 10, 25):
        assert metrics[f"random/{turns}"] <= metrics[f"optimal/{turns}"] <= 1
    assert 0 < metrics["alike/distinct"] <= 1
    assert alike["rows"][0][-1] == "100.0"
    shown = (tmp_path / "artifacts" / "levels.txt").read_text()
    assert shown.count("P") >= 6
    assert "Always reply in the form" in shown


def test_validation_seeds_are_not_among_the_training_levels_that_are_counted(monkeypatch, tmp_path):
    monkeypatch.setattr(levels, "TRAINING", 100)  # so that the 300 levels reach those of validation
    result = done(monkeypatch, tmp_path, levels=300, validation=50, boxes=2, size=7)
    assert result["metrics"]["alike/met"] < 0.5


def test_an_interval_covers_the_mean_at_its_level():
    """About 95 % of 400 intervals cover the true mean, for both kinds of interval."""
    rng = np.random.default_rng(0)
    draws = ((lambda: (rng.random(60) < 0.3).astype(float), 30), (lambda: rng.random(60), 50))
    for draw, true in draws:
        covered = 0
        for _ in range(400):
            low, high = show_levels.mean(draw()).split("[")[1].strip("]").split(", ")
            covered += float(low) <= true <= float(high)
        assert 0.92 < covered / 400 < 0.99
    assert show_levels.mean(np.ones(500)) == "100.0 [99.2, 100.0]"
    assert show_levels.mean(np.array([0.2, *[0.0] * 19])) == "1.0 [0.0, 3.1]"
    assert show_levels.mean(np.array([0.8, *[1.0] * 19])) == "99.0 [96.9, 100.0]"


def test_a_bandit_has_no_levels_to_show():
    with pytest.raises(UserError, match="--env"):
        show_levels.Config(env="bandit")
