"""Text games as a user types them: supervised training, reinforcement learning, evaluation and search."""

import json
import shutil
import uuid
from pathlib import Path

import yaml

from journeys.shell import Project, written

# `catalog sync` sends to MLflow; senders are in test_guild.py.
ENVIRONMENT = {"RECORD_MLFLOW": "off", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
RECORDS = ("textgames",)
TINY = "width=32 layers=1 heads=2"
PLAY = "prompt=grid context=last think=no max-response-length=2 micro-batch-size=2"
LEARNING_RATES = (0.00015, 0.0003, 0.0015, 0.003)


def parents(run: Path) -> list[str]:
    return json.loads((run / "journal/parents.json").read_text())["parents"]


def finished_copy(run: Path, learning_rate: float, score: float) -> None:
    """A finished run with another learning rate and score, as Guild knows it."""
    copy = run.with_name(uuid.uuid4().hex)
    shutil.copytree(run / ".guild", copy / ".guild")
    result = written(run)
    result["result"]["metrics"]["greedy/score"] = score
    (copy / "result.json").write_text(json.dumps(result))
    flags = copy / ".guild/attrs/flags"
    flags.write_text(yaml.dump(yaml.safe_load(flags.read_text()) | {"actor-lr": learning_rate}))
    (copy / ".guild/attrs/id").write_text(copy.name)


def test_a_model_is_trained_evaluated_and_searched_for(project: Project) -> None:
    project.good(
        f"guild run ragen:sft env=frozenlake {TINY} {PLAY} max-turns=3 train-levels=32 test-levels=4 epochs=1 "
        "augment=no final-levels=validation val-data-num=8 -y"
    )
    model = project.finished("sft")
    assert json.loads((model / "artifacts/model/config.json").read_text())["model_type"] == "qwen2"
    games = (
        f"env=frozenlake model={model} train-batch-size=2 n-rollout=2 train-size=2 val-data-num=4"
    )
    project.good(
        f"guild run ragen:train {games} {PLAY} ppo-batch-size=0 updates=1 max-turns=5 temperature=1.0 kl-coef=0.04 "
        f"actor-lr={LEARNING_RATES[0]} -y"
    )
    trained = project.finished("train")
    assert parents(trained) == [model.name]
    assert written(trained)["result"]["variant"]["chance"].endswith("%")
    assert "## Median" in (trained / "artifacts/dialogues_sampled.md").read_text()
    project.good(f"guild run ragen:evaluate checkpoint={trained} max-turns=6 val-data-num=4 -y")
    evaluated = project.finished("evaluate")
    assert parents(evaluated) == [trained.name]
    assert written(evaluated)["result"]["objective"]["at"] == 6
    # The search reuses finished runs; only the last learning rate is left.
    for learning_rate, score in zip(LEARNING_RATES[1:3], (7.0, -7.0), strict=True):
        finished_copy(trained, learning_rate, score)
    project.good(f"guild run ragen:search group=2 {games} lr-scale=300 train-flags='{PLAY}' -y")
    search = project.finished("search")
    result = written(search)["result"]
    scores = {row[0]: float(row[1]) for row in result["table"]["rows"]}
    assert set(scores) == {f"actor-lr={value}" for value in LEARNING_RATES}
    assert result["best"] == {"actor-lr": LEARNING_RATES[1]}
    assert len(parents(search)) == 4
    assert trained.name in parents(search)
    assert len(project.runs_of("train")) == 2
    project.good("catalog sync")
    project.good("catalog render")
    assert result["summary"] in (project.root / "runs_local.md").read_text()


def test_a_wrong_flag_gets_a_line(project: Project) -> None:
    project.bad(
        "guild run ragen:levels size=5 boxes=3 -y",
        "--boxes: 3 boxes do not fit on a grid of 5; give 1 or fewer",
    )
