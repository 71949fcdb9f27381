"""Algorithm Distillation as typed: a study that is killed goes on, and wrong input gets one line."""

import json
from pathlib import Path

import pytest

from journeys.shell import Project, written

ENVIRONMENT = {"RECORD_MLFLOW": "off"}  # `catalog sync` sends; senders are in test_guild.py
SMALL = (
    "splits=1 seeds=1 play='9 5' histories-flags='env-steps=10000 history-steps=10000' "
    "train-flags='updates=30 window=48 width=8 layers=1 heads=1 feed-forward=16 evaluations=1 "
    "episodes=5 copies=1 save-interval=5' evaluate-flags='copies=1 episodes=10'"
)


@pytest.fixture
def study(project: Project) -> Path:
    """A study that was killed while it trained, everything at once, and restarted."""

    def trains() -> bool:
        return any(list((run / "checkpoints").glob("0*")) for run in project.runs_of("train"))

    project.kill_when(f"guild run ad:study {SMALL} -y", trains)
    (whole,) = project.runs_of("study")
    assert not (whole / "result.json").exists()
    # What a kill leaves that comes while Guild writes these.
    (training,) = project.runs_of("train")
    (training / ".guild/attrs/flags").write_text("")
    (training / ".guild/attrs/op").write_text("op-cmd: {cmd-ar")
    project.good(f"guild run --restart {whole.name[:8]} -y")
    return whole


def test_a_killed_study_and_what_it_refuses(project: Project, study: Path) -> None:
    """One test: a process of the suite that has a study of its own would make it again."""
    _it_goes_on_and_tells_of_all(project, study)
    _mistakes_get_one_clear_line(project)


def _it_goes_on_and_tells_of_all(project: Project, study: Path) -> None:
    result = written(study)["result"]
    assert result["objective"]["name"] == "held_out_9/episodes_6_10"
    parts = ["held out 9", "shown offset 5", "training 9", "unseen offset 5"]
    assert [row[0] for row in result["table"]["rows"]] == parts
    assert (study / "artifacts/in_context.svg").stat().st_size > 5000
    named = json.loads((study / "study.json").read_text())
    assert {run.name for run in project.runs} == {study.name, *named.values()}
    assert len(project.runs) == 4  # histories, training, evaluation: none of them twice
    trained = project.root / ".guild/runs" / named["train split 1 seed 1"]
    assert (trained / "histories").resolve().parent.name == named["histories 9"]
    evaluated = written(project.root / ".guild/runs" / named["evaluate split 1 seed 1"])["result"]
    assert evaluated["metrics"]["held_out_9/episodes_6_10"] == result["objective"]["value"]
    tasks = (trained / "artifacts/test_tasks.txt").read_text().splitlines()
    assert len(tasks) == 23


def _mistakes_get_one_clear_line(project: Project) -> None:
    project.bad("guild run ad:train sizes=5 -y", "has rooms of side 9", "--sizes wants 5")
    project.bad("python src/darkroom/train_ad.py", "--histories", "no histories there")
    project.bad("python src/darkroom/evaluate_ad.py --model /nowhere", "--model", "/nowhere")
