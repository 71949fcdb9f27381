"""Flags' values: which texts are numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcatalog.model.values import flag_text, is_cut, parse_flag


@given(st.integers(-(10**15) + 1, 10**15 - 1) | st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_parses_from_its_text(value):
    parsed = parse_flag(flag_text(value))
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-3", 0.005),
        ("1.0e-05", 1e-5),
        ("1E5", 1e5),
        ("10.0", 10.0),
        ("true", True),
        ("null", None),
    ],
)
def test_numbers_as_yaml_and_people_write_them(text, value):
    assert parse_flag(text) == value


@pytest.mark.parametrize(
    "text", ["1.10", "007", "01234567", "123456e7", "-0", "+5", "1_000", "nan"]
)
def test_versions_names_and_ids_stay_texts(text):
    """As numbers, "1.10" would be the setting "1.1", and "123456e7" no id any more."""
    assert parse_flag(text) == text


def test_long_texts_that_differ_at_their_ends_stay_different():
    """Runs with two prompts were taken for runs of one setting, of which the newest counts."""
    one, other = (parse_flag(3000 * "word " + end) for end in ("yes", "no"))
    assert one != other
    assert len(one) == len(other) == 2000
    assert parse_flag(one) == one
    assert is_cut(one)
    assert not is_cut(2000 * "x")
