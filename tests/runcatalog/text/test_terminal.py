"""Tables that fit the terminal for any content."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcatalog.text import terminal

words = st.text(max_size=60) | st.sampled_from(
    ["", "a b", "日本語", "🙂👍🏽", "\x1b[2J\x07", "a\n\tb", "é"]
)


@given(st.lists(st.lists(words, min_size=3, max_size=3), max_size=5), st.integers(28, 90))
def test_a_table_fits_and_stays_in_its_columns(rows, cells):
    lines = terminal.table(["run", "a name", "b"], rows, right={"b"}, cells=cells)
    assert len(lines) == 1 + len(rows)
    for line in lines:
        assert terminal.width(line) <= cells
        assert not any(unicodedata.category(c) in ("Cc", "Cs") for c in line)
    free = terminal.table(["run", "a name", "b"], rows)
    for line, row in zip(free[1:], rows, strict=True):
        assert all(terminal.clean(cell) in line for cell in row)


@given(words, st.integers(0, 40))
def test_cut_text_has_its_width(text, cells):
    shown = terminal.clean(text)
    assert terminal.width(terminal.cut(shown, cells)) <= cells
    if terminal.width(shown) <= cells:
        assert terminal.cut(shown, cells) == shown


@given(st.floats(-1e300, 1e300))
def test_a_number_reads_as_itself_to_four_digits(value):
    shown = terminal.number(value)
    assert len(shown) <= 11
    assert float(shown) == pytest.approx(value, rel=5.1e-4)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, ""),
        (0.2, "0 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (7322, "2 h 2 min"),
        (90061, "1 d 1 h"),
    ],
)
def test_durations(seconds, shown):
    assert terminal.duration(seconds) == shown


def test_nothing_is_left_at_the_end_where_a_character_went():
    assert terminal.clean("0 \x08") == "0"
    assert terminal.clean("a \u200b b") == "a b"


def test_markup_goes_and_text_stays():
    from runcatalog.text import markdown

    for typed in ("a|b", "1 < 2 & 3", "*x* `y` [z]", "https://example.org", "a_b _c_"):
        assert terminal.plain(markdown.escape(typed)) == typed
