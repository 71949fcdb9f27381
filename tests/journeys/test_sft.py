"""Supervised training as typed: a tiny model from nothing, a run that goes on from it, and what cannot run here."""

import json
from pathlib import Path

import pytest

from journeys.shell import Project

TINY = "env=bandit train-levels=32 test-levels=4 epochs=1 val-data-num=8 width=32 layers=1 heads=2"
# Senders are in test_guild.py.
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "RECORD_MLFLOW": "off"}


def _run_of(project: Project, label: str) -> Path:
    found = [run for run in project.runs if label in (run / ".guild/attrs/label").read_text()]
    return next(run for run in found if (run / "result.json").exists())


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_run_goes_on_from_another(project: Project) -> None:
    project.good(f"guild run ragen:sft {TINY} --label first -y")
    first = _run_of(project, "first")
    project.good(f"guild run ragen:sft {TINY} model={first} lora-rank=2 --label second -y")
    second = _run_of(project, "second")
    assert json.loads((second / "journal/parents.json").read_text())["parents"] == [first.name]
    losses = [
        {line["step"]: line["m"]["validation/loss"] for line in lines if "validation/loss" in line["m"]}
        for lines in (_lines(run / "journal/metrics.jsonl") for run in (first, second))
    ]  # fmt: skip
    assert losses[1][0] == pytest.approx(losses[0][1], rel=1e-5)
    assert losses[0][1] < losses[0][0]
    for run in (first, second):
        config = json.loads((run / "artifacts/model/config.json").read_text())
        assert config["model_type"] == "qwen2"
        assert "## Best" in (run / "artifacts/dialogues_greedy.md").read_text()


def test_what_cannot_run_here_gets_one_clear_line(project: Project) -> None:
    project.bad(
        "guild run ragen:sokoban_3B_instruct_sft -y",
        "Qwen/Qwen2.5-3B-Instruct", "not on this machine", "model=tiny",
    )  # fmt: skip
    project.bad("guild run ragen:sft quantise=4bit -y", "--quantise", "lora-rank=64")
