"""Numbers and intervals in the browser are those of the pages."""

import json
import math
import random

import numpy as np
import pytest

from runcatalog import numbers
from runcatalog.analysis import groups
from runcatalog.model import statistics, values
from runcatalog.pages.tables import settings as pages
from runcatalog.pages.tables.page_data import PageData
from runcatalog.plots import curves
from runcatalog.record.evaluation import level_outcomes, outcomes_of
from runcatalog.record.output import outcome
from runcatalog.site import columns, index
from runcatalog.text import markdown


def objectives(draw: random.Random) -> list[dict]:
    count = draw.choice([1, 2, 3, 5, 20, 60])
    kind = draw.choice(["rate", "mean"])
    trials = draw.choice([None, 100, 10])
    drawn = []
    for _ in range(count):
        value = draw.choice([draw.random(), 1.0, 0.0]) if kind == "rate" else draw.gauss(0, 100)
        if kind == "rate" and trials:
            value = round(value * trials) / trials
        objective = {"name": "x", "value": value, "kind": kind}
        drawn.append(objective | ({"count": trials} if trials else {}))
    return drawn


def test_intervals_are_those_of_the_pages(browser, site_of):
    draw = random.Random(1)
    cases = [objectives(draw) for _ in range(60)]
    shown = browser.open(site_of([])).evaluate("cases => cases.map(statistics.bounds)", cases)
    for case, actual in zip(cases, shown, strict=True):
        expected = statistics.bounds(case)
        assert (actual is None) is (expected is None)
        if expected:
            assert actual == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_means_are_rounded_as_on_the_pages(browser, site_of):
    """Of four seeds with 100 games each, sums with a rounding after each summand give 55 instead of 56 %."""
    draw = random.Random(4)
    cases = [[0.22, 0.99, 0.2, 0.81], [1e300, 1.0, -1e300], [0.1] * 10]
    cases += [
        [draw.randint(0, 100) / 100 for _ in range(draw.choice([3, 4, 10]))] for _ in range(2000)
    ]
    shown = browser.open(site_of([])).evaluate("cases => cases.map(statistics.mean)", cases)
    assert shown == [statistics.mean(case) for case in cases]


def test_intervals_over_levels_and_seeds_are_those_of_the_pages(browser, site_of):
    draw = np.random.default_rng(3)
    cases, texts = [], []
    for seeds, levels, games in [(1, 30, 1), (1, 30, 4), (3, 50, 1), (5, 21, 3), (3, 8, 1)]:
        difficulty = draw.random(levels)
        for share in (0.5, 2.0, 0.0):  # at 0 every level is solved
            chance = difficulty[:, None] ** share
            case = []
            for _ in range(seeds):
                success = draw.random((levels, games)) < chance
                entry = level_outcomes(range(levels), {"x": success})
                value = float(success.mean())
                case.append({"name": "x", "value": value, "kind": "rate", "count": success.size})
                case[-1]["outcomes"] = outcomes_of({"outcomes": [entry]})
            cases.append(case)
            texts.append([each | {"outcomes": index.outcomes_text(each)} for each in case])
    shown = browser.open(site_of([])).evaluate("cases => cases.map(statistics.bounds)", texts)
    for case, actual in zip(cases, shown, strict=True):
        assert actual == pytest.approx(statistics.bounds(case), rel=1e-12, abs=1e-12)


def test_texts_of_numbers_are_those_of_the_pages(browser, site_of):
    draw = random.Random(2)
    floats = [draw.choice([1, -1]) * 10 ** draw.uniform(-7, 7) for _ in range(300)]
    floats += [
        0.0,
        1.0,
        -3.0,
        1e6,
        999999.5,
        0.1,
        0.09999,
        12345.6,
        100000.0,
        1e-4,
        9.9995,
        9999.6,
        0.9995,
        0.02512,
        123456789.0,
        9.99996e-5,
        -9.99996e-5,
    ]
    page = browser.open(site_of([]))
    assert page.evaluate("v => v.map((x) => formats.number(x))", floats) == [
        numbers.number(x) for x in floats
    ]
    texts = [values.flag_text(x) for x in (*floats, True, False, None, "", "64 64", 7, -12)]
    texts += [
        "1024.5",
        "1.10",
        "007",
        "-0",
        "123456e7",
        "5e-3",
        "1.0e-05",
        "1E5",
        ".5",
        "5.",
        "+5",
        "0.05",
    ]
    assert page.evaluate("v => v.map(formats.flag)", texts) == [
        markdown.flag_value(values.parse_flag(text)) for text in texts
    ]
    rates = [draw.random() for _ in range(100)] + [
        0.0,
        1.0,
        -0.0004,
        0.999,
        0.0001,
        0.995,
        1.01,
        0.125,
        1.125,
    ]
    assert page.evaluate("v => v.map(formats.rate)", rates) == [outcome.rate_text(x) for x in rates]
    ends = [0.0, 1e-7, 3e-5, 0.0004, 0.125, 0.495, 0.9925, 0.9975, 0.9995, 0.99996, 1.0]
    bounds = [
        (low, min(1, low + width))
        for low in (*rates[:100], *ends)
        for width in (0.0, 0.0025, 0.019, 0.021, 0.3)
    ]
    bounds += [(0.2, math.inf), (-0.0004, 0.01)]
    assert page.evaluate("v => v.map((each) => formats.interval(each, 'rate'))", bounds) == [
        outcome.interval_text({"kind": "rate"}, *each).strip() for each in bounds
    ]
    seconds = [0.2, 0.5, 1, 2.5, 59.6, 60, 3600, 3661, 90000, 531, 11 * 86400]
    assert page.evaluate("v => v.map(formats.duration)", seconds) == [
        numbers.duration(s) for s in seconds
    ]
    counts = [(1, "update"), (360, "env_step"), (4e5, "env_step"), (2e8, "toss"), (2, "tries")]
    assert page.evaluate("v => v.map((pair) => formats.count(...pair))", counts) == [
        numbers.count(number, name.replace("_", " ")) for number, name in counts
    ]
    assert page.evaluate("() => formats.number(999.6, 3)") == numbers.number(999.6, 3)
    assert page.evaluate("() => formats.number(NaN)") == numbers.number(math.nan)


def test_a_learning_rate_is_not_in_per_cent(browser, site_of):
    names = ["learning_rate", "train/learning_rate", "success_rate", "eval/win_rate", "rate"]
    is_rate = "names => names.map((name) => charts.isRate(name, [{values: [3e-4, 0]}], null))"
    shown = browser.open(site_of([])).evaluate(is_rate, names)
    assert shown == [False, False, True, True, True]


def test_bands_over_seeds_are_those_of_the_figures(browser, site_of):
    """Also of runs with NaN in between or at their end, or that stopped before the others."""
    nan = math.nan
    of_runs = [
        {1: 0.5, 2: nan, 3: 0.7, 4: nan},
        {1: nan, 2: 0.2, 3: nan, 4: 0.6},
        {1: 0.1, 2: 0.3},
        {1: nan, 2: nan},
    ]
    finished = [True, True, False, True]
    given = [{"steps": [*run], "values": [*run.values()]} for run in of_runs]
    page = browser.open(site_of([]))
    shown = page.evaluate(
        "([given, finished]) => settings.band(given, finished)", [given, finished]
    )
    drawn = zip(*curves.band([[*run.items()] for run in of_runs], finished), strict=True)
    expected = [values for values in drawn if values[0] >= 2]  # where all have begun
    assert [
        *zip(*(shown[key] for key in ("steps", "mean", "low", "high")), strict=True)
    ] == expected


def test_settings_are_those_of_the_pages(browser, site_of, make):
    alike = [make(n, value=0.5, seed=n, threads=n, video=n > 1) for n in (1, 2)]
    others = [make(n, value=0.5, seed=1, lr=n, **{"save-name": str(n)}) for n in (3, 4)]
    page = browser.open(site_of([*alike, *others]))
    shown = page.evaluate("runs_ => runs_.map((rows) => settings.varying(rows))", [[0, 1], [2, 3]])
    assert shown == [groups.varying(alike), groups.varying(others)]


def test_settings_and_their_means_are_those_of_the_pages(browser, site_of, project, make):
    """Runs made from others are no seeds of one setting, and a seed that ran twice counts once."""
    models = [make(n, value=0.5, seed=1 + n % 2, lr=1 + n // 2) for n in range(4)]
    draw = random.Random(5)
    runs_ = [
        make(
            10 + n,
            value=draw.randint(0, 100) / 100,
            seed=draw.choice([1, 2]),
            operation="toy:evaluate",
            parents=(draw.choice(models).run,),
            label=draw.choice(["", "again"]),
            superseded_by=draw.choice(["", "", models[0].run]),
            status=draw.choice(["FINISHED", "FINISHED", "FAILED"]),
        )
        for n in range(60)
    ]
    twice = [make(100 + n, value=0.1 * n, seed=n // 2, operation="toy:twice") for n in range(8)]
    alike = [make(110 + n, value=0.3, operation="toy:alike") for n in range(3)]  # without a seed
    records = [*models, *runs_, *twice, *alike]
    data = PageData(records, project.operations(), {})
    expected = [
        ([m.run for m in setting.members], setting.value, statistics.bounds(setting.objectives))
        for operation in ("toy:train", "toy:evaluate", "toy:twice", "toy:alike")
        for setting in pages.settings(data, operation)
    ]
    page = browser.open(site_of(records))
    shown = page.evaluate("""() => settings.of([...runs.ids.keys()].filter(runs.isCurrent)).map(
      ({counted, mean, bounds}) => [counted.map((row) => runs.ids[row]), mean, bounds])""")
    assert len(shown) == len(expected) > 12
    for run_ids, mean, bounds in expected:
        ((_, shown_mean, shown_bounds),) = [each for each in shown if each[0] == run_ids]
        assert shown_mean == (mean and pytest.approx(mean, rel=1e-12))
        assert shown_bounds == (bounds and pytest.approx([*bounds], rel=1e-12))
    ids = ",".join(run.run for run in runs_)
    browser.go(page, f"#/compare/{ids}")
    titles = page.evaluate(
        "() => [...document.querySelectorAll('.legend li')].map((li) => li.textContent)"
    )
    assert len({*titles}) > 2
    browser.go(page, "#/compare/" + ",".join(run.run for run in twice))
    assert "4 older runs of the same seed left out" in page.locator("main").inner_text()


@pytest.mark.parametrize("value", [-1e20, 1e20, -3.0, 1e15, -1e300])
def test_a_number_of_any_size_is_written(value):
    assert columns.number(value) == value
    assert len(json.dumps(columns.number(value))) < 25
