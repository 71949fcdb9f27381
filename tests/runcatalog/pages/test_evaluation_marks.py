"""Rows that show the set of a value, how often a test set was opened, and what was chosen on the reported set."""

import pytest

from memory_reader import MemoryReader
from runcatalog.analysis import find_runs
from runcatalog.pages import render
from runcatalog.query.language import QueryError

OBJECTIVE = {"name": "opening_rate", "value": 0.9, "kind": "rate", "count": 100}


def result(split="test", digest="d1", chosen="", **more):
    evaluation = {"split": split, "name": "worlds", "digest": digest, "chosen": chosen}
    return {
        "objective": OBJECTIVE,
        "evaluation": {k: v for k, v in evaluation.items() if v},
        **more,
    }


def cell(project, records, run, operation="toy:train"):
    """The outcome of a run's entry on the page of runs, and of its row on the study's page."""
    catalog = render.Catalog(project, records)
    entry = next(
        line
        for line in catalog.pages["catalog/toy_runs.md"].splitlines()
        if f'id="{run.id8}"' in line
    )
    return entry.split(" | ")


def has(cells, words):
    return any(shown.endswith(words) for shown in cells)


def test_a_test_set_is_counted_by_configuration(project, make):
    first = make(1, result=result(), seed=1, lr=0.1)
    runs = [
        first,
        make(2, result=result(), seed=2, lr=0.1),
        make(3, result=result(), seed=2, lr=0.1, threads=2, superseded_by="1" * 8),
        make(4, result=result(digest="d2"), seed=1, lr=0.1),  # another set
        make(5, result=result(), seed=1, lr=0.2),  # another configuration
        make(6, result=result("validation"), seed=1, lr=0.1),
        make(7, value=0.5, lr=0.1),  # declares nothing
    ]
    assert has(cell(project, runs, first), "; test set, opened 3 times (2 seeds)")
    assert has(cell(project, runs, runs[3]), "; test set, opened once")
    assert has(cell(project, runs, runs[4]), "; test set, opened once")
    assert has(cell(project, runs, runs[5]), "; validation set")
    assert not has(cell(project, runs, runs[6]), " set")


def test_seeds_of_a_row_are_marked_once(project, make):
    runs = [make(i, result=result(digest=f"d{i}"), seed=i) for i in (1, 2)]
    shown = render.Catalog(project, runs).table(["toy:train"])
    assert shown.count("test set, opened once") == 1


def test_a_number_that_was_chosen_on_its_set_is_marked(project, make):
    run = make(1, result=result("validation", chosen="best of 5 checkpoints"))
    assert has(
        cell(project, [run], run),
        "; validation set; chosen on the reported set: best of 5 checkpoints",
    )


def test_the_best_point_of_a_search_is_marked(project, make):
    batch = make(1, operation="toy:opt@gp", result={"batch": True, "method": "gp"})
    trials = [
        make(2 + i, batch=batch.run, lr=0.1 * i, result=result("validation", search={"kind": "gp"}))
        for i in range(3)
    ]
    shown = cell(project, [batch, *trials], batch, "toy:opt@gp")
    words = "; validation set; chosen on the reported set: best setting of the search"
    assert has(shown, words)
    grid = make(9, result={"batch": True, "method": "grid"})
    points = [make(10 + i, batch=grid.run, lr=0.1 * i, value=0.5) for i in range(3)]
    assert not any("chosen" in c for c in cell(project, [grid, *points], grid))
    script = make(20, result={"objective": OBJECTIVE, "best": {"lr": 0.1}})
    assert has(cell(project, [script], script), words.partition("; ")[2].partition("; ")[2])


def test_runs_can_be_searched_by_their_set(make):
    runs = [
        make(1, result=result()),
        make(2, result=result("validation")),
        make(3, value=0.5, split=2),
    ]

    def matches(query):
        return [int(s.run[:8], 16) for s in find_runs.find_runs(MemoryReader(runs), query).stored]

    assert matches("split=test") == [1]
    assert matches("split") == [1, 2]
    assert matches("not split") == [3]
    assert matches("split!=test") == [2]
    assert matches("flag:split=2") == [3]
    with pytest.raises(QueryError, match=r"one of training, validation, test; .*flag:split"):
        matches("split=2")


def test_runs_without_a_seed_are_of_no_seed(project, make):
    entry = {"split": "test", "name": "levels", "digest": "a"}
    runs = [
        make(n, result={"objective": {"name": "x", "value": float(n)}, "evaluation": entry})
        for n in (1, 2)
    ]
    page = render.Catalog(project, runs).pages["catalog/toy_runs.md"]
    assert "test set, opened 2 times |" in page
