"""Runs compared level by level: McNemar, intervals over levels and seeds, and what `catalog diff` shows of it."""

import json
import math
import random
import shlex
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcatalog import record
from runcatalog.analysis import paired, record_numbers
from runcatalog.analysis.diff import Side, as_json, diff
from runcatalog.model import statistics
from runcatalog.record.evaluation import outcomes_of

LEVELS = [f"level {i}" for i in range(200)]


def with_outcomes(make, number, success, levels=LEVELS, **fields):
    """A run with its outcomes by level."""
    success = np.asarray(success, bool)
    objective = {"name": "success", "value": float(success.mean()), "kind": "rate", "goal": "max"}
    objective["count"] = success.size
    outcomes = [record.level_outcomes(levels, {"success": success})]
    return make(number, result={"objective": objective, "outcomes": outcomes}, **fields)


def draws(seed, rate, shape=200):
    return np.random.default_rng(seed).random(shape) < rate


def test_two_runs_on_the_same_levels_are_compared_level_by_level(make, tmp_path):
    first, second = draws(1, 0.6), draws(2, 0.8)
    a, b = with_outcomes(make, 1, first), with_outcomes(make, 2, second)
    found = paired.compare([a], [b], "success")
    assert (found.first_only, found.second_only) == (
        sum(x and not y for x, y in zip(first, second, strict=True)),
        sum(y and not x for x, y in zip(first, second, strict=True)),
    )
    assert found.value == pytest.approx(second.mean() - first.mean())
    assert found.p_value == statistics.mcnemar(found.first_only, found.second_only)
    assert found.is_determined
    back = paired.compare([b], [a], "success")
    assert back.interval == pytest.approx([-end for end in reversed(found.interval)])
    text = "\n".join(diff(Side(a), Side(b), tmp_path))
    assert f"exact McNemar, {len(LEVELS)} levels" in text
    assert "undetermined" not in text
    row = next(line for line in text.splitlines() if "exact McNemar" in line)
    assert [str(found.first_only), str(found.second_only)] == row.split("]")[1].split()[:2]
    sides = record_numbers.Side([a], "success", 100.0), record_numbers.Side([b], "objective", 100.0)
    assert record_numbers.bounds_of_difference(*sides) == pytest.approx(
        [100 * end for end in found.interval]
    )


def test_the_paired_interval_is_narrower_where_the_levels_decide(make):
    """Two runs that fail on the same levels, but for a few: unpaired nothing is seen."""
    first = draws(3, 0.7)
    second = first.copy()
    second[np.flatnonzero(~first)[:8]] = True
    runs = [with_outcomes(make, i, each) for i, each in enumerate((first, second), 1)]
    found = paired.compare(runs[:1], runs[1:], "success")
    assert (found.first_only, found.second_only, found.is_determined) == (0, 8, True)
    for run in runs:
        del run.result["outcomes"]
    low, high = record_numbers.bounds_of_difference(
        *(record_numbers.Side([run], "success") for run in runs)
    )
    assert low < 0 < found.interval[0]
    assert high - low > 2 * (found.interval[1] - found.interval[0])


@pytest.mark.parametrize("shares", [(0.05, 0.05), (0.2, 0.05), (0.25, 0.25), (0.4, 0.3)])
def test_the_interval_of_two_runs_covers_the_true_difference(make, shares):
    """The exact probability, over all outcomes of 30 levels."""
    count, covered, found = 30, 0.0, 0.0
    p, q = shares
    for b in range(count + 1):
        for c in range(count + 1 - b):
            weight = math.comb(count, b) * math.comb(count - b, c) * p**b * q**c
            weight *= (1 - p - q) ** (count - b - c)
            first, second = np.zeros(count, bool), np.zeros(count, bool)
            first[:b], second[b : b + c] = True, True
            each = paired._two_runs(first, second)
            covered += weight * (each.interval[0] <= q - p <= each.interval[1])
            found += weight * each.is_determined
    assert covered > 0.93
    assert p != q or found < 0.05  # a difference that is none is rarely found


def test_the_interval_of_a_metric_with_outcomes_is_that_of_a_share(make):
    """Two seeds at 92 and 95 % had an interval up to 115 %."""
    runs = [with_outcomes(make, i, draws(i, rate)) for i, rate in enumerate((0.92, 0.96))]
    expected = record_numbers.bounds(runs, "success")
    for run in runs:
        rate = run.result["objective"].pop("value")
        run.result["objective"] = {"name": "reward", "value": 0.5, "kind": "mean"}
        run.result["metrics"] = {"success": rate}
    found = record_numbers.bounds(runs, "success")
    assert found == expected
    assert found[1] == 1.0


def test_runs_without_outcomes_or_of_other_levels_are_unpaired_and_it_says_so(make, tmp_path):
    a = with_outcomes(make, 1, draws(1, 0.6))
    bare = make(2, value=0.8)
    bare.result["objective"]["name"] = "success"
    assert paired.compare([a], [bare], "success") == "B has no outcomes per level"
    assert "unpaired: B has no outcomes per level" in "\n".join(diff(Side(a), Side(bare), tmp_path))
    # The same levels in another order, of which the result of each is not the other's.
    other = with_outcomes(make, 3, draws(1, 0.6), levels=LEVELS[::-1])
    assert paired.compare([a], [other], "success") == "the levels differ"
    assert paired.compare([a], [], "success") == "B has no outcomes per level"


def batch(make, first, rate, seeds):
    """A batch of seeds on levels of different difficulty."""
    rates = np.clip(rate + np.random.default_rng(9).normal(0, 0.2, 200), 0, 1)
    trials = [
        with_outcomes(make, first + seed, draws(first + seed, rates), seed=seed) for seed in seeds
    ]
    return Side(make(first, result={"batch": True}), tuple(trials))


def test_settings_with_several_seeds_are_compared_over_levels_and_seeds(make, tmp_path):
    a, b = batch(make, 100, 0.6, (1, 2, 3)), batch(make, 200, 0.8, (1, 2, 3))
    found = paired.compare(a.trials, b.trials, "success")
    rates = [
        np.stack([t.outcomes["success"].success[:, 0] for t in side.trials]) for side in (a, b)
    ]
    assert found.interval == statistics.interval_over_levels(*rates, same_seeds=True)
    assert found.value == pytest.approx(rates[1].mean() - rates[0].mean())
    assert found.p_value is None
    change = rates[1].sum(0) - rates[0].sum(0)
    assert (found.first_only, found.second_only) == ((change < 0).sum(), (change > 0).sum())
    text = "\n".join(diff(a, b, tmp_path))
    assert "200 levels × 3 seeds" in text
    assert "smallest difference found with 80 % power" in text
    (entry,) = json.loads(as_json(a, b))["differences"]
    assert entry["determined"]
    assert entry["interval"] == pytest.approx(found.interval)
    assert entry["detectable"] == pytest.approx(statistics.detectable(found.interval))
    # Seeds that started in another order are the same seeds.
    assert paired.compare(a.trials, b.trials[::-1], "success") == found
    uneven = paired.compare(a.trials, b.trials[:1], "success")
    assert "200 levels × 3 and 1 seeds" in uneven.method


@pytest.mark.parametrize(("first", "second"), [(1, 1), (0, 0), (0, 1), (1, 0)])
@pytest.mark.parametrize("shape", [(3, 40), (1, 160)])
def test_settings_that_differ_alike_on_all_levels_have_an_interval(make, first, second, shape):
    """It was a point, so that any difference seemed detectable."""
    seeds, games = shape
    sides = [
        [
            with_outcomes(make, 100 * i + s, np.full(games, solved), LEVELS[:40], seed=s)
            for s in range(seeds)
        ]
        for i, solved in enumerate((first, second), 1)
    ]
    found = paired.compare(*sides, "success")
    one_game = paired._two_runs(np.full(40, first == 1), np.full(40, second == 1))
    assert found.interval == pytest.approx(one_game.interval, abs=0.04)
    assert found.interval[0] <= found.value <= found.interval[1]
    assert found.is_determined is (first != second)
    assert found.detectable > 0.05


def test_a_single_level_has_no_interval_over_levels(make, tmp_path):
    sides = [
        [with_outcomes(make, first + s, draws(s, rate, 5), LEVELS[:1], seed=s) for s in (1, 2, 3)]
        for first, rate in ((100, 0.5), (200, 0.9))
    ]
    found = paired.compare(*sides, "success")
    assert (found.interval, found.is_determined, found.detectable) == (None, False, None)
    a, b = (Side(make(i, result={"batch": True}), tuple(side)) for i, side in enumerate(sides, 1))
    assert "1 level × 3 seeds" in "\n".join(diff(a, b, tmp_path))


def test_several_games_of_a_level_count_as_one_level(make):
    """Slips of the same level are no levels: the interval does not shrink with their number as with that of levels."""
    solvable = draws(4, 0.5, 50)
    few, levels = np.repeat(solvable, 40), [f"{i}" for i in range(50)]
    none = np.zeros(50 * 40, bool)
    none[: 40 * 10] = True
    a, b = (with_outcomes(make, i, each, levels) for i, each in enumerate((none, few), 1))
    found = paired.compare([a], [b], "success")
    assert found.p_value is None
    assert "50 levels × 1 seed" in found.method
    once = paired._two_runs(none[::40], few[::40])
    assert found.interval == pytest.approx(once.interval, abs=0.04)


@given(st.integers(0, 400), st.integers(0, 400))
def test_mcnemar_is_scipys_binomial_test(first_only, second_only):
    from scipy.stats import binomtest

    count = first_only + second_only
    expected = binomtest(first_only, count).pvalue if count else 1.0
    assert statistics.mcnemar(first_only, second_only) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_the_interval_over_levels_covers_the_true_difference(spread):
    """Five seeds on forty levels of different difficulty; the true difference is 0.1 of all levels and seeds."""
    generator, covered, experiments = np.random.default_rng(0), 0, 60
    for _ in range(experiments):
        difficulty = generator.uniform(-0.3, 0.3, 40)
        rates = (0.45 + generator.normal(0, spread, (5, 1)) + difficulty for _ in range(2))
        first, second = (
            generator.random((5, 40)) < rate + extra
            for rate, extra in zip(rates, (0, 0.1), strict=True)
        )
        low, high = statistics.interval_over_levels(first, second, same_seeds=False)
        covered += low <= 0.1 <= high
    assert covered >= 0.9 * experiments


def test_what_is_detectable_is_found_in_four_of_five_comparisons():
    """Of normal differences with a known standard error."""
    generator, error = random.Random(0), 0.7
    size = statistics.detectable((-1.959964 * error, 1.959964 * error))
    found = sum(abs(generator.gauss(size, error)) > 1.959964 * error for _ in range(4000))
    assert found / 4000 == pytest.approx(0.8, abs=0.02)


SOLVER = '''
"""Solves levels with a chance."""
import argparse
from dataclasses import dataclass

from runcatalog import record


@dataclass(frozen=True)
class Config(record.Config):
    chance: float = record.option(0.5, "chance of a success")
    levels: int = record.option(300, "number of levels")


def main(config):
    with record.start(config, study="toy") as run:
        solved = run.seeds.generator("levels").random(config.levels) < config.chance
        objective = {"name": "success", "value": float(solved.mean()), "kind": "rate", "count": config.levels}
        outcomes = [record.level_outcomes(range(config.levels), {"success": solved})]
        return run.finish({"objective": objective, "outcomes": outcomes})


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser())
'''


def test_two_runs_as_they_are_typed(shell):
    """The same draws on every level, so that the better one solves all that the other does."""
    (shell.root / "src/solve.py").write_text(SOLVER)
    for flags in ("--chance 0.6", "--chance 0.7", "--chance 0.7 --levels 200"):
        shell(f"{shlex.quote(sys.executable)} src/solve.py --seed 3 {flags}")
    shell.catalog("sync")
    runs = sorted((shell.root / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    text = shell.catalog(f"diff {runs[0].name} {runs[1].name}")
    (line,) = [line for line in text.splitlines() if line.lstrip().startswith("success  ")]
    ours, theirs = (
        outcomes_of(json.loads((run / "result.json").read_text())["result"])["success"].success
        for run in runs[:2]
    )
    gained = int((theirs & ~ours).sum())
    assert gained > 0
    assert line.split("]")[1].split()[:2] == ["0", str(gained)]
    assert "exact McNemar, 300 levels" in line
    assert "unpaired: the levels differ" in shell.catalog(f"diff {runs[0].name} {runs[2].name}")
