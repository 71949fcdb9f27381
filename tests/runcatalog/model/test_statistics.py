"""Intervals and clusters against scipy."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist
from scipy.stats import binomtest

from runcatalog.model import statistics
from runcatalog.record.evaluation import level_outcomes, outcomes_of


def of_seeds(success, levels=None):
    """Return the objectives of runs with these successes, bool [seeds, levels, games]."""
    levels = range(success.shape[1]) if levels is None else levels
    objectives = []
    for each in success:
        outcomes = outcomes_of({"outcomes": [level_outcomes(levels, {"success": each})]})
        objective = {"name": "success", "kind": "rate", "value": float(each.mean())}
        objectives.append(objective | {"count": each.size, "outcomes": outcomes})
    return objectives


def without_outcomes(objectives):
    return [{k: v for k, v in each.items() if k != "outcomes"} for each in objectives]


def inside(interval, value):
    return interval[0] <= value <= interval[1]


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_scipys(counted):
    successes, count = counted
    theirs = binomtest(successes, count).proportion_ci(0.95, method="wilson")
    assert statistics.wilson(successes, count) == pytest.approx(
        (theirs.low, theirs.high), abs=1e-12
    )


def test_a_run_that_plays_every_level_once_has_wilsons_interval():
    success = np.random.default_rng(0).random((1, 80, 1)) < 0.7
    expected = statistics.wilson(int(success.sum()), 80)
    assert statistics.bounds(of_seeds(success)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("seeds", "games"), [(5, 1), (1, 8), (3, 4)])
def test_the_interval_covers_the_rate_over_all_levels(seeds, games):
    """Levels are solved always or never by 7 in 10 of seeds alike: 60 levels are worth hardly more than 60 games."""
    draw, covered, pooled = np.random.default_rng(seeds), 0, 0
    for _ in range(300):
        chance = np.where(draw.random(60) < 0.3, 0.5, (draw.random(60) < 0.6).astype(float))
        objectives = of_seeds(draw.random((seeds, 60, games)) < chance[:, None])
        covered += inside(statistics.bounds(objectives), 0.57)
        pooled += inside(statistics.bounds(without_outcomes(objectives)), 0.57)
    assert covered >= 0.92 * 300
    assert pooled < 0.85 * 300


def test_the_interval_has_the_width_of_the_bootstrap_over_levels_and_seeds():
    draw = np.random.default_rng(1)
    chance = 1 / (1 + np.exp(draw.normal(0, 0.5, (8, 1)) - draw.normal(0, 2, 400)))
    objectives = of_seeds((draw.random((8, 400)) < chance)[..., None])
    rates = np.stack([each["outcomes"]["success"].success[:, 0] for each in objectives])
    low, high = statistics.bootstrap_over_levels(np.zeros((8, 400)), rates, same_seeds=True)
    ours = statistics.bounds(objectives)
    assert ours[1] - ours[0] == pytest.approx(high - low, rel=0.12)
    assert ours == pytest.approx((low, high), abs=0.01)


def test_levels_are_pooled_where_the_outcomes_say_nothing_of_the_mean():
    success = np.repeat(np.random.default_rng(2).random((1, 50, 1)) < 0.5, 3, axis=0)
    alike = of_seeds(success)
    assert statistics.trials(alike) == pytest.approx(50)
    others = [*alike[:2], of_seeds(success[2:], range(50, 100))[0]]
    assert statistics.trials(others) == 150
    solved = of_seeds(np.ones((3, 50, 1), bool))
    assert statistics.trials(solved) == 150
    changed = [each | {"value": 0.9} for each in alike]  # another number of the same name
    assert statistics.trials(changed) == 150


@pytest.mark.parametrize("counted", [(-1, 5), (6, 5), (0, 0)])
def test_wilson_refuses_numbers_that_are_no_counts(counted):
    with pytest.raises(ValueError, match="successes"):
        statistics.wilson(*counted)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8), st.randoms())
def test_bootstrap_covers_the_mean_and_does_not_depend_on_the_order(values, random):
    low, high = statistics.bootstrap(values)
    tolerance = 1e-9 * max(1, *map(abs, values))
    assert min(values) - tolerance <= low <= high <= max(values) + tolerance
    assert low - tolerance <= statistics.mean(values) <= high + tolerance or len(set(values)) > 1
    random.shuffle(values)
    assert statistics.bootstrap(values) == (low, high)


@settings(max_examples=20)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.integers(0, 5))
def test_bootstrap_is_its_definition(values, seed):
    ordered, generator = sorted(values), random.Random(seed)
    draws = [generator.choices(ordered, k=len(ordered)) for _ in range(2000)]
    means = sorted(math.fsum(draw) / len(draw) for draw in draws)
    assert statistics.bootstrap(values, seed) == pytest.approx((means[50], means[1949]), abs=1e-9)


def test_bootstrap_draws_the_same_in_blocks(monkeypatch):
    generator = random.Random(0)
    one, other = ([generator.gauss(0, 1) for _ in range(50)] for _ in range(2))
    whole = statistics.bootstrap(one), statistics.bootstrap_difference(one, other)
    monkeypatch.setattr(statistics, "_BLOCK", 333)
    assert (statistics.bootstrap(one), statistics.bootstrap_difference(one, other)) == whole


def test_bootstrap_of_a_difference_is_its_definition():
    one, other, generator = [1.0, 2.0, 4.0], [3.0, 5.0], random.Random(0)

    def means(values):
        return [
            math.fsum(generator.choices(values, k=len(values))) / len(values) for _ in range(2000)
        ]

    less = means(one)
    differences = sorted(more - mean for mean, more in zip(less, means(other), strict=True))
    expected = differences[50], differences[1949]
    assert statistics.bootstrap_difference(one, other) == pytest.approx(expected)


def test_bootstrap_of_many_values_is_the_normal_interval():
    values = [i / 99 for i in range(100)]
    low, high = statistics.bootstrap(values)
    half = 1.96 * 0.2916 / 10
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half), abs=0.01)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=14, unique=True),
    st.floats(0.05, 0.8),
)
def test_single_linkage_is_scipys(points, distance):
    theirs = fcluster(linkage(pdist(points), "single"), distance, "distance")
    ours = statistics.single_linkage(points, distance)
    as_sets = {frozenset(i for i, c in enumerate(theirs) if c == label) for label in set(theirs)}
    assert {frozenset(group) for group in ours} == as_sets
    assert ours == sorted(ours, key=lambda group: (-len(group), group[0]))


def test_normalised_by_range_logarithm_and_value():
    rows = statistics.normalised(
        [[1e-4, 1e-2, 1e-3], [0, 5, 10], ["64 64", "64 64", "128"], [7, 7, 7]]
    )
    assert [row[0] for row in rows] == pytest.approx([0, 1, 0.5])
    assert [row[1] for row in rows] == pytest.approx([0, 0.5, 1])
    assert rows[0][2:4] == rows[1][2:4]
    apart = sum((a - b) ** 2 for a, b in zip(rows[0][2:4], rows[2][2:4], strict=True))
    assert apart == pytest.approx(1)
    assert [row[-1] for row in rows] == [0, 0, 0]
