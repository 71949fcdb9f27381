"""Intervals and clusters against scipy."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

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
    theirs = scipy.stats.binomtest(successes, count).proportion_ci(0.95, method="wilson")
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


def test_the_interval_has_the_width_of_that_over_levels_and_seeds():
    draw = np.random.default_rng(1)
    chance = 1 / (1 + np.exp(draw.normal(0, 0.5, (8, 1)) - draw.normal(0, 2, 400)))
    objectives = of_seeds((draw.random((8, 400)) < chance)[..., None])
    rates = np.stack([each["outcomes"]["success"].success[:, 0] for each in objectives])
    low, high = statistics.interval_over_levels(np.zeros((8, 400)), rates, same_seeds=True)
    ours = statistics.bounds(objectives)
    assert ours[1] - ours[0] == pytest.approx(high - low, rel=0.12)
    assert ours == pytest.approx((low, high), abs=0.01)


def test_levels_are_pooled_where_the_outcomes_say_nothing_of_the_mean():
    success = np.repeat(np.random.default_rng(2).random((1, 50, 1)) < 0.5, 3, axis=0)
    alike = of_seeds(success)
    assert statistics.independent_games(alike) == pytest.approx(50)
    others = [*alike[:2], of_seeds(success[2:], range(50, 100))[0]]
    assert statistics.independent_games(others) == 150
    changed = [each | {"value": 0.9} for each in alike]  # another number of the same name
    assert statistics.independent_games(changed) == 150


@pytest.mark.parametrize("solved", [True, False])
def test_seeds_that_solve_all_levels_or_none_are_worth_the_levels(solved):
    """As those that agree on all levels but one are; each game of its own gave intervals that miss true rates."""
    games = of_seeds(np.full((3, 50, 4), solved))
    assert statistics.independent_games(games) == 50
    assert statistics.bounds(games) == pytest.approx(statistics.wilson(50 * solved, 50))
    draw, covered = np.random.default_rng(0), 0
    for levels in draw.random((400, 1, 50, 1)) < (0.97 if solved else 0.03):
        low, high = statistics.bounds(of_seeds(np.repeat(levels, 5, axis=0)))
        covered += low <= (0.97 if solved else 0.03) <= high
    assert covered >= 0.9 * 400


@pytest.mark.parametrize("counted", [(-1, 5), (6, 5), (0, 0)])
def test_wilson_refuses_numbers_that_are_no_counts(counted):
    with pytest.raises(ValueError, match="successes"):
        statistics.wilson(*counted)


# In hundredths: of values that differ in their last bits alone, scipy's variance is inexact.
VALUES = st.lists(st.integers(-(10**6), 10**6).map(lambda n: n / 100), min_size=2, max_size=12)


@given(VALUES, st.randoms())
def test_the_interval_of_a_mean_is_scipys_for_every_order(values, random):
    low, high = statistics.interval(values)
    if len(set(values)) == 1:
        assert low == high == statistics.mean(values)
    else:
        theirs = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
        assert (low, high) == pytest.approx(theirs, rel=1e-6, abs=1e-9)
    random.shuffle(values)
    assert statistics.interval(values) == (low, high)


def test_quantiles_are_scipys():
    freedoms = [*range(1, 200), 1000, 9999]
    ours = [statistics.t_quantile(freedom) for freedom in freedoms]
    assert ours == pytest.approx(scipy.stats.t.ppf(0.975, freedoms), rel=1e-9)
    assert statistics.t_quantile(10**9) == pytest.approx(1.959964, rel=2e-4)
    for pairs in (3, 78, 2000):
        ours = [statistics.t_quantile(freedom, 1 - 0.05 / pairs) for freedom in freedoms]
        assert ours == pytest.approx(scipy.stats.t.ppf(1 - 0.025 / pairs, freedoms), rel=1e-8)


@pytest.mark.filterwarnings("ignore:Precision loss")  # where a side's values are equal
@given(VALUES, VALUES)
def test_the_interval_of_a_difference_is_welchs(first, second):
    low, high = statistics.interval_of_difference(first, second)
    assert statistics.interval_of_difference(second, first) == pytest.approx((-high, -low))
    if len(set(first)) == len(set(second)) == 1:
        assert low == high
        return
    result = scipy.stats.ttest_ind(second, first, equal_var=False)
    theirs = result.confidence_interval(0.95)
    wider = (high - low) / (theirs.high - theirs.low)
    # Between whole degrees of freedom the quantile is interpolated, above the true one.
    assert 1 - 1e-6 <= wider <= (1.2 if result.df < 2 else 1.03)
    assert (low + high) / 2 == pytest.approx((theirs.low + theirs.high) / 2, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("scale", [1e-120, 1e100])
def test_intervals_scale_with_values_whose_squares_are_no_numbers(scale):
    first, second = [1.0, 2.0, 5.0], [3.0, 3.5, 9.0]
    large = [[scale * value for value in values] for values in (first, second)]
    expected = np.multiply(scale, statistics.interval(first))
    assert statistics.interval(large[0]) == pytest.approx(expected, rel=1e-12)
    expected = np.multiply(scale, statistics.interval_of_difference(first, second))
    assert statistics.interval_of_difference(*large) == pytest.approx(expected, rel=1e-12)


def test_values_that_have_exploded_have_a_mean_and_an_interval():
    assert statistics.interval([1e200, 2e200, 5e200]) == (-np.inf, np.inf)
    assert statistics.mean([1.5e308, 1.5e308]) == np.inf
    assert np.isnan(statistics.mean([np.inf, -np.inf]))


def test_a_rates_interval_over_seeds_is_within_0_and_1():
    rates = [{"name": "success", "value": v, "kind": "rate"} for v in (0.98, 1.0, 0.7)]
    low, high = statistics.bounds(rates)
    assert (low, high) == (statistics.interval([0.98, 1.0, 0.7])[0], 1.0)
    returns = [{"name": "return", "value": v} for v in (0.98, 1.0, 0.7)]
    assert statistics.bounds(returns)[1] > 1


@pytest.mark.parametrize("seeds", [2, 3, 10])
@pytest.mark.parametrize("spread", [(0.05, 0.3, 0.3), (0.2, 0.05, 0.05), (0.0, 0.3, 0.1)])
@pytest.mark.parametrize("same_seeds", [True, False])
def test_intervals_over_levels_and_seeds_cover_the_true_difference(seeds, spread, same_seeds):
    draw, of_seeds, repetitions = np.random.default_rng(0), spread[0], 300
    covered = 0
    for _ in range(repetitions):
        level = draw.normal(0, spread[1], (1, 40))
        sides = [
            draw.normal(0, of_seeds, (seeds, 1)) + draw.normal(0, spread[2], (seeds, 40))
            for _ in "ab"
        ]
        low, high = statistics.interval_over_levels(
            sides[0], sides[1] + level, same_seeds=same_seeds
        )
        covered += low <= 0 <= high
    assert covered >= 0.9 * repetitions


def test_single_seeds_are_compared_over_levels_alone():
    first, second = np.random.default_rng(0).random((2, 1, 50))
    ours = statistics.interval_over_levels(first, second, same_seeds=False)
    assert ours == pytest.approx(statistics.interval((second - first)[0].tolist()))
    assert ours == statistics.interval_over_levels(first, second, same_seeds=True)


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
