"""A language model trained by reinforcement as typed: from reward alone, evaluated over turns, searched for."""

import json

from journeys.shell import Project, written

ENVIRONMENT = {"RECORD_MLFLOW": "off"}  # `catalog sync` sends; senders are in test_guild.py
GAME = "prompt=grid context=last think=no max-response-length=2 width=32 layers=1 heads=2 micro-batch-size=2"
BATCH = "train-batch-size=2 n-rollout=2"


def test_a_model_is_trained_evaluated_and_searched_for(project: Project) -> None:
    project.good(
        f"guild run ragen:train env=frozenlake {GAME} {BATCH} ppo-batch-size=4 max-turns=3 updates=2 train-size=8 "
        "val-data-num=8 -y"
    )
    trained = project.finished("train")
    assert written(trained)["result"]["variant"]["chance"].endswith("%")
    assert "## Median" in (trained / "artifacts/dialogues_sampled.md").read_text()
    project.good(f"guild run ragen:evaluate checkpoint={trained} max-turns=6 val-data-num=8 -y")
    told = project.finished("evaluate")
    parents = json.loads((told / "journal/parents.json").read_text())["parents"]
    assert parents == [trained.name]
    assert written(told)["result"]["objective"]["at"] == 6
    searched = (
        f"guild run ragen:search env=frozenlake model=tiny {BATCH} train-size=2 val-data-num=4 lr-scale=300"
        f" train-flags='{GAME}'"
    )
    project.bad(f"{searched} group=3 -y", "no finished search of group 2", "actor-lr=…")
    project.good(f"{searched} group=2 -y")
    found = written(project.finished("search"))["result"]
    rows = {row[0]: float(row[1]) for row in found["table"]["rows"]}
    assert set(rows) == {f"actor-lr={step}" for step in (0.00015, 0.0003, 0.0015, 0.003)}
    assert rows[f"actor-lr={found['best']['actor-lr']}"] == max(rows.values())
    planned = project.good(f"{searched} group=3 dry-run=yes -y")
    assert planned.count(f"actor-lr={found['best']['actor-lr']}") == 6
    project.good("catalog sync")
    project.good("catalog render")
    assert found["summary"] in (project.root / "runs_local.md").read_text()
