"""Result cells of batches."""

import math
from dataclasses import replace

import pytest

from rendered import joined
from runcatalog.analysis import searches
from runcatalog.model.run_record import RunRecord
from runcatalog.pages import render
from runcatalog.pages.tables import batch_summary
from runcatalog.plots.landscapes import _Trials
from runcatalog.plots.style import COLOURS
from runcatalog.text import sentences

SIZES = ("128 128", "64 64", "64 64 64")


def test_a_sweep_in_a_sentence(make):
    runs, number = [], 0
    for lr, values in (
        (5e-3, (1.0, 0.99, 0.98)),
        (1e-2, (0.9, 0.95, 0.7)),
        (1e-4, (0.1, 0.12, 0.14)),
    ):
        for seed, value in enumerate(values):
            number += 1
            runs.append(make(number, value=value, lr=lr, seed=seed, batch="b" * 32))
    explosion = "gradient explosion at update 12: log_std is not finite"
    runs[4] = make(5, lr=1e-2, seed=1, status="FAILED", reason=explosion, batch="b" * 32)
    sentence = batch_summary.summary(None, runs)
    assert sentence == (
        "5e-3: 99 % opening rate after 360 updates [97, 100]; 1e-2: 80 % [0, 100]; "
        "1e-4: 12 % [7, 17]; which is best is undetermined; "
        "1e-2 failed 1 of 3: gradient explosion at update 12"
    )
    assert batch_summary.summary(None, runs[::-1]) == sentence
    # Without the setting that has too few seeds to be compared.
    assert batch_summary.summary(None, [*runs[:3], *runs[6:]]) == (
        "best **5e-3**: 99 % opening rate after 360 updates [97, 100]; 1e-4: 12 % [7, 17]"
    )


def test_no_setting_is_best_on_a_tie_or_alone(make):
    runs = [make(i, value=0.9, lr=lr, batch="b" * 32) for i, lr in enumerate((1e-2, 0.1, 0.2), 1)]
    assert batch_summary.summary(None, runs[:2]) == (
        "1e-2: 90 % opening rate after 360 updates [83, 94]; 0.1: 90 % [83, 94]"
    )
    lost = [make(9, lr=lr, batch="b" * 32, status="FAILED", reason="nan") for lr in (0.1, 0.2)]
    assert batch_summary.summary(None, [runs[0], *lost]).startswith("1e-2: 90 % opening rate")


def test_seeds_alone_are_averaged(make):
    runs = [make(i, value=v, seed=i) for i, v in enumerate((0.9, 1.0), 1)]
    sentence = batch_summary.summary(None, runs)
    assert sentence == "95 % opening rate after 360 updates [31, 100], mean of 2 seeds"
    runs.append(make(3, value=0.95, seed=2))  # elsewhere, perhaps: no third seed
    assert batch_summary.summary(None, runs).endswith(", mean of 3 runs")


def test_further_numbers_of_a_result_are_shown_with_it(make):
    def run(seed, remembering, transfer):
        also = [
            {"name": "remembering", "value": remembering, "kind": "rate"},
            {"name": "transfer", "value": transfer, "kind": "mean"},
        ]
        objective = {"name": "accuracy", "value": 0.8, "kind": "rate", "also": also}
        return make(seed, seed=seed, result={"objective": objective})

    runs = [run(1, 1.0, 0.5), run(2, 0.9, 0.25)]
    expected = "80 % accuracy; 100 % remembering; transfer 0.5"
    assert sentences.sentence(runs[0]) == expected
    assert batch_summary.summary(None, runs) == (
        "80 % accuracy [80, 80], mean of 2 seeds; 95 % remembering [31, 100]; "
        "transfer 0.375 [−1.213, 1.963]"
    )
    # A metric that one run lacks, or has as no number, has no mean.
    runs[1].result["objective"]["also"][1]["value"] = "NaN?"
    assert batch_summary.summary(None, runs).endswith("; 95 % remembering [31, 100]")


def test_further_numbers_of_a_search_are_shown_as_a_list_or_alone(make):
    def trial(number, also):
        objective = {"name": "accuracy", "value": number / 10, "kind": "rate", "also": also}
        return make(number, lr=number, result={"objective": objective, "search": {"kind": "gp"}})

    second = {"name": "transfer", "value": 0.5, "kind": "mean"}
    third = {"name": "remembering", "value": 0.9, "kind": "rate"}
    summary = "best **lr=8**: 80 % accuracy, transfer 0.5"
    batch = make(99, result={"batch": True, "method": "gp"})
    for also, more in ((second, ""), ([second], ""), ([second, third], ", 90 % remembering")):
        runs = [trial(number, also) for number in (7, 8)]
        assert batch_summary.search_summary(batch, runs).startswith(f"{summary}{more} (")
    # The search's objective is first, the run's own result and its further numbers follow.
    objective = {"name": "accuracy", "value": 0.8, "kind": "rate", "also": [second]}
    best = make(8, lr=8, result={"objective": objective})
    best = best.with_points({"return": [(1, 3.0)]})
    batch = make(99, result={"batch": True, "method": "gp", "optimised": {"name": "return"}})
    assert "return 3, 80 % accuracy, transfer 0.5" in batch_summary.search_summary(batch, [best])


def test_a_goal_of_min_ranks_the_other_way(make):
    runs = []
    for i, value in enumerate((3.0, 1.0, 2.0)):
        for seed, noise in enumerate((-0.1, 0.0, 0.1)):
            objective = {"name": "loss", "value": value + noise, "kind": "mean", "goal": "min"}
            runs.append(
                make(10 * i + seed, seed=seed, result={"objective": objective}, lr=10.0**-i)
            )
    assert batch_summary.summary(None, runs) == (
        "best **0.1**: loss 1 [0.7516, 1.248]; 1e-2: 2 [1.752, 2.248]; 1: 3 [2.752, 3.248]"
    )


def trial(make, i: int, lr: float, value: float | None, kind: str = "gp", **fields) -> RunRecord:
    objective = {"name": "opening_rate", "value": value, "kind": "rate", "count": 100}
    result = {"search": {"kind": kind}} | ({} if value is None else {"objective": objective})
    return make(i, result=result, batch="b" * 32, lr=lr, **fields)


def test_a_search_in_a_sentence(make):
    trials = [
        trial(make, i, lr, v, "initial") for i, (lr, v) in enumerate(((1e-4, 0.1), (2e-2, 0.2)))
    ]
    good = ((5e-3, 0.9), (5.1e-3, 0.95), (5.2e-3, 0.92), (1.5e-2, 0.3), (1e-3, 0.4), (1.9e-2, 0.25))
    trials += [trial(make, i, lr, v) for i, (lr, v) in enumerate(good, 2)]
    lost = {"status": "FAILED", "reason": "gradient explosion at update 3: W1 is not finite"}
    trials += [trial(make, 8, 1.2e-2, None, **lost), trial(make, 9, 1.3e-2, None, **lost)]
    trials += [trial(make, 10, 1.4e-2, None, status="FAILED", reason="out of memory")]
    assert batch_summary.summary(None, trials) == (
        "best **lr=5.1e-3**: 95 % opening rate [89, 98] (00000003); "
        "best cluster (3 of 8): lr=5e-3–5.2e-3: 90 % to 95 %; 3 of 11 trials failed: "
        "2 × gradient explosion at update 3, 1 × out of memory; 2 initial, 9 proposed by gp"
    )


def test_a_trial_without_a_finite_objective_has_failed_as_in_the_search(project, make):
    result = {"batch": True, "method": "gp", "optimised": {"name": "loss", "goal": "min"}}
    batch = make(99, run="b" * 32, operation="toy:opt@gp", result=result)
    trials = [
        trial(make, i, i / 10, 0.0).with_points({"loss": [(1, loss)]})
        for i, loss in enumerate((0.5, math.nan, math.inf, 0.4), 1)
    ]
    trials.append(trial(make, 5, 0.5, None, status="FAILED", reason="out of memory"))
    trials.append(trial(make, 6, 0.6, None, status="RUNNING"))
    sentence = batch_summary.summary(batch, trials)
    assert "; 3 of 6 trials failed: 2 × no finite loss, 1 × out of memory; " in sentence
    table = render.Catalog(project, [batch, *trials]).table(["toy:opt@gp"])
    assert "| 6, 3 failed |" in table
    assert _Trials.from_runs([searches.as_searched(batch, t) for t in trials], True).failed == [
        1,
        2,
        4,
    ]
    bare = make(7, lr=0.7)
    assert "; 1 of 1 trials failed: no finite objective" in batch_summary.summary(batch, [bare])


def test_a_search_is_ranked_by_its_objective(make):
    result = {"batch": True, "method": "gp", "optimised": {"name": "return", "goal": "max"}}
    batch = make(99, operation="toy:opt@gp", result=result)
    trials = [
        trial(make, i, lr, 0.0).with_points({"return": [(1, -900.0), (2, last)]})
        for i, (lr, last) in enumerate(((1e-3, -600.0), (1e-2, -460.5)))
    ]
    assert batch_summary.summary(batch, trials).startswith(
        "best **lr=1e-2**: return −460.5, 0 % opening rate (00000001); "
    )


def numbered(make, number, point, value, **fields):
    """A trial of batch bb…; one without a value has failed."""
    search = {"search": {"kind": "gp", "trial": number}}
    objective = {"name": "return", "value": value, "kind": "mean", "goal": "max"}
    lost = {"status": "FAILED", "reason": "exploded"} if value is None else {}
    result = search if value is None else {**search, "objective": objective}
    return replace(
        make(number, result=result, **({"batch": "b" * 32} | lost | fields)), flags=dict(point)
    )


def test_a_best_point_at_the_edge_is_reported_as_such(make):
    space = {
        "lr": {"low": 1e-4, "high": 2e-2, "log": True},
        "clip": {"low": 0.2, "high": 0.6, "log": False},
        "depth": {"low": 2, "high": 4, "log": False},
        "size": {"choices": list(SIZES)},
    }
    best = {"lr": 1.95e-2, "clip": 0.205, "depth": 3, "size": SIZES[0]}
    ranked = [numbered(make, i, best | {"clip": 0.205 + 0.1 * i}, -i) for i in range(4)]
    batch = make(
        99, run="b" * 32, result={"batch": True, "method": "gp", "space": space}, operation="x@gp"
    )
    expected = "the best setting has clip at the lower edge of 0.2 to 0.6 and lr at the upper edge of 1e-4 to 2e-2"
    assert expected in batch_summary.summary(batch, ranked)
    inside = numbered(make, 9, {"lr": 1.4e-2, "clip": 0.4, "depth": 3, "size": SIZES[2]}, 1)
    assert "edge" not in batch_summary.summary(batch, [inside, *ranked[1:]])
    lowest = numbered(make, 9, {"depth": 2}, 1)
    assert "depth at the lower edge of 2 to 4" in batch_summary.summary(batch, [lowest])


def test_a_search_is_compared_with_random_search_of_equal_budget(project, make):
    def batch(letter, operation, method, values, **flags):
        head = make(
            0, run=letter * 32, operation=operation, result={"batch": True, "method": method}
        )
        point = {"task": "pull", "seed": 1} | flags
        trials = [
            numbered(make, i, point | {"lr": i}, v, batch=head.run, run=f"{letter}{i:07x}" * 4)
            for i, v in enumerate(values, 1)
        ]
        return [head, *trials]

    own = batch("a", "toy:opt@gp", "gp", [1.0, None, 3.0, 5.0, 9.0])
    chance = batch("c", "toy:opt@random", "random", [0.0, 2.5, 0.5, 2.0])
    other = batch("d", "toy:opt@random", "random", [99.0], task="lever")
    (project.experiments / "toy" / "catalog.md.j2").write_text('{{ table(["toy:opt@gp"]) }}')
    expected = "with 4 trials, best 5 against 2.5 of random search (cccccccc), whose best was reached after 3 trials"
    assert expected in joined(render.Catalog(project, [*own, *chance, *other]))
    assert "| 5 against 2.5, 4 trials |" in joined(render.Catalog(project, [*own, *chance, *other]))
    alone = render.Catalog(project, [*own, *other]).pages
    assert not any("random search" in page for path, page in alone.items() if "toy" in path)
    comparison = searches.against_random(chance[1:], own[1:])
    assert batch_summary.comparison_text(comparison, "aaaaaaaa") == (
        "with 4 trials, best 2.5 against 5 of random search (aaaaaaaa), whose best was not reached"
    )


def with_importance(make, r2, **shares):
    parameters = {
        name: {"share": share, "low": low, "high": high}
        for name, (share, low, high) in shares.items()
    }
    stored = {"parameters": parameters, "r2": r2, "trials": 20, "method": "…"}
    result = {"batch": True, "method": "gp", "importance": stored}
    return make(0, run="b" * 32, operation="toy:opt@gp", result=result)


@pytest.mark.parametrize(
    ("r2", "shares", "expected"),
    [
        (0.41, {"clip": (0.02, -0.1, 0.1), "lr": (0.81, 0.63, 1.1)},
         "importance: lr 81 % [63, 100] of the variance (cross-validated R² 0.41 over 20 trials)"),
        (0.09, {"lr": (0.6, 0.4, 0.8)},
         "the effect of every parameter is undetermined, R² being below 0.1 (cross-validated R² 0.09 over 20 trials)"),
        (0.5, {"clip": (0.1, 0.02, 0.2), "lr": (0.6, 0.4, 0.8)},
         "importance: lr 60 % [40, 80] of the variance, clip 10 % [2, 20] (cross-validated R² 0.5 over 20 trials)"),
        (0.2, {"clip": (0.1, -0.1, 0.2), "lr": (0.6, -0.1, 1.8)},
         "the effect of every parameter is undetermined (cross-validated R² 0.2 over 20 trials)"),
        (-0.38, {"clip": (0.1, 0.05, 0.2), "lr": (0.6, 0.1, 0.8)},
         "the model predicts nothing (cross-validated R² −0.38 over 20 trials), so no ranking of parameters"),
    ],
)  # fmt: skip
def test_importance_is_read_from_the_record(make, r2, shares, expected):
    batch = with_importance(make, r2, **shares)
    trials = [numbered(make, i, {"lr": i, "clip": -i}, float(i)) for i in range(1, 4)]
    assert f"; {expected}; " in batch_summary.summary(batch, trials)


@pytest.mark.parametrize(
    "stored",
    [None, [], "x", {}, {"r2": 1, "trials": 2}, {"r2": 1, "trials": 2, "parameters": {}},
     {"r2": "NaN", "trials": 2, "parameters": {"a": {"share": 1, "low": 1, "high": 1}}},
     {"r2": 1, "trials": 2, "parameters": {"a": {"share": "?"}}}, {"r2": 1, "trials": 2, "parameters": {"a": 1}}],
)  # fmt: skip
def test_importance_of_an_odd_record_is_not_shown(make, stored):
    batch = make(0, result={"batch": True, "method": "gp", "importance": stored})
    assert searches.importance_of(batch) is None
    assert batch_summary.importance_text(batch) == ""


def test_bars_of_several_searches(project, make):
    template = '{{ importances("what_matters", ["toy:opt@gp", "toy:other"]) }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    batch = with_importance(make, 0.5, lr=(0.6, 0.4, 0.8), clip=(0.1, -0.1, 0.3))
    trials = [numbered(make, i, {"lr": i, "clip": -i}, float(i)) for i in range(1, 4)]
    catalog = render.Catalog(project, [batch, *trials])
    assert "(../experiments/toy/figures/what_matters.svg)" in joined(catalog)
    (drawing,) = catalog.figures.values()
    svg = drawing.svg()
    assert svg == drawing.svg()
    assert {"lr", "clip", "determined", "undetermined"} <= {
        line.partition(">")[2].partition("<")[0] for line in svg.splitlines() if "<text" in line
    }
    assert COLOURS[0].lower() in svg
    assert "what_matters" not in joined(render.Catalog(project, trials))


def test_a_batch_without_a_result(make):
    failed = [make(i, status="FAILED", reason="out of memory", lr=i) for i in (1, 2)]
    assert batch_summary.summary(None, failed) == (
        "no trial finished with a result; 1 failed 1 of 1: out of memory; 2 failed 1 of 1: out of memory"
    )
    empty = make(
        9, operation="toy:sweep", result={"batch": True}, status="KILLED", reason="SIGTERM"
    )
    assert batch_summary.summary(empty, []) == "killed: SIGTERM"


def test_a_range_of_steps_has_separators_in_both_of_its_numbers(make):
    def run(seed, at):
        objective = {"name": "x", "value": 1.0, "kind": "mean", "at": at, "axis": "step"}
        return make(seed, seed=seed, result={"objective": objective})

    runs = [run(1, 1500), run(2, 2500), run(3, True)]
    assert "after 1,500–2,500 steps" in batch_summary.summary(None, runs)
