"""The set that a run declares: in its result, in MLflow and in its record."""

import random

import numpy as np
import pytest

from runcatalog import record
from runcatalog.guild import child_runs
from runcatalog.model.run_record import from_json, to_json
from runcatalog.record.delivery.publish import publish
from runcatalog.record.evaluation import content_digest, declared, level_outcomes, outcomes_of
from runcatalog.record.journal.files import read_json
from runcatalog.store.sqlite_reader import reader


@pytest.mark.parametrize("recorded", [True, False])
def test_a_declared_set_is_in_the_result(project, monkeypatch, recorded):
    if not recorded:
        monkeypatch.setenv("RECORD", "off")
    with record.start(record.Config(), study="toy") as run:
        run.declare_evaluation("validation", "20 worlds", chosen="best of 5 checkpoints")
        run.declare_evaluation("test", "100 worlds", contents=np.arange(6).reshape(3, 2))
        written = run.finish({"objective": {"name": "rate", "value": 1.0}})
    digest = content_digest(np.arange(6).reshape(3, 2))
    expected = {"split": "test", "name": "100 worlds", "digest": digest}  # the last declaration
    assert written["result"]["evaluation"] == expected
    if recorded:
        assert read_json(run.directory / "result.json")["result"]["evaluation"] == expected
        uri = f"sqlite:///{project.parent}/mlflow.db"
        publish(run.directory, uri)
        (stored,) = reader(uri).runs()
        assert stored.tag("split") == "test"
        assert stored.record.evaluation == declared({"evaluation": expected})
        assert stored.record.split == "test"


def test_a_run_that_declares_nothing_has_no_set(project):
    with record.start(record.Config(), study="toy") as run:
        result = run.finish({"objective": {"name": "rate", "value": 1.0}})["result"]
    assert "evaluation" not in result
    assert declared(result) is None


@pytest.mark.parametrize(
    ("split", "name", "words"),
    [
        ("held_out", "worlds", "split: one of training, validation, test is expected"),
        ("validation", "", "a validation set needs a name"),
        ("test", "worlds", "a test set needs its contents"),
    ],
)
def test_an_incomplete_declaration_is_refused(project, split, name, words):
    with (
        pytest.raises(ValueError, match=words),
        record.start(record.Config(), study="toy") as run,
    ):
        run.declare_evaluation(split, name)


def test_a_digest_is_of_the_content_in_any_order():
    items = np.random.default_rng(1).integers(9, size=(40, 5))
    shuffled = random.Random(1).sample(list(items), 40)
    assert content_digest(items) == content_digest(shuffled)
    changed = items.copy()
    changed[7, 3] += 1
    assert content_digest(changed) != content_digest(items)
    assert content_digest(items[:-1]) != content_digest(items)
    assert content_digest(["ab", "c"]) != content_digest(["a", "bc"])


@pytest.mark.parametrize(
    ("name", "split"), [("validation", "validation"), ("test", "test"), ("test_hard", "test")]
)
def test_older_results_with_the_name_alone_are_read_and_stay_as_they_are(name, split):
    content = {
        "run": "ab" * 16, "operation": "ragen:evaluate", "study": "textgames", "status": "FINISHED",
        "result": {"objective": {"name": "success", "value": 0.5}, "split": name},
    }  # fmt: skip
    run = from_json(content)
    assert (run.split, run.evaluation.name, run.evaluation.digest) == (split, name, "")
    assert to_json(run)["result"] == content["result"]


@pytest.mark.parametrize("entry", [3, "elsewhere", {"split": "other", "name": "x"}, ["test"], None])
def test_an_invalid_declaration_is_ignored(entry):
    assert declared({"evaluation": entry}) is None
    assert declared({"split": entry if not isinstance(entry, dict) else "other"}) is None


class Child:
    """A finished run with a result."""

    def __init__(self, **result):
        self.result_json = {"result": result}


@pytest.mark.parametrize(
    ("splits", "expected"),
    [(("test", "test"), "test"), (("test", "validation"), ""), (("test", ""), ""), ((), "")],
)
def test_a_run_of_runs_declares_what_all_of_them_do(project, splits, expected):
    children = [
        Child(evaluation={"split": split, "name": "worlds", "digest": f"d{i}"})
        if split
        else Child()
        for i, split in enumerate(splits)
    ]
    with record.start(record.Config(), study="toy") as run:
        child_runs.declare_evaluation(run, children, "worlds of all runs", chosen="best run")
        result = run.finish({"objective": {"name": "rate", "value": 1.0}})["result"]
    known = declared(result)
    assert (known.split if known else "") == expected
    if known:
        assert (known.name, known.chosen) == ("worlds of all runs", "best run")
        assert known.digest == content_digest(["d0", "d1"])


@pytest.mark.parametrize("games", [1, 3])
@pytest.mark.parametrize("count", [1, 8, 13, 1000])
def test_outcomes_by_level_are_read_as_they_were_written(count, games):
    generator = np.random.default_rng(count)
    success = {"success": generator.random(count * games) < 0.5, "greedy": np.ones(count * games)}
    levels = generator.integers(9, size=(count, 4))
    entry = level_outcomes(levels, success)
    found = outcomes_of({"outcomes": [entry]})
    assert found.keys() == success.keys()
    for name, outcomes in found.items():
        assert (
            outcomes.success.tolist() == success[name].astype(bool).reshape(count, games).tolist()
        )
        assert outcomes.levels == entry["levels"]
    assert len(entry["success"]["success"]) <= count * games / 6 + 4
    if count > 1:  # the digest is of the levels in their order
        assert level_outcomes(levels[::-1], success)["levels"] != entry["levels"]


@pytest.mark.parametrize(
    ("levels", "success"),
    [([], {"x": []}), ("ab", {}), ("ab", {"x": [1]}), ("ab", {"x": [1, 0], "y": [1, 0, 0, 1]})],
)
def test_outcomes_that_do_not_fit_the_levels_are_refused(levels, success):
    with pytest.raises(ValueError, match=f"outcomes of {len(levels)} levels"):
        level_outcomes(levels, success)


def test_entries_that_are_no_outcomes_are_left_out():
    good = level_outcomes("abc", {"success": [1, 0, 1]})
    wrong = [{**good, "count": 1 << 40}, {**good, "games": 0}, {**good, "success": {"x": "!"}}]
    wrong += [{**good, "success": ["x"]}, {}, 3, {**good, "count": None}]
    for entry in wrong:
        assert outcomes_of({"outcomes": [entry]}) == {}
    assert list(outcomes_of({"outcomes": [*wrong, good]})) == ["success"]
    for result in (None, {}, {"outcomes": 5}):
        assert outcomes_of(result) == {}


@pytest.mark.parametrize(("rates", "kept"), [(2, True), (100, True), (400, False)])
def test_a_record_has_the_outcomes_while_they_are_small(project, rates, kept):
    generator = np.random.default_rng(0)
    success = {f"rate {i}": generator.random(1000) < 0.9 for i in range(rates)}
    entry = level_outcomes(range(1000), success)
    table = {"columns": ["x" * 50], "rows": [["y" * 50]] * 40}
    with record.start(record.Config(), study="toy") as run:
        objective = {"name": "rate", "value": 1.0}
        metrics = {name: float(each.mean()) for name, each in success.items()}
        written = run.finish(
            {"objective": objective, "outcomes": [entry], "table": table, "metrics": metrics}
        )
    assert written["result"]["outcomes"] == [entry]
    uri = f"sqlite:///{project.parent}/mlflow.db"
    publish(run.directory, uri)
    (stored,) = reader(uri).runs()
    assert bool(stored.record.outcomes) is kept
    assert stored.record.result["table"] == table  # which the outcomes do not displace
    if kept:
        assert stored.record.result["outcomes"] == [entry]
