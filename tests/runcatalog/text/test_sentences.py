"""The sentence of a single run."""

import pytest

from runcatalog.text import sentences


@pytest.mark.parametrize(
    ("fields", "expected"),
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
        ({"status": "FAILED"}, "failed: no reason recorded"),
        ({"status": "KILLED", "reason": "SIGTERM"}, "killed: SIGTERM"),
        ({"status": "KILLED", "reason": "lost: no heartbeat since 2026-01-01"}, "lost: no heartbeat since 2026-01-01"),
        ({"status": "RUNNING"}, "running"),
        ({"value": 0.5, "parents": ("abcd1234" * 4,)},
         "50 % opening rate after 360 updates [40, 60]; from abcd1234"),
        ({"value": 0.5, "reported_by": "a list"},
         "50 % opening rate after 360 updates [40, 60]; imported: a list"),
    ],
)  # fmt: skip
def test_a_run_in_a_sentence(make, fields, expected):
    assert sentences.sentence(make(1, **fields)) == expected.replace(
        "return  ", "return\\_ "
    ).replace("return\\_ ", "return ")


def test_what_is_no_interval_and_no_outcomes_is_left_out(make):
    """Nothing could be rendered with such a record."""
    number = {"name": "length", "value": 9, "kind": "mean"}
    objective = {"name": "rate", "value": 0.5, "kind": "rate", "count": 4}
    odd = {"interval": "wide", "outcomes": [1]}
    texts = [
        sentences.sentence(
            make(1, result={"objective": objective | more | {"also": [number | more]}})
        )
        for more in ({}, odd)
    ]
    assert texts == ["50 % rate [15, 85]; length 9"] * 2


def test_killed_and_running_runs_show_their_progress(make):
    points = {"loss": [(1, 1.0), (40, 0.5)]}
    killed = make(1, status="KILLED", reason="SIGTERM").with_points(points)
    assert sentences.sentence(killed) == "killed after step 40: SIGTERM"
    assert (
        sentences.sentence(make(1, status="RUNNING").with_points(points))
        == "running, step 40 so far"
    )


def test_the_used_options_are_named(make):
    objective = make(1, value=0.5).result["objective"]
    run = make(
        1, result={"objective": objective, "variant": {"reward": "capped", "action": "tanh"}}
    )
    assert sentences.sentence(run).endswith("; action tanh, reward capped")
