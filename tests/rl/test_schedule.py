"""The step size over a training."""

from itertools import pairwise

import pytest

from rl.schedule import hold_and_fall, rise_and_fall


def test_linear_warm_up_and_cosine_decay():
    shares = [rise_and_fall(update, 100, 0.1) for update in range(1, 101)]
    assert shares[:10] == pytest.approx([0.1 * i for i in range(1, 11)])
    assert all(later < earlier for earlier, later in pairwise(shares[9:]))
    assert shares[54] == pytest.approx(0.5)
    assert shares[-1] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("updates", "warm_up"), [(1, 0.0), (1, 1.0), (3, 0.0), (3, 1.0)])
def test_only_the_last_update_may_have_factor_0(updates, warm_up):
    shares = [rise_and_fall(update, updates, warm_up) for update in range(1, updates + 1)]
    assert all(0 < share <= 1 for share in shares[:-1])
    assert max(shares) == 1


def test_constant_then_linear_decay():
    falling = [hold_and_fall(update, 8, 0.5) for update in range(8)]
    assert falling == [1] * 5 + [0.75, 0.5, 0.25]
    assert [hold_and_fall(update, 4, 1.0) for update in range(4)] == [1, 0.75, 0.5, 0.25]
    assert [hold_and_fall(update, 4, 0.0) for update in range(4)] == [1, 1, 1, 1]
