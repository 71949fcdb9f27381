"""Whether an interval falls short of a reported number, and of its rounding."""

import pytest

from runcatalog.analysis.replication import falls_short, reported_numbers
from runcatalog.model.project import Reported


@pytest.mark.parametrize(
    ("bounds", "reported", "share", "short"),
    [
        ((0.1, 0.2), [0.9], True, True),
        ((0.1, 0.9), [0.9], True, False),
        ((0.95, 0.99), [0.9], True, False),
        (None, [0.9], True, False),
        # 90 % may have been 89.5 %, 89.75 % was at least 89.745 %.
        ((0.8, 0.896), [0.9], True, False),
        ((0.8, 0.894), [0.9], True, True),
        ((0.8, 0.896), [0.8975], True, True),
        # 8000 steps may have been 7999.5, 0.9 of a return 0.85.
        ((10, 7999.6), [8000], False, False),
        ((10, 7999.4), [8000], False, True),
        ((0.8, 0.86), [0.9], False, False),
        ((0.8, 0.84), [0.9], False, True),
        # A log-likelihood of -2e-10 may have been -2.5e-10: its decimals are not lost below 1e-9.
        ((-4e-10, -2.4e-10), [-2e-10], False, False),
        ((-4e-10, -3e-10), [-2e-10], False, True),
        ((0.1, 0.2), [float("inf")], False, True),
        # The mean 0.966… of three shares in whole per cent is known to half a per cent too.
        ((0.8, 0.963), [1.0, 1.0, 0.9], True, False),
        ((0.8, 0.960), [1.0, 1.0, 0.9], True, True),
    ],
)
def test_where_more_is_better_and_where_less(bounds, reported, share, short):
    assert falls_short(bounds, reported, share=share, maximize=True) is short
    mirrored = bounds and (-bounds[1], -bounds[0])
    negative = [-number for number in reported]
    assert falls_short(mirrored, negative, share=share, maximize=False) is short


@pytest.mark.parametrize(
    ("stated", "numbers"),
    [(0.9, [0.9]), ([0.8, 1], [0.8, 1.0]), ("64 64", []), ([0.8, "none"], []), (None, [])],
)
def test_numbers_of_a_source(stated, numbers):
    report = Reported("", "", {"success": stated, "other": 3})
    assert reported_numbers(report, {"name": "success"}) == numbers
    assert reported_numbers(None, {"name": "success"}) == []
