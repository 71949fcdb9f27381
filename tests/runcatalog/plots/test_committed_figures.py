"""The committed figures: text that is legible on a page, a colour per name, bands that the legend explains."""

import re
import xml.etree.ElementTree as ElementTree
from functools import cache
from pathlib import Path

import pytest

from runcatalog.plots.palette import FILE

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
FIGURES = sorted(EXPERIMENTS.glob("*/figures/*.svg"))
PAGE = 830  # px, the width of a page's text on GitHub; a wider image is shown smaller
SMALLEST = 9  # px
PT = 4 / 3  # px
BAND = re.compile("interval|lowest to highest|quartiles")


@cache
def tree(path: Path) -> ElementTree.Element:
    return ElementTree.parse(path).getroot()


def named(path: Path, prefix: str) -> list[ElementTree.Element]:
    """The groups whose ids begin so."""
    return [e for e in tree(path).iter() if e.get("id", "").startswith(prefix)]


def colours(path: Path) -> dict[str, set[str]]:
    """The colours of the lines and marks of every name."""
    by_name: dict[str, set[str]] = {}
    for group in named(path, "series-"):
        name = group.get("id").split("-", 2)[2:]
        styles = " ".join(e.get("style", "") for e in group.iter())
        by_name.setdefault("".join(name), set()).add(re.search(r"stroke: (#\w{6})", styles)[1])
    return by_name


def test_figures_of_all_studies_are_checked():
    assert {path.parts[-3] for path in FIGURES} == {
        p.parent.name for p in EXPERIMENTS.glob("*/catalog.md.j2")
    }
    assert len(FIGURES) > 40


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_text_is_large_enough_on_a_page(path):
    width = float(tree(path).get("width").removesuffix("pt"))
    scale = min(PT, PAGE / width)
    texts = [e for e in tree(path).iter() if e.tag.endswith("text")]
    sizes = [
        float(s)
        for t in texts
        for s in re.findall(r"font(?:-size)?: ([\d.]+)px", t.get("style", ""))
    ]
    spans = [e.get("style", "") for t in texts for e in t.iter() if e.tag.endswith("tspan")]
    sizes += [float(s) for style in spans for s in re.findall(r"font(?:-size)?: ([\d.]+)px", style)]
    assert len(sizes) >= len(texts) > 0
    assert scale * min(sizes) >= SMALLEST


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_names_have_different_colours(path):
    by_name = colours(path)
    assert all(len(colours_of_name) == 1 for colours_of_name in by_name.values())
    assert len(set().union(*by_name.values())) == len(by_name)


def test_a_name_has_the_same_colour_in_all_figures():
    shared: dict[str, dict[str, list[str]]] = {}
    for path in FIGURES:
        for name, colours_of_name in colours(path).items():
            if name:
                shared.setdefault(name, {}).setdefault(colours_of_name.copy().pop(), []).append(
                    path.stem
                )
    assert {"lever", "lr_1e_3", "value", "states", "9_9"} <= shared.keys()
    different = {name: by_colour for name, by_colour in shared.items() if len(by_colour) > 1}
    assert not different, f"list them in {FILE}"


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_the_legend_explains_the_band(path):
    words = " ".join(text for legend in named(path, "legend_") for text in legend.itertext())
    assert bool(named(path, "band-")) == bool(BAND.search(words))


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_only_text_on_cells_has_its_own_colour(path):
    """Text follows the reader's choice of light or dark."""
    style = next(e.text for e in tree(path).iter() if e.tag.endswith("style"))
    assert "prefers-color-scheme:dark" in style
    ids = [e.get("id") for e in tree(path).iter() if e.get("id")]
    assert len(ids) == len(set(ids))
