"""Colours and dashes by name: listed ones stay, others never take them in the same figure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcatalog.model.errors import CatalogError
from runcatalog.plots.palette import FILE, Palette
from runcatalog.plots.style import COLOURS, DASHES, NAMED_COLOURS

NAMES = st.lists(st.text(min_size=1, max_size=3), unique=True, max_size=len(COLOURS))


@given(NAMES, st.data())
def test_listed_names_keep_their_colours_and_others_take_free_ones(names, data):
    few = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    palette = Palette(dict(zip(few, NAMED_COLOURS, strict=False)))
    given = palette.colours_of(names)
    assert list(given) == names
    assert len(set(given.values())) == len(names)
    for name, colour in zip(few, COLOURS, strict=False):
        assert given[name] == colour
    assert palette.colours_of(few) == {name: given[name] for name in few}


def test_a_file_lists_names(tmp_path):
    assert Palette.read(tmp_path) == Palette()
    (tmp_path / FILE).write_text("colours: {green: [a, 'lr=1e-3']}\ndashes: {dotted: [a]}")
    palette = Palette.read(tmp_path)
    assert palette.colours_of(["b", "a"]) == {"b": COLOURS[0], "a": NAMED_COLOURS["green"]}
    assert palette.dashes_of(["a", "b"]) == {"a": DASHES["dotted"], "b": DASHES["solid"]}


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "colour: {}",
        "colours: [a]",
        "colours: {blau: [a]}",
        "colours: {blue: a}",
        "colours: {blue: [a], pink: [a]}",
    ],
)
def test_a_wrong_file_is_a_one_line_error(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(CatalogError, match=FILE) as raised:
        Palette.read(tmp_path)
    assert "\n" not in str(raised.value)
