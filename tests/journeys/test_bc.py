"""Behaviour cloning as a user types it: experts, clones that find them, remedies, and what wrong commands get."""

import json
from pathlib import Path

import pytest

from journeys.shell import Project

ENVIRONMENT = {"RECORD_MLFLOW": "off"}  # `catalog sync` sends; senders are in test_guild.py
SMALL = "episodes=10 horizon=50 updates=20 orders=1 starts=20"


@pytest.fixture(scope="module")
def experts(project: Project) -> Path:
    """The newest of all experts: a test that makes others takes them away."""
    project.bad(f"guild run bc:train {SMALL} -y", "no suitable run", "bc:experts")
    project.good("guild run bc:experts count=2 updates=3 starts=20 -y")
    return project.runs[-1]


@pytest.fixture(autouse=True)
def _experts_are_there(experts: Path) -> None:
    pass


def test_clones_find_the_experts_through_guild_and_name_them(
    project: Project, experts: Path
) -> None:
    project.good(f"guild run bc:train {SMALL} -y")
    run = project.runs[-1]
    assert (run / "experts").resolve() == experts / "checkpoints"
    parents = json.loads((run / "journal/parents.json").read_text())["parents"]
    assert parents == [json.loads((experts / "journal/run.json").read_text())["id"]]
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "FINISHED"
    assert result["result"]["objective"]["count"] == 2 * 1 * 20
    for name in ("lifetimes.svg", "distributions.svg"):
        assert (run / "artifacts" / name).stat().st_size > 1000
    project.good("catalog sync")
    row = project.good(f"catalog row {run.name[:8]}")
    assert "of 20 starts reach 500 steps, 2 experts" in row
    assert f"from {experts.name[:8]}" in row


def test_restrictions_and_remedies_run_and_have_tables(project: Project) -> None:
    project.good(f"guild run bc:restrictions {SMALL} limit=100 -y")
    restrictions = json.loads((project.runs[-1] / "result.json").read_text())["result"]
    assert len(restrictions["table"]["rows"]) == 5
    project.good(f"guild run bc:dart {SMALL} limit=20 rounds=1 scale=1 -y")
    remedy = json.loads((project.runs[-1] / "result.json").read_text())["result"]
    assert [row[0] for row in remedy["table"]["rows"]][0::3] == ["position", "angular velocity"]
    project.good("catalog sync")
    project.good("catalog render")
    catalog = (project.root / "runs_local.md").read_text()
    assert "| angular velocity | \\|angular velocity + 0.05\\| &lt; 0.1 rad/s |" in catalog


def test_a_single_policy_of_pg_train_is_an_expert_too(project: Project) -> None:
    project.good("guild run pg:train algo=rloo reset=random updates=2 -y")
    single = project.runs[-1]
    project.good(f"guild run bc:train {SMALL} expert={single.name[:8]} -y")
    assert (project.runs[-1] / "experts").resolve() == single / "checkpoints"
    project.good(f"guild runs rm {single.name[:8]} -y")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("guild run bc:train restriction=height -y", ("Unsupported value", "restriction")),
        ("python src/cartpole/clone.py --horizon 501", ("--horizon", "501", "[1, 500]")),
        (f"guild run bc:train {SMALL} restriction=angle scale=1e-12 -y", ("leaves none of",)),
        ("python src/cartpole/remedies.py --method hope", ("method", "hope")),
        ("python src/cartpole/clone.py --experts /nowhere", ("--experts", "/nowhere")),
        ("python src/cartpole/clone.py", ("--experts", "bc:experts")),
    ],
)
def test_a_mistake_gets_one_clear_line(project: Project, line: str, words: tuple[str, ...]) -> None:
    project.bad(line, *words)


def test_an_expert_of_another_algorithm_is_refused(project: Project) -> None:
    project.good("guild run pg:train algo=vpg updates=2 -y")
    run = project.runs[-1]
    project.bad(f"guild run bc:train {SMALL} expert={run.name[:8]} -y", "algo=vpg", "algo=rloo")
    project.good(f"guild runs rm {run.name[:8]} -y")
