"""Headlines of reported.yml: their numbers against plain arithmetic, and what is wrong in an entry."""

import math
import statistics
from pathlib import Path

import pytest

from runcatalog.analysis import headline_numbers, headlines
from runcatalog.model import statistics as intervals
from runcatalog.model.errors import CatalogError
from runcatalog.model.marks import current

ROOT = Path(__file__).parents[3]
ENTRY = "question: How often?\n    operation: toy:train\n    "


@pytest.fixture
def measure(project):
    """Return a function that measures the entry `own` of a reported.yml."""

    def measured(entry: str, records) -> headline_numbers.Measured:
        path = project.experiments / "toy/reported.yml"
        path.write_text(f"headline:\n  own:\n    {entry}\n")
        runs = headline_numbers.Runs(current(records), project.operations())
        return runs.measured(headlines.declared(project).named("toy/own"))

    return measured


@pytest.mark.parametrize("name", ["mean", "median", "min", "max"])
def test_a_statistic_over_seeds(measure, make, name: str):
    numbers = [0.5, 0.9, 0.1, 0.7]
    records = [make(n, value=value, seed=n) for n, value in enumerate(numbers, 1)]
    number = measure(ENTRY + f"statistic: {name}", records).number
    expected = {"mean": statistics.fmean, "median": statistics.median, "min": min, "max": max}
    assert number.value == pytest.approx(expected[name](numbers))
    assert len(number.runs) == 4
    is_mean = name == "mean"
    assert number.bounds == (intervals.bounds([r.objective for r in records]) if is_mean else None)


@pytest.mark.parametrize("name", ["mean", "median", "min", "max"])
@pytest.mark.parametrize("numbers", [[0.3, math.nan, 0.1, 0.2, 0.5], [math.nan, 0.1, 0.2]])
def test_a_statistic_with_a_seed_that_has_no_number_is_none(measure, make, name: str, numbers):
    """In an order NaN has no place: the median of these would be one of them by chance."""
    records = [make(n, value=value, seed=n) for n, value in enumerate(numbers, 1)]
    number = measure(ENTRY + f"statistic: {name}", records).number
    assert math.isnan(number.value)
    assert number.bounds is None


def test_flags_select_the_runs(measure, make):
    records = [make(n, value=n / 10, seed=n, lr=lr) for n, lr in enumerate([1, 1, 2, 3], 1)]
    assert measure(ENTRY + "flags: {lr: 1}", records).number.value == pytest.approx(0.15)
    assert measure(ENTRY + "flags: {lr: [1, 3]}", records).number.value == pytest.approx(0.7 / 3)


def test_a_whole_number_selects_the_flag_that_a_script_reads_as_a_float(measure, make):
    values = [1.0, 0.0, False, "1"]
    records = [make(n, value=n / 10, seed=n, lr=lr) for n, lr in enumerate(values, 1)]
    assert measure(ENTRY + "flags: {lr: 1}", records).number.value == pytest.approx(0.1)
    assert measure(ENTRY + "flags: {lr: 0}", records).number.value == pytest.approx(0.2)
    assert measure(ENTRY + "flags: {lr: no}", records).number.value == pytest.approx(0.3)


def test_one_setting_is_not_mixed_with_another(measure, make):
    records = [
        make(1, value=0.1, seed=1, lr=1e-3, threads=1),
        make(2, value=0.3, seed=2, lr=1e-3, threads=2),
        make(3, value=0.9, seed=1, lr=5e-3),
    ]
    measured = measure(ENTRY, records)
    assert measured.number.value == pytest.approx(0.2)
    assert measured.left_out == 1


def test_the_newest_run_of_a_seed_counts(measure, make):
    records = [make(1, value=0.1, seed=1), make(2, value=0.3, seed=1), make(3, value=0.5, seed=2)]
    measured = measure(ENTRY, records)
    assert measured.number.value == pytest.approx(0.4)
    assert measured.left_out == 0


def test_marked_and_failed_runs_do_not_count(measure, make):
    records = [
        make(1, value=0.1, seed=1, retracted="a bug"),
        make(2, value=0.3, seed=2, superseded_by="00000003"),
        make(3, value=0.5, seed=3),
        make(4, value=0.9, seed=4, status="FAILED"),
    ]
    assert [r.run for r in measure(ENTRY, records).number.runs] == [records[2].run]
    assert measure(ENTRY, records[:2]).number is None
    assert measure(ENTRY, []).number is None


def test_trials_are_of_their_batch(measure, make):
    batch = make(1, operation="toy:sweep", result={"batch": True})
    trials = [make(n, value=0.5, seed=n, batch=batch.run) for n in (2, 3)]
    alone = make(4, value=0.1, seed=1)
    entry = "question: How often?\n    operation: toy:sweep"
    assert len(measure(entry, [batch, *trials, alone]).number.runs) == 2
    assert measure(ENTRY, [batch, *trials, alone]).number.value == pytest.approx(0.1)


def test_a_cell_of_a_table_in_per_cent(measure, make):
    table = {"columns": ["agent", "set", "success"], "rows": [["moe", "all", "61.9 % [55, 68]"]]}
    record = make(1, result={"table": table})
    number = measure(ENTRY + 'metric: "table moe all :: success"\n    unit: "%"', [record]).number
    assert (number.value, *number.bounds) == pytest.approx((0.619, 0.55, 0.68))


@pytest.mark.parametrize(
    ("shares", "high"), [((0.99, 1.0, 1.0), 1.0), ((0.9, 1.0, 1.1), 1.0 + 0.2484)]
)
def test_the_interval_of_a_share_ends_at_100_per_cent(measure, make, shares, high):
    """Also of a metric, which does not say that it is one; a number above 100 % is no share."""
    records = [
        make(n, seed=n).with_points({"accuracy": [(1, share)]}) for n, share in enumerate(shares, 1)
    ]
    number = measure(ENTRY + 'metric: accuracy\n    unit: "%"', records).number
    assert number.value == pytest.approx(statistics.fmean(shares))
    assert number.bounds[1] == pytest.approx(high, abs=1e-4)


@pytest.mark.parametrize(
    ("good", "bad", "decided"),
    [
        ((0.9, 0.92, 0.91), (0.1, 0.12, 0.11), True),
        ((0.9, 0.92, 0.91), (0.0, 1.0, 1.0), False),
        ((0.9, 0.92), (0.1, 0.12), False),
    ],
)
def test_the_best_value_of_a_flag(measure, make, good, bad, decided: bool):
    records = [
        make(10 * i + seed, value=value, seed=seed, lr=lr)
        for i, (lr, values) in enumerate(((5e-3, good), (1e-3, bad)))
        for seed, value in enumerate(values, 1)
    ]
    measured = measure(ENTRY + "statistic: best lr", records)
    assert [number.point for number in measured.numbers] == [5e-3, 1e-3]
    assert [number.point for number in measured.ties] == ([] if decided else [1e-3])


def test_the_values_of_a_flag_are_compared_in_one_setting(measure, make):
    """With another task, the more seeds of a value would make it the best."""
    rates = {(1, "pull"): 0.6, (2, "pull"): 0.5, (2, "push"): 0.9}
    seeds = {(1, "pull"): 3, (2, "pull"): 3, (2, "push"): 5}
    records = [
        make(10 * n + seed, value=rate, seed=seed, lr=lr, task=task)
        for n, ((lr, task), rate) in enumerate(rates.items())
        for seed in range(1, 1 + seeds[lr, task])
    ]
    measured = measure(ENTRY + "statistic: best lr", records)
    assert [(n.point, n.value) for n in measured.numbers] == [(1, 0.6), (2, 0.5)]
    assert measured.left_out == 5


def test_evaluations_of_two_models_are_no_seeds_of_one_setting(measure, make):
    rates = [(1, 1, 0.5), (1, 2, 0.6), (2, 1, 0.9), (2, 2, 0.8), (2, 3, 0.7)]
    models = [
        make(10 + n, operation="toy:fit", lr=lr, seed=seed) for n, (lr, seed, _) in enumerate(rates)
    ]
    evaluated = [
        make(20 + n, value=rate, seed=seed, parents=(model.run,))
        for n, ((_, seed, rate), model) in enumerate(zip(rates, models, strict=True))
    ]
    measured = measure(ENTRY, [*models, *evaluated])
    assert list(measured.number.runs) == evaluated[2:]
    assert measured.number.bounds == intervals.bounds([r.objective for r in evaluated[2:]])
    assert measured.left_out == 2


def test_how_many_seeds(measure, project, make):
    parent = make(1, operation="toy:sweep", count=10)
    child = make(2, value=0.5, splits="1 2 3", parents=(parent.run,))
    entry = ENTRY + "seeds: [count, splits]"
    measured = measure(entry, [parent, child])
    runs = headline_numbers.Runs([parent, child], project.operations())
    assert runs.seeds(measured.headline, measured.number) == "10 × 3"
    several = measure(ENTRY, [make(n, value=0.5, seed=n) for n in (1, 2, 3)])
    assert runs.seeds(several.headline, several.number) == "3"


@pytest.fixture
def studies(make):
    """Two studies: an evaluation each of two splits, and a third one of the second study; their trainings."""
    rates = {1: (0.5, 1), 2: (0.9, 2), 3: (0.6, 1), 4: (0.8, 2)}  # and their splits
    trained = [make(10 + n, operation="toy:fit", split=split) for n, (_, split) in rates.items()]
    evaluated = [
        make(20 + n, operation="toy:test", value=rates[n][0], parents=(of.run,), seed=n)
        for n, of in enumerate(trained, 1)
    ]
    parents = [evaluated[:2], evaluated[1:]]
    return [
        *(make(n, seeds=n, parents=tuple(r.run for r in of)) for n, of in enumerate(parents, 1)),
        *trained,
        *evaluated,
    ]


def test_the_parents_of_runs_count_once_each(measure, project, studies):
    entry = ENTRY + "flags: {seeds: [1, 2]}\n    parents: toy:test"
    measured = measure(entry, studies)
    number, evaluated = measured.number, studies[-4:]
    assert number.value == pytest.approx(0.7)
    assert number.bounds == intervals.bounds([r.objective for r in evaluated])
    assert list(number.runs) == studies[:2]
    runs = headline_numbers.Runs(studies, project.operations())
    assert runs.seeds(measured.headline, number) == "4"


def test_the_mean_of_a_split_is_one_value(measure, project, studies):
    entry = ENTRY + "flags: {seeds: [1, 2]}\n    parents: toy:test\n    mean_by: split"
    measured = measure(entry, studies)
    assert measured.number.value == pytest.approx(0.7)
    assert measured.number.bounds == pytest.approx(intervals.interval([0.55, 0.85]))
    runs = headline_numbers.Runs(studies, project.operations())
    assert runs.seeds(measured.headline, measured.number) == "2 × 2"
    of_second = [r for r in studies if r.seed not in (1, 3)]
    number = measure(entry, of_second).number
    assert (number.value, number.bounds) == (pytest.approx(0.85), None)


@pytest.mark.parametrize(
    ("reported", "value", "short"),
    [
        ("0.9", 0.0, True),
        ("0.9", 0.9, False),
        ("0.1", 0.9, False),
        ("[0.3, 0.9]", 0.35, False),
        ("[0.6, 0.9]", 0.35, True),
        ("nothing", 0.0, False),
        ("{text: 90 % in the end, value: 0.9}", 0.0, True),
    ],
)
def test_a_result_that_is_not_replicated(measure, make, reported: str, value: float, short: bool):
    records = [make(1, value=value, seed=1)]
    assert measure(ENTRY + f"unit: '%'\n    reported: {reported}", records).falls_short is short


def test_a_setting_without_a_number_is_neither_best_nor_a_tie(measure, make):
    rates = {1: 0.3, 2: math.nan, 3: 0.9}
    records = [
        make(10 * lr + seed, value=rate + seed / 1000, seed=seed, lr=lr)
        for lr, rate in rates.items()
        for seed in (1, 2, 3)
    ]
    measured = measure(ENTRY + "statistic: best lr", records)
    assert measured.number.value == pytest.approx(0.902)
    assert measured.ties == ()


def test_fewer_may_be_better(measure, make):
    objective = {"name": "steps", "kind": "mean", "goal": "min"}
    records = [
        make(n, seed=n, result={"objective": objective | {"value": value}})
        for n, value in enumerate((100, 110, 120), 1)
    ]
    assert measure(ENTRY + "reported: 50", records).falls_short
    assert not measure(ENTRY + "reported: 200", records).falls_short
    assert not measure(ENTRY + "reported: 50\n    goal: max", records).falls_short


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("operation: toy:train", "question is missing"),
        ("question: What?", "operation is missing"),
        (ENTRY + "statistik: mean", "no such key 'statistik', did you mean statistic?"),
        (ENTRY + "statistic: meen", "no statistic 'meen': mean, median, min, max, best FLAG"),
        (ENTRY + "statistic: best clip", "no run of toy:train has the flag 'clip'"),
        (ENTRY + "flags: {lrr: 1}", "no run of toy:train has the flag 'lrr', did you mean lr?"),
        (ENTRY + "flags: [lr]", "a mapping of flags to values"),
        (ENTRY + "metric: accuracy", "no run of toy:train has 'accuracy'"),
        (ENTRY + "parents: toy:test", "no run of toy:train has a parent toy:test with 'objective'"),
        (ENTRY + "mean_by: lrr", "mean_by: run 00000001 has no flag 'lrr', did you mean lr?"),
        (ENTRY + "goal: most", "goal is max or min, got 'most'"),
        (ENTRY + "reported: [1, 2, 3]", "a number or [least, largest] is expected"),
        (ENTRY + "reported: {number: 1}", "no such key 'number': value, text"),
        (ENTRY + "same_setting: no", '"no: " and what differs'),
        ("question: What?\n    operation: toy:trian", "no operation toy:trian, did you mean"),
    ],
)
def test_an_entry_that_is_wrong(measure, make, entry: str, problem: str):
    with pytest.raises(CatalogError) as error:
        measure(entry, [make(1, value=0.5, seed=1, lr=1)])
    assert str(error.value).startswith("experiments/toy/reported.yml: headline: own: ")
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("good > bad", True),
        ("bad < good", True),
        ("good > 0.5", True),
        ("good < 0.5", False),
        ("bad > good", False),
        ("good ~ good", True),
        ("good ~ bad", False),
        ("good > never", False),
        # One run whose objective was not counted has no interval: nothing is known of other runs.
        ("lone > 0.5", False),
        ("lone < good", False),
        ("good > lone", False),
        ("lone ~ good", True),
    ],
)
def test_a_condition_of_a_finding(project, make, condition: str, holds: bool):
    records = [make(1, value=0.95, lr=1), make(2, value=0.1, lr=2), make(3, value=0.8, lr=3)]
    records[2].result["objective"] |= {"kind": "mean"}
    text = "headline:\n"
    flags_of = {"good": "{lr: 1}", "bad": "{lr: 2}", "lone": "{lr: 3}"}
    for name, operation, flags in ((name, "train", flags) for name, flags in flags_of.items()):
        text += f"  {name}: {{question: a, operation: 'toy:{operation}', flags: {flags}}}\n"
    text += "  never: {question: a, operation: 'toy:never'}\n"
    text += f"finding: {{text: 'it is {{good}}', if: ['{condition}']}}\n"
    (project.experiments / "toy/reported.yml").write_text(text)
    declared = headlines.declared(project)
    runs = headline_numbers.Runs(records, project.operations())
    measured = {h.name: runs.measured(h) for h in declared.headlines["toy"]}
    assert (not headline_numbers.unsupported(declared.findings["toy"], measured)) is holds


@pytest.mark.parametrize(
    ("finding", "problem"),
    [
        ("{text: 'a {other}'}", "no headline 'other'"),
        ("{text: a, if: [own > othr]}", "no headline 'othr'"),
        ("{text: a, if: [own is best]}", "is not NAME > NAME"),
        ("{if: [own > 1]}", "text, and if"),
    ],
)
def test_a_finding_that_is_wrong(project, finding: str, problem: str):
    path = project.experiments / "toy/reported.yml"
    path.write_text(f"headline:\n  own:\n    {ENTRY}\nfinding: {finding}\n")
    with pytest.raises(CatalogError, match=r"experiments/toy/reported\.yml: finding: ") as error:
        headlines.declared(project)
    assert problem in str(error.value)


def test_the_example_of_contributing(project):
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## Headlines and findings")[2]
    example = text.partition("```yaml\n")[2].partition("```")[0]
    (project.experiments / "toy/reported.yml").write_text(example)
    declared = headlines.declared(project)
    accuracy, best_lr = declared.headlines["toy"]
    assert accuracy.reported_span == (0.73, 0.73)
    assert accuracy.flags == {"seed": (1, 2, 3)}
    assert best_lr.compared_flag == "lr"
    assert [str(c) for c in declared.findings["toy"].conditions] == ["accuracy > 0.9"]
