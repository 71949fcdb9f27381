"""Which parameter of a search matters: on surfaces where that is known, against scikit-learn, and in a row."""

import csv
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import Matern

from runcatalog.analysis import groups, search_summary
from runcatalog.analysis.importance import _Process, _squares, importance
from runcatalog.pages import render
from runcatalog.plots.study_style import COLOURS
from runcatalog.sync import compare_csv

EXPORTS = Path(__file__).parents[4] / "shared" / "data" / "guild-compare"
SIZES = ("128 128", "64 64", "64 64 64")


def points(count, seed):
    rng = random.Random(seed)
    return [
        {
            "lr": 10 ** rng.uniform(-4, math.log10(2e-2)),
            "clip": rng.uniform(0.2, 0.6),
            "size": rng.choice(SIZES),
        }
        for _ in range(count)
    ]


def told(function, seed, count=20):
    found = points(count, seed)
    rng = random.Random(seed + 1000)
    values = [function(p, rng) for p in found]
    return importance({name: [p[name] for p in found] for name in found[0]}, values)


def peak(point, rng):
    """A ridge in the logarithm of the learning rate, and noise."""
    return -((math.log10(point["lr"]) + 2.6) ** 2) + 0.1 * rng.gauss(0, 1)


def cliff(point, rng):
    """A large learning rate gives a return of −10 million, a still larger one nothing at all."""
    if point["lr"] > 1e-2:
        return None
    return -1e7 if point["lr"] > 5e-3 else -1e3 * math.log10(point["lr"]) + 50 * rng.gauss(0, 1)


@pytest.mark.parametrize("surface", [peak, cliff])
def test_the_parameter_that_decides_is_found(surface):
    found = [told(surface, seed) for seed in range(4)]
    assert {each.shares[0].name for each in found} == {"lr"}
    sure = [each for each in found if each.told and each.leads]
    assert len(sure) >= 3
    assert {share.name for each in sure for share in each.told} == {"lr"}


def test_shares_are_those_of_the_variance():
    """Of a + b with b of half the range, a has 4/5 of the variance (closed form)."""
    rng = random.Random(3)
    a, b = ([rng.random() for _ in range(60)] for _ in "ab")
    found = importance({"a": a, "b": b}, [x + 0.5 * y for x, y in zip(a, b, strict=True)])
    assert found.r2 > 0.95
    assert [(s.name, s.value) for s in found.shares] == [
        ("a", pytest.approx(0.8, abs=0.12)),
        ("b", pytest.approx(0.2, abs=0.12)),
    ]
    assert all(s.low < s.value < s.high for s in found.shares)


def test_of_mere_noise_nothing_is_told():
    found = [told(lambda _, rng: rng.gauss(0, 1), seed) for seed in range(5)]
    assert sum(bool(each.told) for each in found) <= 1


def test_the_order_of_the_trials_and_the_scale_of_the_objective_do_not_matter():
    found = points(20, 1)
    values = [peak(p, random.Random(5)) for p in found]
    columns = {name: [p[name] for p in found] for name in found[0]}
    turned = {name: column[::-1] for name, column in columns.items()}
    assert importance(columns, values) == importance(turned, values[::-1])
    scaled = importance(columns, [1e6 * v + 7 for v in values])
    assert scaled.shares == importance(columns, values).shares


@pytest.mark.parametrize("values", [[1.0] * 20, [None] * 20, [float(i) for i in range(7)]])
def test_where_there_is_nothing_to_tell(values):
    assert importance({"lr": [0.1 * i for i in range(len(values))]}, values) is None


def test_predictions_without_a_trial_are_scikit_learns():
    """Refitted without each trial in turn, at the same scales, and asked at each replaced point."""
    rng = np.random.default_rng(0)
    x = rng.random((12, 2))
    x[:2] = [[0, 0], [1, 1]]
    y = np.sin(5 * x[:, 0]) + 0.3 * x[:, 1]
    y = (y - y.mean()) / y.std()
    process = _Process.fit(np.array([_squares(list(c)) for c in x.T]), y)
    noise = np.linalg.inv(process.inverse)[0, 0] - 1
    lengths = np.minimum(process.lengths, 1e6)
    errors = []
    for i in range(12):
        kept = np.arange(12) != i

        def predict(at, kept=kept):
            """Each parameter has a kernel of its own; scikit-learn's Matern on one column at a time."""
            k = np.prod(
                [
                    Matern(length, nu=2.5)(at[:, [j]], x[kept][:, [j]])
                    for j, length in enumerate(lengths)
                ],
                axis=0,
            )
            own = np.prod(
                [Matern(length, nu=2.5)(x[kept][:, [j]]) for j, length in enumerate(lengths)],
                axis=0,
            )
            return k @ np.linalg.solve(own + noise * np.eye(11), y[kept])

        plain = (y[i] - predict(x[[i]])[0]) ** 2
        for j in range(2):
            at = np.repeat(x[[i]], 11, axis=0)
            at[:, j] = x[kept, j]
            errors.append((j, np.mean((y[i] - predict(at)) ** 2) - plain))
    expected = [np.mean([e for j, e in errors if j == which]) / 2 for which in range(2)]
    assert process.importances() == pytest.approx(expected, rel=1e-6)


def trial(make, number, point, value, **fields):
    """A trial of batch bb…; one without a value has failed."""
    search = {"search": {"kind": "gp", "trial": number}}
    objective = {"name": "return", "value": value, "kind": "mean", "goal": "max"}
    lost = {"status": "FAILED", "reason": "exploded"} if value is None else {}
    result = search if value is None else {**search, "objective": objective}
    return replace(
        make(number, result=result, **({"batch": "b" * 32} | lost | fields)), flags=dict(point)
    )


def trials_of(make, function, seed=0, count=20, **fields):
    rng = random.Random(seed)
    return [
        trial(make, i, point, function(point, rng), **fields)
        for i, point in enumerate(points(count, seed), 1)
    ]


def test_what_matters_is_in_the_row(make):
    def with_failures(point, rng):
        return None if point["lr"] > 1e-2 else -math.log10(point["lr"])

    found = groups.summary(None, trials_of(make, with_failures))
    assert "; lr matters most: " in found
    assert "% [" in found.partition("lr matters most")[2]
    assert "cross-validated R² 0." in found
    noise = groups.summary(None, trials_of(make, lambda _, rng: rng.gauss(0, 1)))
    assert "matters" not in noise
    few = groups.summary(None, trials_of(make, peak, count=5))
    assert "5 trials are too few to tell which parameter matters" in few


def test_a_best_point_at_the_edge_is_said_to_be_there(make):
    space = {
        "lr": {"low": 1e-4, "high": 2e-2, "log": True},
        "clip": {"low": 0.2, "high": 0.6, "log": False},
        "depth": {"low": 2, "high": 4, "log": False},
        "size": {"choices": list(SIZES)},
    }
    best = {"lr": 1.95e-2, "clip": 0.205, "depth": 3, "size": SIZES[0]}
    ranked = [trial(make, i, best | {"clip": 0.205 + 0.1 * i}, -i) for i in range(4)]
    batch = make(
        99, run="b" * 32, result={"batch": True, "method": "gp", "space": space}, operation="x@gp"
    )
    told = "the best point has clip at the lower edge of 0.2 to 0.6 and lr at the upper edge of 1e-4 to 2e-2"
    assert told in groups.summary(batch, ranked)
    inside = trial(make, 9, {"lr": 1.4e-2, "clip": 0.4, "depth": 3, "size": SIZES[2]}, 1)
    assert search_summary.edges(inside, space) == ""
    assert "lower edge of 2 to 4" in search_summary.edges(trial(make, 9, {"depth": 2}, 1), space)


def test_a_search_is_compared_with_the_random_one_of_equal_budget(project, make):
    def batch(letter, operation, method, values, **flags):
        head = make(
            0, run=letter * 32, operation=operation, result={"batch": True, "method": method}
        )
        point = {"task": "pull", "seed": 1} | flags
        found = [
            trial(make, i, point | {"lr": i}, v, batch=head.run, run=f"{letter}{i:07x}" * 4)
            for i, v in enumerate(values, 1)
        ]
        return [head, *found]

    own = batch("a", "toy:opt@gp", "gp", [1.0, None, 3.0, 5.0, 9.0])
    chance = batch("c", "toy:opt@random", "random", [0.0, 2.5, 0.5, 2.0])
    other = batch("d", "toy:opt@random", "random", [99.0], task="lever")
    (project.experiments / "toy" / "catalog.md.j2").write_text('{{ table(["toy:opt@gp"]) }}')
    told = "of 4 trials each, best 5 against 2.5 by random search (cccccccc), which it had after 3 trials"
    assert told in render.Catalog(project, [*own, *chance, *other]).markdown()
    assert "random search" not in render.Catalog(project, [*own, *other]).markdown()
    beaten = search_summary.against_random(chance[1:], own[1:], "aaaaaaaa")
    assert beaten == "of 4 trials each, best 2.5 against 5 by random search (aaaaaaaa), not reached"


def test_the_bars_of_several_searches(project, make):
    template = '{{ importances("what_matters", ["toy:opt@gp", "toy:other"]) }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    head = make(0, run="b" * 32, operation="toy:opt@gp", result={"batch": True, "method": "gp"})
    records = [head, *trials_of(make, peak, count=12)]
    catalog = render.Catalog(project, records)
    assert "(experiments/toy/figures/what_matters.svg)" in catalog.markdown()
    (drawing,) = catalog.figures.values()
    svg = drawing.svg()
    assert svg == drawing.svg()
    assert {"lr", "clip", "size", "matters"} <= {
        line.partition(">")[2].partition("<")[0] for line in svg.splitlines() if "<text" in line
    }
    assert COLOURS[0].lower() in svg
    assert "importances" not in render.Catalog(project, []).markdown()


@pytest.mark.skipif(not EXPORTS.is_dir(), reason="the source's exports are not here")
def test_the_sources_own_searches():
    """Of 20 trials with errors and rewards of −9.8 million little is certain, and no more is said."""
    for path in sorted(EXPORTS.glob("*.csv")):
        records = compare_csv.records(path, compare_csv.Options("door"))
        found = search_summary.matters([r for r in records if r.batch])
        with path.open(newline="") as file:
            rows = sum(1 for _ in csv.DictReader(file))
        assert f"over {min(rows, 40)} trials" in found or "over 20 trials" in found
        assert "lr may matter" in found or "no parameter can be told apart" in found
