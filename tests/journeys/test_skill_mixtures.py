"""Agents made of specialists, as typed: distilled, continued, mixed, compared, drawn."""

import json
from pathlib import Path

import pytest

from journeys.shell import Project, written
from rendered import committed

ENVIRONMENT = {"RECORD_MLFLOW": "off"}  # `catalog sync` sends; senders are in test_guild.py
RECORDS = ("skills",)
SHORT = (
    "epochs=1 epoch-steps=8192 envs=16 rollout=16 minibatches=2 channels=4 hidden=16 memory=16 eval-interval=32 "
    "eval-episodes=5 save-interval=4 threads=1"
)
VERBS = ("gtg", "gto", "pkp", "tgl")


@pytest.fixture(scope="module")
def specialists(project: Project) -> str:
    """Flags that name one short run for each verb."""
    project.good(f"guild run skill:all0 {SHORT} workers=2 -y")
    run = project.finished("all0").name
    return " ".join(f"{verb}={run}" for verb in VERBS)


@pytest.fixture(scope="module")
def student(project: Project, specialists: str) -> Path:
    """A distilled student."""
    project.good(f"guild run skill:distill stage=all0 episodes=40 {SHORT} {specialists} -y")
    return project.finished("distill")


def test_students_and_mixtures_from_the_same_specialists(
    project: Project, student: Path, specialists: str
) -> None:
    """One test: a process of the suite that has one of its own would train the agents again."""
    _a_student_stands_beside_its_teachers(project, student)
    _all_of_them_are_benchmarked_and_drawn(project, student, specialists)


def _a_student_stands_beside_its_teachers(project: Project, student: Path) -> None:
    table = written(student)["result"]["table"]
    assert [row[:2] for row in table["rows"]] == [
        [verb, kind] for verb in ("ALL", "GTG", "GTO", "PKP", "TGL") for kind in ("sampled", "greedy")
    ]  # fmt: skip
    parents = json.loads((student / "journal/parents.json").read_text())["parents"]
    assert parents == [project.finished("all0").name]


def _all_of_them_are_benchmarked_and_drawn(
    project: Project, student: Path, specialists: str
) -> None:
    project.good(f"guild run skill:continue stage=gtg0 {SHORT} workers=2 -y")
    going_on = project.finished("continue")
    parents = json.loads((going_on / "journal/parents.json").read_text())["parents"]
    assert parents == [student.name]
    project.good(f"guild run skill:subtasks stage=nlm0 levels=10 workers=2 {SHORT} -y")
    of_subtasks = project.finished("subtasks")
    parents = json.loads((of_subtasks / "journal/parents.json").read_text())["parents"]
    assert parents == [going_on.name]
    project.good("guild run skill:llm planner=oracle agent=sub stage=nlm0 shared=2 more=2 -y")
    project.good(
        f"guild run skill:moe stage=all0 episodes=40 more=all0 workers=2 {SHORT} {specialists} -y"
    )
    moe = written(project.finished("moe"))["result"]
    row = next(row for row in moe["table"]["rows"] if row[0] == "PKP")
    assert sum(map(float, row[1:6])) == pytest.approx(1, abs=0.003)  # five experts
    agents = "all0 distill continue moe"
    project.good(f"guild run skill:benchmark agents='{agents}' stages='pkp0 all0' episodes=40 -y")
    result = written(project.finished("benchmark"))["result"]
    by_agent, by_way = result["table"]
    assert by_agent["columns"] == ["agent", "actions", "pkp0", "all0"]
    assert [row[0] for row in by_agent["rows"][::2]] == ["all0", "DIS", "CON", "MOE"]
    assert by_way["columns"] == ["problem", "actions", "PPO", "DIS", "CON", "MOE"]
    assert [bool(cell) for cell in by_way["rows"][0]] == [True, True, False, True, True, True]
    assert all(by_way["rows"][2])
    metrics = result["metrics"]
    assert metrics["success/moe/all0/greedy"] == moe["metrics"]["success/greedy"]
    assert (
        metrics["success/distill/all0/greedy"]
        == written(student)["result"]["metrics"]["success/greedy"]
    )
    project.good("catalog sync && catalog export && python src/skills/redraw.py && catalog render")
    text = committed(project.root)
    figure = "experiments/skills/figures/benchmark_agents.svg"
    assert (project.root / figure).stat().st_size > 2000
    assert f"{figure})" in text
    assert "gate to pkp" in text
