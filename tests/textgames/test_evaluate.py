"""Evaluation: what it takes over from a training, and success by the number of turns."""

import itertools
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from runcatalog.record import UserError
from runcatalog.record.config import flags_of
from runcatalog.record.evaluation import outcomes_of
from textgames import evaluate, sft, train
from textgames.evaluate import Config, trained_flags
from textgames.games import bounds, frozenlake, levels
from textgames.learning import demonstrations, options, rollout
from textgames.learning.rollout import Generation
from textgames.models.trajectories import Trajectory, Turn
from textgames.results import dialogues, summary

TRAINED = train.Config(
    env="frozenlake", prompt="grid", context="last", think=False, max_turns=2, max_response_length=2, width=32,
    layers=1, heads=2, train_size=4, train_batch_size=2, n_rollout=2, ppo_batch_size=4, micro_batch_size=4, updates=1,
    val_data_num=6, temperature=0.9, slippery=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RUN_ID", "GUILD_OP", "RECORD", "PROJECT_DIR"):
            patch.delenv(name, raising=False)
        patch.setenv("RECORD_MLFLOW", "off")
        patch.setenv("RUN_DIR", str(folder))
        train.main(TRAINED)
    return folder


def test_default_flags_are_those_of_the_training(trained):
    config = Config(checkpoint=str(trained), max_turns=7, val_data_num=9)
    flags = trained_flags(config)
    of_checkpoint = trained_flags(replace(config, checkpoint=str(trained / "checkpoints")))
    assert flags == replace(of_checkpoint, model=str(trained))
    assert (flags.env, flags.prompt, flags.context, flags.think) == (
        "frozenlake",
        "grid",
        "last",
        False,
    )
    assert (flags.temperature, flags.slippery, flags.max_response_length) == (0.9, False, 2)
    assert (flags.max_turns, flags.val_data_num) == (7, 9)
    other = trained_flags(replace(config, env="sokoban", boxes=2, temperature=0.3))
    assert (other.env, other.side, other.boxes, other.temperature) == ("sokoban", 6, 2, 0.3)


def test_the_curve_is_printed_with_those_of_random_and_optimal_play(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "run"))
    config = Config(checkpoint=str(trained), max_turns=4, val_data_num=20, actions="sampled")
    result = evaluate.main(config)["result"]
    lines = [
        json.loads(line)
        for line in (tmp_path / "run/journal/metrics.jsonl").read_text().splitlines()
    ]
    curves = {
        name: {line["step"]: line["m"][name] for line in lines if name in line["m"]}
        for name in ("success", "random", "optimum")
    }
    assert sorted(curves["success"]) == [1, 2, 3, 4]
    assert result["objective"]["value"] == curves["success"][4]
    played_as = trained_flags(config)
    rates = bounds.success_rates(played_as, levels.validation(played_as, 20), 4)
    low, high = (of_levels[:, -1].mean() for of_levels in rates)
    assert (curves["random"][4], curves["optimum"][4]) == (pytest.approx(low), pytest.approx(high))


def always_down(grid, player, turns):
    """The probability that always going down reaches the goal, by enumeration of all slips."""
    won = 0
    for slips in itertools.product((-1, 0, 1), repeat=turns):
        y, x = divmod(player, len(grid))
        for slip in slips:
            across, down = (slip, 0) if slip else (0, 1)
            x, y = (min(max(at, 0), len(grid) - 1) for at in (x + across, y + down))
            if grid[y, x]:
                won += grid[y, x] == frozenlake.GOAL
                break
    return won / 3**turns


def test_repeated_games_have_other_slips(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "slippery"))
    train.main(replace(TRAINED, slippery=True))
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "run"))
    played = []

    def always_down_replies(config, generator):
        (down,) = AutoTokenizer.from_pretrained(trained / "artifacts/model").encode("Down")
        return Generation(lambda logits: torch.full((len(logits),), down), config.max_turns, 1)

    def kept(title, trajectories):
        played.extend(trajectories)
        return ""

    monkeypatch.setattr(rollout, "generation", always_down_replies)
    monkeypatch.setattr(dialogues, "page", kept)
    config = Config(
        checkpoint=str(tmp_path / "slippery"), max_turns=5, val_data_num=12, val_batch_size=700, repeats=500
    )  # fmt: skip
    result = evaluate.main(config)["result"]
    objective = result["objective"]
    assert objective["count"] == len(played) == 6000
    seeds = levels.validation(trained_flags(config), 12)
    cells, player, _ = frozenlake.generate(seeds, 4, 0.8)
    exact = [always_down(*level, 5) for level in zip(cells, player, strict=True)]
    assert 0 < np.mean(exact) < 1
    shares = [np.mean([game.success for game in played if game.seed == seed]) for seed in seeds]
    assert shares == pytest.approx(exact, abs=0.1)
    assert outcomes_of(result)["success"].success.mean(axis=1).tolist() == pytest.approx(shares)
    error = np.sqrt(np.mean(np.multiply(exact, np.subtract(1, exact))) / 6000)
    assert objective["value"] == pytest.approx(np.mean(exact), abs=4 * error)
    assert objective["value"] == np.mean([game.success for game in played])
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "once"))
    once = evaluate.main(replace(config, repeats=1))["result"]["objective"]["value"]
    assert once == np.mean([game.success for game in played[:6000] if game.replay == 0])
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "test"))
    played.clear()
    tested = evaluate.main(replace(config, repeats=1, levels="test"))["result"]
    assert tested["evaluation"]["split"] == "test"
    assert [game.seed for game in played] == levels.held_out(trained_flags(config), 12).tolist()
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "refused"))
    with pytest.raises(UserError, match="--repeats: frozenlake has no randomness"):
        evaluate.main(Config(checkpoint=str(trained), repeats=2))


@pytest.mark.parametrize(
    ("env", "kept_out"),
    [("sokoban", [500]), ("sokoban", [700, 520]), ("frozenlake", [8, 600]), ("bandit", [530, 900])],
)
def test_no_validation_game_has_a_level_of_an_earlier_training(
    env, kept_out, tmp_path, monkeypatch
):
    monkeypatch.setenv("PROJECT_DIR", str(tmp_path))
    model, keys = "tiny", []
    for number, val_data_num in enumerate(kept_out):
        if number == 0:
            run_config = sft.Config(env=env, val_data_num=val_data_num, model=model)
            seeds = demonstrations.seeds(run_config, 2_000, 10)[0]
        else:
            run_config = train.Config(env=env, val_data_num=val_data_num, model=model)
            seeds = levels.training(run_config, 10_000, excluded=max(500, val_data_num))
        keys.append(levels.level_keys(run_config, seeds))
        model = f"run{number}"
        run_file = tmp_path / model / "journal/run.json"
        run_file.parent.mkdir(parents=True)
        run_file.write_text(json.dumps({"flags": flags_of(run_config)}))
    most = options.excluded_validation_games(options.PlayConfig(env=env, model=model))
    assert most == min(max(500, count) for count in kept_out)
    shown = levels.level_keys(run_config, levels.validation(run_config, most))
    assert not np.isin(shown, np.concatenate(keys)).any()
    assert (
        options.excluded_validation_games(options.PlayConfig(env="sokoban", size=9, model=model))
        == 100_000
    )
    other = next(name for name in ("sokoban", "frozenlake") if name != env)
    learned_too = flags_of(sft.Config(env=other, further_games=env, val_data_num=510))
    run_file.write_text(json.dumps({"flags": learned_too}))
    assert options.excluded_validation_games(options.PlayConfig(env=env, model=model)) == 510
    run_file.write_text(
        json.dumps({"flags": flags_of(run_config) | {"model": "/gone", "val-data-num": 5000}})
    )
    # Who knows
    assert options.excluded_validation_games(options.PlayConfig(env=env, model=model)) == 500


def test_more_games_than_the_training_excluded_are_refused(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "run"))
    config = Config(checkpoint=str(trained / "checkpoints"), val_data_num=501)
    with pytest.raises(UserError, match=r"--val-data-num: .* 500 validation games"):
        evaluate.main(config)
    on = replace(TRAINED, model=str(trained), val_data_num=600)
    with pytest.raises(UserError, match="--val-data-num"):
        train.main(on)
    assert not (tmp_path / "run").exists()


def test_a_model_of_turned_levels_is_not_judged_on_validation_levels(tmp_path, monkeypatch):
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "turned"))
    turned = sft.Config(
        env="sokoban", prompt="grid", context="last", think=False, max_turns=2, max_response_length=2, width=32,
        layers=1, heads=2, train_levels=8, test_levels=2, epochs=1, batch_size=4, val_data_num=4, augment=True,
        final_levels="test",
    )  # fmt: skip
    trained_on = demonstrations.seeds(turned, 2_000, 2, augment=True)[0]
    judged_on = levels.symmetric_keys(turned, levels.validation(turned, 500))
    assert np.isin(judged_on, levels.symmetric_keys(turned, trained_on)).any()
    sft.main(turned)
    model = str(tmp_path / "turned")
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "run"))
    with pytest.raises(UserError, match=r"--levels: .* levels=validation_disjoint"):
        evaluate.main(Config(checkpoint=model, val_data_num=4))
    continued = replace(TRAINED, env="sokoban", model=model, val_data_num=4)
    with pytest.raises(UserError, match=r"--final-levels: .* final-levels=validation_disjoint"):
        train.main(continued)
    with pytest.raises(UserError, match="--final-levels"):
        sft.main(replace(turned, model=model, augment=False, final_levels="validation"))
    assert not (tmp_path / "run").exists()
    evaluate.main(Config(checkpoint=model, val_data_num=4, env="frozenlake"))


def test_a_model_is_not_judged_on_levels_that_it_learned_from_another_generator(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    own = sft.Config(
        env="frozenlake", prompt="grid", context="last", think=False, max_turns=2, max_response_length=2, width=32,
        layers=1, heads=2, train_levels=8, test_levels=2, epochs=1, batch_size=4, val_data_num=4,
    )  # fmt: skip
    trained_on = demonstrations.seeds(own, 2_000, 2)[0]
    other = replace(own, frozen=0.9)
    judged_on = levels.level_keys(other, levels.validation(other, 500))
    assert np.isin(judged_on, levels.level_keys(own, trained_on)).any()
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "own"))
    sft.main(own)
    model = str(tmp_path / "own")
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "run"))
    with pytest.raises(UserError, match=r"--final-levels: .* levels of another frozen, and"):
        sft.main(replace(other, model=model))
    many = replace(other, model=model, val_data_num=500, final_levels="test")
    options.check(many)  # of the eight levels none is in the test set
    tested = levels.symmetric_keys(many, levels.evaluation(many, "test"))
    common = np.isin(tested, levels.symmetric_keys(own, trained_on)).sum()
    assert common
    run_file = tmp_path / "own/journal/run.json"
    flags = json.loads(run_file.read_text())
    flags["flags"]["train-levels"] = 2_000
    run_file.write_text(json.dumps(flags))
    words = rf"--final-levels: .* with frozen=0\.8, and {common} of the 500 levels of test are"
    with pytest.raises(UserError, match=words):
        sft.main(many)
    assert not (tmp_path / "run").exists()
    evaluate.main(Config(checkpoint=model, val_data_num=4, env="frozenlake"))


def test_a_set_without_enough_levels_is_refused_before_anything_is_computed(
    trained, tmp_path, monkeypatch
):
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "run"))
    bandit = replace(TRAINED, env="bandit", max_turns=1)
    with pytest.raises(UserError, match="--final-levels: the bandit has no hard test set"):
        train.main(replace(bandit, final_levels="test_hard"))
    small = replace(TRAINED, size=3, max_turns=1)
    with pytest.raises(UserError, match=r"--val-data-num: 100, but only .* give fewer"):
        train.main(replace(small, final_levels="test", val_data_num=100))
    # Behind the 500 of the hard set, of which there are three.
    with pytest.raises(UserError, match=r"--val-data-num: 6, but every level .*; use more cells"):
        train.main(replace(small, final_levels="validation_disjoint"))
    with pytest.raises(UserError, match="--levels, --final-levels"):
        evaluate.main(Config(checkpoint=str(trained), env="bandit", levels="test_hard"))
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_over_4_bit_weights_is_refused_and_its_finished_run_is_played(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "packed"))
    train.main(replace(TRAINED, lora_rank=2, quantise="4bit"))
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "run"))
    config = Config(checkpoint=str(tmp_path / "packed/checkpoints"), val_data_num=4)
    with pytest.raises(UserError, match=r"--checkpoint: .* a finished run"):
        evaluate.main(config)
    assert not (tmp_path / "run").exists()
    evaluate.main(replace(config, checkpoint=str(tmp_path / "packed")))


def test_a_game_counts_as_a_success_from_the_turn_in_which_it_was_won():
    def game(turns, success):
        return Trajectory(0, turns=[Turn("", "", "", 1, 0.0)] * turns, success=success)

    curve = summary.success_by_turn(
        [game(1, True), game(3, True), game(2, False), game(4, False)], 4
    )
    np.testing.assert_array_equal(curve, [0.25, 0.25, 0.5, 0.5])


def test_a_model_of_no_run_is_played_with_the_game_that_is_named(trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained / "artifacts/model", copy)
    with pytest.raises(UserError, match=r"--env: .*/copy is of no run .* sokoban"):
        evaluate.main(Config(checkpoint=str(copy)))
    assert trained_flags(Config(checkpoint=str(copy), env="sokoban")).env == "sokoban"
    with pytest.raises(UserError, match=r"the model .*/missing is no directory"):
        evaluate.main(Config(checkpoint=str(tmp_path / "missing")))


def test_a_missing_checkpoint_flag_is_an_error():
    with pytest.raises(UserError, match="--checkpoint"):
        Config()
