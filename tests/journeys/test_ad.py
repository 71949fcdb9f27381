"""Algorithm Distillation as typed: a killed study continues, and wrong input gets one line."""

import json
from pathlib import Path

import pytest

from journeys.shell import Project, written

ENVIRONMENT = {"RECORD_MLFLOW": "off"}  # nothing here reads MLflow
RECORDS = ("darkroom",)
SMALL = (
    "splits=1 seeds=1 play='9 5' histories-flags='env-steps=10000 history-steps=10000' "
    "train-flags='updates=30 warmup=10 window=48 width=8 layers=1 heads=1 feed-forward=16 evaluations=1 "
    "episodes=5 copies=1 save-interval=5' evaluate-flags='copies=1 episodes=10'"
)


@pytest.fixture
def study(project: Project) -> Path:
    """A study that was killed with all its processes during the training, and restarted."""

    def trains() -> bool:
        return any(list((run / "checkpoints").glob("0*")) for run in project.runs_of("train"))

    project.kill_when(f"guild run ad:study {SMALL} -y", trains)
    (study,) = project.runs_of("study")
    assert not (study / "result.json").exists()
    # As if the kill had come while Guild wrote these files.
    (training,) = project.runs_of("train")
    (training / ".guild/attrs/flags").write_text("")
    (training / ".guild/attrs/op").write_text("op-cmd: {cmd-ar")
    project.good(f"guild run --restart {study.name[:8]} -y")
    return study


def test_a_killed_study_continues_and_wrong_histories_get_one_line(
    project: Project, study: Path
) -> None:
    """A single test, since every test would need a study of its own."""
    result = written(study)["result"]
    assert result["objective"]["name"] == "held_out_9/episodes_6_10"
    parts = ["held out 9", "shown offset 5", "training 9", "unseen offset 5"]
    assert [row[0] for row in result["table"]["rows"]] == parts
    assert (study / "artifacts/in_context.svg").stat().st_size > 5000
    run_ids = json.loads((study / "study.json").read_text())
    assert {run.name for run in project.runs} == {study.name, *run_ids.values()}
    assert len(project.runs) == 4  # histories, training, evaluation: none of them twice
    training = project.root / ".guild/runs" / run_ids["train split 1 seed 1"]
    assert (training / "histories").resolve().parent.name == run_ids["histories 9"]
    evaluation = written(project.root / ".guild/runs" / run_ids["evaluate split 1 seed 1"])
    value = evaluation["result"]["metrics"]["held_out_9/episodes_6_10"]
    assert value == result["objective"]["value"]
    tasks = (training / "artifacts/test_tasks.txt").read_text().splitlines()
    assert len(tasks) == 23
    project.bad("guild run ad:train sizes=5 -y", "has rooms of side 9", "--sizes wants 5")
