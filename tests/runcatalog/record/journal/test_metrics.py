"""The journal: exact float64, and at most the last line lost in a crash."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from runcatalog.record.delivery.tensorboard import EventFile
from runcatalog.record.digest import metrics_digest, weights_digest
from runcatalog.record.journal.files import read_json, write_json
from runcatalog.record.journal.metrics import MetricsFile, Point, read_points

VALUES = st.floats(allow_nan=True, allow_infinity=True, width=64)


def bits(value):
    return struct.pack("<d", value if value == value else math.nan)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), VALUES), max_size=30))
def test_first_write_wins_with_exact_values(tmp_path_factory, writes):
    path = tmp_path_factory.mktemp("journal") / "metrics.jsonl"
    expected = {}
    file = MetricsFile(path)
    for number, (name, step, value) in enumerate(writes):
        if number == len(writes) // 2:  # a restart in the middle
            file.close()
            file = MetricsFile(path)
        written = file.append(number, step, {name: value})
        assert bool(written) == ((name, step) not in expected)
        expected.setdefault((name, step), bits(value))
    file.close()
    read = {(p.name, p.step): bits(p.value) for p in read_points(path)}
    assert read == expected


def test_the_first_write_also_wins_beside_a_new_point_of_its_line(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.append(0, 1, {"a": 1.0, "b": 1.0})
    file.append(0, 5, {"b": 5.0})
    assert file.append(0, 3, {"a": 2.0, "b": 3.0}) == {"a": 2.0, "b": 3.0}
    assert file.append(0, 3, {"a": 7.0}) == {}
    file.close()
    assert [p.value for p in read_points(file.path) if (p.name, p.step) == ("a", 3)] == [2.0]


def test_an_incomplete_last_line_is_ignored(tmp_path):
    whole = tmp_path / "whole.jsonl"
    file = MetricsFile(whole)
    for step in range(3):
        file.append(step, step, {"loss": 0.1 * step, "return": -math.inf})
    file.close()
    content = whole.read_bytes()
    last = content[:-1].rfind(b"\n") + 1
    for cut in range(last, len(content)):
        path = tmp_path / f"{cut}.jsonl"
        path.write_bytes(content[:cut])
        assert [point.step for point in read_points(path)] == [0, 0, 1, 1]
        file = MetricsFile(path)
        file.append(2, 2, {"loss": 0.2, "return": -math.inf})
        file.close()
        assert path.read_bytes() == content


@pytest.mark.parametrize("step", [0.5, -1, -0.5, math.nan, math.inf, "1", None, 2**63])
def test_a_step_that_is_not_a_non_negative_integer_is_refused(tmp_path, step):
    """Truncated to an integer it could collide with an existing point."""
    file = MetricsFile(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="a whole number from 0 to"):
        file.append(0, step, {"loss": 1.0})
    file.append(0, np.int64(0), {"loss": 2.0})
    file.append(0, 3.0, {"loss": 3.0})
    file.close()
    points = read_points(tmp_path / "metrics.jsonl")
    assert [(point.step, point.value) for point in points] == [(0, 2.0), (3, 3.0)]


def test_a_differing_replay_is_counted_but_clocks_may_differ(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.append(0, 1, {"loss": 1.0, "time/update": 5.0, "nan": math.nan})
    file.close()
    file = MetricsFile(path)
    assert file.append(1, 1, {"loss": 1.0, "time/update": 6.0, "nan": math.nan}) == {}
    assert file.mismatches == 0
    assert file.append(2, 1, {"loss": math.nextafter(1.0, 2)}) == {}
    assert file.mismatches == 1
    file.close()


@pytest.mark.parametrize(
    "name",
    ["", "a\nb", "a=b", "x" * 251, "../up", "/root", "loss/", "a//b", "./a", "a/./b", "."],
)
def test_a_name_that_mlflow_rejects_is_rejected_at_once(tmp_path, name):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="metric"):
        file.append(0, 0, {name: 1.0})
    file.close()


def test_the_refusal_of_a_long_name_says_that_it_is_long(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="300 characters, at most 250"):
        file.append(0, 0, {"long name " * 30: 1.0})
    file.close()


def test_a_closed_file_writes_to_no_other_file_that_was_opened_since(tmp_path):
    """The system gives a new file the number of one that was closed."""
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.close()
    with (tmp_path / "checkpoint").open("wb"), pytest.raises(OSError, match="Bad file descriptor"):
        file.append(0, 1, {"loss": 1.0})
    assert (tmp_path / "checkpoint").read_bytes() == b""


def test_a_refused_name_loses_no_point_beside_it(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="metric"):
        file.append(0, 1, {"fine": 1.0, "bad=name": 2.0})
    assert file.append(0, 1, {"fine": 1.0}) == {"fine": 1.0}
    file.close()


def test_json_is_replaced_atomically(tmp_path):
    path = tmp_path / "result.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert read_json(path) == {"a": 1}
    assert [path_.name for path_ in tmp_path.iterdir()] == ["result.json"]


def test_tensorboard_reads_the_scalars(tmp_path):
    points = [Point(1000 + step, step, "loss", step / 3) for step in range(5)]
    (tmp_path / "events.out.tfevents.1.old").write_bytes(b"torn")
    events = EventFile(tmp_path, points)
    events.append(2000, 5, {"loss": math.nan, "return": 1e300})
    events.close()
    (path,) = tmp_path.glob("*tfevents*")
    read = {
        (value.tag, event.step): (event.wall_time, _scalar(value))
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
    }
    for point in points:
        time, value = read[point.name, point.step]
        assert (time, value) == (point.time / 1000, pytest.approx(point.value, rel=1e-7))
    assert math.isnan(read["loss", 5][1])
    assert read["return", 5][1] == math.inf


def test_a_line_of_the_journal_is_one_event(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    for step in range(3):
        metrics.append(1000, step, {"loss": 0.5, "return": step})
    metrics.close()
    EventFile(tmp_path, read_points(metrics.path)).close()
    (path,) = tmp_path.glob("*tfevents*")
    events = [event for event in EventFileLoader(str(path)).Load() if event.HasField("summary")]
    read = [{value.tag: _scalar(value) for value in event.summary.value} for event in events]
    assert read == [{"loss": 0.5, "return": step} for step in range(3)]


def _scalar(value):
    if value.HasField("simple_value"):
        return value.simple_value
    return value.tensor.float_val[0]


def test_metrics_digest_depends_on_bits_but_not_on_clocks_or_order():
    points = [("a", 1, 1.0), ("b", 1, math.nan), ("a", 2, 0.1)]
    digest = metrics_digest(points)
    assert metrics_digest([*reversed(points), ("time/update", 1, 3.0)]) == digest
    assert metrics_digest([("a", 1, math.nextafter(1.0, 2)), *points[1:]]) != digest
    assert metrics_digest(points[:2]) != digest


def test_weights_digest_depends_on_names_shapes_types_and_bits():
    import numpy as np
    import torch

    weights = {"b": torch.zeros(2, 3), "a": torch.arange(4.0)}
    digest = weights_digest(weights)
    assert (
        weights_digest({name: tensor.numpy() for name, tensor in reversed(weights.items())})
        == digest
    )
    assert weights_digest({"b": torch.zeros(2, 3).T.contiguous().T, "a": weights["a"]}) == digest
    others = [
        {"b": torch.zeros(3, 2), "a": weights["a"]},
        {"c": weights["b"], "a": weights["a"]},
        {"b": weights["b"], "a": weights["a"].double()},
        {"b": -weights["b"], "a": weights["a"]},
        {"b": np.zeros((2, 3)), "a": weights["a"]},
    ]
    assert digest not in [weights_digest(other) for other in others]
