"""Early stopping, due actions and the density of logs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcatalog import record

RATES = st.lists(st.integers(0, 100).map(lambda n: n / 100), max_size=12)


@given(RATES, st.integers(1, 100), st.integers(1, 5))
def test_the_mean_of_the_last_validations_decides(values: list[float], percent: int, window: int):
    target = percent / 100
    last = [round(100 * value) for value in values[-window:]]  # in whole numbers, without rounding
    expected = len(last) == window and sum(last) >= window * percent
    assert record.reached_target(values, target, window) == expected


def test_a_target_of_zero_never_stops():
    assert not record.reached_target([1.0, 1.0, 1.0], 0.0)


@given(st.integers(1, 60), st.integers(0, 70), st.integers(1, 60))
def test_an_action_is_due_at_every_multiple_and_at_the_end(update: int, interval: int, total: int):
    multiples = set(range(interval, 1000, interval)) if interval else set()
    expected = update in multiples or (interval > 0 and update == total)
    assert record.is_due(update, interval, total) == expected


@given(st.integers(1, 100_000), st.integers(1, 500))
def test_a_curve_has_about_the_requested_number_of_points(updates: int, points: int):
    logged = math.ceil(updates / record.log_interval(updates, points))
    assert min(updates, points) <= logged <= 2 * points


def test_assignments_are_name_value_pairs():
    assert record.assignments("train-flags", " lr=1e-3  prompt=a=b ") == {
        "lr": "1e-3",
        "prompt": "a=b",
    }
    for text, problem in (("lr", "'lr'"), ("=3", "'=3'"), ("lr=", "'lr='"), ("a=1 a=2", "a is")):
        with pytest.raises(record.UserError, match=f"--train-flags: {problem}"):
            record.assignments("train-flags", text)


def test_a_metric_that_some_updates_lack_is_averaged_over_the_others():
    updates = [{"loss": 1.0}, {"loss": 2.0, "kl": 0.5}, {"loss": 6.0, "kl": 1.5}]
    assert record.mean_metrics(updates) == {"loss": 3.0, "kl": 1.0}
