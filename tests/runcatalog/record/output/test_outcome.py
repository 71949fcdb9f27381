"""The outcome line: round trip, and Guild's attribute."""

import json
import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from runcatalog.record.output import outcome

WORDS = st.text("abcdefghijklmnopqrstuvwxyz_/", min_size=1, max_size=12)
OBJECTIVES = st.fixed_dictionaries(
    {"name": WORDS, "goal": st.sampled_from(["max", "min"])},
    optional={"count": st.integers(1, 10**6), "axis": WORDS},
)


@given(
    OBJECTIVES,
    st.tuples(st.integers(0, 2000), st.integers(1, 2000)) | st.floats(),
    st.none() | st.integers(0, 10**6),
    st.dictionaries(WORDS.filter(lambda name: name != "task_id"), WORDS, max_size=3),
)
def test_round_trip(objective, value, at, variant):
    # A rate is a count over a count; any float is a mean.
    rate = isinstance(value, tuple)
    objective = objective | {
        "value": min(value) / max(value) if rate else value,
        "kind": "rate" if rate else "mean",
    }
    objective = objective if at is None else {"axis": "step", **objective, "at": at}
    result = {"objective": objective, "task_id": 3} | ({"variant": variant} if variant else {})
    line = outcome.summary_line(result)
    assert "\n" not in line
    expected = {k: v for k, v in objective.items() if k != "axis" or at is not None}
    parsed = outcome.parse(line)
    parsed_value, value = parsed["objective"].pop("value"), float(expected.pop("value"))
    assert (
        math.isclose(parsed_value, value, rel_tol=1e-11)
        if rate
        else repr(parsed_value) == repr(value)
    )
    assert parsed == result | {"objective": expected}


@pytest.mark.parametrize(
    ("successes", "interval"), [(9996, "[99.9, 99.98]"), (4, "[0.02, 0.1]"), (5000, "[49, 51]")]
)
def test_an_interval_of_less_than_two_per_cent_contains_its_rate(successes, interval):
    objective = {"name": "success", "kind": "rate", "value": successes / 10_000, "count": 10_000}
    assert interval in outcome.sentence({"objective": objective})


@pytest.mark.parametrize(
    ("kind", "interval", "text"),
    [
        ("rate", [0.4, 0.8], " [40, 80]"),
        ("mean", [-2, 3.5], " [−2, 3.5]"),
        ("rate", ["low", 1], " [40, 60]"),
        ("rate", [0.4], " [40, 60]"),
        ("mean", None, ""),
    ],
)
def test_the_interval_that_a_script_states_is_shown(kind, interval, text):
    objective = {"name": "score", "kind": kind, "value": 0.5, "interval": interval, "count": 100}
    shown = outcome.sentence({"objective": objective})
    assert shown.endswith(f"score{text}" if kind == "rate" else f"score 0.5{text}")


@pytest.mark.parametrize("variant", [["a"], "a", None])
def test_a_variant_that_is_no_mapping_is_left_out(variant):
    result = {"objective": {"name": "loss", "value": 2.0}, "variant": variant}
    assert outcome.summary_line(result) == outcome.summary_line({"objective": result["objective"]})


@pytest.mark.parametrize(
    ("value", "text"),
    [("NaN", "NaN"), ("Infinity", "∞"), ("-Infinity", "−∞"), (float("nan"), "NaN")],
)
@pytest.mark.parametrize("kind", ["mean", "rate"])
def test_a_result_that_is_not_finite_is_one(value, text, kind):
    """In result.json such a number is a text."""
    objective = {"name": "loss", "value": value, "kind": kind, "at": 3, "axis": "update"}
    assert text in outcome.sentence({"objective": objective})
    assert "after 3 updates" in outcome.sentence({"objective": objective})
    parsed = outcome.parse(outcome.summary_line({"objective": objective}))
    assert repr(parsed["objective"]["value"]) == repr(float(value))
    assert "no result" in outcome.sentence({"objective": objective | {"value": "none"}})


@pytest.mark.parametrize("task", ["²", "٣", "9" * 5000])
def test_a_task_that_is_no_short_number_is_a_text(task):
    assert outcome.parse(f"loss 0.5; task_id {task}")["task_id"] == task


def test_a_count_of_thousands_of_digits_is_no_result():
    assert outcome.parse(f"loss 0.5 of {'9' * 5000}") is None
    assert outcome.parse(f"loss 0.5 after {'9' * 5000} updates") is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "gradient explosion at update 12: log_std is not finite",
        "killed: SIGTERM",
        "out of memory",
    ],
)
def test_a_reason_parses_to_no_result(line):
    assert outcome.parse(line) is None


def test_guild_attribute(tmp_path):
    outcome.write_guild_result(tmp_path, "no Guild: nobody to tell")
    assert not (tmp_path / ".guild").exists()
    attributes = tmp_path / ".guild" / "attrs"
    attributes.mkdir(parents=True)
    for line in (
        "opening_rate 97 % of 100",
        outcome.summary_line(None, "NaN: ‘é’\nand 'more'", killed=True),
    ):
        outcome.write_guild_result(tmp_path, line)
        assert yaml.safe_load((attributes / "result").read_text()) == line
    assert json.loads((attributes / "result").read_text()).startswith("killed: NaN")
    outcome.write_guild_result(tmp_path, "")
    assert not (attributes / "result").exists()
