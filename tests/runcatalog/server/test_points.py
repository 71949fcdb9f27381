"""Which requests the server stores itself, and the points that it parses from them."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flask_wtf", reason="needs the extra [server]")

from mlflow.entities import Metric
from mlflow.protos.service_pb2 import LogBatch
from mlflow.utils.proto_json_utils import message_to_json

from runcatalog.server.points import parse

RUN = "0123456789abcdef" * 2
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
points = st.builds(
    Metric,
    key=st.sampled_from(["loss", "a/b", "lr-1.0 x"]),
    value=st.floats() | st.integers(-5, 5).map(float),
    timestamp=st.integers(0, (1 << 63) - 1),
    step=int64,
)


@given(st.lists(points, min_size=1, max_size=20))
def test_requests_of_mlflows_client_are_parsed_completely(metrics):
    message = LogBatch(run_id=RUN, metrics=[metric.to_proto() for metric in metrics])
    batch = parse(message_to_json(message).encode())
    assert batch.run == RUN
    expected = set()
    for m in metrics:
        value = (
            0.0
            if math.isnan(m.value)
            else max(-1.7976931348623157e308, min(m.value, 1.7976931348623157e308))
        )
        expected.add((m.key, value, m.timestamp, m.step, math.isnan(m.value)))
    assert set(batch.rows) == expected
    assert len(batch.rows) == len(expected)


GOOD = {"key": "loss", "value": 1.5, "timestamp": 1, "step": 1}


@pytest.mark.parametrize(
    "message",
    [
        [], None, 1, {}, {"run_id": RUN}, {"run_id": RUN, "metrics": []}, {"metrics": [GOOD]},
        {"run_id": 1, "metrics": [GOOD]}, {"run_id": RUN, "metrics": [GOOD] * 1001},
        {"run_id": RUN, "metrics": {"loss": 1}}, {"run_id": RUN, "metrics": [GOOD, None]},
        {"run_id": RUN, "metrics": [GOOD], "tags": [{"key": "a", "value": "b"}]},
        {"run_id": RUN, "metrics": [GOOD], "params": {}}, {"run_id": RUN, "metrics": [GOOD], "more": 1},
        *({"run_id": RUN, "metrics": [GOOD | change]} for change in (
            {"key": 1}, {"key": "a\nb"}, {"key": "/a"}, {"key": "a" * 251}, {"value": True},
            {"value": None}, {"value": "1.5"}, {"value": "nan"}, {"timestamp": -1}, {"timestamp": 1 << 63},
            {"timestamp": 1.0}, {"timestamp": "1"}, {"step": None}, {"step": 1 << 63}, {"step": True},
            {"model_id": "m-1"},
        )),
        *({"run_id": RUN, "metrics": [{k: v for k, v in GOOD.items() if k != gone}]} for gone in (
            "key", "value", "timestamp",
        )),
    ],
)  # fmt: skip
def test_other_requests_are_left_to_mlflow(message):
    assert parse(json.dumps(message).encode()) is None


def test_invalid_json_and_large_requests_are_left_to_mlflow():
    good = json.dumps({"run_id": RUN, "metrics": [GOOD]}).encode()
    assert parse(good) == (RUN, [("loss", 1.5, 1, 1, False)])
    assert parse(good[:-1]) is None
    assert parse(b"\xff" + good) is None
    assert parse(good + b" " * 1_000_000) is None
