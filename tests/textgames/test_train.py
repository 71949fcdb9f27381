"""Reinforcement learning as a script: it learns, resumes bit-equal after a kill, and refuses wrong flags."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from runcatalog import record
from runcatalog.record import UserError
from runcatalog.record.journal.metrics import read_points
from runcatalog.record.training.checkpoint import save_checkpoint
from textgames import train
from textgames.learning import rollout
from textgames.learning.ppo import Learner
from textgames.results import summary
from textgames.train import Config

TINY = Config(
    env="bandit", prompt="grid", think=False, max_turns=1, max_response_length=2, width=32, layers=1, heads=2,
    device="cpu", temperature=1.0, top_p=1.0, train_size=12, train_batch_size=4, n_rollout=4, ppo_batch_size=8,
    micro_batch_size=8, updates=4, test_freq=2, save_freq=2, val_data_num=8, kl_coef=0.01, actor_lr=1e-3,
)  # fmt: skip


@pytest.fixture
def trained(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    for name in ("RUN_ID", "GUILD_OP", "RECORD", "PROJECT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RECORD_MLFLOW", "off")

    def run(config, folder="run"):
        monkeypatch.setenv("RUN_DIR", str(tmp_path / folder))
        return train.main(config)

    return run


def test_a_bandit_is_learned_from_reward_alone(trained, tmp_path):
    config = replace(
        TINY, max_response_length=1, train_size=512, train_batch_size=128, n_rollout=1, ppo_batch_size=32,
        micro_batch_size=32, updates=40, test_freq=20, val_data_num=64, adv_estimator="brpo", kl_coef=0.0,
        actor_lr=3e-3, width=64,
    )  # fmt: skip
    result = trained(config)["result"]
    assert result["objective"]["value"] == result["metrics"]["greedy/success"]
    assert result["metrics"]["sampled/valid"] > 0.9  # no reply was valid when it began
    assert result["metrics"]["greedy/score"] > 0.15
    page = (tmp_path / "run/artifacts/dialogues_greedy.md").read_text()
    assert "## Best" in page


@pytest.mark.parametrize(
    "changed",
    [
        {}, {"adv_estimator": "gae", "warm_up": 1, "credit": "turn"}, {"lora_rank": 2},
        {"env": "sokoban", "max_turns": 3, "context": "last", "filter": 0.5, "ppo_epochs": 2},
        {
            "env": "frozenlake", "max_turns": 4, "context": "last", "adv_estimator": "states", "gamma": 0.9,
            "own_luck": True, "lr_decay": 0.5,
        },
        {"no_think_rl": True, "think": True, "loss_tokens": "all", "env": "frozenlake", "max_turns": 2},
    ],
)  # fmt: skip
def test_a_run_resumes_bit_equal(trained, tmp_path, changed):
    config = replace(TINY, **changed)
    whole = trained(config, "whole")
    same(trained(config, interrupted(tmp_path, 2)), whole)


def test_a_failed_run_resumes_bit_equal(trained, monkeypatch):
    whole = trained(TINY, "whole")
    update, count = Learner.update, 0

    def breaking(self, *arguments, **named):
        nonlocal count
        count += 1
        if count == 4:
            raise OSError("the machine goes down")
        return update(self, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "update", breaking)
        with pytest.raises(OSError, match="goes down"):
            trained(TINY, "broken")
    same(trained(TINY, "broken"), whole)


def test_the_step_size_is_constant_and_then_falls_linearly_to_zero(trained, monkeypatch):
    rates = []
    update = Learner.update

    def recording(self, *args, lr_scale, **more):
        metrics = update(self, *args, lr_scale=lr_scale, **more)
        rates.append((lr_scale, self.optimizer.param_groups[0]["lr"]))
        return metrics

    monkeypatch.setattr(Learner, "update", recording)
    trained(replace(TINY, lr_decay=0.5))
    assert rates == [(step, step * 1e-3) for step in (1.0, 1.0, 1.0, 0.5)]


def test_a_run_resumes_bit_equal_between_points_of_its_curve(trained, monkeypatch, tmp_path):
    monkeypatch.setattr(train, "POINTS", 2)  # a point every three updates
    config = replace(TINY, updates=6)
    whole = trained(config, "whole")
    for checkpoint in (2, 4):
        same(trained(config, interrupted(tmp_path, checkpoint)), whole)


def test_a_checkpoint_without_unlogged_metrics_can_be_resumed(trained, monkeypatch, tmp_path):
    monkeypatch.setattr(train, "POINTS", 1)
    whole = trained(TINY, "whole")
    folder = interrupted(tmp_path, 2)
    old = record.load_checkpoint(tmp_path / folder)
    state = {name: value for name, value in old.state.items() if name != "seen"}
    save_checkpoint(old.path.parent, 2, old.tensors, state, run_id=old.run_id)
    assert trained(TINY, folder)["result"] == whole["result"]


def interrupted(tmp_path, checkpoint):
    """Copy the run in `whole` with checkpoints up to an update; return the folder's name."""
    copy = tmp_path / f"interrupted after {checkpoint}"
    shutil.copytree(tmp_path / "whole", copy, ignore=shutil.ignore_patterns("artifacts"))
    for folder in (copy / "checkpoints").iterdir():
        if int(folder.name) > checkpoint:
            shutil.rmtree(folder)
    return copy.name


def same(resumed, whole):
    assert resumed["digest"] == whole["digest"]
    assert resumed["result"] == whole["result"]
    assert not resumed["resume_mismatch"]


def test_every_round_has_all_games_once_and_equal_groups(trained, monkeypatch):
    batches = []
    update = Learner.update

    def recording(self, played, estimates, groups, *rest, **named):
        batches.append(([game.seed for game in played], groups.tolist()))
        return update(self, played, estimates, groups, *rest, **named)

    monkeypatch.setattr(Learner, "update", recording)
    trained(replace(TINY, updates=6))
    for seeds, groups in batches:
        assert len(set(zip(seeds, groups, strict=True))) == 4
        assert sorted(np.bincount(groups)) == [4] * 4
    first, second = (sum((seeds for seeds, _ in part), []) for part in (batches[:3], batches[3:]))  # noqa: RUF017
    assert set(first) == set(second)
    assert len(set(first)) == 12
    assert first != second


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_all_games_are_played_in_the_precision_of_the_training(trained, monkeypatch, precision):
    play, precisions = rollout.play, set()

    def recording(model, *rest, **named):
        precisions.add((len(rest[3]), torch.is_autocast_enabled("cpu")))
        return play(model, *rest, **named)

    monkeypatch.setattr(rollout, "play", recording)
    trained(replace(TINY, precision=precision, updates=2, adv_estimator="gae", lora_rank=2))
    assert precisions == {(games, precision == "bf16") for games in (8, 16)}  # validation, training


@pytest.fixture
def jumping(monkeypatch):
    """The gradient norm jumps in the 15th update after this."""
    update, count = Learner.update, 0

    def jumping(self, *arguments, **named):
        nonlocal count
        count += 1
        return update(self, *arguments, **named) | {"grad_norm": 500.0 if count == 15 else 1.0}

    monkeypatch.setattr(Learner, "update", jumping)


COLLAPSING = replace(TINY, updates=20, alarm="end", test_freq=100)


def test_a_sign_of_collapse_ends_a_run_by_option(trained, jumping):
    ended = trained(COLLAPSING)["result"]
    assert ended["objective"]["at"] == 15
    assert ended["variant"]["signs of collapse"] == "gradient at 15"


def test_the_curves_have_the_updates_before_a_collapse_that_ends_a_run(
    trained, jumping, monkeypatch, tmp_path
):
    monkeypatch.setattr(train, "POINTS", 2)  # a point every ten updates
    trained(COLLAPSING)
    points = list(read_points(tmp_path / "run/journal/metrics.jsonl"))
    norms = {point.step: point.value for point in points if point.name == "grad_norm"}
    assert norms == {10: 1.0, 15: (4 * 1.0 + 500.0) / 5}


def test_a_sign_of_collapse_is_marked(trained, jumping):
    marked = trained(replace(COLLAPSING, alarm="mark"))["result"]
    assert marked["objective"]["at"] == 20
    assert marked["variant"]["signs of collapse"] == "gradient at 15"


def test_no_sign_of_collapse_is_looked_for_without_an_alarm(trained, jumping):
    ended = trained(replace(COLLAPSING, alarm="off"))["result"]
    assert ended["objective"]["at"] == 20
    assert not any("collapse" in name for name in (*ended["variant"], *ended["metrics"]))


def test_a_run_ended_by_a_sign_of_collapse_does_not_continue_after_a_restart(
    trained, jumping, monkeypatch
):
    def breaking(*arguments):
        raise OSError("the machine goes down")

    with monkeypatch.context() as patch:
        patch.setattr(summary, "final_result", breaking)
        with pytest.raises(OSError, match="goes down"):
            trained(COLLAPSING)
    resumed = trained(COLLAPSING)["result"]
    assert resumed["objective"]["at"] == 15
    assert resumed["variant"]["signs of collapse"] == "gradient at 15"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ppo_batch_size": 12}, "--ppo-batch-size: 12 does not divide"),
        ({"micro_batch_size": 3}, "--micro-batch-size: 3 does not divide"),
        ({"train_batch_size": 16, "ppo_batch_size": 64}, "--train-batch-size"),
        ({"filter": 0.5, "n_rollout": 1}, "--filter"),
        ({"loss_tokens": "all", "context": "last"}, "--loss-tokens"),
        ({"warm_up": 3}, "--warm-up"),
        ({"warm_up": 3, "updates": 3, "adv_estimator": "gae"}, "--warm-up: .* give 2 or fewer"),
        (
            {"adv_estimator": "states", "n_rollout": 1, "train_batch_size": 8},
            "--adv-estimator: .* give n-rollout",
        ),
        (
            {"adv_estimator": "gae", "quantise": "4bit", "lora_rank": 2},
            "--adv-estimator: .* quantise=none",
        ),
    ],
)
def test_inconsistent_flags_are_one_line_errors(changed, words):
    with pytest.raises(UserError, match=words):
        replace(TINY, **changed)


def test_too_many_turns_for_the_model_are_refused_before_it_is_created(trained, tmp_path):
    config = replace(TINY, env="sokoban", max_turns=100, max_response_length=400)
    with pytest.raises(UserError, match="--max-turns"):
        trained(config)
    assert not (tmp_path / "run").exists()
