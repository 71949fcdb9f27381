"""The agents in experiments/weights are those of their records, and play as these say."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from runcatalog import record
from runcatalog.record.digest import weights_digest
from skills.agents import checkpoints, evaluation
from skills.agents.evaluation import play
from skills.learning.ppo import use_one_torch_thread
from skills.learning.subtasks import ListedLevels
from skills.planner.subtask_levels import subtask_levels

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
KEPT = sorted((EXPERIMENTS / "weights").iterdir())
EPISODES = 100


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name[:8])
def test_an_agents_results_are_those_of_its_record(folder: Path) -> None:
    committed = json.loads((EXPERIMENTS / f"records/skills/{folder.name[:8]}.json").read_text())
    assert committed["run"] == folder.name
    assert shlex.split((folder / ".guild/opref").read_text())[2:] == committed["operation"].split(
        ":"
    )
    assert weights_digest(record.load_checkpoint(folder).tensors) == committed["digest"]["weights"]
    use_one_torch_thread()
    agent = checkpoints.load(folder)
    assert agent.run_id == folder.name
    if committed["operation"] == "skill:subtasks":
        parent = checkpoints.load(EXPERIMENTS / "weights" / committed["parents"][0])
        draws = np.random.default_rng(0)
        levels = subtask_levels("nlm2", np.arange(30), parent, draws)
        played = play(agent, levels, range(EPISODES), None, ListedLevels)
    else:
        played = play(agent, agent.stage, evaluation.TEST_SEEDS[:EPISODES], None)
    successes = played.success.sum()
    expected = committed["result"]["metrics"]["success/greedy"]
    spread = (EPISODES * expected * (1 - expected)) ** 0.5
    assert abs(successes - EPISODES * expected) < 4 * spread + 1
