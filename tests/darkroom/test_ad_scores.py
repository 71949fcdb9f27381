"""Scores and figures: against sums by hand, and the same bytes for the same numbers."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from darkroom import ad_redraw, ad_study, evaluate_ad
from darkroom.distillation import ad_options, scores
from darkroom.rooms import grid
from darkroom.rooms.batch import RoomBatch
from darkroom.rooms.play import Tasks
from runcatalog import record
from runcatalog.guild import child_runs, finished_runs
from runcatalog.model import committed, statistics
from runcatalog.record import UserError
from runcatalog.record.journal.metrics import MetricsFile

ROOT = Path(__file__).parents[2]


def scores_of(values: np.ndarray, part: str = "held_out", size: int = 5) -> scores.PartScores:
    goals, met = np.arange(len(values)), np.ones(values.shape, bool)
    lengths = np.full(values.shape, 20.0)
    return scores.PartScores(size, part, goals, values, lengths, met, np.full(len(goals), 0.1))


def test_blocks_are_the_first_the_middle_and_the_last():
    assert scores.blocks(80) == {"episodes_1_5": 5, "episodes_36_40": 40, "episodes_76_80": 80}
    assert scores.blocks(5) == {"episodes_1_5": 5}
    assert list(scores.blocks(12)) == ["episodes_1_5", "episodes_8_12"]


def test_metrics_are_the_means_by_hand():
    rng = np.random.default_rng(0)
    values = rng.random((7, 3, 80))
    metrics = scores.metrics(scores_of(values))
    assert metrics["held_out_5/episode_1"] == pytest.approx(values[:, :, 0].mean())
    assert metrics["held_out_5/episodes_36_40"] == pytest.approx(values[:, :, 35:40].mean())
    by_goal = [values[g, :, 75:80].mean() for g in range(7)]
    assert metrics["held_out_5/worst"] == pytest.approx(min(by_goal))
    assert metrics["held_out_5/solved"] == pytest.approx(np.mean([v >= 0.8 for v in by_goal]))
    low, high = (metrics[f"held_out_5/episodes_76_80_{k}"] for k in ("low", "high"))
    assert low < np.mean(by_goal) < high


def test_random_agents_meet_their_goals_as_often_as_computed():
    """Against as many random agents, and the metric at the middle episode."""
    goals, agents, episodes = np.array([0, 7, 11, 17]), 1000, 12
    tasks = Tasks.of_rooms([(5, goals)], 20, False).repeated(agents)
    rooms = RoomBatch(tasks.goals, tasks.sizes, limit=20, terminating=False)
    rng = np.random.default_rng(0)
    returns = np.zeros((len(tasks), episodes))
    for step in range(20 * episodes):
        returns[:, step // 20] += rooms.step(rng.integers(5, size=len(tasks))).rewards
    returns = returns.reshape(len(goals), agents, episodes)
    met = np.logical_or.accumulate(returns > 0, axis=2)
    chance = grid.random_return(5, goals, 20, terminating=True)
    played = scores.PartScores(5, "held_out", goals, returns, np.full(met.shape, 20), met, chance)
    own, by_chance = played.explored()
    assert own == pytest.approx(met.mean(axis=(0, 1)))
    assert own == pytest.approx(by_chance, abs=0.03)  # 5 standard deviations at most
    metrics = scores.metrics(played)
    assert metrics["held_out_5/met_by_5"] == own[4]
    assert metrics["held_out_5/met_by_5_random"] == by_chance[4]


def test_a_key_alone_is_no_met_goal():
    tasks = Tasks.of_rooms([(3, [grid.task_with_key(0, 8, 3), 8])], 12, terminating=True)
    returns = np.array([[[0, 1, 2, 1]], [[0, 1, 0, 1]]], float)
    scored = scores.PartScores.of("held_out", tasks, returns, np.full(returns.shape, 12.0))
    assert scored.met[:, 0].tolist() == [[False, False, True, True], [False, True, True, True]]
    rng = np.random.default_rng(0)
    rooms = tasks.repeated(4000).rooms()
    opened, running = np.zeros(len(rooms), bool), np.ones(len(rooms), bool)
    for _ in range(12):
        step = rooms.step(rng.integers(grid.ACTIONS, size=len(rooms)))
        opened |= running & step.terminated
        running &= ~(step.terminated | step.truncated)
    assert scored.chance == pytest.approx(opened.reshape(2, -1).mean(axis=1), abs=0.03)
    assert scored.chance[0] < scored.chance[1] / 2


def test_the_result_of_small_rooms_has_no_numbers_of_rooms_whose_side_begins_with_the_same_digit():
    parts, metrics = [], {}
    for size in (2, 20):
        tasks = Tasks.of_rooms([(size, grid.tasks(size)[:2].tolist())], 20, terminating=False)
        lengths = np.full((2, 1, 5), 20.0)
        parts.append(scores.PartScores.of("unseen_offset", tasks, np.zeros((2, 1, 5)), lengths))
        metrics |= scores.metrics(parts[-1])
    config, trained = evaluate_ad.Config(episodes=5), SimpleNamespace(update=1)
    objective = evaluate_ad.result(config, trained, parts, metrics)["objective"]
    assert {entry["name"].split("/")[0] for entry in objective["also"]} == {"unseen_offset_2"}


def test_the_interval_has_its_nominal_coverage(monkeypatch):
    """Means of 40 uniform numbers: 95 % of intervals have the true mean in them, about."""
    monkeypatch.setattr(scores, "RESAMPLES", 1000)
    rng = np.random.default_rng(1)
    hits = 0
    for seed in range(120):
        low, high = scores.interval(rng.random(40), seed=seed)
        hits += low <= 0.5 <= high
    assert 105 <= hits <= 119
    constant = scores.interval(np.full((4, 3), 0.25))
    assert np.allclose(constant, 0.25)
    assert constant.shape == (2, 3)


def test_steps_until_a_level():
    steps, curve = np.array([20, 40, 60]), np.array([0.1, 0.8, 0.7])
    assert scores.steps_to(steps, curve) == 40
    assert scores.steps_to(steps, curve, 0.9) == float("inf")


def test_returns_are_normalised_by_task_in_rooms_of_several_sizes():
    tasks = Tasks.of_rooms([(5, [0, 3]), (7, [0])], 20, False)
    best = [20 + 1 - 4, 20 + 1 - 3, 20 + 1 - 6]
    chance = [
        grid.random_return(size, np.array([goal]), 20, terminating=False)[0]
        for size, goal in ((5, 0), (5, 3), (7, 0))
    ]
    for returns, expected in ((best, 1.0), (chance, 0.0)):
        values = np.broadcast_to(np.array(returns)[:, None, None], (3, 2, 4))
        assert np.allclose(tasks.normalised(values), expected)
    assert tasks.repeated(2).goals.tolist() == [0, 0, 3, 3, 0, 0]


def test_the_interval_over_splits_covers_the_mean_of_all_splits():
    """Three splits, whose means differ more than their trainings: 95 % of intervals have 0 in them, about."""
    rng = np.random.default_rng(1)
    splits = np.repeat(np.arange(3), 3)
    values = rng.normal(size=(3, 2000)).repeat(3, axis=0) + 0.5 * rng.normal(size=(9, 2000))
    low, high = scores.interval_over_splits(values, splits)
    assert 0.935 <= ((low <= 0) & (high >= 0)).mean() <= 0.965
    # As independent values, trainings of one split would seem to say more than they do.
    low, high = scores.interval_over_splits(values, np.zeros(9, int))
    assert ((low <= 0) & (high >= 0)).mean() < 0.8


def test_the_interval_over_trainings_is_that_of_the_catalog():
    values = np.random.default_rng(1).random((4, 2))
    for splits, means in (
        (np.zeros(4, int), values),
        (np.array([0, 0, 1, 1]), values.reshape(2, 2, 2).mean(axis=1)),
    ):
        found = scores.interval_over_splits(values, splits)
        expected = [statistics.interval(column) for column in means.T.tolist()]
        assert np.allclose(found.T, expected)
    assert np.isnan(scores.interval_over_splits(values[:1], np.zeros(1, int))).all()
    assert np.allclose(scores.interval_over_splits(np.full((3, 2), 0.5), np.arange(3)), 0.5)


def test_a_single_training_has_a_mean_without_an_interval():
    means, table = ad_study.means_of(
        [scores.metrics(scores_of(np.full((4, 2, 80), 0.5)))], np.array([0])
    )
    row = dict(zip(table["columns"], table["rows"][0], strict=True))
    assert row["episodes 76 80"] == "0.500"
    assert not [name for name in means if name.endswith(("_low", "_high"))]


def test_metrics_of_several_runs_are_averaged():
    metrics = [scores.metrics(scores_of(np.full((4, 2, 80), v))) for v in (0.5, 0.9)]
    means, table = ad_study.means_of(metrics, np.array([0, 1]))
    assert means["held_out_5/episodes_76_80"] == pytest.approx(0.7)
    assert means["held_out_5/worst_of_all"] == pytest.approx(0.5)
    low, high = statistics.interval([0.5, 0.9])
    assert means["held_out_5/episodes_76_80_low"] == pytest.approx(low)
    assert means["held_out_5/episodes_76_80_high"] == pytest.approx(high)
    assert len(table["rows"]) == 1
    assert len(table["rows"][0]) == len(table["columns"])


def test_steps_beyond_the_shortest_way():
    """Explorers take 4 steps in the end, the agents 4 or 5."""
    episodes = np.arange(1, 81)
    lengths = np.where(episodes > 10, 4, 20)
    agents = np.where(episodes > 70, np.where(episodes % 2, 4, 5), 20)
    curves = {
        "held_out_9/steps": (episodes, agents.cumsum()),
        "held_out_9/explorer_steps": (episodes, lengths.cumsum()),
    }
    extra = ad_study.extra_steps(curves)
    assert extra == {"held_out_9/extra_steps_76_80": pytest.approx(0.6)}
    metrics = scores.metrics(scores_of(np.full((4, 2, 80), 0.5)))
    part = next(iter(metrics)).partition("/")[0]
    more = [metrics | {f"{part}/extra_steps_76_80": value} for value in (0.5, 0.7)]
    means, table = ad_study.means_of(more, np.array([0, 1]))
    assert means[f"{part}/extra_steps_76_80"] == pytest.approx(0.6)
    assert (
        dict(zip(table["columns"], table["rows"][0], strict=True))["extra steps 76 80"]
        == "0.600 [-0.671, 1.871]"
    )
    full = (episodes, 20.0 * episodes)
    assert ad_study.extra_steps({"held_out_9/steps": full, "held_out_9/explorer_steps": full}) == {}


def as_record(operation: str, metrics: dict, **more) -> dict:
    curves = {name: {"curve": [[s, v] for s, v in curve]} for name, curve in metrics.items()}
    return {"operation": operation, "status": "FINISHED", "started": more.pop("started", 1),
            "metrics": curves, "flags": more.pop("flags", {}), **more}  # fmt: skip


def test_figures_are_drawn_from_records(tmp_path):
    records = tmp_path / "records/darkroom"
    records.mkdir(parents=True)
    curve = [(i, i / 10) for i in range(1, 11)]
    names = ("in_context", "in_context_low", "in_context_high", "steps")
    study = as_record(
        "ad:study",
        {f"held_out_9/{n}": curve for n in names} | {"held_out_9/source": [(100, 0.0), (900, 1.0)]},
        parents=[],
    )
    shuffled = study | {"flags": {"train-flags": "windows=shuffled"}, "started": 2}
    greedy = study | {"flags": {"evaluate-flags": "actions=greedy"}, "started": 3}
    study["flags"] = {"splits": "1 2"}
    smaller = study | {"flags": {"splits": 1}, "started": 4}
    flags = {"validation-share": 0.2, "layout": "preset", "copies": 3, "split": 1}
    name, today = "validation/episodes_36_40", vars(ad_options.DEFAULT)
    trained = [
        as_record(
            "ad:train", {}, run=f"run {index}", flags=flags | more, parents=["histories 9"],
            result={
                "objective": {"name": name, "value": value, "at": updates},
                **({} if "jitter" in more else {"settings": today | more}),
            },
        )
        for index, (more, value, updates) in enumerate((
            ({}, 0.9, 2500),
            ({"stride": 0.3, "updates": 2500}, 0.8, 2500),
            ({"layout": "three"}, 0.5, 2500),
            ({}, 0.6, 5000),  # the default of another time
            ({"validation-share": 0, "split": 4}, 0.1, 2500),
            ({"jitter": 0.5}, 0.4, 2500),  # of a time with fewer flags
            ({"searching": 0.0, "candidates": 4}, 0.3, 2500),  # of which none is drawn
        ))
    ]  # fmt: skip
    recorded = [
        as_record("a2c:histories_return", {}, run=f"histories {size}", flags={"size": size})
        for size in (9, 13)
    ]
    tested = [
        as_record(
            "ad:train", {}, run=f"tested {index}", parents=[histories],
            flags={"split": split, "copies": 3, "device": "cuda"} | more,
            result={
                "objective": {
                    "name": "held_out/episodes_36_40", "value": value, "at": more.get("updates", 2500),
                },
                "settings": today,
            },
        )
        for index, (more, split, histories, value) in enumerate((
            ({}, 1, "histories 9", 0.97),
            ({"updates": 5000}, 1, "histories 9", 0.98),  # no repetition of the first
            ({"learned-weight": 4.0}, 2, "histories 9", 0.96),
            ({"learned-weight": 4.0}, 3, "histories 9", 0.95),  # another study's split
            ({"learned-weight": 4.0}, 1, "histories 13", 0.94),
        ))
    ]  # fmt: skip
    also = [{"name": "validation_9/episodes_36_40", "value": 0.7}]
    validated = {"objective": {"name": "validation_9/episodes_76_80", "value": 0.8, "also": also}}
    played = [
        as_record(
            "ad:evaluate",
            {},
            run="played",
            parents=[parent],
            flags={"copies": 10, **more},
            result=validated,
        )
        for parent, more in (("run 0", {}), ("run 1", {"actions": "greedy"}), ("run 4", {}))
    ]
    explored = [
        as_record(
            "ad:explore",
            {f"explorer_{size}/{n}": [(1, 0.2), (2, height)] for n in ("return", "steps")},
            flags={"terminating": terminating},
        )
        for size, terminating, height in ((9, False, 0.7), (9, True, 0.8), (13, False, 0.9))
    ]
    keyed = study | {"operation": "ad:study_key_to_door", "started": 5}
    older = keyed | {
        "started": 1,
        "metrics": shuffled["metrics"] | {"held_out_9/source": [(1, 0.5)]},
    }
    for i, content in enumerate(
        [
            keyed,
            older,
            study,
            shuffled,
            greedy,
            smaller,
            *trained,
            *played,
            *explored,
            *recorded,
            *tested,
        ]
    ):
        (records / f"{i:02}.json").write_text(json.dumps(content))
    finished = committed.finished_runs(records)
    assert ad_redraw.variant_scores(
        finished["ad:train"][:4] + finished["ad:train"][5:7], played
    ) == {
        "default": [(0.9, 3), (0.7, 10), (0.8, 3)],
        "layout=three": [(0.5, 3)],
        "searching=0": [(0.3, 3)],
        "searching=0 jitter=0.5": [(0.4, 3)],
        "updates=5000": [(0.6, 3)],
    }
    drawn = ad_redraw.tested(study, finished)
    assert ad_redraw.variant_scores(drawn, []) == {
        "default": [(0.97, 3)],
        "learned-weight=4": [(0.96, 3)],
        "updates=5000": [(0.98, 3)],
    }
    assert ad_redraw.explorer_curve(finished["ad:explore"], terminating=False).values.tolist() == [
        0.2,
        0.7,
    ]
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    for one, two in zip(
        ad_redraw.draw(finished, tmp_path / "one"),
        ad_redraw.draw(finished, tmp_path / "two"),
        strict=True,
    ):
        assert one.read_bytes() == two.read_bytes()
    assert {path.name for path in (tmp_path / "one").iterdir()} == {
        "ad_in_context.svg",
        "ad_key_to_door.svg",
        "ad_settings.svg",
        "ad_studies.svg",
        "ad_variants.svg",
    }
    # Nor has the figure of variants those of other rooms, which are other tasks.
    elsewhere = trained[0] | {"run": "run 13", "parents": ["histories 13"]}
    (tmp_path / "four").mkdir()
    more = finished | {"ad:train": [*finished["ad:train"], elsewhere]}
    ad_redraw.draw(more, tmp_path / "four")
    name = "ad_variants.svg"
    assert (tmp_path / "four" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    (tmp_path / "three").mkdir()
    ad_redraw.draw(finished | {"ad:study_key_to_door": [keyed]}, tmp_path / "three")
    name = "ad_key_to_door.svg"  # of two equal studies, the newer one's
    assert (tmp_path / "three" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    # The figure of the default is not that of newer studies with other windows or agents, or with fewer trainings.
    assert ad_redraw.by_variant(finished["ad:study"])[""]["started"] == 1
    assert b"windows=shuffled" in (tmp_path / "one" / "ad_studies.svg").read_bytes()


def test_a_study_has_one_run_per_split_and_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(finished_runs, "equivalent_runs", lambda operation, flags: iter(()))
    links = ad_study.planned_runs(
        ad_study.Config(splits="4 5", seeds="1 2 3", train_flags="shift=2")
    )
    assert len(links) == 1 + 2 * 2 * 3
    trained = [link for link in links if link.operation == "ad:train"]
    assert {(link.flags["split"], link.flags["seed"]) for link in trained} == {
        (split, seed) for split in "45" for seed in "123"
    }
    assert all(link.flags["shift"] == "2" for link in trained)
    assert all(link.after == {"histories": "histories 9"} for link in trained)
    # An interrupted study continues with its planned runs.
    one = child_runs.plan(tmp_path / "study.json", links)
    again = child_runs.plan(
        tmp_path / "study.json", ad_study.planned_runs(ad_study.Config(splits="4 5", seeds="1 2 3"))
    )
    assert {name: link.run for name, link in one.items()} == {
        n: link.run for n, link in again.items()
    }
    assert len({link.run for link in one.values()}) == len(links)
    for wrong in (
        {"splits": "x"}, {"seeds": ""}, {"train_flags": "shift"}, {"sizes": "9 13"}, {"sizes": "9 9"},
        {"splits": "1 01"}, {"play": "9 24"},
    ):  # fmt: skip
        with pytest.raises(UserError, match=f"^--{next(iter(wrong)).replace('_', '-')}: [^\\n]*$"):
            ad_study.Config(**wrong)


def test_a_study_reuses_finished_runs_whose_preset_is_still_the_same(tmp_path, monkeypatch):
    """Of two trainings that ended, the first began when the preset was another one."""
    monkeypatch.setenv("GUILD_HOME", str(tmp_path))
    settings = vars(ad_options.Config().settings())
    for run, stood_for in (("old", settings | {"updates": 7}), ("new", settings)):
        folder = tmp_path / "runs" / run
        (folder / "journal").mkdir(parents=True)
        (folder / "journal/run.json").write_text(json.dumps({"flags": {"seed": 1, "split": 4}}))
        written = {"result": {"settings": stood_for}}
        (folder / "result.json").write_text(json.dumps(written))
    ended = {
        "a2c:histories_return": [("recorded", {})],
        "ad:train": [
            (run, {"split": "4", "seed": "1", "histories": "recorded"}) for run in ("old", "new")
        ],
        "ad:evaluate": [("played", {"seed": "1", "trained": "new"})],
    }

    def same(operation, flags):
        return (run for run, had in ended[operation] if had.items() <= flags.items())

    monkeypatch.setattr(finished_runs, "equivalent_runs", same)
    reused = {link.name: link.run for link in ad_study.planned_runs(ad_study.Config(splits="4"))}
    assert {name: run for name, run in reused.items() if run} == {
        "histories 9": "recorded", "train split 4 seed 1": "new", "evaluate split 4 seed 1": "played",
    }  # fmt: skip
    ended["ad:train"].pop()  # and what played another's weights is not taken either
    reused = {link.name: link.run for link in ad_study.planned_runs(ad_study.Config(splits="4"))}
    assert {name for name, run in reused.items() if run} == {"histories 9"}
    none = ad_study.planned_runs(ad_study.Config(splits="4", reuse=False))
    assert not any(link.run for link in none)


def test_a_part_without_tasks_in_a_split_is_left_out_of_a_study(tmp_path, monkeypatch):
    """Of the eight tasks of 3 x 3, none may lie where one was kept out."""
    monkeypatch.setenv("GUILD_HOME", str(tmp_path))
    monkeypatch.setenv("RECORD", "off")
    played = []
    for run, parts in (("one", ("unseen_offset", "shown_offset")), ("two", ("shown_offset",))):
        parts_scores = [scores_of(np.full((2, 1, 10), 0.5), part, 3) for part in parts]
        metrics = {
            name: value
            for part_scores in parts_scores
            for name, value in scores.metrics(part_scores).items()
        }
        folder = tmp_path / "runs" / run
        (folder / "journal").mkdir(parents=True)
        file = MetricsFile(folder / "journal/metrics.jsonl")
        for part in parts:
            for what in ("steps", "in_context"):
                for episode in range(10):
                    file.append(0, episode, {f"{part}_3/{what}": 0.5})
        file.close()
        objective = {"name": f"{parts[0]}_3/episodes_6_10", "at": 10}
        result = {"objective": objective, "metrics": metrics, "env_steps": 1}
        (folder / "result.json").write_text(json.dumps({"result": result}))
        played.append(child_runs.PlannedRun("ad:evaluate", run, name=run, flags={}))
    with record.start(ad_study.Config(play="3", splits="1", seeds="1 2"), study="darkroom") as run:
        result = ad_study.summarise(
            run, ad_study.Config(play="3", splits="1", seeds="1 2"), played, np.ones(2)
        )
        assert (run.directory / "artifacts/in_context.svg").stat().st_size > 5000
        run.finish(result)
    assert result["objective"]["name"] == "shown_offset_3/episodes_6_10"
    assert [row[0] for row in result["table"]["rows"]] == ["shown offset 3"]
    ending = "in episodes 6–10, 3 × 3, shown-offset, 2 trainings; worst task of any 0.50"
    assert result["summary"].endswith(ending)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_study_of_any_sizes_trains_on_their_histories_alone(monkeypatch, count):
    monkeypatch.setattr(finished_runs, "equivalent_runs", lambda operation, flags: iter(()))
    text = (ROOT / "experiments/darkroom/guild.yml").read_text()
    model = next(entry for entry in yaml.safe_load(text) if entry.get("model") == "ad")
    declared = model["operations"]["train_mixed"]
    needs = {entry["name"]: entry["operation"] for entry in declared["requires"]}
    assert declared["flags"]["histories"].split(",") == list(needs)
    for sizes in itertools.permutations(("5", "7", "9", "11"), count):
        links = ad_study.planned_runs(ad_study.Config(sizes=" ".join(sizes), splits="1", seeds="1"))
        trained = links[count]
        if sizes == ("9",):
            assert (trained.operation, "histories" in trained.flags) == ("ad:train", False)
            continue
        assert trained.operation == "ad:train_mixed"
        assert trained.after == {f"histories_{size}": f"histories {size}" for size in sizes}
        operations = {link.name: link.operation for link in links}
        assert all(needs[flag] == operations[name] for flag, name in trained.after.items())
        assert trained.flags["histories"] == ",".join(f"histories_{size}" for size in sizes)
        # And no others are there by chance.
        others = {name for name, value in trained.flags.items() if value == "none"}
        assert others == needs.keys() - trained.after.keys()
        assert all(entry["optional"] for entry in declared["requires"])


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"train_flags": "positions=time split=1"}, "--train-flags: the study sets split"),
        ({"train_flags": "seed=9"}, "--train-flags: the study sets seed"),
        ({"evaluate_flags": "sizes=5"}, "--evaluate-flags: the study sets sizes"),
    ],
)
def test_a_study_sets_what_it_varies_itself(flags, line):
    with pytest.raises(record.UserError, match=line):
        ad_study.Config(**flags)
