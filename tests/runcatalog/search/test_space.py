"""Parsing of a search space from flags, and values of dimensions."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcatalog.search.space import Dimension, SearchError, from_flags, key, size


def test_guilds_notation():
    flags = {
        "a": "uniform[0.5:2.0]",
        "b": "[1:10]",
        "c": "loguniform[1e-4:1e-2]",
        "d": ["64 64", "128 128", "64 64"],
        "e": "[0.0:1.0:0.25]",
        "fixed": 3,
        "text": "lever",
        "lonely": ["only"],
        "none": None,
    }
    a, b, c, d, e = from_flags(flags)
    assert a == Dimension("a", "real", 0.5, 2.0)
    assert b == Dimension("b", "integer", 1, 10)
    assert c == Dimension("c", "real", 1e-4, 1e-2, log=True)
    assert d == Dimension("d", "choice", choices=("64 64", "128 128"))
    assert e == Dimension("e", "real", 0.0, 1.0, first=0.25)
    assert size([b, d]) == 20
    assert b.to_json() == {"low": 1, "high": 10, "log": False}
    assert c.to_json() == {"low": 1e-4, "high": 1e-2, "log": True}
    assert d.to_json() == {"choices": ["64 64", "128 128"]}
    assert size([a]) == math.inf


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("normal[0:1]", "search function normal"),
        ("uniform[1.0:0.5]", "lower bound"),
        ("loguniform[0.0:1.0]", "above 0"),
        ("uniform[0:1:2:3]", "LOW:HIGH"),
        ("uniform[a:b]", "LOW:HIGH"),
        ("[0.0:1.0:2.0]", "first value"),
        ("[nan:1.0]", "lower bound"),
        ([[1, 2], [3]], "each choice"),
        ([{"a": 1}, 2], "each choice"),
    ],
)
def test_a_wrong_range_is_a_one_line_error_that_names_the_flag(flag, message):
    with pytest.raises(SearchError, match=message) as e:
        from_flags({"lr": flag})
    assert f"lr={flag}" in str(e.value)
    assert "\n" not in str(e.value)


def test_nothing_to_search():
    with pytest.raises(SearchError, match="nothing to search"):
        from_flags({"lr": 0.1, "task": "pull"})


dimensions = st.one_of(
    st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)).map(
        lambda t: Dimension("d", "real", t[0], t[0] + t[1])
    ),
    st.tuples(st.floats(1e-9, 1e3), st.floats(1.001, 1e6)).map(
        lambda t: Dimension("d", "real", t[0], t[0] * t[1], log=True)
    ),
    st.tuples(st.integers(1, 1000), st.integers(1, 1000), st.booleans()).map(
        lambda t: Dimension("d", "integer", t[0], t[0] + t[1], log=t[2])
    ),
    st.integers(2, 9).map(lambda n: Dimension("d", "choice", choices=tuple(range(n)))),
)


@given(dimensions, st.floats(0, 1, exclude_max=True))
def test_every_fraction_is_a_value_of_the_dimension(dimension, fraction):
    value = dimension.at(fraction)
    assert dimension.contains(value)
    assert dimension.rounded(value) == value


@given(dimensions, st.floats(0, 1, exclude_max=True))
def test_the_fraction_of_a_value_gives_the_value(dimension, fraction):
    value = dimension.at(fraction)
    assert 0 <= dimension.fraction(value) <= 1
    again = dimension.at(dimension.fraction(value))
    if dimension.kind == "real":
        assert dimension.distance(again, value) <= 1e-3 or again == pytest.approx(value, rel=2e-6)
    else:
        assert again == value


@given(st.integers(-50, 50), st.integers(1, 12))
def test_integers_are_drawn_evenly(low, width):
    dimension = Dimension("d", "integer", low, low + width)
    steps = 100 * (width + 1)
    drawn = [dimension.at((i + 0.5) / steps) for i in range(steps)]
    assert all(abs(drawn.count(v) - 100) <= 1 for v in range(low, low + width + 1))


def test_log_scale_has_its_middle_at_the_geometric_mean():
    assert Dimension("d", "real", 1e-4, 1e-2, log=True).at(0.5) == pytest.approx(1e-3)


def test_points_are_the_same_when_their_trials_would_be():
    space = [Dimension("x", "real", 0, 1), Dimension("n", "integer", 0, 9)]
    assert key(space, {"x": 0.1234567, "n": 3}) == key(space, {"x": 0.12345671, "n": 3.0})
    assert key(space, {"x": 0.123456, "n": 3}) != key(space, {"x": 0.123457, "n": 3})
