"""Records to JSON, to MLflow and back: nothing is lost, repeating it adds nothing."""

import json
import math
import os
import sys
import uuid
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from runcatalog.model import record_files, run_record
from runcatalog.model.errors import CatalogError
from runcatalog.model.run_record import Metric, RunRecord
from runcatalog.record.delivery.names import decode, encode
from runcatalog.store.client import Store
from runcatalog.sync.imports import put_records

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NUMBER = st.floats(allow_nan=True, allow_infinity=True)
IDS = st.text("0123456789abcdef", min_size=32, max_size=32)
NAMES = st.one_of(
    TEXT.filter(lambda s: s.strip() != ""),
    st.sampled_from(["_x2F_", "a/b", "../x", "/", "max_x", "."]),
)
SCALARS = st.one_of(
    TEXT,
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.sampled_from(["5", "5e-3", "True", "007", "64 64", ""]),
)
RESULTS = st.none() | st.dictionaries(
    TEXT,
    SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(TEXT, SCALARS, max_size=3),
    max_size=4,
)


@st.composite
def run_records(draw: st.DrawFn) -> RunRecord:
    """Any record at all."""
    record = RunRecord(
        run=draw(IDS),
        batch=draw(st.just("") | IDS),
        operation=draw(TEXT),
        label=draw(TEXT),
        study=draw(st.sampled_from(["door", "cart-pole"]) | TEXT),
        status=draw(st.sampled_from(["RUNNING", "FINISHED", "FAILED", "KILLED"])),
        reason=draw(TEXT),
        result=draw(RESULTS),
        reported_by=draw(TEXT),
        seed=draw(st.none() | st.integers(0, 2**40)),
        flags=draw(st.dictionaries(NAMES, SCALARS, max_size=5)),
        machine=draw(TEXT),
        gpu=draw(TEXT),
        host_cpu=draw(TEXT),
        versions=draw(st.dictionaries(TEXT, TEXT, max_size=3)),
        commit=draw(st.text("0123456789abcdef", max_size=40)),
        dirty=draw(st.text("0123456789abcdef", max_size=12)),
        started=draw(st.none() | st.integers(0, 2**42)),
        wall_seconds=draw(st.none() | st.floats(0, 1e7)),
        env_steps=draw(st.none() | st.integers(0, 2**50)),
        digest=draw(st.dictionaries(st.sampled_from(["weights", "metrics"]), TEXT)),
        environment=draw(st.dictionaries(st.sampled_from(["LANG", "MUJOCO_GL"]), TEXT)),
        parents=tuple(draw(st.lists(IDS, max_size=2))),
        superseded_by=draw(st.just("") | IDS),
        superseded_why=draw(TEXT),
        retracted=draw(TEXT),
        reproduced=tuple(draw(st.lists(st.dictionaries(TEXT, NUMBER), max_size=2))),
    )
    points = st.lists(st.tuples(st.integers(0, 10**6), NUMBER), min_size=1, max_size=130)
    return record.with_points(draw(st.dictionaries(NAMES, points, max_size=3)))


@given(run_records())
def test_json_and_back(record):
    text = record_files.dumps(record)
    content = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    again = run_record.from_json(content)
    assert record_files.dumps(again) == text
    assert list(content) == sorted(content)
    # Absent where they are empty, as before there were such fields.
    omitted = {n for n in ("environment", *run_record.MARKS) if not getattr(record, n)}
    assert set(content) == set(RunRecord.__dataclass_fields__) - omitted
    assert all(len(m["curve"]) <= 100 for m in content["metrics"].values())
    for name, metric in content["metrics"].items():  # the standard library writes numbers so
        lines = (json.dumps(v, sort_keys=True, ensure_ascii=False) for v in (name, metric))
        assert f"  {': '.join(lines)}" in text


@given(st.floats(-1e-3, 1e-3) | st.floats(1e14, 1e18) | st.integers(-(10**17), 10**17).map(float))
def test_a_number_is_written_as_by_the_standard_library(number):
    record = RunRecord("0" * 8, "m:x", "toy", "FINISHED").with_points({"loss": [(1, number)]})
    value = record.metrics["loss"].last
    assert f'"curve": [[1, {value!r}]]' in record_files.dumps(record)


def test_fields_are_those_of_the_design():
    named = (
        "run, batch, operation, label, study, status, reason, result, reported_by, seed, flags, metrics, "
        "machine, gpu, host_cpu, versions, commit, dirty, started, wall_seconds, env_steps, digest, parents, "
        "environment, superseded_by, superseded_why, retracted, reproduced"
    )
    assert set(RunRecord.__dataclass_fields__) == set(named.split(", "))


@given(
    st.lists(st.floats(-1e300, 1e300) | st.just(math.nan), min_size=1, max_size=500),
    st.booleans(),
)
def test_downsampling_keeps_first_last_best_and_is_done_once(values, maximize):
    points = list(enumerate(values))
    metric = Metric.from_points(points, maximize=maximize)
    steps = [step for step, _ in metric.curve]
    assert len(steps) == min(len(values), len(steps)) <= 100
    assert steps == sorted(set(steps))
    assert {0, len(values) - 1, metric.step_of_best} <= set(steps)
    if len(values) <= 100:
        assert len(steps) == len(values)
    else:
        assert len(steps) >= 98
        gaps = [b - a for a, b in pairwise(steps)]
        assert max(gaps) <= math.ceil((len(values) - 1) / 98) + 1
    finite = [v for v in values if v == v]
    if finite:
        assert metric.best == (max(finite) if maximize else min(finite))
    again = Metric.from_points(metric.curve, maximize=maximize)
    assert repr(again) == repr(metric)


def test_the_first_value_of_a_step_counts():
    assert Metric.from_points([(2, 1.0), (1, 5.0), (2, 9.0)]).curve == ((1, 5.0), (2, 1.0))


@given(NAMES)
def test_names_survive_mlflow(name):
    assert decode(encode(name)) == name


@pytest.mark.parametrize("key", ["x_xFFFFFF_", "x_x110000_", "_xD800_", "_xDFFF_"])
def test_a_name_with_an_escape_of_no_character_is_left_as_it_is(key):
    assert decode(key) == key


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlflow")
    return Store(f"sqlite:///{folder}/mlflow.db")


@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
@given(run=run_records())
def test_mlflow_and_back(store, run):
    run = replace(run, run=uuid.uuid4().hex)  # a run that was deleted in MLflow is not added again
    mlflow_id = store.write(run)
    try:
        stored = next(stored for stored in store.runs() if stored.id == mlflow_id)
        (again,) = store.with_points([stored])
        assert record_files.dumps(again) == record_files.dumps(run)
    finally:
        store.client.delete_run(mlflow_id)


def test_a_long_result_needs_several_tags(store, make):
    run = make(77, result={"note": "x" * 20000, "summary": "a note"})
    mlflow_id = store.write(run)
    (stored,) = [stored for stored in store.runs() if stored.id == mlflow_id]
    assert stored.record.result == run.result


def test_importing_twice_and_changed_records(tmp_path, make):
    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    messages = []
    batch = make(1, operation="toy:sweep", result={"batch": True})
    trials = [make(i, value=0.5, batch=batch.run, lr=i / 10) for i in (2, 3)]
    assert put_records(store, [*trials, batch], messages.append).added == 3
    ids = {stored.record.run: stored for stored in store.runs()}
    assert {ids[t.run].tags["mlflow.parentRunId"] for t in trials} == {ids[batch.run].id}
    assert put_records(store, [*trials, batch], messages.append).added == 0

    changed = make(2, value=0.75, batch=batch.run, lr=0.2)
    assert put_records(store, [changed], messages.append).added == 1
    assert len(store.runs()) == 3
    records = {r.run: r for r in store.with_points(store.runs())}
    assert records[changed.run].objective["value"] == 0.75

    gone = next(stored for stored in store.runs() if stored.record.run == changed.run)
    store.client.delete_run(gone.id)
    counts = put_records(store, [changed], messages.append)
    assert (counts.added, counts.deleted) == (0, 1)


RECORD = '{"run": "00000000", "operation": "a", "study": "b", "status": "FAILED", %s}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"), ("[1]", "a JSON object"), ("{}", "'run' is missing"),
        ('{"run": "xyz", "operation": "a", "study": "b", "status": "FINISHED"}', "hex digits"),
        ('{"run": "00000000", "operation": "a", "study": "b", "status": "DONE"}', "one of RUNNING"),
        ('{"run": "00000000", "operation": "a", "study": "b", "status": "FAILED", "x": 1}', "'x'"),
        ('{"run": "00000000", "operation": "a", "study": "b", "status": "FAILED", "seed": "1"}', "'seed'"),
        ('{"run": "00000000", "operation": "a", "study": "b", "status": "FAILED", "metrics": {"m": 1}}', "record"),
        (RECORD % '"started": true', "'started' is of the wrong type"),
        (RECORD % '"machine": {}', "'machine' is of the wrong type"),
        (RECORD % '"wall_seconds": NaN', "'wall_seconds' is not a finite number"),
        (RECORD % '"wall_seconds": 1e999', "'wall_seconds' is not a finite number"),
        ('{"run": "00000000", "operation": "a", "study": "b", "status": null}', "'status' is missing"),
        (RECORD % '"metrics": {"m": {"curve": [[9223372036854775808, 1]]}}', "a step exceeds 64 bits"),
        (RECORD % f'"metrics": {{"m": {{"curve": [[1, 1{"0" * 400}]]}}}}', "too large"),
        (RECORD % f'"seed": {"9" * 5000}', "not JSON"),
        (RECORD % f'"flags": {"[" * 100_000}', "not JSON"),
        (RECORD % f'"result": {{"a": {"[" * 500}{"]" * 500}}}', "deep"),
        (RECORD % f'"flags": {{"a": {"[" * 200}{"]" * 200}}}', "deep"),
        (RECORD % f'"metrics": {{"m": {{"curve": {"[" * 500}{"]" * 500}}}}}', "record"),
        (RECORD % f'"versions": {{"a": {"[" * 900}{"]" * 900}}}', "deep"),
    ],
)  # fmt: skip
def test_broken_records_are_named(tmp_path, text, words):
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(CatalogError) as caught:
        record_files.read(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_a_field_that_is_null_is_as_one_that_is_absent():
    record = RunRecord("0" * 8, "m:x", "toy", "FINISHED")
    content = {"run": "0" * 8, "operation": "m:x", "study": "toy", "status": "FINISHED"}
    nothing = dict.fromkeys(set(RunRecord.__dataclass_fields__) - set(content))
    assert run_record.from_json(content | nothing) == record
    assert record.is_current


def test_a_2_gb_record_is_not_read(tmp_path):
    path = tmp_path / "record.json"
    with path.open("wb") as file:  # a hole: it takes no space on the disk
        file.truncate(2 << 30)
    with pytest.raises(CatalogError, match=r"record\.json: 2147483648 bytes; a record has at most"):
        record_files.read(path)


def test_a_pipe_is_no_record(tmp_path):
    """It would be waited for without end."""
    os.mkfifo(tmp_path / "record.json")
    with pytest.raises(CatalogError, match=r"record\.json: not a regular file"):
        record_files.read(tmp_path / "record.json")


def test_a_study_is_a_folder_name(make):
    assert make(1, study="../../etc").study == "etc"


def test_two_runs_with_the_same_eight_digits(tmp_path, make):
    runs = [make(1, run="0123abcd" + c * 24) for c in "01"]
    assert record_files.write_all(runs, tmp_path) == (2, 2)
    assert [r.run for r in record_files.read_all(tmp_path)] == [r.run for r in runs]
    assert record_files.write_all(runs, tmp_path) == (2, 0)


def test_a_file_with_the_name_of_another_run_is_an_error(tmp_path, make):
    """It would not be found by its run's id, and the next export would write the run a second time."""
    record_files.write_all([make(1)], tmp_path)
    (tmp_path / "toy" / "00000001.json").rename(tmp_path / "toy" / "00000002.json")
    with pytest.raises(
        CatalogError, match=r"00000002\.json: has run 00000001; its name would be 00000001\.json"
    ):
        record_files.read_all(tmp_path)


def test_a_run_whose_study_was_renamed_is_in_the_new_folder_alone(tmp_path, make):
    runs = [make(1, study="old"), make(2, study="old"), make(3, run="00000001" + "f" * 24)]
    record_files.write_all(runs, tmp_path)
    renamed = [make(1, study="new")]
    assert record_files.write_all(renamed, tmp_path) == (1, 1)
    studies = {r.run: r.study for r in record_files.read_all(tmp_path)}
    assert studies == {runs[0].run: "new", runs[1].run: "old", runs[2].run: "toy"}
    assert record_files.write_all(renamed, tmp_path) == (1, 0)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.one_of(NUMBER, st.integers(-3, 3))), min_size=1),
    st.booleans(),
    st.booleans(),
)
def test_points_in_order_or_not_give_the_metric_of_their_definition(points, ordered, maximize):
    if ordered:
        points = sorted(dict(reversed(points)).items())
    by_step = dict(reversed(points))  # the first of a step counts
    expected = [(step, _as_kept(by_step[step])) for step in sorted(by_step)]
    metric = Metric.from_points(points, maximize=maximize)
    assert repr(metric.curve) == repr(tuple(expected))  # NaN is not equal to itself
    finite = [value for _, value in expected if not math.isnan(value)]
    if finite:
        assert metric.best == (max(finite) if maximize else min(finite))
        assert metric.step_of_best == next(s for s, v in expected if v == metric.best)


def _as_kept(value: float) -> float:
    """No negative zero; a database stores infinity as the largest float."""
    largest = abs(value) == sys.float_info.max
    return math.copysign(math.inf, value) if largest else float(value) + 0.0
