"""Figures: what they show, the same bytes for the same data, readable on light and dark pages."""

import hashlib
import math
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendered import joined
from runcatalog.model.errors import CatalogError
from runcatalog.model.run_record import RunRecord
from runcatalog.pages import render
from runcatalog.plots import curves
from runcatalog.plots.heatmaps import HeatMap
from runcatalog.plots.landscapes import WIDTH, Landscape, nearby
from runcatalog.plots.seed_points import SeedPoints
from runcatalog.plots.style import COLOURS, GREY

BACKGROUNDS = ("#ffffff", "#0d1117")  # GitHub's


def run(number: int, value: float | None = None, **fields) -> RunRecord:
    """A trial with an objective, or a failed one."""
    objective = {"name": "opening_rate", "value": value, "kind": "rate", "goal": "max", "at": 9}
    kind = {"search": {"kind": "initial" if number < 3 else "gp"}}
    base = {
        "run": f"{number:08x}" * 4,
        "operation": "toy:train",
        "study": "toy",
        "status": "FAILED" if value is None else "FINISHED",
        "started": number,
        "result": kind if value is None else {"objective": objective, **kind},
    }
    return RunRecord(**(base | fields))


def search(failed: int = 2) -> list[RunRecord]:
    """A search over a learning rate, a clip range and a size."""
    points = [
        {
            "lr": 10.0 ** -(1 + i / 3),
            "clip": 0.2 + 0.03 * i,
            "size": ["64 64", "128 128", "64"][i % 3],
        }
        for i in range(10)
    ]
    return [
        run(i, None if i >= 10 - failed else 0.1 * i, flags=point) for i, point in enumerate(points)
    ]


def sweep(label: str = "a") -> list[RunRecord]:
    """Three points with two seeds per point, and curves."""
    return [
        run(10 * i + seed, 0.5, flags={"lr": lr, "what": label}, seed=seed).with_points(
            {
                "opening_rate": [(s, min(1.0, lr * s * seed)) for s in range(0, 50, 5)],
                "x/length": [(s, s * seed) for s in range(0, 50, 5)],
                "y/length": [(s, s / seed) for s in range(0, 50, 5)],
            }
        )
        for i, lr in enumerate((0.001, 0.01, 0.1))
        for seed in (1, 2)
    ]


def everything(label: str = "a") -> list[str]:
    """One figure per kind, as SVG."""
    runs = sweep(label)
    trials = [
        replace(trial, flags={**trial.flags, "what": f"{label}{i % 2}"})
        for i, trial in enumerate(search())
    ]
    return [
        curves.Figure(runs, "opening_rate").svg(),
        curves.Figure(runs, "*/length", band=("*/length", "*/length"), edges=label).svg(),
        Landscape(None, trials, label=label).svg(),
        HeatMap(runs, "lr", "what", label=label).svg(),
        HeatMap(trials, "size", "what").svg(),
        SeedPoints(runs, {"all": "objective"}, label=label).svg(),
    ]


def digests() -> str:
    return " ".join(hashlib.sha256(svg.encode()).hexdigest() for svg in everything())


def test_the_same_data_are_the_same_bytes_in_any_process():
    """Sets and dicts have another order in every process."""
    code = "from test_curves import digests; print(digests())"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0])) == 6


def test_the_order_of_the_runs_does_not_matter():
    runs = sweep()
    assert (
        curves.Figure(runs[::-1], "opening_rate").svg() == curves.Figure(runs, "opening_rate").svg()
    )


HOSTILE = '<b>&"]]> $x^2$ \\frac a\nb\0\x1b[1m\u202e é🎉 '


@pytest.mark.parametrize("label", [HOSTILE, "x" * 300])
def test_a_figure_is_valid_svg_for_any_names(label):
    for svg in everything(label):
        tree = ElementTree.fromstring(svg)
        kinds = {element.tag.rpartition("}")[2] for element in tree.iter()}
        assert not kinds & {"script", "foreignObject", "a", "image", "b"}
        assert "dc:date" not in svg
        words = "".join(tree.itertext())
        assert "\u202e" not in words
        assert "x" * 100 not in words


def luminance(colour: str) -> float:
    """Relative luminance, WCAG 2.1."""
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_lines_and_words_show_on_light_and_on_dark_pages():
    svg = curves.Figure(sweep(), "opening_rate").svg()
    light, dark = re.findall(r"(?:<style>|dark\)\{)text\{fill:(#\w{6})", svg)
    for background in BACKGROUNDS:
        for colour in (*COLOURS, GREY, light, dark):
            assert contrast(colour, background) >= 3, (colour, background)
    assert contrast(light, BACKGROUNDS[0]) >= 4.5  # WCAG AA for text
    assert contrast(dark, BACKGROUNDS[1]) >= 4.5
    assert "fill: #ffffff" not in svg  # no background


def test_axes_have_units_and_the_legend_explains_the_band():
    words = texts(curves.Figure(sweep(), "opening_rate", axis="update").svg())
    assert "opening rate [%]" in words
    assert "update" in words
    assert {"1e-3", "1e-2", "0.1", "lr", "of 2 seeds"} <= set(words)
    words = texts(Landscape(None, search()).svg())
    assert {"lr", "clip", "size", "opening rate [%]"} <= set(words)
    assert {"64", "64 64", "128 128"} <= set(words)  # words on an axis, by size


def test_a_pair_of_a_landscape_may_be_of_parameters_without_a_panel():
    trials = [run(i, 0.1 * i, flags=dict.fromkeys("abcdefgh", i + 0.5)) for i in range(1, 6)]
    words = texts(Landscape(None, trials, pair=("a", "h")).svg())
    assert words.count("h") == 1
    assert "g" not in words


@pytest.mark.parametrize("other", [0.3, 0.1 + 0.2, 0.4])
def test_a_landscape_is_shaded_where_values_differ(other):
    points = [{"lr": i + 0.5, "clip": (7 * i) % 5 + 0.5} for i in range(6)]
    values = [0.3, other] * 3
    trials = [run(i, v, flags=p) for i, (v, p) in enumerate(zip(values, points, strict=True))]
    assert ("shade:" in Landscape(None, trials).svg()) is (other == 0.4)


def test_a_seed_that_ran_twice_is_drawn_once_and_runs_of_one_seed_are_not_called_seeds(
    project, make
):
    (project.experiments / "toy" / "catalog.md.j2").write_text(
        '{{ figure("curve", ["toy:train"], "rate") }}{{ figure("pooled", ["toy:train"], "rate", flags=[]) }}'
        '{{ seed_points("points", ["toy:train"], {"x": "objective"}) }}'
        '{{ heatmap("map", ["toy:train"], x="lr", y="seed") }}'
    )
    runs = [
        make(n, value=n / 10, seed=seed, flags={"lr": lr, "seed": seed}).with_points(
            {"rate": [(0, 0.0), (5, n / 10)]}
        )
        for n, (lr, seed) in enumerate([(1, 1), (1, 1), (1, 2), (2, 1), (2, 2)], 1)
    ]
    catalog = render.Catalog(project, runs)
    assert catalog.pages
    drawn = {path.stem: figure for path, figure in catalog.figures.items()}
    assert set(drawn) == {"curve", "pooled", "points", "map"}
    for figure in drawn.values():
        assert [run.id8[-1] for run in figure.runs] == ["2", "3", "4", "5"]
    assert "of 2 seeds" in texts(drawn["curve"].svg())
    assert "of 4 runs" in texts(drawn["pooled"].svg())  # of two settings with two seeds each


def figure_of(project, make, *operations):
    """A figure of a run of each operation, with the same flags."""
    (project.experiments / "toy" / "catalog.md.j2").write_text(
        f'{{{{ figure("curve", {list(operations)}, "rate") }}}}'
    )
    runs = [
        make(n, value=0.5, seed=1, lr=1, operation=operation).with_points({"rate": [(0, 0.0)]})
        for n, operation in enumerate(operations, 1)
    ]
    catalog = render.Catalog(project, runs)
    assert catalog.pages
    (figure,) = catalog.figures.values()
    return figure


def test_runs_of_two_operations_with_the_same_flags_are_both_drawn(project, make):
    assert len(figure_of(project, make, "toy:train", "toy:never").runs) == 2


def test_operations_of_two_models_with_one_name_are_not_averaged(project, make):
    figure = figure_of(project, make, "toy:train", "other:train")
    assert {"toy:train", "other:train"} <= set(texts(figure.svg()))
    _, up, cells = HeatMap(figure.runs, "lr", "operation").cells()
    assert sorted(up) == ["other:train", "toy:train"]
    assert len(cells) == 2


def test_a_learning_rate_is_not_in_per_cent():
    curve = [(0, 3e-4), (9, 0.0)]
    runs = [run(1, 0.5).with_points({"train/learning_rate": curve, "train/success_rate": curve})]
    assert "train/learning rate" in texts(curves.Figure(runs, "train/learning_rate").svg())
    assert "train/success rate [%]" in texts(curves.Figure(runs, "train/success_rate").svg())


def texts(svg: str) -> list[str]:
    """The texts of a figure."""
    return [
        "".join(e.itertext()) for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("text")
    ]


def test_a_failed_trial_has_its_cross_on_every_axis():
    def crosses(svg: str) -> int:
        """Marks in the colour that crosses have."""
        colour = COLOURS[1].lower()
        return len(re.findall(rf'<use [^>]*style="[^"]*stroke: {colour}[^"]*"', svg))

    svg, clean = (Landscape(None, search(failed)).svg() for failed in (3, 0))
    # Three parameters and a pair, and the legend's.
    assert crosses(svg) - crosses(clean) == 4 * 3 + 1
    assert "failed" in texts(svg)
    assert "failed" not in texts(clean)


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(-5, 5)), min_size=1, max_size=12
    ),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_the_smoothed_curve_is_a_local_mean(trials, at):
    points, values = [(x, y) for x, y, _ in trials], [v for _, _, v in trials]
    smoothed = nearby(points, values, at)
    distances = np.linalg.norm(np.array(points) - np.array(at), axis=1)
    weights = np.exp(-(distances**2) / (2 * WIDTH**2))
    assert smoothed == pytest.approx(np.average(values, weights=weights))


def test_a_heat_map_shows_the_mean_per_cell():
    runs = [
        run(i, value, flags={"lr": lr, "task": task})
        for i, (lr, task, value) in enumerate(
            [(0.1, "b", 0.2), (0.1, "b", 0.4), (1e-3, "b", 1.0), (0.1, "a", None), (0.1, "a", 0.5)]
        )
    ]
    across, up, cells = HeatMap(runs, "lr", "task").cells()
    assert (across, up) == (["1e-3", "0.1"], ["a", "b"])
    assert cells == {("0.1", "b"): [0.2, 0.4], ("1e-3", "b"): [1.0], ("0.1", "a"): [None, 0.5]}
    words = texts(HeatMap(runs, "lr", "task").svg())
    assert {"30", "100", "50 (1×)", "opening rate [%]", "lr", "task"} <= set(words)


def test_a_heat_map_of_a_metric_that_is_no_share_is_not_in_per_cent():
    """A loss of 0.5 was 50 % where the runs' objective is a rate."""
    runs = [
        run(10 * lr + task, 0.9, flags={"lr": lr, "task": task}).with_points(
            {"loss": [(1, 0.25 * lr + task)], "opening_rate": [(1, 0.5)]}
        )
        for lr in (1, 2)
        for task in (0, 1)
    ]
    assert {"0.25", "1.5", "loss"} <= set(texts(HeatMap(runs, "lr", "task", "loss").svg()))
    words = texts(HeatMap(runs, "lr", "task", "opening_rate").svg())
    assert {"50", "opening rate [%]"} <= set(words)


def test_a_heat_map_counts_a_run_that_diverged_as_one_that_failed():
    rates = [(1, 0.2), (1, math.nan), (2, math.nan), (2, 0.5)]
    runs = [
        run(i, value, flags={"lr": lr, "task": task})
        for i, ((lr, value), task) in enumerate((rate, task) for task in "ab" for rate in rates)
    ]
    assert {"20 (1×)", "50 (1×)"} <= set(texts(HeatMap(runs, "lr", "task").svg()))


def test_a_heat_map_of_operations_reads_from_above():
    runs = [
        run(i, 0.5, operation=operation, result={"metrics": {"s/one": 0.1 * i, "s/two": 1, "t": 2}})
        for i, operation in enumerate(("m:late", "m:early"))
    ]
    across, up, cells = HeatMap(runs, "*", "operation", metric="s/*").cells()
    assert (across, up) == (["one", "two"], ["late", "early"])
    assert cells["one", "early"] == [0.1]


def test_a_band_is_the_mean_and_the_range_over_seeds():
    points = [[(0, 0.0), (10, 1.0)], [(0, 1.0), (5, 1.0), (10, 3.0)], [(0, float("nan"))]]
    steps, mean, low, high = curves.band(points)
    assert steps == [0, 5, 10]
    assert mean == [0.5, 0.75, 2.0]
    assert low == [0.0, 0.5, 1.0]
    assert high == [1.0, 1.0, 3.0]
    assert curves.band([]) == ([], [], [], [])


def test_a_run_that_ended_early_counts_with_its_last_value_and_a_failed_one_does_not():
    points = [[(0, 0.0), (5, 1.0)], [(0, 0.0), (5, 0.2)], [(0, 0.0), (5, 0.0), (10, 0.5)]]
    steps, mean, low, high = curves.band(points, [True, False, True])
    assert steps == [0, 5, 10]
    assert mean == pytest.approx([0, 0.4, 0.75])
    assert (low[-1], high[-1]) == (0.5, 1.0)


def test_early_stopped_runs_keep_their_last_value_and_failed_ones_do_not(make):
    runs = [
        make(1, seed=1).with_points({"rate": [(0, 0.0), (5, 1.0)]}),
        make(2, seed=2).with_points({"rate": [(0, 0.0), (5, 0.0), (10, 0.5)]}),
    ]
    drawn = curves.Figure(runs, "rate", []).svg()
    assert "keep their last value" in drawn
    runs[0] = replace(runs[0], status="FAILED")
    failed = curves.Figure(runs, "rate", []).svg()
    assert failed != drawn
    assert "last value" not in failed


def test_a_legend_moves_names_into_its_title_before_it_shortens_a_value(make):
    flags = {"schedule": "constant", "of": "a" * 12}
    runs = [make(i, lr=i, **flags).with_points({"rate": [(0, 0.1 * i)]}) for i in (1, 2)]
    drawn = texts(curves.Figure(runs, "rate", ["lr", "schedule", "of"]).svg())
    assert {"1, constant, aaaaaaaaaaaa", "2, constant, aaaaaaaaaaaa"} <= set(drawn)
    drawn = texts(curves.Figure(runs, "rate", ["lr", "schedule"]).svg())
    assert {"lr=1, schedule=constant", "lr=2, schedule=constant"} <= set(drawn)


def test_a_legend_is_named_after_the_flag_that_distinguishes_lines_not_panels():
    runs = [
        run(10 * i + j, 0.5, operation=f"toy:{task}", flags={"lr": lr, "task": task})
        for i, task in enumerate(("pull", "push"))
        for j, lr in enumerate((1e-3, 1e-2))
    ]
    runs = [trial.with_points({"rate": [(0, 0.1), (1, 0.2)]}) for trial in runs]
    drawn = texts(curves.Figure(runs, "rate").svg())
    assert "lr" in drawn
    assert not [word for word in drawn if "task" in word]


def test_metrics_of_one_name_pattern_are_lines_of_one_figure(project, make):
    template = '{{ figure("many", ["toy:train"], "*/length", band=["*/low", "*/high"], until=10, axis="episode") }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    curve = [(step, float(step)) for step in range(0, 40, 2)]
    names = ("b x/length", "a/length", "a/low", "a/high", "a/more/length", "width")
    runs = [make(i, lr=i / 10).with_points(dict.fromkeys(names, curve)) for i in (1, 2)]
    catalog = render.Catalog(project, [*runs, make(3, value=0.5)])
    assert "![length, many](../experiments/toy/figures/many.svg)" in joined(catalog)
    (figure,) = catalog.figures.values()
    svg = figure.svg()
    assert {"b x", "a"} <= set(texts(svg))
    assert not {"a/more", "width"} & set(texts(svg))
    assert texts(svg).count("episode") == 2  # a panel a run
    assert "10" in texts(svg)
    assert "20" not in texts(svg)
    assert curves.fitting("*/length", names) == {"b x": "b x/length", "a": "a/length"}


TEMPLATE = """
{{ table(["toy:train", "toy:sweep"]) }}
{{ landscape("search", "toy:train", pair=["lr", "clip"]) }}
{{ heatmap("map", ["toy:train"], x="lr", y="size") }}
{{ heatmap("thin", ["toy:sweep"], x="lr", y="size") }}
{{ image("drawn", ["toy:sweep"], "what the study drew") }}
{{ image("never", ["toy:never"], "nothing") }}
{{ image("undrawn", ["toy:sweep"], "what has not been drawn yet") }}
"""


def test_functions_that_a_template_calls(project, make):
    (project.experiments / "toy" / "catalog.md.j2").write_text(TEMPLATE)
    drawn = project.experiments / "toy" / "figures" / "drawn.svg"
    drawn.parent.mkdir(exist_ok=True)
    drawn.write_text("<svg/>")
    batch = make(99, result={"batch": True, "method": "gp"}, status="FAILED", started=0)
    trials = [replace(trial, batch=batch.run) for trial in search()]
    single = make(50, value=0.5, operation="toy:sweep", lr=1, size=1)
    catalog = render.Catalog(project, [batch, *trials, single])
    text = joined(catalog)
    assert sorted(p.name for p in catalog.figures) == ["map.svg", "search.svg"]
    assert "![what the study drew](../experiments/toy/figures/drawn.svg)" in text
    assert "never.svg" not in text
    assert "undrawn" not in text
    assert "![landscape of search 00000063, search](../experiments/toy/figures/search.svg)" in text
    assert "search.svg" in joined(render.Catalog(project, trials))  # not its own batch
    grid = [make(i, value=0.1 * i, lr=i, clip=i % 2, size=1, batch=batch.run) for i in range(1, 5)]
    assert "![landscape of sweep 00000063, search]" in joined(render.Catalog(project, grid))

    (project.experiments / "toy" / "catalog.md.j2").write_text(
        '{{ landscape("../x", "toy:train") }}'
    )
    with pytest.raises(CatalogError, match="a file name of letters"):
        joined(render.Catalog(project, [batch, *trials]))

    (project.experiments / "toy" / "catalog.md.j2").write_text(
        '{{ landscape("x", "toy:train", pair=["lr", "clup"]) }}'
    )
    with pytest.raises(
        CatalogError, match="no run of toy:train has a flag clup, did you mean clip"
    ):
        joined(render.Catalog(project, [batch, *trials]))


def test_reported_values_of_a_panel_have_the_markers_of_their_lines_in_the_legend():
    points = {f"vpg lr 0.00{i}/length": [(0, 20.0), (9, 100.0 * i)] for i in (1, 2, 3)}
    reported = {f"vpg lr 0.00{i}": [5, 40.0 * i] for i in (1, 2)}
    one = run(1, 0.5).with_points(points)
    svg = curves.Figure([one], "*/length", reported=reported).svg()
    panel, legend = svg[svg.index('id="series-') :].split('id="legend_1"')
    drawn, named = (re.findall(r'<use xlink:href="(#[^"]+)"', part) for part in (panel, legend))
    assert len(set(drawn)) == 2
    assert drawn == named
