"""Plateau and statistics against loops, closed forms and scipy."""

import numpy as np
import pytest
from scipy import stats

from cartpole.policy_gradient import seed_statistics as statistics
from cartpole.policy_gradient.convergence import (
    NO_PLATEAU,
    moving_mean,
    plateau_episode,
    search_cost,
)


def plateau_by_loop(lengths):
    means = [np.mean(lengths[max(0, k - 100) : k]) for k in range(1, len(lengths) + 1)]
    for k in range(100, len(lengths) - 500 + 1):
        if means[k - 1] >= 475 and all(mean >= 450 for mean in means[k - 1 : k + 500]):
            return k
    return NO_PLATEAU


def curves():
    rng = np.random.default_rng(0)
    step = np.where(np.arange(1500) < 400, 20, 500)
    relapse = step.copy()
    relapse[600:700] = 100
    late = np.where(np.arange(1500) < 990, 20, 500)
    noisy = np.clip(480 + 60 * rng.normal(size=(6, 1500)), 10, 500).astype(int)
    ramp = np.linspace(10, 500, 1500).astype(int)
    return np.vstack([step, relapse, late, noisy, ramp, np.full(1500, 500)])


def test_the_plateau_is_that_of_the_definition():
    episodes = plateau_episode(curves())
    assert episodes.tolist() == [plateau_by_loop(curve) for curve in curves()]
    assert episodes[0] == 400 + 95  # 95 of the last 100 at 500, 5 at 20: 476
    assert episodes[1] > 700  # the relapse ends the first plateau
    assert episodes[2] == NO_PLATEAU  # too late to be confirmed
    assert episodes[-1] == 100
    assert plateau_episode(np.full((2, 599), 500)).tolist() == [NO_PLATEAU] * 2


def test_the_mean_of_the_last_hundred():
    lengths = curves()
    mean = moving_mean(lengths)
    for k in (0, 49, 99, 100, 777, 1499):
        np.testing.assert_allclose(mean[:, k], lengths[:, max(0, k - 99) : k + 1].mean(1))


def test_the_search_cost_without_plateau_is_finite_and_orders_runs():
    bad, better = np.full(700, 20), np.full(700, 300)
    good = np.where(np.arange(700) < 100, 20, 500)
    costs = [float(search_cost(lengths)) for lengths in (good, better, bad)]
    assert costs == [195, 700 * 1.4, pytest.approx(700 * 1.96)]


def test_median_and_interquartile_mean():
    rng = np.random.default_rng(1)
    for count in (1, 2, 7, 20):
        values = rng.normal(size=(3, count))
        np.testing.assert_allclose(statistics.median(values), np.median(values, -1))
        expected = [stats.trim_mean(sample, 0.25) for sample in values]
        np.testing.assert_allclose(statistics.iqm(values), expected)
    assert statistics.median(np.array([1, 2, np.inf, np.inf])) == np.inf
    assert statistics.median(np.array([1, np.inf, np.inf, np.inf])) == np.inf
    assert statistics.median(np.array([1.0, 2, 4, np.inf])) == 3


def test_intervals_cover_and_do_not_depend_on_the_order_of_seeds():
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(40):
        values = rng.exponential(size=20)
        low, high = statistics.bootstrap_interval(values)
        assert (low, high) == statistics.bootstrap_interval(values[::-1])
        covered += low <= np.log(2) <= high
    assert covered >= 34  # 38 expected
    assert statistics.bootstrap_interval([3.0, np.inf, np.inf])[1] == np.inf
    assert statistics.bootstrap_interval([np.inf] * 3) == (np.inf, np.inf)


def test_a_paired_difference_is_that_of_scipys_paired_bootstrap():
    rng = np.random.default_rng(3)
    first = rng.normal(size=15)
    second = first + rng.normal(0.5, 0.3, size=15)
    value, (low, high) = statistics.paired_difference(first, second)
    assert value == np.median(second) - np.median(first)
    reference = stats.bootstrap(
        (first, second),
        lambda a, b, axis: np.median(b, axis) - np.median(a, axis),
        paired=True, vectorized=True, method="percentile", n_resamples=20_000, rng=rng,
    )  # fmt: skip
    assert (low, high) == pytest.approx(tuple(reference.confidence_interval), abs=0.06)
    shuffled = rng.permutation(15)
    again = statistics.paired_difference(first[shuffled], second[shuffled])[1]
    assert again == pytest.approx((low, high), abs=0.06)


def test_the_performance_profile_is_the_share_of_runs_above_a_threshold():
    shares, band = statistics.performance_profile(
        [100, 300, 500, 500], np.array([0, 100, 499, 500])
    )
    assert shares.tolist() == [1, 0.75, 0.5, 0]
    assert (band[0] <= shares).all()
    assert (shares <= band[1]).all()


def test_an_order_is_certain_for_separate_groups_and_open_for_equal_ones():
    apart = {"c": [31.0, 32, 33], "a": [1.0, 2, 3], "b": [11.0, 12, 13], "never": [np.inf] * 3}
    assert statistics.most_frequent_order(apart) == (["a", "b", "c", "never"], 1.0)
    rng = np.random.default_rng(4)
    same = rng.normal(size=20)
    _, share = statistics.most_frequent_order({"a": same, "b": same})
    assert share == pytest.approx(0.5, abs=0.1)
