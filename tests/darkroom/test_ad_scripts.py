"""Training and evaluation as scripts: killed and continued, their results, and messages for wrong input."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from darkroom import evaluate_ad, train_ad, train_sources
from darkroom.a2c import histories
from darkroom.distillation import figures, task_split
from darkroom.distillation.ad_options import PRESETS, Config
from darkroom.distillation.update import Learner
from darkroom.distillation.windows import KINDS
from darkroom.rooms import grid
from forked import kill_at_call, killed
from runcatalog.record import Seeds, UserError
from small_histories import SMALL, recorded, run_main


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    return recorded(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def trained(sources, tmp_path_factory) -> Path:
    """A finished training."""
    folder = tmp_path_factory.mktemp("trained") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        run_main(patch, folder, train_ad, histories=str(sources), **SMALL)
    return folder


def test_a_killed_and_resumed_training_is_bit_equal(trained, sources, tmp_path, monkeypatch):
    """Killed 5 updates after its first checkpoint."""
    flags = {"histories": str(sources), **SMALL}

    def run_until_killed():
        kill_at_call(monkeypatch, Learner, "update", 16)
        run_main(monkeypatch, tmp_path / "killed", train_ad, **flags)

    killed(run_until_killed)
    assert not (tmp_path / "killed/result.json").exists()
    continued = run_main(monkeypatch, tmp_path / "killed", train_ad, **flags)
    whole = json.loads((trained / "result.json").read_text())
    assert (continued["session"], continued["resume_mismatch"]) == (2, 0)
    assert continued["digest"] == whole["digest"]


def test_a_training_writes_its_test_tasks_and_scores(trained):
    result = json.loads((trained / "result.json").read_text())["result"]
    assert result["objective"]["name"] == "held_out/episodes_1_5"
    assert result["metrics"]["transitions"] == 40 * 4 * 24
    assert {"training/episode_1", "held_out/episodes_1_5"} <= result["metrics"].keys()
    test = histories.read_tasks(trained / "artifacts/test_tasks.txt", 4)
    assert len(test) == round(0.2875 * 15)
    again = histories.split([g for g in range(16) if g != 10], 4, Seeds(1).generator("split"))[1]
    assert test == again


def goals_by_part(config: evaluate_ad.Config, loaded: evaluate_ad.Trained) -> dict:
    return {part.name: part.goals for part in evaluate_ad.choose_parts(config, loaded)}


def test_an_evaluation_scores_known_and_unknown_rooms(trained, tmp_path, monkeypatch):
    flags = {"model": str(trained), "sizes": "4 6", "episodes": 6, "copies": 2}
    result = run_main(monkeypatch, tmp_path / "e", evaluate_ad, **flags)["result"]
    assert result["objective"]["name"] == "held_out_4/episodes_2_6"
    parts = {name.split("/")[0] for name in result["metrics"]}
    assert parts == {"held_out_4", "training_4", "unseen_offset_6", "shown_offset_6"}
    assert result["env_steps"] == (15 + 35) * 2 * 6 * 6
    assert [row[1] for row in result["table"]["rows"]] == ["4", "11", "24", "11"]
    for name in ("in_context.svg", "by_goal.svg", "paths.svg"):
        assert (tmp_path / "e/artifacts" / name).stat().st_size > 5000
    logged = (tmp_path / "e/journal/metrics.jsonl").read_text()
    assert "held_out_4/source" in logged
    assert "held_out_4/explorer_steps" in logged
    assert 0 < result["metrics"]["held_out_4/explorer_episodes_1_5"] < 1
    monkeypatch.setattr(evaluate_ad, "draw", lambda *_: None)
    again = run_main(monkeypatch, tmp_path / "again", evaluate_ad, **flags)["result"]
    assert again["metrics"] == result["metrics"]


def test_a_figure_of_paths_repeats(tmp_path):
    cells = np.array([[[4, 5, 8], [4, 7, -1]], [[4, 1, 0], [4, 4, -1]]])
    for name in ("one", "two"):
        figures.paths(tmp_path / name, 3, np.array([8, 0]), cells)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_tasks_with_a_key_are_trained_on_and_evaluated(tmp_path, monkeypatch):
    sources = tmp_path / "sources"
    flags = {"size": 4, "limit": 20, "key_tasks": 20, "test_tasks": 0, "video": "none"}
    budget = {"env_steps": 20_000, "history_steps": 20_000, "lr": 1e-2, "hidden": 16}
    run_main(monkeypatch, sources, train_sources, **flags, **budget)
    flags = SMALL | {"window": 40, "test_share": 0.2}
    run_main(monkeypatch, tmp_path / "t", train_ad, histories=str(sources), **flags)
    test = histories.read_tasks(tmp_path / "t/artifacts/test_tasks.txt", 4)
    assert len(test) == 4
    assert min(test) >= 16
    flags = {"model": str(tmp_path / "t"), "episodes": 6, "copies": 1}
    result = run_main(monkeypatch, tmp_path / "e", evaluate_ad, **flags)["result"]
    assert [row[1] for row in result["table"]["rows"]] == ["4", "16"]
    assert 0 < result["metrics"]["held_out_4/explorer_episodes_1_5"] < 1
    for name in ("in_context.svg", "by_goal.svg", "paths.svg"):
        assert (tmp_path / "e/artifacts" / name).stat().st_size > 5000
    loaded = evaluate_ad.load(str(tmp_path / "t"))
    for side in (3, 6):
        goals = goals_by_part(evaluate_ad.Config(sizes=str(side)), loaded)
        for name, part in (("shown_offset", "training"), ("unseen_offset", "test")):
            moved = {grid.task_in_room(task, 4, side) for task in getattr(loaded.splits[4], part)}
            assert set(goals.get(name, ())) == moved - {-1}
    # A training that chooses is not played in the test tasks of other rooms either.
    whole = loaded.splits[4]
    chooses = replace(whole, training=whole.training[4:], validation=whole.training[:4])
    choosing = replace(loaded, splits={4: chooses})
    goals = goals_by_part(evaluate_ad.Config(sizes="6"), choosing)
    moved = {grid.task_in_room(task, 4, 6) for task in chooses.validation}
    assert set(goals["unseen_offset"]) == moved
    histories.write_tasks(tmp_path / "six.txt", grid.tasks_with_key(6)[:3].tolist(), 6)
    other = {"sizes": "6", "test_tasks": str(tmp_path / "six.txt")}
    rows = run_main(monkeypatch, tmp_path / "o", evaluate_ad, **flags, **other)["result"]["table"]
    assert [row[1] for row in rows["rows"]] == ["3"]
    histories.write_tasks(tmp_path / "nine.txt", [grid.task_with_key(0, 80, 9)], 9)
    other = {"sizes": "9", "test_tasks": str(tmp_path / "nine.txt")}
    with pytest.raises(UserError, match="9 x 9 room cannot be reached in 20 steps"):
        run_main(monkeypatch, tmp_path / "g", evaluate_ad, **flags, **other)


def test_a_task_that_was_trained_on_is_refused(trained, tmp_path, monkeypatch):
    test = histories.read_tasks(trained / "artifacts/test_tasks.txt", 4)
    learned = next(g for g in range(16) if g not in test and g != 10)
    histories.write_tasks(tmp_path / "test.txt", [*test, learned], 4)
    with pytest.raises(UserError) as error:
        run_main(
            monkeypatch, tmp_path / "b", evaluate_ad, model=str(trained),
            test_tasks=str(tmp_path / "test.txt"),
        )  # fmt: skip
    assert f"{learned // 4} {learned % 4} was trained on by {trained}" in str(error.value)
    assert not (tmp_path / "b").exists()


def test_an_impossible_evaluation_is_refused_before_its_run_begins(trained, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"--when-full: a ring needs .* --positions time"):
        run_main(monkeypatch, tmp_path / "r", evaluate_ad, model=str(trained), when_full="ring")
    assert not (tmp_path / "r").exists()
    with pytest.raises(UserError, match="--sizes: '5 5' has a side twice"):
        evaluate_ad.Config(sizes="5 5")
    with pytest.raises(UserError, match=r"9 x 9 room cannot be reached in 6 steps"):
        run_main(monkeypatch, tmp_path / "r", evaluate_ad, model=str(trained), sizes="9")


def test_rooms_with_cells_that_were_never_trained_are_named(trained):
    loaded = evaluate_ad.load(str(trained))
    parts = evaluate_ad.choose_parts(evaluate_ad.Config(sizes="4 5"), loaded)
    assert evaluate_ad.untrained_sides(parts, loaded) == []
    loaded.about["trained_reach"] = 1
    assert evaluate_ad.untrained_sides(parts, loaded) == [4, 5]


@pytest.mark.parametrize("windows", KINDS)
def test_the_shortest_windows_and_histories(sources, tmp_path, monkeypatch, windows):
    flags = SMALL | {
        "window": 2, "updates": 2, "warmup": 1, "evaluations": 1, "windows": windows,
    }  # fmt: skip
    steps = 8 if windows == "consecutive" else 28
    result = run_main(
        monkeypatch, tmp_path / "s", train_ad, histories=str(sources), history_steps=steps, **flags
    )
    assert result["status"] == "FINISHED"


def test_the_evaluated_tasks_can_be_chosen(trained, tmp_path):
    test = histories.read_tasks(trained / "artifacts/test_tasks.txt", 4)
    histories.write_tasks(tmp_path / "one.txt", test[:1], 4)
    loaded = evaluate_ad.load(str(trained))
    config = evaluate_ad.Config(model=str(trained), test_tasks=str(tmp_path / "one.txt"))
    goals = goals_by_part(config, loaded)
    assert goals["held_out"] == test[:1]
    assert len(goals["training"]) == 11
    for count in (0, 3, 12):
        parts = goals_by_part(evaluate_ad.Config(training_tasks=count), loaded)
        some = parts.get("training", ())
        assert (len(some), len(parts["held_out"])) == (min(count, 11), 4)
        assert set(some) <= set(goals["training"])
    loaded.model.shape = replace(loaded.model.shape, reach=5)
    with pytest.raises(UserError, match="up to 5 from the centre"):
        evaluate_ad.choose_parts(evaluate_ad.Config(sizes="13"), loaded)


def test_an_evaluation_with_validation_tasks_leaves_the_test_tasks_out(trained, tmp_path):
    loaded = evaluate_ad.load(str(trained))
    whole = loaded.splits[4]
    loaded.splits[4] = replace(whole, training=whole.training[2:], validation=whole.training[:2])
    parts = evaluate_ad.choose_parts(evaluate_ad.Config(), loaded)
    assert [(part.name, part.goals) for part in parts] == [
        ("validation", whole.training[:2]), ("training", whole.training[2:]),
    ]  # fmt: skip
    # Test tasks that are asked for are not called validation tasks.
    histories.write_tasks(tmp_path / "test.txt", whole.test, 4)
    goals = goals_by_part(evaluate_ad.Config(test_tasks=str(tmp_path / "test.txt")), loaded)
    assert tuple(goals["held_out"]) == whole.test
    assert tuple(goals["training"]) == whole.training[2:]
    assert "validation" not in goals
    # Nor are those of smaller rooms, in which no validation task lies.
    loaded.splits[2] = task_split.TaskSplit(2, training=(0,), validation=(), test=(1, 2))
    parts = evaluate_ad.choose_parts(evaluate_ad.Config(), loaded)
    assert [(part.size, part.name) for part in parts] == [
        (2, "training"), (4, "validation"), (4, "training"),
    ]  # fmt: skip


def test_a_missing_or_wrong_model_is_refused(sources, tmp_path):
    for path in (tmp_path / "no", sources):
        with pytest.raises(UserError) as error:
            evaluate_ad.load(str(path))
        assert str(path) in str(error.value)


def config_of(sources: Path, **changes) -> Config:
    return Config(histories=str(sources), **{**SMALL, **changes})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"sizes": "9"}, "has rooms of side 4, --sizes wants 9"),
        ({"window": 401}, "--window: 401 steps, but the histories have 400 of an environment"),
        ({"history_steps": 80}, "--window: 24 steps, but the histories have 20 of an environment"),
        ({"history_steps": 24, "window": 6}, "may have no complete episode of 6; give 28 or more"),
        ({"histories": "/nowhere"}, "--histories: /nowhere: no histories there"),
        ({"histories": __file__}, ".py: no histories there"),
        ({"histories": ""}, "has rooms of side none"),
        ({"test_tasks": "/nowhere"}, "--test-tasks"),
    ],
)
def test_wrong_histories_are_one_line_errors(sources, flags, message):
    config = (
        config_of(sources, **flags) if "histories" not in flags else Config(**{**SMALL, **flags})
    )
    with pytest.raises(UserError) as error:
        task_split.split_tasks(config, task_split.open_histories(config))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_histories_of_a_run_that_was_stopped_are_refused(sources, tmp_path):
    stopped = shutil.copytree(sources, tmp_path / "stopped")
    data = np.load(stopped / "histories" / "histories.npy", mmap_mode="r+")
    data[..., -100:] = 0  # as the file begins
    data.flush()
    with pytest.raises(UserError, match="is not complete: its run is going on or was stopped"):
        task_split.open_histories(config_of(stopped))


def test_histories_can_be_named_by_run_id(sources, tmp_path, monkeypatch):
    monkeypatch.setenv("GUILD_HOME", str(tmp_path))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ("ea" * 16)).symlink_to(sources)
    (opened,) = task_split.open_histories(config_of("eaeaeaea"))
    assert opened.folder.resolve() == sources / "histories"


def test_histories_of_different_episodes_are_refused(sources, tmp_path):
    longer = recorded(tmp_path / "other", size=5, steps=30)
    about = json.loads((longer / "histories/histories.json").read_text())
    (longer / "histories/histories.json").write_text(json.dumps({**about, "limit": 7}))
    config = Config(**{**SMALL, "histories": f"{sources},{longer}", "sizes": "4 5"})
    with pytest.raises(UserError, match="differ in the steps of an episode"):
        task_split.open_histories(config)


def test_a_task_in_both_parts_or_without_history_is_refused(sources, tmp_path):
    histories.write_tasks(tmp_path / "a.txt", [0, 1, 2], 4)
    histories.write_tasks(tmp_path / "b.txt", [2, 3], 4)
    histories.write_tasks(tmp_path / "c.txt", [0, 10], 4)
    opened = task_split.open_histories(config_of(sources))
    files = {name: str(tmp_path / f"{name}.txt") for name in "abc"}
    with pytest.raises(UserError, match="0 2 is a task for training as well"):
        task_split.split_tasks(
            config_of(sources, train_tasks=files["a"], test_tasks=files["b"]), opened
        )
    with pytest.raises(UserError, match="2 2 has no history"):
        task_split.split_tasks(config_of(sources, train_tasks=files["c"]), opened)
    (split,) = task_split.split_tasks(config_of(sources, test_tasks=files["b"]), opened)
    assert split.test == (2, 3)
    assert split.training == tuple(g for g in range(16) if g not in (2, 3, 10))


def test_test_tasks_that_no_episode_reaches_are_refused(sources, tmp_path):
    """Their best return is that of random agents, 0, so that a normalised one would be no number."""
    short = shutil.copytree(sources, tmp_path / "short")
    about = json.loads((short / "histories/histories.json").read_text())
    (short / "histories/histories.json").write_text(json.dumps({**about, "limit": 3}))
    histories.write_tasks(tmp_path / "near.txt", [14, 5], 4)
    histories.write_tasks(tmp_path / "far.txt", [14, 0], 4)
    opened = task_split.open_histories(config_of(short))
    config = config_of(short, test_tasks=str(tmp_path / "near.txt"))
    assert task_split.split_tasks(config, opened)[0].test == (14, 5)
    config = config_of(short, test_tasks=str(tmp_path / "far.txt"))
    with pytest.raises(UserError, match=r"--test-tasks: .* cannot be reached in 3 steps"):
        task_split.split_tasks(config, opened)


def test_a_file_of_tasks_may_be_named_from_the_project_and_has_tasks(
    sources, tmp_path, monkeypatch
):
    """Under Guild a run's working directory is its own."""
    (tmp_path / "project").mkdir()
    (tmp_path / "run").mkdir()
    histories.write_tasks(tmp_path / "project/test.txt", [2, 3], 4)
    (tmp_path / "project/none.txt").touch()
    monkeypatch.chdir(tmp_path / "run")
    monkeypatch.setenv("PROJECT_DIR", str(tmp_path / "project"))
    opened = task_split.open_histories(config_of(sources))
    (split,) = task_split.split_tasks(config_of(sources, test_tasks="test.txt"), opened)
    assert split.test == (2, 3)
    histories.write_tasks(tmp_path / "run/test.txt", [5], 4)
    (split,) = task_split.split_tasks(config_of(sources, test_tasks="test.txt"), opened)
    assert split.test == (5,)
    for name in ("train_tasks", "test_tasks"):
        flag = f"--{name.replace('_', '-')}: none.txt has no task"
        with pytest.raises(UserError, match=flag):
            task_split.split_tasks(config_of(sources, **{name: "none.txt"}), opened)


def test_training_validation_and_test_tasks_are_separate(sources):
    opened = task_split.open_histories(config_of(sources))
    splits = [
        task_split.split_tasks(config_of(sources, split=split, validation_share=0.25), opened)[0]
        for split in (1, 2)
    ]
    for split in splits:
        parts = [set(split.training), set(split.validation), set(split.test)]
        assert set.union(*parts) == set(opened[0].about.goals)
        assert sum(map(len, parts)) == 15
        assert list(map(len, parts)) == [8, 3, 4]
    assert splits[0].test != splits[1].test
    # While variants are chosen, no agent acts in a test task.
    played = train_ad.rollout_tasks(splits[:1], opened, validating=True)
    goals = np.concatenate([tasks.goals for tasks in played.values()])
    assert not set(goals.tolist()) & set(splits[0].test)
    tasks = train_ad.rollout_tasks(splits[:1], opened, validating=False)
    assert tuple(tasks["held_out"].goals) == splits[0].test


def offsets(goals, size: int) -> set[tuple[int, int]]:
    return {(goal // size - size // 2, goal % size - size // 2) for goal in goals}


@pytest.mark.parametrize("order", [(4, 5, 7), (7, 4, 5)])
def test_a_goal_is_in_the_same_part_of_all_rooms_that_it_lies_in(tmp_path, order):
    """Models get cells relative to the centre and no size, so that both goals look equal."""
    folders = [recorded(tmp_path / str(size), size=size, steps=30) for size in order]
    config = Config(
        **SMALL | {"histories": ",".join(map(str, folders)), "sizes": " ".join(map(str, order))},
        validation_share=0.2,
    )
    splits = task_split.split_tasks(config, task_split.open_histories(config))
    assert [split.size for split in splits] == list(order)
    for name in ("training", "validation", "test"):
        largest = offsets(getattr(max(splits, key=lambda split: split.size), name), 7)
        for split in splits:
            size, goals = split.size, getattr(split, name)
            room = offsets(range(size**2), size)
            assert offsets(goals, size) == largest & room
    for split, folder in zip(splits, folders, strict=True):
        parts = [*split.training, *split.validation, *split.test]
        assert sorted(parts) == list(histories.Histories.open(folder / "histories").about.goals)
    # The largest rooms alone have the same split.
    alone = config_of(folders[order.index(7)], sizes="7", validation_share=0.2)
    (single,) = task_split.split_tasks(alone, task_split.open_histories(alone))
    assert single == splits[order.index(7)]


def test_rooms_with_test_tasks_alone_are_refused(tmp_path):
    folders = [recorded(tmp_path / str(size), size=size, steps=30) for size in (2, 5)]
    config = Config(
        **SMALL | {"histories": ",".join(map(str, folders)), "sizes": "2 5"}, test_share=0.9
    )
    with pytest.raises(UserError, match="no task of 2 x 2 rooms is left for training"):
        task_split.split_tasks(config, task_split.open_histories(config))


def test_goals_of_another_size_are_split_by_whether_their_offset_was_trained_on(trained):
    loaded = evaluate_ad.load(str(trained))
    known = loaded.splits[4]
    for side in (3, 6, 7):
        goals = goals_by_part(evaluate_ad.Config(sizes=str(side)), loaded)
        shown, unseen = goals["shown_offset"], goals["unseen_offset"]
        room = offsets(range(side**2), side)
        assert offsets(shown, side) == offsets(known.training, 4) & room
        assert sorted([*shown, *unseen, side // 2 * (side + 1)]) == list(range(side**2))
    # A training that chooses is not played where the tasks for testing lie.
    loaded.splits[4] = replace(known, training=known.training[2:], validation=known.training[:2])
    goals = goals_by_part(evaluate_ad.Config(sizes="6"), loaded)
    assert len(goals["shown_offset"]) == 9
    assert not offsets(goals["unseen_offset"], 6) & offsets(known.test, 4)
    assert offsets(known.training[:2], 4) <= offsets(goals["unseen_offset"], 6)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"width": 10, "heads": 4}, "--width: 10 is not divisible by 4 heads"),
        ({"heads": 0}, "--heads: at least 1"),
        ({"lr": -0.5}, "--lr: -0.5 is below 0"),
        ({"when_full": "ring"}, "--positions time"),
        ({"states": "table", "sizes": "4 5"}, "--states"),
        ({"sizes": "x"}, "--sizes"),
        ({"sizes": "9 09"}, "--sizes: '9 09' has a side twice"),
        ({"lr": 0}, "--lr: above 0"),
        ({"window": 1}, "--window: at least 2"),
        ({"updates": 0}, "--updates"),
        ({"updates": 99}, "--warmup: 100 updates are more than the training has, 99"),
        ({"lr": 1e-3, "lr_min": 2e-3}, "--lr-min: 0.002 is above lr, 0.001"),
        ({"preset": "other"}, "--preset"),
    ],
)
def test_a_wrong_flag_is_a_one_line_error(flags, message):
    with pytest.raises(UserError) as error:
        Config(**flags)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_preset_seed_has_the_settings_of_the_source():
    settings = Config(preset="seed").settings()
    assert (settings.layout, settings.states, settings.windows) == ("three", "table", "consecutive")
    assert (settings.width, settings.layers, settings.heads, settings.feed_forward) == (
        64,
        4,
        4,
        2048,
    )
    dropouts = settings.embedding_dropout, settings.attention_dropout, settings.residual_dropout
    assert dropouts == (0, 0.5, 0.1)
    assert (settings.window, settings.batch_size, settings.updates) == (256, 32, 22_000)
    assert (settings.lr, settings.lr_min, settings.beta2) == (3e-4, 2e-6, 0.99)
    assert settings.history_steps == 800_000
    changed = Config(preset="seed", layout="one", attention_dropout=0.0).settings()
    assert (changed.layout, changed.attention_dropout, changed.residual_dropout) == ("one", 0, 0.1)
    assert Config().settings() == PRESETS["default"]
    assert sum(p.numel() for p in _seed_model().parameters()) > 1_000_000


def _seed_model():
    from darkroom.distillation.transformer import Transformer

    return Transformer(Config(preset="seed").shape(9, 20), torch.Generator())
