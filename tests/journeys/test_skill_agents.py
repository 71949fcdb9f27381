"""Agents of the MiniGrid study as typed: a curriculum that is killed goes on, its agents are benchmarked."""

import json
from pathlib import Path

import pytest

from journeys.shell import Project, written

ENVIRONMENT = {"RECORD_MLFLOW": "off"}  # `catalog sync` sends; senders are in test_guild.py
RECORDS = ("skills",)
TINY = (
    "epochs=1 epoch-steps=8192 envs=16 workers=1 rollout=16 channels=4 hidden=16 memory=16 eval-interval=16 "
    "eval-episodes=10 save-interval=4"
)


@pytest.fixture
def curriculum(project: Project) -> Path:
    """Two stages, killed in the second one and restarted."""

    def trains() -> bool:
        return any(list((run / "checkpoints").glob("0*")) for run in project.runs_of("gtg1"))

    project.kill_when(f"guild run skill:curriculum name=gtg train-flags='{TINY}' -y", trains)
    (whole,) = project.runs_of("curriculum")
    assert not (whole / "result.json").exists()
    project.good(f"guild run --restart {whole.name[:8]} -y")
    return whole


def test_a_killed_curriculum_and_what_its_agents_are_for(
    project: Project, curriculum: Path
) -> None:
    """One test: a process of the suite that has one of its own would train the agents again."""
    _it_goes_on(project, curriculum)
    _its_agents_play_the_same_episodes_again(project)
    _a_mistake_gets_one_clear_line(project)
    _weights_that_are_kept_are_runs_in_a_clone(project)


def _it_goes_on(project: Project, curriculum: Path) -> None:
    result = written(curriculum)["result"]
    assert [row[0] for row in result["table"]["rows"]] == ["gtg0", "gtg1"]
    assert result["objective"]["count"] == 1000
    (first,), (second,) = project.runs_of("gtg0"), project.runs_of("gtg1")  # none of them twice
    lines = (curriculum / "journal/metrics.jsonl").read_text().splitlines()
    points = [(name, p["step"]) for p in map(json.loads, lines) for name in p["m"]]
    ends = [step for name, step in points if name.startswith("chain/end/")]
    assert ends == [8192, 16384]
    assert [step for name, step in points if name == "chain/success"] == [4096, 8192, 12288, 16384]
    svg = (curriculum / "artifacts/chain.svg").read_text()
    assert all(f">{text}<" in svg for text in ("gtg0", "gtg1", "learning rate"))
    parents = json.loads((second / "journal/parents.json").read_text())["parents"]
    assert parents == [first.name]
    assert result["env_steps"] == sum(
        written(run)["result"]["env_steps"] for run in (first, second)
    )
    # Typed again, it takes the runs that there are.
    printed = project.good(f"guild run skill:curriculum name=gtg train-flags='{TINY}' -y")
    assert "not be visible" not in printed  # Guild's remark on runs in a folder of another home
    assert [*project.runs_of("gtg0"), *project.runs_of("gtg1")] == [first, second]
    (again,) = set(project.runs_of("curriculum")) - {curriculum}
    assert written(again)["result"]["table"] == result["table"]


def _its_agents_play_the_same_episodes_again(project: Project) -> None:
    project.good("guild run skill:benchmark agents='gtg0 gtg1' stages=gtg1 -y")
    (benchmark,) = project.runs_of("benchmark")
    result = written(benchmark)["result"]
    (table,) = result["table"]
    assert table["columns"] == ["agent", "actions", "GTG"]  # GTG: the last of its chain
    assert [row[:2] for row in table["rows"]] == [
        ["gtg0", "sampled"], ["gtg0", "greedy"], ["GTG", "sampled"], ["GTG", "greedy"], ["GTG", "reported"],
    ]  # fmt: skip
    assert table["rows"][-1][2:] == ["86"]
    (second,) = project.runs_of("gtg1")
    trained = written(second)["result"]["metrics"]
    assert result["metrics"]["success/gtg1/gtg1/greedy"] == trained["success/greedy"]
    seed = "guild run skill:benchmark agents=gtg1 stages=gtg1 episodes=40 same-seed=yes -y seed="
    project.good(f"{seed}1")
    (same,) = set(project.runs_of("benchmark")) - {benchmark}
    assert json.loads((same / "journal/parents.json").read_text())["parents"] == [second.name]
    project.bad(f"{seed}2", "no finished run of skill:gtg1 seed=2")


def _weights_that_are_kept_are_runs_in_a_clone(project: Project) -> None:
    (first,), (benchmark, *_) = project.runs_of("gtg0"), project.runs_of("benchmark")
    project.good("catalog sync -q && catalog export")
    project.bad(f"catalog weights {benchmark.name[:8]}", "no checkpoint")
    project.bad("catalog weights abcdef", "'abcdef' has no record")
    assert "skill:gtg0" in project.good(f"catalog weights {first.name[:8]}")
    kept = project.root / "experiments/weights" / first.name
    content = b"".join(path.read_bytes() for path in kept.rglob("*") if path.is_file())
    assert str(project.root).encode() not in content
    (project.root / "clone").mkdir()
    clone = {"GUILD_HOME": str(project.root / "clone"), "MLFLOW_TRACKING_URI": "sqlite:///clone.db"}
    project.good("catalog import -q && guild import experiments/weights -y", **clone)
    assert ": 0 sent" in project.good("catalog sync", **clone)  # its record tells more
    project.good("guild run skill:benchmark agents=gtg0 stages=gtg0 -y", **clone)
    (played,) = (project.root / "clone/runs").glob("*/result.json")
    metrics = json.loads(played.read_text())["result"]["metrics"]
    trained = written(first)["result"]["metrics"]
    assert metrics["success/gtg0/gtg0/greedy"] == trained["success/greedy"]
    parents = json.loads((played.parent / "journal/parents.json").read_text())["parents"]
    assert parents == [first.name]


def _a_mistake_gets_one_clear_line(project: Project) -> None:
    project.bad("guild run skill:gtg1 memory=64 -y", "--pretrained", "memory=16")
