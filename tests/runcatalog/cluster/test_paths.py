"""Paths of another machine in what a run prints there."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from runcatalog.cluster import paths

THERE = {b"/s/ab/home": b"/anna", b"/s/ab/home/runs/1": b"/anna/runs/1x", b"/s/s/p": b"/p"}


def translated(pieces, known=THERE):
    output = paths.Output()
    return b"".join([*(output.take(piece, known) for piece in pieces), output.rest()])


# Texts in which paths are often complete, cut off, and adjacent.
PARTS = st.sampled_from(
    [*THERE, b"/s", b"/s/ab", b"/home", b"/runs", b"/1", b"/", b"x", b" ", b"\n"]
)


@given(st.lists(PARTS, max_size=12).map(b"".join), st.lists(st.integers(0, 80), max_size=8))
def test_paths_are_translated_wherever_the_text_is_cut(text, cuts):
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(borders)]
    whole = translated([text])
    assert translated(pieces) == whole
    assert not any(path in whole for path in THERE)
    if not any(part in text for part in THERE):
        assert whole == text


def test_a_longer_path_is_replaced_before_its_prefix():
    text = b"in /s/ab/home/runs/1/artifacts, /s/ab/home/runs/2 and /s/ab/house"
    assert translated([text]) == b"in /anna/runs/1x/artifacts, /anna/runs/2 and /s/ab/house"


def test_text_that_cannot_begin_a_path_is_shown_at_once():
    output = paths.Output()
    assert output.take(b"step 3 of 10\r", THERE) == b"step 3 of 10\r"
    assert output.take(b"in /s/a", THERE) == b"in "
    assert output.take(b"c\n", THERE) == b"/s/ac\n"
    assert output.take(b"/s/ab/home\n", {}) == b"/s/ab/home\n"


def test_words_of_a_command_are_translated_in_both_directions():
    here = {"/anna/runs/1": paths.RUN, "/anna/project": paths.PROJECT}
    sent = paths.with_placeholders("--a /anna/runs/1/x:/anna/project /anna/runs/12", here)
    assert sent == f"--a {paths.RUN}/x:{paths.PROJECT} /anna/runs/12"
    there = {paths.RUN: "/s/run", paths.PROJECT: "/s/project"}
    assert paths.with_paths(sent, there) == "--a /s/run/x:/s/project /anna/runs/12"


def test_the_end_of_another_path_is_not_translated():
    here = {"/lab": paths.PROJECT}
    sent = paths.with_placeholders("data=/mnt/lab/set1 out=/lab/x url=file:///lab/y ../lab", here)
    assert sent == (f"data=/mnt/lab/set1 out={paths.PROJECT}/x url=file://{paths.PROJECT}/y ../lab")
