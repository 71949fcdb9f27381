"""The CartPole study as a user types it: policies, a study over seeds, a search, experts, clones, and a wrong flag."""

import json
from pathlib import Path

import pytest

from journeys.shell import Project
from rendered import local

ENVIRONMENT = {"RECORD_MLFLOW": "off"}  # `catalog sync` sends; senders are tested in test_guild.py
RECORDS = ("cartpole",)
CLONES = "episodes=10 horizon=50 updates=20 orders=1 starts=20"


def _result(run: Path) -> dict:
    return json.loads((run / "result.json").read_text())


def _run_id(run: Path) -> str:
    return json.loads((run / "journal/run.json").read_text())["id"]


def _run(project: Project, command: str) -> Path:
    """Directory of a new run."""
    project.good(f"guild run {command} -y")
    return project.runs[-1]


@pytest.fixture(scope="module")
def policy(project: Project) -> Path:
    return _run(project, "pg:train algo=rloo reset=random updates=2")


@pytest.fixture(scope="module")
def study(project: Project) -> Path:
    printed = project.good("guild run pg:compare updates=12 seeds=3 -y")
    assert "4 configurations x 3 seeds = 12 runs" in printed
    return project.runs[-1]


@pytest.fixture(scope="module")
def search(project: Project) -> Path:
    project.good("guild run pg:opt@gp trials=3 random-starts=2 episodes=24 seeds=2 -y")
    return next(run for run in project.runs if (run / ".guild/proto").exists())


@pytest.fixture(scope="module")
def experts(project: Project) -> Path:
    project.bad(
        f"guild run bc:train {CLONES} -y", "needs a run of bc:experts", "guild run bc:experts -y"
    )
    return _run(project, "bc:experts count=2 updates=3 starts=20")


@pytest.fixture(scope="module")
def clones(project: Project, experts: Path) -> Path:
    return _run(project, f"bc:train {CLONES}")


@pytest.fixture(scope="module")
def restrictions(project: Project, experts: Path) -> Path:
    return _run(project, f"bc:restrictions {CLONES} limit=100")


@pytest.fixture(scope="module")
def page(project: Project, study: Path, clones: Path, restrictions: Path, search: Path) -> str:
    """The page of local runs, with all of these runs."""
    project.good("catalog sync")
    project.good("catalog render")
    return local(project.root)


def test_clones_use_the_last_experts_and_name_them_as_parents(experts: Path, clones: Path) -> None:
    assert (clones / "experts").resolve() == experts / "checkpoints"
    parents = json.loads((clones / "journal/parents.json").read_text())["parents"]
    assert parents == [_run_id(experts)]
    result = _result(clones)
    assert result["status"] == "FINISHED"
    assert result["result"]["objective"]["count"] == 2 * 1 * 20


def test_a_policy_has_a_checkpoint_and_can_be_the_expert_of_clones(
    project: Project, experts: Path, policy: Path
) -> None:
    assert "mean length" in _result(policy)["result"]["summary"]
    assert (policy / "checkpoints/00000002/weights.safetensors").exists()
    clones = _run(project, f"bc:train {CLONES} expert={policy.name[:8]}")
    assert (clones / "experts").resolve() == policy / "checkpoints"


def test_a_search_for_the_fewest_episodes(project: Project, search: Path) -> None:
    notes = [run / "search.json" for run in project.runs]
    points = [json.loads(path.read_text())["point"] for path in notes if path.exists()]
    assert len(points) == 3
    for point in points:
        assert set(point) == {"lr", "entropy", "hidden", "episodes-per-update"}
        assert 1 <= point["episodes-per-update"] <= 8
    best = _result(search)["result"]["objective"]
    assert best["name"] == "episodes_to_plateau"
    # No run of 24 episodes can have a plateau: the cost is the budget and a penalty.
    assert 24 < best["value"] < 48


def test_a_study_has_progress_and_a_figure(study: Path) -> None:
    assert json.loads((study / "journal/progress.json").read_text())["done"] == 100
    assert (study / "artifacts/learning_curves.svg").exists()


def test_the_page_has_rows_tables_and_figures(
    project: Project, page: str, study: Path, restrictions: Path
) -> None:
    section = page.split("## Four algorithms")[1].split("\n## ")[0]
    assert f"[{study.name[:8]}](cartpole_runs.md#{study.name[:8]}) *local* |" in section
    assert section.count("0 of 3") >= 4
    assert (project.root / "runs_local/cartpole/figures/compare_episodes.svg").exists()
    assert len(_result(restrictions)["result"]["table"]["rows"]) == 5
    assert "| angular velocity | \\|angular velocity + 0.05\\| &lt; 0.1 rad/s |" in page


def test_a_row_of_clones_names_their_experts(
    project: Project, page: str, clones: Path, experts: Path, search: Path
) -> None:
    row = project.good(f"catalog row {clones.name[:8]}")
    assert "of 20 starts reach 500 steps, 2 experts" in row
    assert f" expert={experts.name[:8]} " in row
    assert "episodes to plateau" in project.good(f"catalog row {search.name[:8]}")


def test_a_wrong_flag_gets_one_clear_line(project: Project) -> None:
    project.bad("guild run bc:train restriction=height -y", "Unsupported value", "restriction")
