"""The best of several settings, and which cannot be told apart from it."""

import random

import pytest

from runcatalog.analysis.best import best, differ


def objectives(values, count=0, goal="max"):
    counted = {"kind": "rate", "count": count} if count else {"kind": "mean"}
    return [{"name": "x", "value": value, "goal": goal, **counted} for value in values]


def test_a_setting_is_best_only_where_the_interval_says_so():
    clear = [objectives([0.1, 0.12, 0.11]), objectives([0.9, 0.92, 0.91])]
    assert best(clear) == (1, [])
    wide = [*clear, objectives([0.2, 0.95, 0.93])]
    assert best(wide) == (1, [2])
    assert best([*clear, []]) == (1, [])
    assert best([[], []]) == (-1, [])


def test_less_is_better_where_the_goal_is_min():
    losses = [objectives(v, goal="min") for v in ([3.0, 3.1, 3.2], [1.0, 1.1, 1.2])]
    assert best(losses) == (1, [])


@pytest.mark.parametrize(("seeds", "apart"), [(1, False), (2, False), (3, True), (5, True)])
def test_fewer_than_three_seeds_tell_nothing(seeds, apart):
    assert differ(objectives([0.1] * seeds), objectives([0.9] * seeds)) is apart


def test_seeds_that_happen_to_agree_are_not_told_apart_by_few_trials():
    # 5 of 5 three times against 4 of 5 three times: a bootstrap of equal numbers has no width.
    assert not differ(objectives([1.0] * 3, count=5), objectives([0.8] * 3, count=5))
    assert differ(objectives([1.0] * 3, count=500), objectives([0.8] * 3, count=500))


def test_equal_settings_are_rarely_told_apart():
    generator = random.Random(1)
    wrong = 0
    for _ in range(200):
        rates = [
            [sum(generator.random() < 0.7 for _ in range(50)) / 50 for _ in range(5)] for _ in "ab"
        ]
        wrong += differ(*(objectives(r, count=50) for r in rates))
    assert wrong <= 20  # 5 % of 200, and a few for the bootstrap of five seeds
