"""A study's figure is the same file wherever it is drawn."""

import re

import numpy as np

from runcatalog.plots.style import drawn


def figure(path, nudge=0.0):
    def draw(figure):
        axes = figure.subplots(1, 2)
        for panel in axes:
            panel.plot([0, 1 + nudge], [0, 1], marker="o")
            panel.scatter([0, 1 + nudge], [1, 0], s=[20, 60])
            panel.fill_between([0, 1], [0, 1], hatch="//")
        axes[0].pcolormesh(np.arange(4).reshape(2, 2))

    drawn(path, (4, 2), draw, "door")
    return path.read_text()


def test_references_resolve_and_no_id_is_a_hash(tmp_path):
    svg = figure(tmp_path / "a.svg")
    ids, used = re.findall(r'\bid="([^"]+)"', svg), set(re.findall(r"#([\w-]+)[\")]", svg))
    assert len(ids) == len(set(ids))
    named = {name for name in ids if name.startswith("door-")}
    assert named
    assert {name for name in used if not re.fullmatch(r"[0-9a-fA-F]{3,8}", name)} == named
    assert not re.search(r"[0-9a-f]{10}", "".join(ids))


def test_lengths_that_differ_by_rounding_change_no_name(tmp_path):
    # As with another machine's fonts and arithmetic: matplotlib hashes what it then rounds.
    assert figure(tmp_path / "a.svg") == figure(tmp_path / "b.svg", nudge=1e-9)
