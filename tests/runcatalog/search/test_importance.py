"""Importance of parameters: on surfaces where the shares are known, and on noise."""

import math
import random

import pytest

from runcatalog.search import driver
from runcatalog.search.importance import MAX_TRIALS, MIN_TRIALS, importance
from runcatalog.search.space import Dimension
from runcatalog.search.trials import Objective, Trial

SPACE = {
    "lr": {"low": 1e-4, "high": 2e-2, "log": True},
    "clip": {"low": 0.2, "high": 0.6, "log": False},
    "size": {"choices": ["128 128", "64", "64 64 64"]},
}


@pytest.fixture(autouse=True)
def few_repeats(monkeypatch):
    monkeypatch.setattr("runcatalog.search.importance.REPEATS", 2)


def points(count, seed):
    rng = random.Random(seed)
    return [
        {
            "lr": 10 ** rng.uniform(-4, math.log10(2e-2)),
            "clip": rng.uniform(0.2, 0.6),
            "size": rng.choice(["128 128", 64, "64 64 64"]),  # a flag may have become a number
        }
        for _ in range(count)
    ]


def of_surface(function, seed, count=20):
    drawn, rng = points(count, seed), random.Random(seed + 1000)
    return importance(drawn, [function(point, rng) for point in drawn], SPACE)


def determined(result):
    shares = result["parameters"]
    return {n for n, share in shares.items() if result["r2"] > 0 and share["low"] > 0}


def ridge(point, rng):
    return -((math.log10(point["lr"]) + 2.6) ** 2) + 0.1 * rng.gauss(0, 1)


def cliff(point, rng):
    """A large learning rate gives a return of −10 million, a still larger one fails."""
    if point["lr"] > 1e-2:
        return None
    return -1e7 if point["lr"] > 5e-3 else -1e3 * math.log10(point["lr"]) + 50 * rng.gauss(0, 1)


@pytest.mark.parametrize("surface", [ridge, cliff])
def test_the_only_parameter_with_an_effect_has_the_largest_share(surface):
    result = of_surface(surface, 0)
    assert determined(result) == {"lr"}
    assert result["r2"] > 0.3
    assert max(result["parameters"], key=lambda n: result["parameters"][n]["share"]) == "lr"


def test_a_choice_with_an_effect_is_determined():
    assert determined(
        of_surface(lambda p, rng: float(p["size"] == 64) + 0.1 * rng.gauss(0, 1), 1)
    ) == {"size"}


def test_shares_are_those_of_the_variance():
    """Of a + b with b of half the range, a has 4/5 of the variance (closed form)."""
    rng, space = random.Random(3), {n: {"low": 0, "high": 1, "log": False} for n in "ab"}
    drawn = [{"a": rng.random(), "b": rng.random()} for _ in range(50)]
    result = importance(drawn, [p["a"] + 0.5 * p["b"] for p in drawn], space)
    assert result["r2"] > 0.95
    a, b = (result["parameters"][name] for name in "ab")
    assert (a["share"], b["share"]) == pytest.approx((0.8, 0.2), abs=0.15)
    assert all(share["low"] < share["share"] < share["high"] for share in (a, b))


def test_noise_has_no_determined_parameter():
    results = [of_surface(lambda _, rng: rng.gauss(0, 1), seed) for seed in range(3)]
    assert not any(map(determined, results))


def test_order_of_the_trials_and_scale_of_the_objective_have_no_influence():
    drawn = points(12, 1)
    values = [ridge(p, random.Random(5)) for p in drawn]
    result = importance(drawn, values, SPACE)
    assert importance(drawn[::-1], values[::-1], SPACE) == result
    scaled = importance(drawn, [1024 * v for v in values], SPACE)
    assert scaled["r2"] == pytest.approx(result["r2"], abs=0.01)


@pytest.mark.parametrize(
    "values", [[1.0] * 20, [None] * 20, list(map(float, range(MIN_TRIALS - 1)))]
)
def test_no_importance_of_equal_failed_or_few_trials(values):
    assert importance(points(len(values), 0), values, SPACE) is None


def test_no_importance_of_a_single_parameter():
    drawn = [{"lr": p["lr"]} for p in points(20, 0)]
    assert importance(drawn, list(range(20)), {"lr": SPACE["lr"]}) is None


def test_a_long_search_is_thinned():
    result = of_surface(ridge, 0, MAX_TRIALS + 100)
    assert result["trials"] == MAX_TRIALS + 100
    assert determined(result) == {"lr"}


def test_a_search_ends_without_importance_where_it_cannot_be_computed(monkeypatch, capsys):
    def fail(*_):
        raise ValueError("singular matrix")

    dimensions = [
        Dimension("lr", "real", 1e-4, 2e-2, log=True),
        Dimension("clip", "real", 0.2, 0.6),
    ]
    trials = [Trial(None, i, point, "done", float(i)) for i, point in enumerate(points(8, 0), 1)]
    objective = Objective("score", (None, "score", None), maximize=True)
    assert driver._importance(trials, dimensions, objective)["trials"] == 8
    monkeypatch.setattr("runcatalog.search.importance.importance", fail)
    assert driver._importance(trials, dimensions, objective) is None
    assert "no importance of the parameters: singular matrix" in capsys.readouterr().err
