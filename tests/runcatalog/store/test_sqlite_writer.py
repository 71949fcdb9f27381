"""A run that is added in one transaction is, row by row, the run that MLflow's client adds."""

import math
import sqlite3
from pathlib import Path

import pytest
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from runcatalog.store.client import Store
from runcatalog.store.sqlite_reader import reader
from runcatalog.store.sqlite_writer import RunExists, Tables

TABLES = ("runs", "tags", "params", "metrics", "latest_metrics")
METRICS = [
    Metric("loss", 0.5, 1000, 1), Metric("loss", 0.25, 2000, 2), Metric("loss", 0.25, 2000, 2),
    Metric("loss", math.nan, 2500, 3), Metric("back", 1.0, 9, 5), Metric("back", 2.0, 8, 4),
    Metric("same", 1.0, 9, 5), Metric("same", 3.0, 9, 5), Metric("same", 2.0, 9, 5),
    Metric("time/x", math.inf, 1, 0), Metric("low", -math.inf, 1, 0), Metric("last nan", 1.0, 1, 0),
    Metric("last nan", math.nan, 2, 0), Metric("k" * 250, 5e-324, 1, 2**40), Metric("zero", -0.0, 1, 1),
]  # fmt: skip
PARAMS = [Param("lr", "0.1"), Param("a/b", ""), Param("long", "x" * 6000), Param("ü", "é|\n")]
TAGS = [RunTag("result", "{}"), RunTag("reason", ""), RunTag("label", "a 'label' | 🚪")]


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    return Store(f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db")


def add(store: Store, client, run_id: str, folder: Path, *, name: str = "pg:train") -> str:
    """Adds a run that has everything, as publishing does; returns MLflow's id."""
    file = folder / "result.json"
    file.write_text("{}")
    tags = {"run_id": run_id, "label": "none"}
    run = client.create_run(store.experiment("door"), 1000, tags, name).info.run_id
    client.log_batch(run, params=PARAMS)
    client.log_batch(run, tags=TAGS)
    client.log_batch(run, metrics=[Metric("many", i / 7, 1000 + i, i) for i in range(1000)])
    client.log_batch(run, metrics=METRICS)
    client.log_artifact(run, str(file))
    client.log_artifact(run, str(file), "deep/er")
    client.log_text(run, "the end\n", "log_tail.txt")
    client.set_terminated(run, "FAILED", 5000)
    return run


def rows(store: Store, run: str) -> dict[str, list]:
    """All rows of a run, its id replaced."""
    with sqlite3.connect(store.uri.removeprefix("sqlite:///")) as database:
        return {
            table: sorted(
                [str(cell).replace(run, "RUN") + type(cell).__name__ for cell in row]
                for row in database.execute(f"SELECT * FROM {table} WHERE run_uuid = ?", (run,))
            )
            for table in TABLES
        }


def test_both_ways_write_the_same_rows(store, tmp_path):
    slow = add(store, store.client, "a" * 32, tmp_path)
    quick = add(store, store.new_run_client(), "b" * 32, tmp_path)
    expected = rows(store, slow)
    assert {table: len(each) for table, each in expected.items()} == {
        "runs": 1, "tags": 5, "params": 4, "metrics": 1014, "latest_metrics": 9
    }  # fmt: skip
    for table, each in rows(store, quick).items():
        assert [[c.replace("b" * 32, "a" * 32) for c in row] for row in each] == expected[table]
    for path, folder in (
        ("result.json", ""),
        ("deep/er/result.json", "deep/er"),
        ("log_tail.txt", ""),
    ):
        assert path in [file.path for file in store.client.list_artifacts(quick, folder or None)]


def test_mlflow_itself_reads_it(store, tmp_path):
    quick = add(store, store.new_run_client(), "c" * 32, tmp_path)
    run = store.client.get_run(quick)
    assert (run.info.status, run.info.start_time, run.info.end_time) == ("FAILED", 1000, 5000)
    assert run.data.params["long"] == "x" * 6000
    assert math.isnan(run.data.metrics["last nan"])
    assert len(store.client.get_metric_history(quick, "many")) == 1000
    found = store.client.search_runs([store.experiment("door")], f"tags.run_id = '{'c' * 32}'")
    assert [each.info.run_id for each in found] == [quick]
    store.client.set_tag(quick, "note", "later")  # as any other run
    assert store.client.get_run(quick).data.tags["note"] == "later"


def test_nothing_is_there_before_the_end(store):
    client = store.new_run_client()
    run = client.create_run(store.experiment("door"), 1, {"run_id": "d" * 32}, "one")
    client.log_batch(run.info.run_id, metrics=METRICS, params=PARAMS)
    assert all(each.run != "d" * 32 for each in reader(store.uri).runs())
    with pytest.raises(MlflowException):
        client.log_batch(run.info.run_id, metrics=[Metric("../x", 1.0, 1, 1)])
    with pytest.raises(MlflowException):
        client.log_batch(run.info.run_id, params=[Param(str(i), "") for i in range(101)])
    assert not any(rows(store, run.info.run_id).values())


def test_a_run_that_came_in_between_is_not_doubled(store, tmp_path, make):
    late, early = store.new_run_client(), store.new_run_client()
    query = f"tags.run_id = '{'e' * 32}'"
    run = late.create_run(store.experiment("door"), 1, {"run_id": "e" * 32}, "one")
    assert late.search_runs([store.experiment("door")], query) == []
    first = add(store, early, "e" * 32, tmp_path)
    with pytest.raises(RunExists) as caught:
        late.set_terminated(run.info.run_id, "FINISHED", 5)
    assert caught.value.id == first
    assert not any(rows(store, run.info.run_id).values())
    (found,) = store.new_run_client().search_runs([store.experiment("door")], query)
    assert found.info.run_id == first
    # Another process adds one with MLflow's client.
    run = late.create_run(store.experiment("door"), 1, {"run_id": "f" * 32}, "one")
    store.client.create_run(store.experiment("door"), tags={"run_id": "f" * 32})
    with pytest.raises(RunExists):
        late.set_terminated(run.info.run_id, "FINISHED", 5)
    record = make(0xE, run="e" * 32)
    assert store.write(record) == first


def test_what_is_no_known_database_is_left_to_the_client(store, tmp_path):
    assert Tables.of("http://127.0.0.1:9") is None
    store.experiment("door")  # MLflow makes its tables when it is first asked
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as database:
        source = store.uri.removeprefix("sqlite:///")
        with sqlite3.connect(source) as held:
            held.backup(database)
    assert Tables.of(f"sqlite:///{path}") is not None
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE runs ADD COLUMN new TEXT")
    assert Tables.of(f"sqlite:///{path}") is None
