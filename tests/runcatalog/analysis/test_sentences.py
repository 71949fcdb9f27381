"""What is said of a run and of a batch."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcatalog.analysis import groups, sentences
from runcatalog.model import statistics
from runcatalog.model.run_record import RunRecord


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"value": 0.93}, "93 % opening rate after 360 updates [86, 97]"),
        ({"value": 1.0}, "100 % opening rate after 360 updates [96, 100]"),
        ({"value": 0.0}, "0 % opening rate after 360 updates [0, 4]"),
        ({}, "finished, with no result"),
        ({"result": {"summary": "equal | bit for bit"}}, "equal \\| bit for bit"),
        ({"result": {"objective": {"name": "return_", "value": -9841083.0, "kind": "mean"}}}, "return −9.841e6"),
        ({"status": "FAILED", "reason": "gradient explosion at update 1: log_std is not finite"},
         "failed at update 1: gradient explosion (log_std is not finite)"),
        ({"status": "FAILED", "reason": "out of memory"}, "failed: out of memory"),
        ({"status": "FAILED", "reason": "ValueError: <b>\nx"}, "failed: ValueError: &lt;b&gt; x"),
        ({"status": "FAILED"}, "failed: no reason was told"),
        ({"status": "KILLED", "reason": "SIGTERM"}, "killed: SIGTERM"),
        ({"status": "KILLED", "reason": "lost: no heartbeat since 2026-01-01"}, "lost: no heartbeat since 2026-01-01"),
        ({"status": "RUNNING"}, "running"),
        ({"value": 0.5, "parents": ("abcd1234" * 4,)},
         "50 % opening rate after 360 updates [40, 60]; from abcd1234"),
        ({"value": 0.5, "reported_by": "a list"},
         "50 % opening rate after 360 updates [40, 60]; imported: a list"),
    ],
)  # fmt: skip
def test_a_run_in_a_sentence(make, fields, said):
    assert sentences.sentence(make(1, **fields)) == said.replace("return  ", "return\\_ ").replace(
        "return\\_ ", "return "
    )


def test_killed_and_running_say_how_far(make):
    points = {"loss": [(1, 1.0), (40, 0.5)]}
    killed = make(1, status="KILLED", reason="SIGTERM").with_points(points)
    assert sentences.sentence(killed) == "killed after step 40: SIGTERM"
    assert (
        sentences.sentence(make(1, status="RUNNING").with_points(points))
        == "running, step 40 so far"
    )


def test_which_options_were_used_is_said(make):
    objective = make(1, value=0.5).result["objective"]
    run = make(
        1, result={"objective": objective, "variant": {"reward": "capped", "action": "tanh"}}
    )
    assert sentences.sentence(run).endswith("; action tanh, reward capped")


def test_a_sweep_in_a_sentence(make):
    runs, number = [], 0
    for lr, values in (
        (5e-3, (1.0, 0.99, 0.98)),
        (1e-2, (0.9, 0.95, 0.7)),
        (1e-4, (0.1, 0.12, 0.14)),
    ):
        for seed, value in enumerate(values):
            number += 1
            runs.append(make(number, value=value, lr=lr, seed=seed, batch="b" * 32))
    explosion = "gradient explosion at update 12: log_std is not finite"
    runs[4] = make(5, lr=1e-2, seed=1, status="FAILED", reason=explosion, batch="b" * 32)
    said = groups.summary(None, runs)
    assert said == (
        "best **5e-3**: 99 % opening rate after 360 updates [97, 100]; 1e-2: 80 % [70, 90]; "
        "1e-4: 12 % [9, 16]; 1e-2 failed 1 of 3: gradient explosion at update 12"
    )
    assert groups.summary(None, runs[::-1]) == said


def test_seeds_alone_are_averaged(make):
    runs = [make(i, value=v, seed=i) for i, v in enumerate((0.9, 1.0), 1)]
    said = groups.summary(None, runs)
    assert said == "95 % opening rate after 360 updates [90, 100], mean of 2 seeds"
    runs.append(make(3, value=0.95, seed=2))  # elsewhere, perhaps: no third seed
    assert groups.summary(None, runs).endswith(", mean of 3 runs")


def test_further_numbers_of_a_result_are_told_with_it(make):
    def run(seed, remembering, transfer):
        also = [
            {"name": "remembering", "value": remembering, "kind": "rate"},
            {"name": "transfer", "value": transfer, "kind": "mean"},
        ]
        objective = {"name": "accuracy", "value": 0.8, "kind": "rate", "also": also}
        return make(seed, seed=seed, result={"objective": objective})

    runs = [run(1, 1.0, 0.5), run(2, 0.9, 0.25)]
    said = "80 % accuracy; 100 % remembering; transfer 0.5"
    assert sentences.sentence(runs[0]) == said
    assert groups.summary(None, runs) == (
        "80 % accuracy [80, 80], mean of 2 seeds; 95 % remembering [90, 100]; "
        "transfer 0.375 [0.25, 0.5]"
    )
    # What one of them does not tell, or tells as no number, has no mean.
    runs[1].result["objective"]["also"][1]["value"] = "NaN?"
    assert groups.summary(None, runs).endswith("; 95 % remembering [90, 100]")


def test_a_goal_of_min_ranks_the_other_way(make):
    runs = []
    for i, value in enumerate((3.0, 1.0, 2.0)):
        objective = {"name": "loss", "value": value, "kind": "mean", "goal": "min"}
        runs.append(make(i, result={"objective": objective}, lr=10.0**-i))
    assert groups.summary(None, runs) == "best **0.1**: loss 1; 1e-2: 2; 1: 3"


def trial(make, i: int, lr: float, value: float | None, kind: str = "gp", **fields) -> RunRecord:
    objective = {"name": "opening_rate", "value": value, "kind": "rate", "count": 100}
    result = {"search": {"kind": kind}} | ({} if value is None else {"objective": objective})
    return make(i, result=result, batch="b" * 32, lr=lr, **fields)


def test_a_search_in_a_sentence(make):
    trials = [
        trial(make, i, lr, v, "initial") for i, (lr, v) in enumerate(((1e-4, 0.1), (2e-2, 0.2)))
    ]
    good = ((5e-3, 0.9), (5.1e-3, 0.95), (5.2e-3, 0.92), (1.5e-2, 0.3), (1e-3, 0.4), (1.9e-2, 0.25))
    trials += [trial(make, i, lr, v) for i, (lr, v) in enumerate(good, 2)]
    lost = {"status": "FAILED", "reason": "gradient explosion at update 3: W1 is not finite"}
    trials += [trial(make, 8, 1.2e-2, None, **lost), trial(make, 9, 1.3e-2, None, **lost)]
    trials += [trial(make, 10, 1.4e-2, None, status="FAILED", reason="out of memory")]
    assert groups.summary(None, trials) == (
        "best **lr=5.1e-3**: 95 % opening rate [89, 98] (00000003); "
        "best cluster (3 of 8): lr=5e-3–5.2e-3: 90 % to 95 %; 3 of 11 trials failed: "
        "2 × gradient explosion at update 3, 1 × out of memory; 2 initial, 9 proposed by gp"
    )


def test_a_search_is_ranked_by_what_it_optimised(make):
    told = {"batch": True, "method": "gp", "optimised": {"name": "return", "goal": "max"}}
    batch = make(99, operation="toy:opt@gp", result=told)
    trials = [
        trial(make, i, lr, 0.0).with_points({"return": [(1, -900.0), (2, last)]})
        for i, (lr, last) in enumerate(((1e-3, -600.0), (1e-2, -460.5)))
    ]
    assert groups.summary(batch, trials).startswith(
        "best **lr=1e-2**: return −460.5, 0 % opening rate (00000001); "
    )


@given(st.lists(st.tuples(st.floats(1e-4, 2e-2), st.floats(0, 1)), min_size=2, max_size=30))
def test_a_cluster_is_a_chain_of_good_trials(pairs):
    trials = [
        RunRecord(f"{i:08x}", "o", "s", "FINISHED", flags={"lr": lr},
                  result={"objective": {"name": "r", "value": v}})
        for i, (lr, v) in enumerate(pairs)
    ]  # fmt: skip
    ranked = sorted(trials, key=lambda t: (-t.objective["value"], t.run))
    cluster = groups.best_cluster(ranked, ["lr"])
    assert len(cluster) != 1
    top = ranked[: max(3, -(-len(ranked) // 4))]
    assert all(t in top for t in cluster)
    rows = statistics.normalised([[t.flags["lr"] for t in ranked]])
    where = sorted(rows[ranked.index(t)][0] for t in cluster)
    assert all(b - a <= groups.LINK + 1e-9 for a, b in pairwise(where))


def test_a_batch_without_a_result(make):
    failed = [make(i, status="FAILED", reason="out of memory", lr=i) for i in (1, 2)]
    assert groups.summary(None, failed) == (
        "no trial finished with a result; 1 failed 1 of 1: out of memory; 2 failed 1 of 1: out of memory"
    )
    empty = make(
        9, operation="toy:sweep", result={"batch": True}, status="KILLED", reason="SIGTERM"
    )
    assert groups.summary(empty, []) == "killed: SIGTERM"
