"""Signs of collapse are reported where they are, and not where a game is merely solved."""

import numpy as np
import pytest

from textgames.learning.collapse import WINDOW, CollapseDetector, most_common_share

WELL = {
    "games": 100.0, "success": 0.3,
    "group_spread": 0.8, "entropy": 0.5, "grad_norm": 1.0, "commonest": 0.4,
}  # fmt: skip


def course(detector, count, start=0, **changed):
    rng, signs = np.random.default_rng(start), []
    for update in range(start, start + count):
        noisy = {name: value * rng.uniform(0.99, 1.01) for name, value in (WELL | changed).items()}
        signs += detector.check(update + 1, noisy)
    return signs


@pytest.mark.parametrize(
    ("sign", "changed"),
    [
        ("entropy", {"entropy": 0.02}), ("entropy", {"entropy": 9.0}), ("spread", {"group_spread": 0.01}),
        ("phrase", {"commonest": 1.1}), ("gradient", {"grad_norm": 40.0}),
    ],
)  # fmt: skip
def test_every_sign_is_reported_once_with_its_update(sign, changed):
    detector = CollapseDetector()
    assert course(detector, 20) == []
    assert course(detector, 20, 20, **changed) == [sign]
    assert 20 < detector.signs[sign] <= 20 + WINDOW


def test_a_game_that_is_solved_may_have_one_reply_and_no_spread():
    detector = CollapseDetector()
    course(detector, 10)
    course(detector, 10, 10, success=0.6)
    assert (
        course(detector, 20, 20, success=0.9, entropy=0.01, group_spread=0.0, commonest=1.1) == []
    )
    assert set(course(detector, 20, 40, entropy=0.01, group_spread=0.0, commonest=1.1)) == {
        "entropy", "spread", "phrase",
    }  # fmt: skip


def test_games_that_are_played_once_have_no_spread_to_lose():
    detector = CollapseDetector()
    assert course(detector, 40, group_spread=0.0) == []


def test_a_restored_detector_continues_where_it_stopped():
    one, other = CollapseDetector(), CollapseDetector()
    course(one, 12)
    other.restore(one.state())
    metrics = {"entropy": 0.02, "grad_norm": 30.0}
    assert (
        course(one, 10, 12, **metrics)
        == course(other, 10, 12, **metrics)
        == ["gradient", "entropy"]
    )
    assert one.state() == other.state()


def test_the_commonest_reply():
    assert most_common_share(["a", "b", "a", "c"]) == 0.5


def test_a_small_rise_counts_if_there_are_many_games():
    for games, expected in ((100.0, ["phrase"]), (10_000.0, [])):
        detector = CollapseDetector()
        course(detector, 10, games=games)
        assert course(detector, 20, 10, games=games, success=0.34, commonest=1.1) == expected


def test_updates_without_a_gradient_do_not_make_the_first_ones_a_spike():
    detector = CollapseDetector()
    assert course(detector, 3 * WINDOW, grad_norm=0.0) == []  # a critic warms up
    assert course(detector, 3 * WINDOW, 3 * WINDOW) == []
    assert course(detector, 1, 6 * WINDOW, grad_norm=40.0) == ["gradient"]


def test_a_collapse_is_the_update_at_which_the_success_rate_has_halved_and_its_sign_leads():
    detector = CollapseDetector()
    course(detector, 10)
    course(detector, 20, 10, success=0.6)
    course(detector, 20, 30, success=0.4, entropy=0.02)  # two thirds of the best
    assert detector.collapsed == 0
    assert detector.lead is None
    course(detector, 20, 50, success=0.1, entropy=0.02)
    # Means of five: .34, then .28 of .6, at the second update with .1.
    assert detector.collapsed == 52
    assert detector.lead == 52 - detector.signs["entropy"] > 0


def test_a_collapse_without_a_sign_has_no_lead():
    detector = CollapseDetector()
    course(detector, 10)
    course(detector, 10, 10, success=0.05)
    assert detector.collapsed
    assert detector.lead is None
