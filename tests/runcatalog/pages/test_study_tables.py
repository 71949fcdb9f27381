"""Tables of a study's page: sweeps, series, searches, what was not replicated, lengths of cells."""

import html
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcatalog.model.errors import CatalogError
from runcatalog.model.run_record import Metric
from runcatalog.pages import findings, render
from runcatalog.pages.tables import batch_summary, settings
from runcatalog.pages.tables.cells import WIDEST, interval, interval_of, mean_text
from runcatalog.text import sentences

ROOT = Path(__file__).parents[3]


def rows(text):
    """Cells of all lines of tables."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def visible(cell):
    """The visible text of a cell."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)|<[^>]*>", r"\1", cell)
    return re.sub(r"\\(.)", r"\1", html.unescape(shown).replace("\u200b", "").replace("**", ""))


def test_an_interval_of_a_rate_may_be_infinite(make):
    """As a script writes a bound that was never reached, or as of values that have exploded."""
    stated = {"name": "opening_rate", "value": 0.5, "kind": "rate"}
    stated["also"] = [
        {"name": "opening_rate_low", "value": 0.25},
        {"name": "opening_rate_high", "value": math.inf},
    ]
    run = make(1, result={"objective": stated})
    assert interval([run.objective]) == "[25, ∞]"
    exploded = [{"name": "x", "kind": "rate", "value": value} for value in (1e200, 2e200)]
    assert interval(exploded) == "[−∞, ∞]"
    assert sentences.interval(exploded) == " [−∞, ∞]"


def test_no_cell_of_the_studies_pages_is_long():
    pages = [p for p in ROOT.glob("catalog/*.md") if not p.stem.endswith("_runs")]
    assert len(pages) == 5
    cells = [visible(cell) for page in pages for row in rows(page.read_text()) for cell in row]
    cells = [cell for cell in cells if cell and set(cell) != {"-"}]
    assert max(map(len, cells)) <= WIDEST
    assert statistics.median(map(len, cells)) < 60


@pytest.fixture
def sweep(make):
    values = {
        ("pull", 1e-3): (0.99, 1.0, 1.0), ("pull", 5e-3): (0.1, 0.12, 0.11),
        ("lever", 1e-3): (0.5, 0.9, 0.7), ("lever", 5e-3): (0.6, 0.8, 0.9),
    }  # fmt: skip
    return [
        make(100 * i + seed, value=value, operation="toy:sweep", task=task, lr=lr, seed=seed)
        for i, ((task, lr), rates) in enumerate(values.items(), 1)
        for seed, value in enumerate(rates, 1)
    ]


def test_a_sweep_is_a_matrix_that_names_a_best_value_only_where_it_is_determined(project, sweep):
    catalog = render.Catalog(project, sweep)
    shown = rows(catalog.sweep(["toy:sweep"], x="lr", y="task"))
    assert shown[0][:4] == ["task \\ lr", "1e-3", "5e-3", "best lr"]
    pull, lever = shown[2:]
    assert pull[:2] == ["pull", "**99.7** [98.1, 100]"]
    assert pull[3] == "1e-3"
    assert lever[3] == "undetermined: 1e-3, 5e-3"
    assert "**" not in "".join(lever)
    assert catalog.finding("toy:sweep", x="lr", y="task") == (
        "**lr 1e-3 has the best mean on 1 of 2 tasks, and is distinguishable from all other values there.**"
    )
    tied = [run for run in sweep if run.flags["task"] == "lever"]
    finding = render.Catalog(project, tied).finding("toy:sweep", x="lr", y="task")
    assert finding.endswith(
        "but is nowhere distinguishable from all others: the best is undetermined.**"
    )


def test_the_values_of_a_sweep_are_compared_with_equal_other_flags(project, sweep, make):
    """Also where a value alone was trained longer, with more seeds."""
    runs = [replace(run, flags=run.flags | {"steps": 100}) for run in sweep]
    shown = rows(render.Catalog(project, runs).sweep(["toy:sweep"], x="lr", y="task"))
    runs += [
        make(n, value=0.97, operation="toy:sweep", task="pull", lr=5e-3, steps=900, seed=n)
        for n in range(1000, 1005)
    ]
    text = render.Catalog(project, runs).sweep(["toy:sweep"], x="lr", y="task")
    assert rows(text)[2][:4] == shown[2][:4]
    assert text.endswith("1 setting with other flags left out.*")


def test_a_single_value_of_a_sweep_is_not_the_best(project, sweep):
    alone = [run for run in sweep if run.flags["lr"] == 1e-3 or run.flags["task"] == "lever"]
    catalog = render.Catalog(project, alone)
    header, _, pull, _ = rows(catalog.sweep(["toy:sweep"], x="lr", y="task"))
    shown = dict(zip(header, pull, strict=True))
    assert (shown["1e-3"], shown["best lr"]) == ("99.7 [98.1, 100]", "")
    finding = catalog.finding("toy:sweep", x="lr", y="task")
    assert "nowhere distinguishable" in finding


def test_equal_means_of_a_sweep_are_shared(project, make):
    rates = {("pull", 1): 1.0, ("pull", 2): 1.0, ("lever", 1): 0.9, ("lever", 2): 1.0}
    runs = [
        make(i, value=rate, operation="toy:sweep", task=task, lr=lr, seed=1)
        for i, ((task, lr), rate) in enumerate(rates.items(), 1)
    ]
    catalog = render.Catalog(project, runs)
    finding = catalog.finding("toy:sweep", x="lr", y="task")
    assert finding.startswith(
        "**lr 2 has the best mean on 2 of 2 tasks, shared on 1, but is nowhere"
    )
    assert "of 1 seed. Bold" in catalog.sweep(["toy:sweep"], x="lr", y="task")


def test_a_failed_run_of_a_sweep_is_counted_in_its_cell(project, sweep, make):
    lost = make(
        900, operation="toy:sweep", status="FAILED", reason="exploded", task="pull", lr=1e-3, seed=4
    )
    shown = render.Catalog(project, [*sweep, lost]).sweep(["toy:sweep"], x="lr", y="task")
    assert "(1 of 4 failed)" in shown


def test_a_series_has_a_row_with_its_tasks_and_what_was_reported(project, make):
    (project.experiments / "toy/reported.yml").write_text(
        "toy:metrics:\n  text: long ago\n  source: thesis\n  same_setting: 'no: other doors'\n"
        "  numbers: {after_training: [1.0, 0.69], accuracy: 0.73, remembering: 1.0}\n"
    )
    also = [{"name": "remembering", "value": 0.5, "kind": "rate"}]
    metrics = {"objective": {"name": "accuracy", "value": 0.75, "kind": "rate", "also": also}}
    runs = [
        make(1, value=1.0, operation="toy:first", seed=1),
        make(2, value=0.5, operation="toy:second", seed=1),
        make(3, value=0.7, operation="toy:second", seed=2),
        make(4, operation="toy:metrics", result=metrics, seed=1),
    ]
    entry = {"name": "A", "steps": ["toy:first", "toy:second"], "metrics": "toy:metrics"}
    shown = rows(render.Catalog(project, runs).series([entry], ["pull", "lever", "round"]))
    assert shown[0] == [
        "series",
        "pull",
        "lever",
        "accuracy",
        "remembering",
        "seeds",
        "same setting?",
        "id",
    ]
    assert shown[2] == [
        "A",
        "100 [96, 100]",
        "60 [0, 100]",
        "75",
        "50",
        "1–2",
        "no: other doors",
        "00000004",
    ]
    assert shown[3] == ["… reported (thesis)", "100", "69", "73", "100", "", "", ""]


def test_a_step_with_a_flag_that_was_typed_is_not_of_the_series(project, make):
    (project.experiments / "toy/guild.yml").write_text(
        "- model: toy\n  operations:\n    step: {main: x, flags: {beta: 2e-3, lr: [1, 2]}}\n"
    )
    runs = [
        make(1, value=1.0, operation="toy:step", seed=1, beta=2e-3, lr=7),
        make(2, value=0.5, operation="toy:step", seed=2, beta=5e-3, lr=7),
        make(3, value=0.8, operation="toy:step", seed=3),
    ]
    entry = {"name": "A", "steps": ["toy:step"]}
    shown = rows(render.Catalog(project, runs).series([entry], ["pull"]))
    assert shown[2][:2] == ["A", "90 [0, 100]"]


def test_a_reported_number_stands_beside_the_setting_that_is_declared(project, make):
    (project.experiments / "toy/guild.yml").write_text(
        "- model: toy\n  operations:\n    step: {main: x, flags: {lr: 0.1}}\n"
    )
    (project.experiments / "toy/reported.yml").write_text("toy:step: {text: long ago}\n")
    runs = [
        make(1, value=0.2, operation="toy:step", seed=1, lr=0.5),
        make(2, value=0.9, operation="toy:step", seed=1, lr=0.1),
    ]
    table = rows(render.Catalog(project, runs).table(["toy:step"]))
    reported = table[0].index("reported")
    assert [(row[0], row[reported]) for row in table[2:]] == [
        ("step lr 0.5", ""),
        ("step lr 0.1", "long ago"),
    ]


def test_numbers_of_a_series_are_those_of_the_operation_that_runs_its_steps(project, make):
    metrics = {
        name: Metric.from_points([(2, share)])
        for name, share in (("accuracy", 0.75), ("remembering", 0.5))
    }
    runs = [make(1, value=1.0, operation="toy:all", metrics=metrics, seed=1)]
    entry = {"name": "A", "steps": ["toy:first"], "metrics": "toy:all"}
    catalog = render.Catalog(project, runs)
    shown = rows(catalog.series([entry], ["pull"]))
    at = shown[0].index("accuracy")
    assert [number.split()[0] for number in shown[2][at : at + 2]] == ["75", "50"]
    assert catalog.value("toy:all", "remembering", unit="%").startswith("50 %")


@pytest.mark.parametrize(
    ("value", "goal", "reported", "finding"),
    [
        (0.0, "max", 0.9, "**Not replicated**: train (1 of 1 reported numbers)."),
        (0.95, "max", 0.9, "Every reported number above 0 (1) was reached."),
        (0.896, "max", 0.9, "Every reported number above 0 (1) was reached."),
        (0.88, "max", 0.9, "Undetermined: train (1 of 1 reported numbers)."),
        (0.5, "max", [1.0, 0.8], "**Not replicated**: train (1 of 1 reported numbers)."),
        (0.5, "min", 0.1, "**Not replicated**: train (1 of 1 reported numbers)."),
        (0.05, "min", 0.1, "Every reported number above 0 (1) was reached."),
        (0.12, "min", 0.1, "Undetermined: train (1 of 1 reported numbers)."),
    ],
)
def test_a_reported_number_outside_of_the_interval_on_the_worse_side_is_not_replicated(
    project, make, value, goal, reported, finding
):
    (project.experiments / "toy/reported.yml").write_text(
        f"toy:train:\n  text: x\n  numbers: {{opening_rate: {reported}}}\n"
    )
    objective = {"name": "opening_rate", "value": value, "kind": "rate", "count": 100, "goal": goal}
    catalog = render.Catalog(project, [make(1, result={"objective": objective})])
    assert ("**not replicated**" in catalog.table("toy:train")) is ("**Not" in finding)
    assert catalog.finding("toy:train").endswith(f" {finding}")


def test_a_reported_number_that_some_settings_miss_says_how_many_reach_it(project, make):
    (project.experiments / "toy/reported.yml").write_text(
        "".join(
            f"toy:{name}:\n  text: x\n  numbers: {{opening_rate: 0.9}}\n"
            for name in ("train", "sweep")
        )
    )
    runs = [make(1, value=0.0, lr=1), make(2, value=0.95, lr=2)]
    catalog = render.Catalog(project, runs)
    finding = catalog.finding(["toy:train", "toy:sweep"])
    assert finding.endswith(
        " Every reported number above 0 (1) was reached, by train in 1 of 2 settings."
    )
    # A number without an interval is no proof that another one was missed.
    alone = {"objective": {"name": "opening_rate", "value": 0.3, "goal": "max"}}
    catalog = render.Catalog(project, [*runs, make(3, operation="toy:sweep", result=alone)])
    finding = catalog.finding(["toy:train", "toy:sweep"])
    assert finding.endswith(
        " Undetermined: sweep (1 of 2 reported numbers); reached by train in 1 of 2 settings."
    )


def test_a_setting_with_another_objective_does_not_replicate(project, make):
    (project.experiments / "toy/reported.yml").write_text(
        "toy:train:\n  text: x\n  numbers: {opening_rate: 0.9}\n"
    )
    loss = {"objective": {"name": "loss", "value": 7.5, "goal": "min"}}
    runs = [make(1, result=loss, lr=1), make(2, value=0.1, lr=2), make(3, result=loss, lr=3)]
    catalog = render.Catalog(project, runs)
    assert "**Not replicated**: train (1 of 1 reported numbers)" in catalog.finding("toy:train")
    front = catalog.pages["runs_catalog.md"].partition("## Failures")[2]
    assert "| toy:train | **10 %** [5.5, 17.4] | 90 % |" in front


def test_a_setting_across_all_operations_or_in_one(project, make):
    (project.experiments / "toy/reported.yml").write_text(
        "same_setting: 'no: other doors'\ntoy:train: {text: a}\ntoy:sweep: {text: b, same_setting: true}\n"
        "toy:never: {text: c}\n"
    )
    runs = [make(1, value=0.5), make(2, value=0.5, operation="toy:sweep")]
    catalog = render.Catalog(project, runs)
    header, _, *body = rows(catalog.table(["toy:train", "toy:sweep"]))
    column = header.index("same setting?")
    assert [row[column] for row in body] == ["no: other doors", "yes"]
    shown = catalog.table(["toy:train", "toy:never"])
    assert "Not the source's setting: other doors." in shown
    assert [row[rows(shown)[0].index("same setting?")] for row in rows(shown)[2:]] == ["no", "no"]


def test_a_search_is_shown_with_the_repeats_of_its_best_point(project, make):
    batch = make(1, operation="toy:opt", result={"batch": True, "method": "gp"})
    trials = [make(10 + i, value=i / 10, batch=batch.run, lr=i / 100, seed=1) for i in range(1, 6)]
    fresh = [make(50 + i, value=0.4, operation="toy:train", lr=0.05, seed=i) for i in (2, 3)]
    other = make(60, value=0.9, operation="toy:train", lr=0.04, seed=2)
    catalog = render.Catalog(project, [batch, *trials, *fresh, other])
    header, _, row = rows(catalog.table(["toy:opt"], fresh={"toy:opt": "toy:train"}))
    cells = dict(zip(header, row, strict=True))
    assert cells["best setting"] == "lr 5e-2"
    assert cells["on fresh seeds"] == "40 % [33, 47], 2 seeds"
    alone = render.Catalog(project, [batch, *trials])
    assert "not run" in alone.table(["toy:opt"], fresh={"toy:opt": "toy:train"})


def test_the_finding_of_a_short_search_does_not_say_that_none_has_finished(project, make):
    def finding(status):
        batch = make(1, operation="toy:opt", result={"batch": True, "method": "gp"}, status=status)
        trials = [make(10 + i, value=i / 10, batch=batch.run, lr=i / 100) for i in range(1, 4)]
        return render.Catalog(project, [batch, *trials]).finding("toy:opt")

    assert finding("FINISHED") == (
        "**No search has a random search beside it, or enough trials to say what matters.**"
    )
    assert finding("KILLED") == "**No search has finished.**"


def test_importance_is_undetermined_where_the_model_predicts_nothing(project, make):
    def row(r2, low):
        share = {"share": 0.6, "low": low, "high": 0.9}
        importance = {"r2": r2, "trials": 5, "parameters": {"lr": share}}
        result = {"batch": True, "method": "gp", "importance": importance}
        batch = make(1, operation="toy:opt", result=result)
        trials = [make(10 + i, value=i / 10, batch=batch.run, lr=i / 100) for i in range(1, 6)]
        header, _, shown = rows(render.Catalog(project, [batch, *trials]).table(["toy:opt"]))
        return dict(zip(header, shown, strict=True))["what matters"]

    assert row(0.5, 0.3) == "lr 60 % [30, 90] of the variance (R² 0.5)"
    assert row(0.5, 0.0) == "undetermined (R² 0.5)"
    assert row(-0.2, 0.3) == "undetermined: the model predicts nothing (R² −0.2)"


def test_a_finding_allows_for_the_choice_of_the_lowest_and_highest_of_many_settings(project, make):
    """Two settings that differ as a pair may be the extremes of many equal ones."""

    def setting(number, mean):
        for seed, noise in enumerate((-0.04, 0.0, 0.04)):
            yield make(10 * number + seed, value=mean + noise, lr=number, seed=seed)

    ends = [*setting(1, 0.4), *setting(2, 0.52)]
    others = [run for number in range(3, 10) for run in setting(number, 0.46)]
    two = render.Catalog(project, ends).finding("toy:train")
    assert two == "**Opening rate: 40 % [30, 50] (lr 1) to 52 % [42, 62] (lr 2) over 2 settings.**"
    many = render.Catalog(project, [*ends, *others]).finding("toy:train")
    assert many.endswith("over 9 settings; whether these two differ is undetermined.**")


def test_numbers_for_prose(project, make):
    content = {"columns": ["who", "median"], "rows": [["a", "3 [2, 4]"], ["b", "9 [5, never]"]]}
    runs = [
        make(i, value=v, lr=lr, seed=i)
        for i, (v, lr) in enumerate(((0.9, 1), (0.8, 1), (0.1, 2)), 1)
    ]
    objective = {"name": "x", "value": 1}
    table = make(9, operation="toy:sweep", result={"table": content, "objective": objective})
    catalog = render.Catalog(project, [*runs, table])
    assert catalog.value("toy:train", lr=1) == "85 % [21, 100] (2 seeds)"
    longer = [make(n, value=1.0, lr=1, updates=9, seed=n) for n in (4, 5, 6)]
    assert render.Catalog(project, [*runs, *longer]).value("toy:train", lr=1) == (
        "100 % [98.7, 100] (3 seeds; 2 runs of other settings left out)"
    )
    assert catalog.value("toy:train", lr=7) == "not run"
    assert catalog.value("toy:nowhere") == "not run"
    assert catalog.value("toy:train", "opening_rate", lr=1) == catalog.value("toy:train", lr=1)
    runs = [run.with_points({"loss": [(1, 9.0), (2, run.seed / 4)]}) for run in runs]
    catalog = render.Catalog(project, [*runs, table])
    assert catalog.value("toy:train", "loss", lr=1) == "0.375 [−1.213, 1.963] (2 seeds)"
    assert catalog.cell("toy:sweep", "b", "median") == "9 \\[5, never\\]"
    assert catalog.cell("toy:sweep", "c", "median") == "not run"


@pytest.mark.parametrize(
    ("one", "other", "clause"),
    [
        ("3 [2, 4]", "9 [5, never]", "is −6.0 \\[−∞, −1.9\\]"),
        ("9 [5, 12]", "3 [2, 6]", "is 6.0 \\[1.0, 9.2\\]"),
        ("1,003 [1,002, 1,006]", "1,007 [1,004, 1,012]", "is −4.0 \\[−9.1, 0.2\\]: undetermined"),
        (
            "50 % [40, 60]",
            "50 % [40, 60]",
            "is 0.0 \\[−14.1, 14.1\\] percentage points: undetermined",
        ),
        ("3", "9 [5, 12]", "is undetermined: no interval"),
        ("never", "9 [5, 12]", "is undetermined: no value"),
    ],
)
def test_the_difference_of_two_cells(project, make, one, other, clause):
    """Newcombe's interval by hand: the distances to the facing bounds, squared and added."""
    table = {"columns": ["who", "median"], "rows": [["a", one], ["b", other]]}
    objective = {"name": "x", "value": 1}
    catalog = render.Catalog(project, [make(1, result={"table": table, "objective": objective})])
    assert catalog.difference("toy:train", "a", "b", "median") == f"the difference {clause}"
    assert "no value" in catalog.difference("toy:train", "a", "c", "median")


def test_the_two_cells_of_a_difference_are_of_one_run_where_a_run_has_both(project, make):
    objective = {"name": "x", "value": 1}

    def run(number, **cells):
        table = {"columns": ["who", "median"], "rows": [[*cell] for cell in cells.items()]}
        return make(number, lr=number, result={"table": table, "objective": objective})

    runs = [run(1, a="9 [5, 12]", b="3 [2, 6]"), run(2, a="90 [80, 99]"), run(3, c="1 [0, 2]")]
    catalog = render.Catalog(project, runs)
    assert "is 6.0 \\[1.0, 9.2\\]" in catalog.difference("toy:train", "a", "b", "median")
    assert catalog.difference("toy:train", "a", "c", "median").startswith("the difference is 89.0")
    assert catalog.cell("toy:train", "a", "median") == "90 \\[80, 99\\]"


def test_runs_above_a_bound(project, make):
    runs = [
        make(n, study=study, result={"metrics": {"depth": depth}} if depth else {})
        for n, (study, depth) in enumerate(
            [
                ("toy", 2.9),
                ("toy", 3.0),
                ("toy", 3.304),
                ("toy", 41.0),
                ("toy", None),
                ("other", 9.0),
            ]
        )
    ]
    data = render.Catalog(project, runs).data
    text = findings.above(data, "toy", "depth", 3)
    assert text == "2 of 4 runs with this number are above 3: 41 (00000003), 3.3 (00000002)."
    assert findings.above(data, "toy", "depth", 50) == "0 of 4 runs with this number are above 50."


def test_the_smallest_difference_that_two_settings_can_show(project, make):
    """Of counted rates by Newcombe's interval, whose half has 1.96 of 2.8 standard errors."""
    runs = [make(i, value=0.5, lr=lr) for i, lr in enumerate((0.1, 0.2), 1)]
    text = render.Catalog(project, runs).power("toy:train")
    points = float(text.split("power: ")[1].split(" percentage")[0])
    assert points == pytest.approx(100 * 2.8 * math.sqrt(2 * 0.25 / 100), rel=0.03)
    assert "over levels, not over seeds" in text
    more = [make(9 + i, value=0.5, lr=0.1 * (1 + i % 2), seed=i // 2) for i in range(6)]
    less = render.Catalog(project, more).power(["toy:train"])
    assert points > float(less.split("power: ")[1].split(" percentage")[0])
    assert "seeds" not in less
    assert render.Catalog(project, runs[:1]).power("toy:train") == ""


def test_reasons_of_sections_without_a_result(project, make):
    (project.experiments / "toy/pending.yml").write_text("toy:never: needs a GPU\n")
    lost = make(1, status="KILLED", reason="SIGTERM")
    catalog = render.Catalog(project, [lost])
    assert catalog.finding("toy:never") == "**Not run: needs a GPU.**"
    assert catalog.finding("toy:train") == "**No run has a result: killed: SIGTERM.**"
    catalog = render.Catalog(project, [lost, make(2, value=0.5)])
    assert "1 of 2 runs failed or killed" in catalog.finding("toy:train")


def test_rows_with_the_same_name_show_their_differences(project, make):
    (project.experiments / "toy" / "catalog.md.j2").write_text(
        '{{ table(["toy:train"], flags=[]) }}'
    )
    runs = [make(i, value=0.9, lr=lr, seed=1) for i, lr in ((1, 0.1), (2, 0.2))]
    runs.append(make(3, value=0.9, lr=0.2, seed=1, parents=(runs[0].run,)))
    runs.append(make(4, value=0.9, lr=0.2, seed=1, parents=("f" * 32,)))
    page = render.Catalog(project, runs).pages["catalog/toy.md"]
    names = [row[0] for row in rows(page) if row[0].startswith("train")]
    assert len(set(names)) == 4
    assert names[0] == "train lr 0.1"
    assert names[3] == "train lr 0.2 from ffffffff"


def test_an_interval_that_a_table_states_replaces_that_of_the_counted_rate(project, make):
    (project.experiments / "toy" / "catalog.md.j2").write_text('{{ table(["toy:train"]) }}')
    (project.experiments / "toy" / "reported.yml").write_text(
        'interval: {"toy:train": "none :: reach"}'
    )
    objective = {"name": "survival", "value": 0.764, "kind": "rate", "count": 24000}
    table = {"columns": ["who", "reach"], "rows": [["none", "76.4 % [63.1, 85.9]"]]}
    run = make(1, result={"objective": objective, "table": table})
    pages = render.Catalog(project, [run]).pages
    for path in ("catalog/toy.md", "catalog/toy_runs.md", "runs_catalog.md"):
        assert "[63, 86]" in pages[path].replace("\\", ""), path


def test_a_setting_with_a_value_that_is_no_number_has_none(project, make):
    runs = [make(n, value=value, seed=n, lr=n) for n, value in enumerate((0.9, math.nan, 0.2, 0.5))]
    found = settings.settings(render.Catalog(project, runs).data, "toy:train")
    assert [setting.value for setting in found] == [0.9, None, 0.2, 0.5]
    both = [make(n, value=value, seed=n) for n, value in enumerate((math.inf, -math.inf))]
    (setting,) = settings.settings(render.Catalog(project, both).data, "toy:train")
    assert setting.value is None


@pytest.mark.parametrize("interval", [None, "[0, 1]", [0.1], [0, 1, 2], [0.2, math.nan], [True, 1]])
def test_a_malformed_interval_is_left_out(project, make, interval):
    objective = {"name": "score", "value": 0.5, "kind": "mean", "interval": interval}
    run = make(1, result={"objective": objective})
    (project.experiments / "toy" / "catalog.md.j2").write_text('{{ table(["toy:train"]) }}')
    page = render.Catalog(project, [run]).pages["catalog/toy.md"]
    assert "0.5" in page
    assert "interval" not in run.objective


def test_runs_of_a_setting_with_another_objective_are_another_row(project, make):
    """As where a script has been changed; its failed runs are with the new ones."""
    (project.experiments / "toy/catalog.md.j2").write_text(
        '{{ table("toy:train") }}\n\n{{ value("toy:train") }}'
    )
    new = {"objective": {"name": "steps", "value": 40, "goal": "min"}}
    runs = [make(n, value=0.5, seed=n, lr=1) for n in (1, 2)]
    runs += [make(n, result=new, seed=n, lr=1) for n in (3, 4, 5)]
    runs.append(make(6, status="FAILED", seed=6, lr=1))
    page = render.Catalog(project, runs).pages["catalog/toy.md"]
    head, _, *shown = rows(page)[:4]
    column = {name: place for place, name in enumerate(head)}
    seen = [(row[column["value"]], row[column["runs"]]) for row in shown]
    assert seen == [("50 % opening rate", "2"), ("40 steps", "3 of 4")]
    assert "\n40 [40, 40] (3 seeds)\n" in page


def test_a_value_is_of_all_seeds_of_the_declared_setting(project, make):
    """Also where the Guild file declares a seed, and of runs with other threads, which change no result."""
    guild_file = project.root / "experiments/toy/guild.yml"
    train = "train: {main: src/toy.train, flags-import: all"
    text = guild_file.read_text()
    assert train in text
    guild_file.write_text(text.replace(train, f"{train}, flags: {{lr: 1, seed: 1, threads: 1}}"))
    runs = [make(n, value=0.5, lr=1, seed=n, threads=n) for n in (1, 2, 3)]
    runs.append(make(4, value=0.9, lr=2, seed=4, threads=1))  # typed, of another series
    catalog = render.Catalog(project, runs)
    assert catalog.value("toy:train") == "50 % [44, 56] (3 seeds)"


def test_a_value_is_of_one_setting_where_the_flags_are_declared_in_the_script_alone(project, make):
    """Else the newest run of a seed would be averaged with other seeds of another setting."""
    runs = [make(n, value=0.5, lr=1, seed=n) for n in (1, 2, 3)]
    runs.append(make(4, value=0.5, seed=4))  # from before the flag
    runs.append(make(5, value=0.9, lr=2, seed=1))
    entry = {"name": "A", "steps": ["toy:train"]}
    for records in (runs, runs[::-1]):
        catalog = render.Catalog(project, records)
        assert catalog.value("toy:train") == (
            "50 % [44, 56] (3 seeds; 2 runs of other settings left out)"
        )
        assert rows(catalog.series([entry], ["pull"]))[2][:2] == ["A", "50 [44, 56]"]


@given(st.lists(st.floats(0.985, 1.0), min_size=2, max_size=5))
def test_only_a_rate_of_exactly_0_or_1_is_shown_as_0_or_100(rates):
    """In a row with a narrow interval 99.988 % was 100 %."""
    objectives = [{"name": "x", "kind": "rate", "value": rate} for rate in rates]
    mean = statistics.mean(rates)
    low, high = interval_of(objectives)
    ends = interval(objectives).strip("[]").split(", ")
    for value, text in (
        (mean, mean_text(objectives).removesuffix(" %")),
        (low, ends[0]),
        (high, ends[1]),
    ):
        if high - low < 0.02 and value < 1 - 1e-7:
            assert float(text) < 100
            assert float(text) == pytest.approx(100 * value, abs=0.05)


def test_a_stated_interval_has_the_value_that_its_cell_has_rounded(project, make):
    (project.experiments / "toy" / "catalog.md.j2").write_text('{{ table(["toy:train"]) }}')
    (project.experiments / "toy" / "reported.yml").write_text(
        'interval: {"toy:train": "none :: reach"}'
    )
    objective = {"name": "survival", "value": 0.99988, "kind": "rate", "count": 24000}
    table = {"columns": ["who", "reach"], "rows": [["none", "100.0 % [100.0, 100.0]"]]}
    run = make(1, result={"objective": objective, "table": table})
    page = render.Catalog(project, [run]).pages["catalog/toy.md"]
    assert "| 99.99 % | [99.99, 100] |" in page


def test_a_diverged_run_does_not_make_another_the_best(project, make):
    """Of two values with a seed each, where one ended in NaN, the other was distinguishable from all others."""
    runs = [make(n, value=value, seed=1, lr=n) for n, value in enumerate((0.9, math.nan), 1)]
    catalog = render.Catalog(project, runs)
    assert "**" not in catalog.sweep("toy:train", "lr")
    assert "undetermined" in catalog.finding("toy:train", "lr")


def test_values_of_different_objectives_are_not_compared(project, make):
    def run(number, name, value, lr):
        objective = {"name": name, "value": value, "kind": "mean"}
        return make(number, seed=number, lr=lr, batch="b" * 32, result={"objective": objective})

    runs = [run(n, "rate", 0.5 + n / 100, 0.1) for n in range(1, 4)]
    runs += [run(n, "length", 500 + n, 0.2) for n in range(4, 7)]
    assert "best" not in (cell := batch_summary.summary(None, runs))
    assert "rate 0.52" in cell
    assert "length 505" in cell
    assert "**" not in render.Catalog(project, runs).sweep("toy:train", "lr")


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1.0, 100.0, 1e4])
def test_a_difference_has_two_digits_at_least(project, make, scale):
    """A difference of 0.008 [0.006, 0.01] was 0.0 [0.0, 0.0]."""
    cells = ["{} [{}, {}]".format(*(scale * n for n in row)) for row in ((5, 4, 6), (9, 8, 10))]
    table = {"columns": ["who", "median"], "rows": [["a", cells[0]], ["b", cells[1]]]}
    run = make(1, result={"table": table, "objective": {"name": "x", "value": 1}})
    shown = render.Catalog(project, [run]).difference("toy:train", "b", "a", "median")
    value, low, high = (
        float(number.replace(",", "").replace("−", "-"))
        for number in re.findall(r"[−\d.,]*\d", shown)
    )
    assert value == pytest.approx(4 * scale, rel=0.05)
    assert low == pytest.approx((4 - math.sqrt(2)) * scale, rel=0.05)
    assert high == pytest.approx((4 + math.sqrt(2)) * scale, rel=0.05)


def test_a_series_with_more_steps_than_tasks_is_refused(project):
    """The result of a step without a task stood in the column of another number."""
    with pytest.raises(CatalogError, match="series 'a': more steps than tasks, 1"):
        render.Catalog(project, []).series([{"name": "a", "steps": ["x", "y"]}], ["pull"])
