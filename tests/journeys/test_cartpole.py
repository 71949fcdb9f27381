"""The CartPole study as typed: one policy, a study over seeds, a search, and what mistakes get."""

import json

import pytest

from journeys.shell import Project

ENVIRONMENT = {"RECORD_MLFLOW": "off"}  # `catalog sync` sends; senders are in test_guild.py
SMALL = "updates=12 seeds=3"


def _result(project: Project) -> dict:
    return json.loads((project.runs[-1] / "result.json").read_text())


def test_a_study_shows_progress_and_has_a_row_a_table_and_a_figure(project: Project) -> None:
    told = project.good(f"guild run pg:compare {SMALL} -y")
    assert "4 configurations x 3 seeds = 12 runs" in told
    run, result = project.runs[-1], _result(project)
    assert json.loads((run / "journal/progress.json").read_text())["done"] == 100
    assert (run / "artifacts/learning_curves.svg").exists()
    project.good("catalog sync")
    project.good("catalog render")
    text = (project.root / "runs_local.md").read_text()
    section = text.split("## Four algorithms")[1].split("\n## ")[0]
    assert f"| {run.name[:8]} *local* |" in section
    assert result["result"]["summary"].partition(":")[0] in section
    assert section.count("0 of 3") >= 4
    assert (project.root / "runs_local/cartpole/figures/compare_episodes.svg").exists()


def test_one_policy_and_its_checkpoint(project: Project) -> None:
    project.good("guild run pg:train algo=value updates=30 reset=random lr=0.01 -y")
    run = project.runs[-1]
    assert "mean length" in _result(project)["result"]["summary"]
    assert (run / "checkpoints/00000030/weights.safetensors").exists()


def test_a_search_for_the_fewest_episodes(project: Project) -> None:
    project.good("guild run pg:opt@gp trials=3 random-starts=2 episodes=24 seeds=2 -y")
    notes = [run / "search.json" for run in project.runs]
    points = [json.loads(path.read_text())["point"] for path in notes if path.exists()]
    assert len(points) == 3
    for point in points:
        assert set(point) == {"lr", "entropy", "hidden", "episodes-per-update"}
        assert 1 <= point["episodes-per-update"] <= 8
    batch = next(run for run in project.runs if (run / ".guild/proto").exists())
    best = json.loads((batch / "result.json").read_text())["result"]
    assert best["objective"]["name"] == "episodes_to_plateau"
    assert (
        24 < best["objective"]["value"] < 48
    )  # none can have a plateau: the budget and what is missing
    project.good("catalog sync")
    row = project.good(f"catalog row {batch.name[:8]}")
    assert "episodes to plateau" in row


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("guild run pg:train algo=ppo -y", ("algo", "ppo")),
        ("guild run pg:train gamma=1.5 -y", ("--gamma", "1.5", "[0, 1]")),
        ("guild run pg:compare algo=sarsa -y", ("--algo", "sarsa", "vpg, mean, value, rloo")),
        ("guild run pg:lr gamma='0.9 1.5' -y", ("--gamma", "1.5", "[0, 1]")),
        ("python src/cartpole/train.py --hidden wide", ("--hidden", "wide")),
    ],
)
def test_a_mistake_gets_one_clear_line(project: Project, line: str, words: tuple[str, ...]) -> None:
    project.bad(line, *words)
