"""Settings compared: every seed is a point at its value, beside mean and interval."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcatalog.model.run_record import RunRecord
from runcatalog.plots.seed_points import SeedPoints

SVG = "{http://www.w3.org/2000/svg}"


def run(number: int, value: float, status: str = "FINISHED", **flags) -> RunRecord:
    objective = {"name": "success", "value": value, "kind": "rate", "goal": "max", "count": 500}
    return RunRecord(
        run=f"{number:08x}" * 4, operation="toy:train", study="toy", status=status, started=number, seed=number,
        flags={"seed": number, **flags}, result={"objective": objective, "metrics": {"chance": 0.25}},
    )  # fmt: skip


def places(svg: str) -> list[float]:
    """Return the horizontal places of all markers on the axes, in the order of drawing."""
    axes = next(g for g in ElementTree.fromstring(svg).iter(f"{SVG}g") if g.get("id") == "axes_1")
    groups = [g for g in axes if (g.get("id") or "").startswith("line2d")]
    return [float(use.get("x", "0")) for group in groups for use in group.iter(f"{SVG}use")]


@given(st.lists(st.integers(0, 100), min_size=2, max_size=6))
def test_a_point_for_every_seed_lies_at_its_value_and_the_mean_between(percents):
    values = [percent / 100 for percent in percents]
    svg = SeedPoints([run(i, v) for i, v in enumerate(values)], {"all": "objective"}).svg()
    *seeds, mean = places(svg)
    assert len(seeds) == len(values)
    assert mean == pytest.approx(np.mean(seeds), abs=1e-3)
    if np.ptp(values):
        # Places on the page are a rising linear function of the values.
        slope = np.ptp(seeds) / np.ptp(values)
        expected = min(seeds) + slope * (np.array(values) - min(values))
        assert slope > 0
        assert seeds == pytest.approx(expected.tolist(), abs=1e-3)


def test_a_setting_with_a_seed_that_diverged_has_no_mean():
    values = [0.5, 0.7, float("nan")]
    svg = SeedPoints([run(i, v) for i, v in enumerate(values)], {"all": "objective"}).svg()
    assert len(places(svg)) == 2  # the points of the other seeds


def test_runs_of_the_same_seed_are_one_value_of_the_interval():
    """Without the flag that separates them, six runs of three seeds had the interval of six seeds."""

    def bar(runs):
        svg = SeedPoints(runs, {"all": "steps"}, ["lr"]).svg()
        (path,) = (
            g for g in ElementTree.fromstring(svg).iter(f"{SVG}g") if "band" in g.get("id", "")
        )
        start, end = re.findall(r"[ML] ([\d.]+)", next(path.iter(f"{SVG}path")).get("d"))
        return float(end) - float(start)

    def runs(tasks):
        for task in range(tasks):
            for seed in range(3):
                yield replace(
                    run(10 * task + seed, 0.5, lr=0.1, task=task),
                    seed=seed,
                    result={"metrics": {"steps": 100 * seed}},
                )

    # Two equal runs of each seed say no more than one.
    assert bar([*runs(2)]) == pytest.approx(bar([*runs(1)]))


def test_the_best_setting_is_on_top_and_unfinished_runs_are_left_out():
    runs = [run(i, 0.2 + 0.1 * i, lr=0.1 if i % 2 else 0.2) for i in range(4)]
    runs.append(run(9, 0.9, "FAILED", lr=0.3))
    rows = SeedPoints(runs, {"all": "objective"}, names={"small": {"lr": 0.1}}).rows()
    assert [(name, len(members)) for name, members in rows] == [("small", 2), ("0.2", 2)]


def test_operations_are_compared_as_settings_are():
    runs = [replace(run(i, 0.2 + 0.1 * i), operation=f"toy:{i % 2}") for i in range(4)]
    named = {"even": {"operation": "toy:0"}, "odd": {"operation": "toy:1"}}
    rows = SeedPoints(runs, {"all": "objective"}, ["operation"], named).rows()
    assert [(name, [r.seed for r in members]) for name, members in rows] == [
        ("odd", [1, 3]),
        ("even", [0, 2]),
    ]
    # A script's own flag of this name is what a study asks for.
    own = [run(i, 0.5, operation="add") for i in range(2)]
    ((title, _),) = SeedPoints(own, {"all": "objective"}, ["operation"]).rows()
    assert title == "add"


def test_numbers_that_are_no_shares_are_not_in_per_cent():
    runs = [replace(run(i, 0.5), env_steps=2 * i) for i in range(3)]
    svg = SeedPoints(runs, {"steps": "env_steps"}).svg()
    assert ">4<" in svg
    assert ">400<" not in svg


def test_numbers_have_panels_and_references_lines_and_entries():
    runs = [run(i, 0.5 + 0.1 * i) for i in range(3)]
    svg = SeedPoints(
        runs, {"greedy": "objective", "random": "chance"}, label="success [%]",
        references={"random actions": "chance", "optimum": 1, "unknown": "no such number"},
    ).svg()  # fmt: skip
    for text in ("greedy", "random actions", "optimum", "a seed", "95 % interval", "success [%]"):
        assert f">{text}<" in svg
    assert svg.count('id="axes_') == 2
    assert "unknown" not in svg
    # In each panel a line for either reference.
    assert svg.count('id="reference-') == 4
