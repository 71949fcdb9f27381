"""The formulas of continual learning, against the sums of the papers and cases with a known answer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from door.continual import formulas

RATES = st.integers(0, 100).map(lambda percent: percent / 100)


@st.composite
def matrices(draw, least=2):
    count = draw(st.integers(least, 6))
    return draw(arrays.arrays(np.float64, (count, count), elements=RATES))


@given(matrices())
def test_formulas_equal_the_sums_of_the_papers(success):
    """Written out as in the source, tasks counted from 1 to N."""
    n = len(success)
    learned = transferred = kept = lost = 0.0
    for i in range(1, n + 1):
        for j in range(1, n + 1):
            rate = success[i - 1, j - 1]
            if j <= i:
                learned += rate
            if j > i:
                transferred += rate
            if i > j:
                kept += rate - success[j - 1, j - 1]
    for j in range(1, n + 1):
        lost += success[j - 1, j - 1] - success[n - 1, j - 1]
    pairs = n * (n - 1) / 2
    assert formulas.accuracy(success) == pytest.approx(learned / (n * (n + 1) / 2))
    assert formulas.forward_transfer(success) == pytest.approx(transferred / pairs)
    assert formulas.backward_transfer(success) == pytest.approx(kept / pairs)
    assert formulas.positive_backward_transfer(success) == pytest.approx(max(0.0, kept / pairs))
    assert formulas.remembering(success) == pytest.approx(1 - abs(min(0.0, kept / pairs)))
    assert formulas.forgetting(success).mean() == pytest.approx(lost / n)
    assert formulas.forgetting(success)[-1] == 0


def test_known_agents():
    count = 5
    perfect = np.tril(np.ones((count, count)))  # learns all, forgets nothing, transfers nothing
    assert formulas.accuracy(perfect) == 1
    assert formulas.forward_transfer(perfect) == 0
    assert formulas.remembering(perfect) == 1
    assert formulas.forgetting(perfect).tolist() == [0] * count
    goldfish = np.eye(count)  # can do only what it learned last
    assert formulas.accuracy(goldfish) == pytest.approx(2 / (count + 1))
    assert formulas.backward_transfer(goldfish) == -1
    assert formulas.remembering(goldfish) == 0
    assert formulas.positive_backward_transfer(goldfish) == 0
    assert formulas.forgetting(goldfish).tolist() == [1, 1, 1, 1, 0]
    late = np.tril(np.full((count, count), 0.8), -1) + 0.5 * np.eye(count)
    assert formulas.positive_backward_transfer(late) == pytest.approx(0.3)
    assert formulas.remembering(late) == 1


def test_average_performance_counts_tasks_that_are_not_yet_learned():
    assert formulas.average_performance([[1, 0, 0], [1, 0.5, 0]]).tolist() == [1 / 3, 0.5]


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12).flatmap(
        lambda gaps: st.tuples(
            st.just(np.cumsum([0, *gaps])),
            st.lists(RATES, min_size=len(gaps) + 1, max_size=len(gaps) + 1),
            st.integers(1, sum(gaps)),
        )
    )
)
def test_the_area_equals_a_fine_sum(drawn):
    times, success, end = drawn
    fine = np.linspace(0, end, 20_001)
    middle = (fine[1:] + fine[:-1]) / 2
    assert formulas.area(times, success, end) == pytest.approx(
        np.interp(middle, times, success).mean(), abs=1e-3
    )


def test_areas_of_known_curves():
    assert formulas.area([0, 10], [0, 1], 10) == 0.5
    assert formulas.area([0, 10], [0, 1], 5) == 0.25  # of the first half alone
    assert formulas.area([0, 2, 10], [1, 1, 1], 7) == 1
    for times, success, end in (
        ([1, 2], [0, 0], 2), ([0, 2], [0, 0], 3), ([0, 2], [0, 0], 0), ([0, 2, 2], [0, 0, 0], 2),
        ([0, 2], [0, 0, 0], 2), ([], [], 1),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"curve|times"):
            formulas.area(times, success, end)


def test_transfer_of_known_curves():
    slow = ([0, 10, 20], [0, 0, 1])
    assert formulas.curve_transfer(*slow, *slow) == 0
    # At once: all of the area that the fresh network leaves.
    assert formulas.curve_transfer([0, 20], [1, 1], *slow) == 1
    # The longer curve counts to the end of the shorter: up to 10 nothing is learned there.
    assert formulas.curve_transfer([0, 10], [0, 1], *slow) == pytest.approx(0.5)
    assert formulas.curve_transfer(*slow, [0, 10], [0, 1]) == pytest.approx((0 - 0.5) / 0.5)
    assert np.isnan(formulas.curve_transfer(*slow, [0, 5], [1, 1]))


@given(st.lists(RATES, min_size=2, max_size=9), st.lists(RATES, min_size=2, max_size=9))
def test_transfer_has_the_sign_of_the_difference(own, fresh):
    end = min(len(own), len(fresh)) - 1
    areas = [formulas.area(range(len(curve)), curve, end) for curve in (own, fresh)]
    transfer = formulas.curve_transfer(range(len(own)), own, range(len(fresh)), fresh)
    if areas[1] == 1:
        assert np.isnan(transfer)
    else:
        assert transfer <= 1 + 1e-9
        assert np.sign(transfer) == np.sign(areas[0] - areas[1])


@pytest.mark.parametrize("success", [np.zeros((2, 3)), np.zeros(4), np.zeros((1, 1))])
def test_a_matrix_of_another_shape_is_an_error(success):
    with pytest.raises(ValueError, match="not a square of 2 tasks"):
        formulas.forward_transfer(success)
