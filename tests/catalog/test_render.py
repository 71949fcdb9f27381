"""The file: sections, rows in place, the same bytes, and what `check` says."""

import random
import re
import xml.etree.ElementTree as ElementTree

import pytest

from catalog import figures, render
from catalog.errors import CatalogError
from catalog.model import RunRecord


def rows(markdown: str, name: str) -> list[list[str]]:
    """Cells of the rows whose name begins so."""
    found = [re.split(r"(?<!\\)\|", line)[1:-1] for line in markdown.splitlines()]
    cells = [[cell.strip() for cell in line] for line in found]
    return [line for line in cells if line and line[0].startswith(name)]


@pytest.fixture
def records(make) -> list[RunRecord]:
    batch = make(1, operation="toy:sweep", result={"batch": True, "method": "grid"}, machine="box1")
    trials = []
    for i, (lr, seed) in enumerate([(lr, seed) for lr in (1e-3, 5e-3) for seed in (1, 2)]):
        curve = [(step, min(1.0, step * lr * (4 + seed))) for step in range(200)]
        trials.append(
            make(10 + i, value=curve[-1][1], operation="toy:sweep", batch=batch.run, lr=lr, seed=seed,
                 machine="box1", host_cpu="a | b").with_points({"opening_rate": curve})
        )  # fmt: skip
    return [
        batch,
        *trials,
        make(30, value=0.93, seed=3, machine="box7"),
        make(31, status="KILLED", reason="SIGTERM", label="<b>|\n*x*", lr=0.1),
        make(32, operation="old:thing", value=0.2),
    ]


def test_the_whole_file(project, records):
    catalog = render.Catalog(project, records)
    text = catalog.markdown()
    assert rows(text, "1") == [["1", "box7", "RTX 2070", "no access"]]
    assert rows(text, "2") == [["2", "box1", "–", "a \\| b"]]
    (sweep,) = rows(text, "sweep")
    assert sweep[1:4] == ["00000001", "box1", "1, 2"]
    assert "best **5e-3**" in sweep[4]
    assert sweep[-1] == "5e-3 opens (a list)"
    assert "declared, not run: `guild run toy:never -y`" in rows(text, "never")[0][-2]
    killed = rows(text, "train “&lt;b&gt;\\| \\*x\\*” lr=0.1")
    assert len(killed) == 1
    assert "## Other operations" in text
    assert rows(text, "thing")[0][1] == "00000020"
    assert "![opening rate, sweep](experiments/toy/figures/sweep.svg)" in text
    # Empty in all rows of the second table.
    assert "task id" not in text


def test_the_order_of_the_records_does_not_matter(project, records):
    first = render.Catalog(project, records).markdown()
    shuffled = random.Random(1).sample(records, len(records))
    assert render.Catalog(project, shuffled).markdown() == first


def test_writing_twice_writes_once(project, records):
    assert {path.name for path in render.write(project, records)} == {
        "sweep.svg",
        "runs_catalog.md",
    }
    assert render.write(project, records) == []
    assert render.difference(project, records) == []


def test_check_names_the_first_row_that_differs(project, records):
    render.write(project, records)
    changed = [r for r in records if r.run != records[-3].run]
    told = render.difference(project, changed)
    assert re.match(r"runs_catalog.md:\d+: row “train.*93 % opening rate", told[0])
    assert "of which no record is held" in told[1]
    assert records[-3].id8 in told[1]

    project.catalog.write_text(project.catalog.read_text() + "typed by hand\n")
    (line,) = render.difference(project, records)
    assert "typed by hand" in line
    project.catalog.unlink()
    with pytest.raises(CatalogError, match="missing; `catalog render` writes it"):
        render.difference(project, records)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ table( }}", "catalog.md.j2: line 1"),
        ("{{ tabel([]) }}", "'tabel' is undefined"),
        ("{{ table(['a'], wrong=1) }}", "wrong"),
        ('{{ figure("../x", "toy:train", "loss") }}', "make a file name"),
    ],
)
def test_a_wrong_template_is_named(project, template, words):
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    with pytest.raises(CatalogError, match=re.escape(words)):
        render.Catalog(project, []).markdown()


def test_seeds_share_a_row_where_asked_for(project, make):
    template = '{{ table(["toy:train"], group=true, flags=["lr"]) }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    runs = [make(i, value=0.9, lr=0.1, seed=i) for i in (1, 2, 3, 4)] + [
        make(9, value=0.1, lr=0.2, seed=1)
    ]
    found = rows(render.Catalog(project, runs).markdown(), "train")
    assert [line[0] for line in found] == ["train lr=0.1", "train lr=0.2"]
    assert found[0][1] == "00000001, 00000002, 00000003, 00000004"
    assert found[0][2] == "1–4"
    assert "mean of 4 seeds" in found[0][3]


def test_the_seed_in_a_label_parts_no_row_and_nothing_is_said_twice(project, make):
    template = '{{ table(["toy:train"], group=true) }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    runs = [
        make(10 * n + seed, value=0.9, lr=lr, seed=seed, label=f"lr={lr} seed={seed}")
        for n, lr in enumerate((0.1, 0.2))
        for seed in (1, 12)
    ]
    found = rows(render.Catalog(project, runs).markdown(), "train")
    assert [line[0] for line in found] == ["train “lr=0.1”", "train “lr=0.2”"]
    assert found[0][2] == "1, 12"


def test_a_run_used_again_says_so(project, make):
    template = '{{ table(["toy:train"], reused={"toy:train": "series3"}) }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    (line,) = rows(render.Catalog(project, [make(1, value=0.5)]).markdown(), "train")
    assert line[1:] == ["00000001", "reused from series3"]


def test_a_search_by_option_is_named_and_trials_are_no_rows(project, make):
    batch = make(1, operation="toy:train", result={"batch": True, "method": "gp"})
    trials = [make(i, value=i / 10, batch=batch.run, lr=i / 100) for i in (2, 3)]
    found = rows(render.Catalog(project, [batch, *trials]).markdown(), "train")
    assert [line[0] for line in found] == ["train (gp)"]
    orphans = rows(render.Catalog(project, trials).markdown(), "train")
    assert [line[1] for line in orphans] == [batch.id8]


def test_operations_are_found_in_whatever_a_guild_file_holds(project):
    path = project.experiments / "toy" / "guild.yml"
    path.write_text(
        "- config: a\n  operations: 3\n- model: m\n  operations:\n    x: a.py\n    y:\n    z: {description: [1]}\n"
        "- include: b\n- 5\n- model: empty\n"
    )
    assert sorted(project.operations()) == ["m:x", "m:y", "m:z"]
    path.write_text("train: {main: train}\n")
    assert sorted(project.operations()) == ["train"]
    path.write_text("a: [\n")
    with pytest.raises(CatalogError, match=r"guild.yml: line 2"):
        project.operations()


def test_a_figure_is_the_same_bytes_and_holds_no_date(records):
    runs = [r for r in records if r.metrics]
    svg = figures.learning_curves(runs, "opening_rate")
    assert figures.learning_curves(runs[::-1], "opening_rate") == svg
    assert "dc:date" not in svg
    assert "prefers-color-scheme:dark" in svg
    ElementTree.fromstring(svg)


def test_a_band_is_the_mean_and_the_range_over_seeds():
    curves = [[(0, 0.0), (10, 1.0)], [(0, 1.0), (5, 1.0), (10, 3.0)], [(0, float("nan"))]]
    steps, mean, low, high = figures.band(curves)
    assert steps == [0, 5, 10]
    assert mean == [0.5, 0.75, 2.0]
    assert low == [0.0, 0.5, 1.0]
    assert high == [1.0, 1.0, 3.0]
    assert figures.band([]) == ([], [], [], [])


def test_metrics_of_one_name_pattern_are_lines_of_one_figure(project, make):
    template = '{{ figure("many", ["toy:train"], "*/length", band=["*/low", "*/high"], until=10, axis="episode") }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    curve = [(step, float(step)) for step in range(0, 40, 2)]
    names = ("b x/length", "a/length", "a/low", "a/high", "a/more/length", "width")
    runs = [make(i, lr=i / 10).with_points(dict.fromkeys(names, curve)) for i in (1, 2)]
    catalog = render.Catalog(project, [*runs, make(3, value=0.5)])
    assert "![length, many](experiments/toy/figures/many.svg)" in catalog.markdown()
    (figure,) = catalog.figures.values()
    svg = figure.svg()
    assert svg == figures.Figure(figure.runs[::-1], "*/length", None, *_rest(figure)).svg()
    assert [word in svg for word in ("b x<", "a<", "more", ">width<")] == [True, True, False, False]
    assert svg.count(">episode<") == 2  # a panel a run
    assert ">10<" in svg
    assert ">20<" not in svg
    assert figures.fitting("*/length", names) == {"b x": "b x/length", "a": "a/length"}


def _rest(figure):
    return figure.band, figure.until, figure.axis


def test_tables_that_runs_computed_are_put_together(project, make):
    template = '{{ details(["toy:train", "toy:sweep"]) }}'
    (project.experiments / "toy" / "catalog.md.j2").write_text(template)
    told = {"columns": ["who", "median"], "rows": [["a|b", "3 [2, 4]"], ["c", "never"]]}
    other = {"columns": ["what"], "rows": [["x"]]}
    text = render.Catalog(
        project,
        [
            make(1, value=0.5, lr=0.1, result={"table": told}),
            make(2, value=0.5, lr=0.2, result={"table": told}),
            make(3, value=0.5, lr=0.2),
            make(4, operation="toy:sweep", result={"table": other}),
        ],
    ).markdown()
    assert rows(text, "train lr=0.1")[0][1:] == ["00000001", "a\\|b", "3 \\[2, 4\\]"]
    assert rows(text, "train lr=0.2")[1][1:] == ["00000002", "c", "never"]
    assert [line[2:] for line in rows(text, "Name")][:2] == [["who", "median"], ["what"]]
