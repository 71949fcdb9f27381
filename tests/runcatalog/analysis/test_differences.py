"""The best of several settings, and which are indistinguishable from it."""

import random

import numpy as np
import pytest

from runcatalog.analysis.differences import best, differ, interval_of_difference
from runcatalog.record.evaluation import level_outcomes, outcomes_of


def objectives(values, count=0, goal="max"):
    counted = {"kind": "rate", "count": count} if count else {"kind": "mean"}
    return [{"name": "x", "value": value, "goal": goal, **counted} for value in values]


def test_a_setting_is_best_only_where_intervals_separate_it():
    clear = [objectives([0.1, 0.12, 0.11]), objectives([0.9, 0.92, 0.91])]
    assert best(clear) == (1, [])
    wide = [*clear, objectives([0.2, 0.95, 0.93])]
    assert best(wide) == (1, [2])
    assert best([*clear, []]) == (1, [])
    assert best([[], []]) == (-1, [])


def test_less_is_better_where_the_goal_is_min():
    losses = [objectives(v, goal="min") for v in ([3.0, 3.1, 3.2], [1.0, 1.1, 1.2])]
    assert best(losses) == (1, [])


@pytest.mark.parametrize(("seeds", "differs"), [(1, False), (2, False), (3, True), (5, True)])
def test_fewer_than_three_seeds_show_no_difference(seeds, differs):
    assert differ(objectives([0.1] * seeds), objectives([0.9] * seeds)) is differs


def test_equal_seeds_with_few_trials_do_not_show_a_difference():
    # 5 of 5 three times against 4 of 5 three times: the interval of equal numbers has no width.
    assert not differ(objectives([1.0] * 3, count=5), objectives([0.8] * 3, count=5))
    assert differ(objectives([1.0] * 3, count=500), objectives([0.8] * 3, count=500))


def test_equal_settings_rarely_differ():
    generator = random.Random(1)
    wrong = 0
    for _ in range(200):
        rates = [
            [sum(generator.random() < 0.7 for _ in range(50)) / 50 for _ in range(5)] for _ in "ab"
        ]
        wrong += differ(*(objectives(r, count=50) for r in rates))
    assert wrong <= 14  # 5 % of 200, and a few by chance


def test_the_lowest_and_the_highest_of_equal_settings_rarely_differ():
    """Of 13 settings they did in every other case."""
    generator = random.Random(3)
    wrong = {1: 0, 78: 0}
    for _ in range(100):
        settings = [objectives([generator.gauss(0, 1) for _ in range(5)]) for _ in range(13)]
        settings.sort(key=lambda setting: sum(o["value"] for o in setting))
        for pairs in wrong:
            wrong[pairs] += differ(settings[0], settings[-1], pairs=pairs)
    assert wrong[78] <= 7  # 5 % of 100, and a few by chance
    assert wrong[1] > 30


def test_the_interval_of_a_difference_covers_the_true_one():
    generator = random.Random(2)
    inside = 0
    for _ in range(200):
        first, second = (
            objectives([generator.gauss(mean, 1) for _ in range(20)]) for mean in (1.0, 1.5)
        )
        low, high = interval_of_difference(first, second)
        assert interval_of_difference(second, first) == pytest.approx((-high, -low))
        inside += low <= 0.5 <= high
    assert inside >= 184  # 95 % of 200, less a few by chance


def test_the_interval_of_a_difference_is_at_least_as_wide_as_that_of_the_counts():
    first, second = objectives([0.8] * 3, count=5), objectives([1.0] * 3, count=5)
    low, high = interval_of_difference(first, second)
    # Newcombe 1998, method 10, for 12 and 15 of 15: Wilson intervals [0.548, 0.930] and [0.796, 1].
    assert (low, high) == pytest.approx((0.2 - 0.2416, 0.2 + 0.2519), abs=2e-3)
    assert interval_of_difference(first[:2], second) is None


def test_the_interval_of_a_difference_of_rates_is_within_its_range():
    first, second = [0.9, 0.1, 0.6], [0.1, 1.0, 0.9]
    low, high = interval_of_difference(objectives(first), objectives(second))
    assert high > 1  # numbers of any range
    assert interval_of_difference(objectives(first, 5), objectives(second, 5)) == (low, 1)


def test_games_on_few_levels_count_as_few():
    """20 games on a level that is always or never solved are worth one."""

    def solved(levels):
        success = np.tile(np.arange(50)[:, None] < levels, (1, 20))
        outcomes = outcomes_of({"outcomes": [level_outcomes(range(50), {"x": success})]})
        rates = objectives([levels / 50] * 3, count=success.size)
        return [rate | {"outcomes": outcomes} for rate in rates]

    low, high = interval_of_difference(solved(25), solved(30))
    # Newcombe 1998, method 10, for 25 and 30 of 50.
    assert (low, high) == pytest.approx((-0.092, 0.282), abs=2e-3)
    assert best([solved(25), solved(30)]) == (1, [0])


def test_with_equal_seeds_the_interval_is_that_of_their_differences():
    first = objectives([0.0, 10.0, 20.0, 30.0])
    second = objectives([1.0, 11.0, 22.0, 31.0])
    assert interval_of_difference(first, second, paired=True) == pytest.approx(
        (1.25 - 3.1824 * 0.25, 1.25 + 3.1824 * 0.25), rel=1e-4
    )
    assert not differ(first, second)
