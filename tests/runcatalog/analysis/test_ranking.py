"""`catalog best`: how points are ranked, and that a lucky seed does not win."""

import json
import random
import re
from dataclasses import replace

import numpy as np
import pytest

from memory_reader import MemoryReader
from runcatalog import record
from runcatalog.analysis import ranking
from runcatalog.model import statistics
from runcatalog.model.errors import CatalogError


def ranked(records, operation="toy:train", *options, **more):
    return ranking.rank(MemoryReader(records), operation, *options, **more)


def lrs(result):
    return [group.point["lr"] for group in result.groups]


def seeds(make, first, values, **flags):
    """Runs of one point, one per seed; None is a failed run."""
    for number, value in enumerate(values):
        outcome = (
            {"value": value} if value is not None else {"status": "FAILED", "reason": "exploded"}
        )
        yield make(first + number, seed=number, **outcome, **flags)


def mean_kind(runs):
    """The same runs with an objective that was not counted, so that the interval is over seeds alone."""
    for run in runs:
        if run.objective:
            run.result["objective"] |= {"kind": "mean", "name": "score"}
    return list(runs)


def test_a_single_seed_ranks_below_points_of_several_seeds_and_is_listed(make):
    runs = mean_kind([*seeds(make, 1, [0.8, 0.7, 0.75], lr=1), *seeds(make, 10, [0.99], lr=2)])
    result = ranked(runs)
    assert lrs(result) == [1, 2]
    text = "\n".join(ranking.as_table(result, 10, None))
    assert "single seeds are ranked below" in text
    assert "2. reached 0.99 with a single seed, which may be chance" in text
    alone = ranked(mean_kind([*seeds(make, 1, [0.8], lr=1), *seeds(make, 10, [0.99], lr=2)]))
    assert lrs(alone) == [2, 1]
    assert (
        "a single seed per setting: no interval over seeds" in ranking.as_table(alone, 10, None)[-1]
    )


def test_ranked_by_the_worse_end_of_the_interval(make):
    """The better mean with the wider spread ranks second, for both goals."""
    wide, narrow = [0.2, 1.0, 1.0, 1.0], [0.7, 0.72, 0.74, 0.76]
    runs = mean_kind([*seeds(make, 1, wide, lr=1), *seeds(make, 10, narrow, lr=2)])
    assert lrs(ranked(runs)) == [2, 1]
    result = ranked(runs)
    for group in result.groups:
        objectives = [{"value": v, "kind": "mean"} for v in group.numbers]
        assert group.bounds == statistics.bounds(objectives)
        assert group.rank == min(group.bounds)
    down = ranked(runs, "toy:train", "", "min")
    assert [group.rank for group in down.groups] == sorted(max(g.bounds) for g in down.groups)


def test_failed_runs_count_as_the_worst_value_and_are_shown(make):
    """Two of five that survived with 0.9 do not beat five that all reached 0.8."""
    runs = mean_kind(
        [
            *seeds(make, 1, [0.9, 0.9, None, None, None], lr=1),
            *seeds(make, 10, [0.8] * 5, lr=2),
            *seeds(make, 20, [0.1, 0.1], lr=3),
            *seeds(make, 30, [None, None], lr=4),
            make(40, lr=2, seed=7, status="KILLED", reason="SIGTERM"),
        ]
    )
    result = ranked(runs)
    assert lrs(result)[0] == 2
    lines = ranking.as_table(result, 10, None)
    assert "15 runs, 4 settings, 5 failed, 1 killed" in lines[0]
    assert any(re.match(r"\d\.  +1 .* 3 of 5 ", line) for line in lines)
    assert "lr=4: no value (2 runs)" in lines


def test_a_failed_run_does_not_improve_the_rank(make):
    """As one more seed it would narrow the interval, or end that of the counted games."""
    few = mean_kind(
        [
            *seeds(make, 1, [0.9, 0.98], lr=1),
            *seeds(make, 10, [0.9, 0.98, None], lr=2),
            *seeds(make, 20, [0.85, 0.85], lr=3),
        ]
    )
    assert lrs(ranked(few)) == [3, 1, 2]
    always = [*seeds(make, 1, [1.0] * 3, lr=2), *seeds(make, 10, [1.0, 1.0, None], lr=1)]
    assert lrs(ranked(always)) == [2, 1]
    errors = [1 - r.objective["value"] if r.objective else None for r in few]
    runs = mean_kind(
        [
            make(n, value=e, seed=r.seed, status=r.status, **r.flags)
            for n, (r, e) in enumerate(zip(few, errors, strict=True))
        ]
    )
    assert lrs(ranked(runs, goal="min")) == [3, 1, 2]


def test_a_repeated_seed_counts_once(make):
    runs = mean_kind([make(n, value=0.9, seed=1, lr=1) for n in range(1, 9)])
    runs += mean_kind([*seeds(make, 20, [0.5, 0.6], lr=2)])
    result = ranked(runs)
    assert lrs(result) == [2, 1]
    assert result.again == 7
    assert "7 left out because the same seed ran again" in ranking.as_table(result, 10, None)[0]
    failed_later = [make(1, value=0.9, seed=1), make(2, seed=1, status="FAILED")]
    assert ranked(failed_later).groups[0].numbers == [0.9]


def test_runs_without_a_seed_count_once_where_all_have_the_same_result(make):
    """The repetitions of a deterministic script are no seeds."""

    def shown(values):
        runs = mean_kind([make(i, value=value, lr=1) for i, value in enumerate(values, 1)])
        (group,) = (result := ranked(runs)).groups
        return len(group.numbers), group.bounds is not None, ranking.as_table(result, 10, None)[0]

    count, has_interval, head = shown([0.9, 0.9, 0.9])
    assert (count, has_interval) == (1, False)
    assert head.endswith("1 run, 1 setting, 2 left out because the same ran again")
    assert shown([0.9, 0.9, 0.8])[:2] == (3, True)


def test_a_seed_counts_once_in_a_group_of_several_settings(make):
    """Four clips of one lucky seed are one seed; the interval is that of the means by seed."""
    clips = {
        1: [[0.9, 0.92, 0.94, 0.96]],
        2: [[0.5, 0.7], [0.6, 0.8, 0.7]],
        3: [[0.1, None], [0.2]],
    }
    runs = []
    for lr, by_seed in clips.items():
        for seed, values in enumerate(by_seed):
            for clip, value in enumerate(values):
                outcome = {"status": "FAILED"} if value is None else {"value": value}
                runs.append(
                    make(100 * lr + 10 * seed + clip, seed=seed, lr=lr, clip=clip, **outcome)
                )
    runs = mean_kind(runs)
    result = ranked(runs, "toy:train", by=["lr"])
    groups = {group.point["lr"]: group for group in result.groups}
    assert lrs(result) == [2, 3, 1]
    assert groups[1].bounds is None
    assert groups[1].mean == pytest.approx(0.93)
    means = [{"value": v, "kind": "mean"} for v in (0.6, 0.7)]
    assert groups[2].bounds == pytest.approx(statistics.bounds(means))
    assert groups[2].mean == pytest.approx(0.65)
    worst = [{"value": v, "kind": "mean"} for v in ((0.1 + 0.1) / 2, 0.2)]
    assert groups[3].rank == pytest.approx(min(statistics.bounds(worst)))
    lines = ranking.as_table(result, 0, None)
    assert re.match(r"1\.  +2 .* 2 +5 ", lines[3]), lines  # two seeds, five runs
    assert "a single seed, which may be chance" in "\n".join(lines)


def test_a_seed_of_several_settings_has_no_outcomes_of_one_of_them(make):
    """Its mean is that of two runs, which solved other levels; two such seeds with equal means have an interval."""
    solved = {0.9: np.arange(20) < 18, 0.7: np.arange(20) < 14}
    runs = []
    for number, (seed, value) in enumerate((s, v) for s in (1, 2) for v in solved):
        objective = {"name": "rate", "value": value, "kind": "rate", "count": 20, "goal": "max"}
        outcomes = [record.level_outcomes(range(20), {"rate": solved[value]})]
        told = {"objective": objective, "outcomes": outcomes}
        runs.append(make(number + 1, seed=seed, lr=1, clip=value, result=told))
    (group,) = ranked(runs, "toy:train", by=["lr"]).groups
    assert group.bounds == pytest.approx(statistics.wilson(64, 80))


def test_the_order_of_the_runs_changes_nothing(make):
    runs = [
        *seeds(make, 1, [0.3, 0.9, None], lr=1),
        *seeds(make, 10, [0.5] * 3, lr=2),
        make(30, value=0.7, lr=3),
    ]
    first = ranking.as_table(ranked(runs), 10, None)
    for number in range(5):
        shuffled = random.Random(number).sample(runs, len(runs))
        assert ranking.as_table(ranked(shuffled), 10, None) == first


def test_metrics_goals_and_flags_to_group_by(make):
    points = {1: [0.1, 0.9, 0.2], 2: [0.5, 0.5, 0.5]}
    runs = [
        make(10 * lr + seed, lr=lr, seed=seed, clip=seed).with_points(
            {"rate": list(enumerate(points[lr]))}
        )
        for lr in (1, 2)
        for seed in (1, 2)
    ]
    assert len(ranked(runs, "toy:train", "rate").groups) == 4
    assert lrs(ranked(runs, "toy:train", "rate", by=["lr"])) == [2, 1]
    assert lrs(ranked(runs, "toy:train", "best:rate", by=["lr"])) == [1, 2]
    # 0.1 is the smallest
    assert lrs(ranked(runs, "toy:train", "best:rate", "min", by=["lr"])) == [
        1,
        2,
    ]
    assert ranked(runs, "toy:train", "rate", by=[]).groups[0].point == {}
    with pytest.raises(CatalogError, match="--group-by lrr: no run has this flag, did you mean lr"):
        ranked(runs, "toy:train", "rate", by=["lrr"])
    with pytest.raises(CatalogError, match="has the metric 'rat', did you mean rate"):
        ranked(runs, "toy:train", "rat")
    with pytest.raises(CatalogError, match="no run of toy:train has an objective: --metric METRIC"):
        ranked(runs)
    with pytest.raises(CatalogError, match="did you mean toy:train"):
        ranked(runs, "toy:trian", "rate")


def test_a_batch_is_named_by_its_operation_and_is_no_run_itself(make):
    result = {"batch": True, "method": "gp", "optimised": {"name": "early", "goal": "min"}}
    head = make(99, operation="toy:opt@gp", result=result, lr=7)
    trials = [
        make(n, value=0.5, lr=n, batch=head.run).with_points({"early": [(0, float(n))]})
        for n in (3, 1, 2)
    ]
    searched = ranked([head, *trials], "toy:opt@gp")
    assert lrs(searched) == [1, 2, 3]  # by what the search looked at
    assert str(searched.measure) == "early (min)"
    assert len(ranked([head, *trials]).runs) == 3


def test_the_table_has_the_requested_rows_and_the_terminals_width(make):
    runs = [make(n, value=n / 50, lr=n, a_very_long_name=f"value {n}" * 9) for n in range(20)]
    lines = ranking.as_table(ranked(runs), 3, 60)
    assert sum(bool(re.match(r" *\d+\.", line)) for line in lines) == 3
    assert "17 more (-n 0 shows all)" in lines
    assert max(map(len, lines[1:-1])) <= 60
    assert (
        sum(bool(re.match(r" *\d+\.", line)) for line in ranking.as_table(ranked(runs), 0, None))
        == 20
    )


@pytest.mark.parametrize("cells", [None, 100])
def test_a_long_value_widens_no_row(make, cells):
    """A configuration as text made lines of 1,600 blanks."""
    long = "x" * 1600
    runs = [make(i, value=0.1 * i, name=name, seed=1) for i, name in enumerate(("a", long), 1)]
    lines = ranking.as_table(ranked(runs), 0, cells)
    assert max(map(len, lines)) <= 140
    assert any("x" * 40 in line and "…" in line for line in lines)
    assert long in ranking.as_json(ranked(runs), 0)


def test_a_flag_that_changes_nothing_or_is_shared_is_no_column(make):
    runs = [
        make(n, value=n / 50, lr=n % 4, seed=n, threads=n, depth=3 + (n > 15)) for n in range(16)
    ]
    runs += [make(20, value=0.001, lr=9, seed=0, threads=1, depth=4)]
    lines = ranking.as_table(ranked(runs), 3, 100)
    assert lines[2].split() == ["lr", "mean", "95", "%", "interval", "seeds", "best", "run"]
    assert "all have depth=3" in lines
    every = ranking.as_table(ranked(runs), 3, 100, every_flag=True)[2]
    assert every.split()[:2] == ["depth", "lr"]


def test_a_ranking_as_json_has_its_numbers_and_runs(make):
    runs = [make(n, value=n / 50, lr=n % 2, seed=n) for n in range(6)]
    result = ranked(runs)
    content = json.loads(ranking.as_json(result, 1))
    assert content["operation"] == "toy:train"
    (group,) = content["groups"]
    assert group["flags"] == {"lr": 1}
    assert group["mean"] == pytest.approx(3 / 50)
    assert group["interval"] == list(result.groups[0].bounds)
    assert group["runs"] == [run.run for run in runs if run.seed % 2]
    assert group["best_run"] == runs[5].run


def test_runs_made_from_other_runs_are_other_settings(make):
    """As the pages have it: two evaluations with equal flags of two models are no repetition."""
    models = [make(n, operation="toy:model", seed=n % 2, depth=n // 2) for n in range(4)]
    runs = [
        make(10 + n, value=0.1 * n, seed=n % 2, operation="toy:evaluate", parents=(model.run,))
        for n, model in enumerate(models)
    ]
    again = make(20, value=0.3, seed=1, operation="toy:evaluate", parents=(models[3].run,))
    result = ranked([*models, *runs, again], "toy:evaluate")
    assert [group.numbers for group in result.groups] == [[0.2, 0.3], [0.0, 0.1]]
    assert result.again == 1
    lines = ranking.as_table(result, 10, None)
    assert lines[2].split()[:2] == ["made", "from"]
    assert lines[3].split()[1:3] == [models[2].id8, models[3].id8]
    groups = json.loads(ranking.as_json(result, 0))["groups"]
    assert groups[0]["made_from"] == [models[2].run, models[3].run]


def test_a_search_that_failed_does_not_say_what_is_compared(make):
    """One with a misspelt metric."""
    runs = [make(n, value=n / 10, lr=n, seed=1, batch=make(20).run) for n in range(3)]
    search = make(20, operation="toy:train", status="FAILED")
    search = replace(search, result={"batch": {}, "optimised": {"name": "nope", "goal": "max"}})
    assert ranked([*runs, search]).measure.name == "opening_rate"


def test_a_run_that_finished_with_another_objective_has_not_failed(make):
    """As where the script has renamed it since: such runs counted as the worst value of all."""
    old = [
        make(n, seed=n, lr=1, result={"objective": {"name": "length", "value": 500.0}})
        for n in (1, 2)
    ]
    runs = [*seeds(make, 10, [0.8, 0.7, 0.75], lr=1), *old]
    both, alone = ranked(runs), ranked(runs[:3])
    assert both.groups[0].rank == alone.groups[0].rank
    assert both.groups[0].failed == 0
    assert "2 left out with another objective" in ranking.as_table(both, 10, None)[0]
    (group,) = ranked(runs, metric="length").groups
    assert group.numbers == [500.0, 500.0]


def test_only_the_runs_that_match_a_query_are_ranked(make):
    """The settings of two tasks stood in one ranking."""
    batch = make(30, operation="toy:sweep", result={"batch": {"trials": 4}})
    runs = [
        *seeds(make, 1, [0.8, 0.7], lr=1, task="pull"),
        *seeds(make, 10, [0.9, 0.9], lr=1, task="lever"),
        *seeds(make, 20, [0.5, None], lr=2, task="lever"),
    ]
    runs = [*(replace(run, batch=batch.run) for run in runs), batch]
    result = ranked(runs, query="task=lever")
    assert lrs(result) == [1, 2]
    assert {run.flags["task"] for run in result.runs} == {"lever"}
    trials = ranked(runs, "toy:sweep", query="task=lever and lr>1")
    assert {run.flags["lr"] for run in trials.runs} == {2}
    assert ranking.as_json(result, 0) == ranking.as_json(ranked(runs[2:6]), 0)
    for query, problem in (
        (
            "task=levr",
            "no run of toy:train matches task=levr: task is never levr, did you mean lever",
        ),
        ("tsk=lever", "did you mean task"),
        ("operation=toy:sweep", "no run of toy:train matches operation=toy:sweep"),
    ):
        with pytest.raises(CatalogError, match=problem):
            ranked(runs, query=query)


def test_a_ranking_of_a_query_reads_the_runs_once(make):
    class Counting(MemoryReader):
        reads = 0

        def runs(self, **options):
            self.reads += 1
            return super().runs(**options)

    reader = Counting(seeds(make, 1, [0.8, 0.7], lr=1))
    assert len(ranking.rank(reader, "toy:train", query="lr=1").runs) == 2
    assert reader.reads == 1


def test_a_ranking_by_test_results_says_so(make):
    test_set = {"split": "test", "name": "100 worlds"}
    runs = [*seeds(make, 1, [0.8, 0.7], lr=1), *seeds(make, 10, [0.9, 0.9], lr=2)]
    note = "measured on a test set, which a choice between settings uses up"
    assert note not in ranking.as_table(ranked(runs), 10, None)
    runs[0].result["evaluation"] = test_set
    assert note in ranking.as_table(ranked(runs), 10, None)
