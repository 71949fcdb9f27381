"""The CartPole study as a user types it: policies, a study over seeds, a search, experts, clones, and a wrong flag."""

import json
from pathlib import Path

import pytest

from journeys.shell import Project

ENVIRONMENT = {"RECORD_MLFLOW": "off"}  # `catalog sync` sends; senders are tested in test_guild.py
CLONES = "episodes=10 horizon=50 updates=20 orders=1 starts=20"


def _result(run: Path) -> dict:
    return json.loads((run / "result.json").read_text())


def _run_id(run: Path) -> str:
    return json.loads((run / "journal/run.json").read_text())["id"]


@pytest.fixture(scope="module")
def runs(project: Project) -> dict[str, Path]:
    """Directories of finished runs by name; all tests share them."""
    finished = {}

    def run(name: str, command: str) -> str:
        output = project.good(f"guild run {command} -y")
        finished[name] = project.runs[-1]
        return output

    project.bad(f"guild run bc:train {CLONES} -y", "no suitable run", "bc:experts")
    printed = run("study", "pg:compare updates=12 seeds=3")
    assert "4 configurations x 3 seeds = 12 runs" in printed
    run("policy", "pg:train algo=rloo reset=random updates=2")
    run("experts", "bc:experts count=2 updates=3 starts=20")
    run("clones", f"bc:train {CLONES}")
    run("clones of the policy", f"bc:train {CLONES} expert={finished['policy'].name[:8]}")
    run("restrictions", f"bc:restrictions {CLONES} limit=100")
    project.good("guild run pg:opt@gp trials=3 random-starts=2 episodes=24 seeds=2 -y")
    finished["search"] = next(r for r in project.runs if (r / ".guild/proto").exists())
    project.good("catalog sync")
    project.good("catalog render")
    return finished


def test_a_study_shows_progress_and_has_a_row_a_table_and_a_figure(
    project: Project, runs: dict[str, Path]
) -> None:
    run = runs["study"]
    assert json.loads((run / "journal/progress.json").read_text())["done"] == 100
    assert (run / "artifacts/learning_curves.svg").exists()
    text = (project.root / "runs_local.md").read_text()
    section = text.split("## Four algorithms")[1].split("\n## ")[0]
    assert f"| {run.name[:8]} *local* |" in section
    assert _result(run)["result"]["summary"].partition(":")[0] in section
    assert section.count("0 of 3") >= 4
    assert (project.root / "runs_local/cartpole/figures/compare_episodes.svg").exists()


def test_a_policy_has_a_checkpoint_and_can_be_the_expert_of_clones(runs: dict[str, Path]) -> None:
    policy = runs["policy"]
    assert "mean length" in _result(policy)["result"]["summary"]
    assert (policy / "checkpoints/00000002/weights.safetensors").exists()
    assert (runs["clones of the policy"] / "experts").resolve() == policy / "checkpoints"


def test_clones_use_the_last_experts_and_name_them_as_parents(
    project: Project, runs: dict[str, Path]
) -> None:
    clones, experts = runs["clones"], runs["experts"]
    assert (clones / "experts").resolve() == experts / "checkpoints"
    parents = json.loads((clones / "journal/parents.json").read_text())["parents"]
    assert parents == [_run_id(experts)]
    result = _result(clones)
    assert result["status"] == "FINISHED"
    assert result["result"]["objective"]["count"] == 2 * 1 * 20
    row = project.good(f"catalog row {clones.name[:8]}")
    assert "of 20 starts reach 500 steps, 2 experts" in row
    assert f"from {experts.name[:8]}" in row


def test_restrictions_have_a_table_on_the_page(project: Project, runs: dict[str, Path]) -> None:
    assert len(_result(runs["restrictions"])["result"]["table"]["rows"]) == 5
    page = (project.root / "runs_local.md").read_text()
    assert "| angular velocity | \\|angular velocity + 0.05\\| &lt; 0.1 rad/s |" in page


def test_a_search_for_the_fewest_episodes(project: Project, runs: dict[str, Path]) -> None:
    notes = [run / "search.json" for run in project.runs]
    points = [json.loads(path.read_text())["point"] for path in notes if path.exists()]
    assert len(points) == 3
    for point in points:
        assert set(point) == {"lr", "entropy", "hidden", "episodes-per-update"}
        assert 1 <= point["episodes-per-update"] <= 8
    best = _result(runs["search"])["result"]["objective"]
    assert best["name"] == "episodes_to_plateau"
    # No run of 24 episodes can have a plateau: the cost is the budget and a penalty.
    assert 24 < best["value"] < 48


def test_a_wrong_flag_gets_one_clear_line(project: Project) -> None:
    project.bad("guild run bc:train restriction=height -y", "Unsupported value", "restriction")
