"""The peer's script: what it records, and that its seed determines it."""

import json
from functools import partial

import pytest

from door import train_sb3
from door.continual import steps
from door.env.gym_env import DoorEnv
from door.train_ppo import Config as Ours
from door.training import evaluation
from runcatalog.record import UserError

SMALL = {
    "num_envs": 4, "n_steps": 16, "batch_size": 32, "n_epochs": 2, "env_steps": 3 * 64,
    "eval_interval": 2 * 64,
}  # fmt: skip


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Return a function that trains in ten worlds' validations, and returns the run's folder and result."""
    fewer = partial(evaluation.HeldOutWorlds, worlds=10)
    monkeypatch.setattr(evaluation, "evaluate", partial(evaluation.evaluate, worlds=10))
    monkeypatch.setattr(evaluation, "HeldOutWorlds", fewer)
    monkeypatch.setenv("PROJECT_DIR", str(tmp_path))
    monkeypatch.setenv("RECORD_MLFLOW", "off")

    def trained(name: str, **flags):
        monkeypatch.setenv("RUN_DIR", str(tmp_path / name))
        written = train_sb3.main(train_sb3.Config(**(SMALL | flags)))
        return tmp_path / name, written

    return trained


def test_the_seed_determines_a_run_and_its_validations_are_recorded(train):
    folder, first = train("first")
    _, again = train("again")
    _, other = train("other", seed=2)
    assert first["digest"]["weights"] == again["digest"]["weights"] != other["digest"]["weights"]
    result = first["result"]
    assert (result["env_steps"], result["objective"]["count"]) == (3 * 64, 10)
    lines = (folder / "journal" / "metrics.jsonl").read_text().splitlines()
    points = [json.loads(line) for line in lines]
    validated = [p["step"] for p in points if "validation_opening_rate" in p["m"]]
    assert validated == [2, 3]  # every second update, and the last
    assert [p["step"] for p in points if "validation_area" in p["m"]] == [3]
    # It keeps no policies, and a second run would not either.
    with pytest.raises(
        UserError, match=r"first: not a run of door training \('num-steps' missing\)$"
    ):
        steps.read_one(folder)


def test_no_two_seeds_share_their_worlds(train, monkeypatch):
    """Nor has a run those of ours, which come from the seed itself."""
    begin, begun = DoorEnv._begin, []

    def noted(env, seeds):
        begun.append(seeds.seed)
        begin(env, seeds)

    monkeypatch.setattr(DoorEnv, "_begin", noted)
    for seed in (1, 2):
        train(f"seed {seed}", seed=seed, env_steps=64)
    worlds = set(begun) - {0}  # 0: before the first reset
    assert len(worlds) == 2 * SMALL["num_envs"]
    assert not worlds & set(range(1, 100))


def test_after_an_early_stop_the_last_rate_stays():
    assert evaluation.validation_area([0.0, 0.5], 2) == 0.25
    assert evaluation.validation_area([0.5, 1.0], 4) == pytest.approx(3.5 / 4)


def test_the_settings_are_those_of_our_training():
    peer, ours = train_sb3.Config(), Ours(task="lever")
    assert peer.rollout == ours.num_envs * ours.num_steps
    assert peer.eval_interval == ours.eval_interval * peer.rollout
    assert peer.target_kl * 1.5 == pytest.approx(ours.target_kl)
    same = {
        "task": "task", "robot": "robot", "start": "start", "n_steps": "num_steps", "n_epochs": "epochs",
        "batch_size": "minibatch_size", "learning_rate": "lr", "gamma": "gamma", "gae_lambda": "gae_lambda",
        "clip_range": "clip_coef", "ent_coef": "entropy_coef", "vf_coef": "value_coef",
        "max_grad_norm": "max_grad_norm", "stop_at": "stop_at",
    }  # fmt: skip
    assert {name: getattr(peer, name) for name in same} == {
        name: getattr(ours, own) for name, own in same.items()
    }


def test_wrong_flags_are_one_line_errors(tmp_path, monkeypatch):
    monkeypatch.setenv("PROJECT_DIR", str(tmp_path))
    with pytest.raises(UserError, match="--env-steps: 1000 is less than an update \\(2048\\)"):
        train_sb3.Config(env_steps=1000)
    with pytest.raises(UserError, match="--tuned: no finished search ppo:sb3_search"):
        train_sb3.Config(tuned="ppo:sb3_search")
