"""A run that is added in one transaction is, row by row, the run that MLflow's client adds."""

import math
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from runcatalog.model.record_files import write_all
from runcatalog.model.run_record import RunRecord
from runcatalog.record.delivery.mlflow_client import MlflowError
from runcatalog.record.errors import UserError
from runcatalog.store import client as store_client
from runcatalog.store import sqlite_writer
from runcatalog.store.client import Addition, Store
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
    """Add a run that has everything, as publishing does; return MLflow's id."""
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
    assert {table: len(lines) for table, lines in expected.items()} == {
        "runs": 1, "tags": 5, "params": 4, "metrics": 1014, "latest_metrics": 9
    }  # fmt: skip
    for table, lines in rows(store, quick).items():
        assert [[c.replace("b" * 32, "a" * 32) for c in row] for row in lines] == expected[table]
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
    runs = store.client.search_runs([store.experiment("door")], f"tags.run_id = '{'c' * 32}'")
    assert [match.info.run_id for match in runs] == [quick]
    store.client.set_tag(quick, "note", "later")  # as any other run
    assert store.client.get_run(quick).data.tags["note"] == "later"


def test_nothing_is_visible_before_the_commit(store):
    client = store.new_run_client()
    run = client.create_run(store.experiment("door"), 1, {"run_id": "d" * 32}, "one")
    client.log_batch(run.info.run_id, metrics=METRICS, params=PARAMS)
    assert all(run.run != "d" * 32 for run in reader(store.uri).runs())
    with pytest.raises(MlflowException):
        client.log_batch(run.info.run_id, metrics=[Metric("../x", 1.0, 1, 1)])
    with pytest.raises(MlflowException):
        client.log_batch(run.info.run_id, params=[Param(str(i), "") for i in range(101)])
    assert not any(rows(store, run.info.run_id).values())


def test_a_run_that_another_process_added_meanwhile_is_not_duplicated(store, tmp_path, make):
    late, early = store.new_run_client(), store.new_run_client()
    query = f"tags.run_id = '{'e' * 32}'"
    run = late.create_run(store.experiment("door"), 1, {"run_id": "e" * 32}, "one")
    assert late.search_runs([store.experiment("door")], query) == []
    first = add(store, early, "e" * 32, tmp_path)
    with pytest.raises(RunExists):
        late.set_terminated(run.info.run_id, "FINISHED", 5)
    assert not any(rows(store, run.info.run_id).values())
    (stored,) = store.new_run_client().search_runs([store.experiment("door")], query)
    assert stored.info.run_id == first
    # Another process adds one with MLflow's client.
    run = late.create_run(store.experiment("door"), 1, {"run_id": "f" * 32}, "one")
    store.client.create_run(store.experiment("door"), tags={"run_id": "f" * 32})
    with pytest.raises(RunExists):
        late.set_terminated(run.info.run_id, "FINISHED", 5)
    record = make(0xE, run="e" * 32)
    assert store.write(record) == first


def test_an_unknown_database_is_left_to_the_client(store, tmp_path):
    assert Tables.open("http://127.0.0.1:9") is None
    store.experiment("door")  # MLflow creates its tables at the first request
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as database:
        source = store.uri.removeprefix("sqlite:///")
        with sqlite3.connect(source) as connection:
            connection.backup(database)
    assert Tables.open(f"sqlite:///{path}") is not None
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE runs ADD COLUMN new TEXT")
    assert Tables.open(f"sqlite:///{path}") is None


def any_record(rng: random.Random, number: int, **fields) -> RunRecord:
    """A record with long and odd values of every kind."""
    names = ["loss", "a/b", "../x", "ü 🚪", "x" * 200, "time/update", "return"]
    values = [0.1, 1e-300, -0.0, 7.0, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308]
    record = RunRecord(
        run=f"{number:08x}" * 4,
        operation="pg:train",
        study=rng.choice(["door", "cartpole"]),
        status=rng.choice(["FINISHED", "FAILED", "KILLED"]),
        label=rng.choice(["", "a 'label' | 🚪", "x" * 300]),
        reason=rng.choice(["", "line\nbreak"]),
        result=rng.choice([None, {}, {"batch": True}, {"text": "y" * 20000}]),
        flags={
            f"flag {i}": rng.choice([1, 0.5, True, None, "", "é|"])
            for i in range(rng.choice([3, 120]))
        },
        started=rng.choice([1, 1_700_000_000_000]),
        wall_seconds=rng.choice([0, 1.25]),
        **fields,
    )
    curves = {
        name: [(step * 7, rng.choice(values)) for step in range(rng.choice([1, 3, 100]))]
        for name in rng.sample(names, rng.randrange(len(names)))
    }
    return record.with_points(curves)


def test_records_are_the_rows_that_the_client_writes(store, monkeypatch):
    rng = random.Random(1)
    records = [any_record(rng, 0x100 + number) for number in range(40)]
    tags = {"mlflow.parentRunId": "f" * 32, "catalog.batch": "key"}
    slow = [store.write_by_client(record, tags) for record in records]
    expected = [rows(store, id) for id in slow]
    for id in slow:
        store.client.delete_run(id)
        with sqlite3.connect(store.uri.removeprefix("sqlite:///")) as database:
            database.execute("DELETE FROM tags WHERE run_uuid = ? AND key = 'run_id'", (id,))
    monkeypatch.setattr(store_client, "TRANSACTION", 500)  # points: several transactions
    written = list(store.write_all([Addition(record, tags) for record in records]))
    assert [record for record, _ in written] == records
    assert len({id for _, id in written} | set(slow)) == 80
    for (_, id), of_client in zip(written, expected, strict=True):
        assert rows(store, id) == of_client
    by_run = {run.run: run for run in reader(store.uri).runs()}
    read = reader(store.uri).with_points([by_run[record.run] for record in records])
    assert repr(read) == repr(records)


def test_an_existing_record_is_not_added_again(store, make):
    record = make(0x200, run="1" * 32)
    first = store.write(record)
    other = make(0x201, run="2" * 32)
    ids_by_run = {
        r.run: id for r, id in store.write_all([Addition(record), Addition(other), Addition(other)])
    }
    assert ids_by_run[record.run] == first
    ids = [run.id for run in reader(store.uri).runs() if run.run in ids_by_run]
    assert sorted(ids) == sorted(ids_by_run.values())


def test_a_refused_record_replaces_nothing(store, make):
    record = make(0x300, run="3" * 32)
    store.write(record)
    (there,) = (run for run in reader(store.uri).runs() if run.run == record.run)
    bad = make(0x300, run="3" * 32, started=-5)
    bad = bad.with_points({"loss": [(1, 0.5)]})
    with pytest.raises(UserError, match="MLflow rejects it"):
        list(store.write_all([Addition(bad, replaces=there)]))
    assert [run.id for run in reader(store.uri).runs() if run.run == record.run] == [there.id]


def test_an_experiment_that_was_removed_gets_no_run(store, make):
    record = make(0x400, run="4" * 32, study="removed")
    experiment = store.experiment("removed")
    new = store._new_run(record, {}, "4" * 32)
    with sqlite3.connect(store.uri.removeprefix("sqlite:///")) as database:
        database.execute("DELETE FROM experiments WHERE experiment_id = ?", (experiment,))
    with pytest.raises(sqlite3.IntegrityError):
        store._tables.add([new])
    assert not any(rows(store, "4" * 32).values())
    del store._known["removed"], store._experiments["removed"]
    store.write(record)  # into a new one


def test_a_full_disk_is_named_and_the_next_record_can_be_written(tmp_path, make):
    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    store.write(make(1))
    connection = store._tables._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    large = make(2).with_points({"loss": [(step, 0.5) for step in range(20_000)]})
    with pytest.raises(MlflowError, match=r"mlflow\.db cannot be written, its disk is full"):
        store.write(large)
    connection.execute(f"PRAGMA max_page_count = {1 << 30}")
    store.write(large)
    assert len(store.runs()) == 2


def indexes(path: Path) -> list:
    """The definitions of the points' indexes."""
    with sqlite3.connect(path) as database:
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'metrics'"
        return sorted(database.execute(query), key=str)


@pytest.mark.parametrize("killed", [False, True])
def test_the_indexes_of_points_stay(tmp_path, make, killed, monkeypatch):
    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    store.experiment("door")
    expected = indexes(tmp_path / "mlflow.db")
    assert len(expected) >= 3
    record = make(0x600, run="6" * 32, study="door").with_points({"loss": [(1, 0.5), (2, 0.25)]})
    if killed:
        monkeypatch.setattr(sqlite_writer, "_insert_curve", broken)
        with pytest.raises(UserError):
            store.write(record)
    else:
        store.write(record)
    assert indexes(tmp_path / "mlflow.db") == expected
    assert len(reader(store.uri).runs()) == (0 if killed else 1)


def broken(*_):
    raise sqlite3.DatabaseError("disk I/O error")


def test_tags_of_many_runs_are_those_that_the_client_sets(store, make):
    ids = [store.write(make(0x700 + n, run=f"7{n}" * 16)) for n in range(3)]
    new = {"mlflow.note.content": "a 'note' | 🚪", "label": ""}
    store.client.delete_run(ids[2])
    store.tag(ids[0], new)
    store.tag_all({ids[1]: new, ids[2]: new})
    changed = [store.client.get_run(id).data.tags for id in ids]
    assert {name: changed[0][name] for name in new} == new
    own = {"run_id", "mlflow.catalog.started", "mlflow.catalog.record", "catalog.record"}
    first, second = ({k: v for k, v in tags.items() if k not in own} for tags in changed[:2])
    assert first == second
    assert "mlflow.note.content" not in changed[2]  # the client refuses it for a deleted run


KILLED = """
import os, signal, sys
from pathlib import Path
from runcatalog.model.record_files import read_all
from runcatalog.store import client, sqlite_writer
from runcatalog.sync.imports import put_records

client.TRANSACTION = 300  # points
insert, calls = sqlite_writer.Tables._insert_points, []

def killed_at_the_third(tables, runs):
    insert(tables, runs)
    calls.append(runs)
    if len(calls) == 3:
        tables._connection.execute("PRAGMA cache_spill = 1")
        os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[3:]:
    sqlite_writer.Tables._insert_points = killed_at_the_third
counts = put_records(client.Store(sys.argv[1]), read_all(Path(sys.argv[2])), print)
print(counts.added)
"""


def test_an_import_that_is_killed_is_completed_by_the_next(tmp_path):
    rng = random.Random(2)
    batch = any_record(rng, 0x500)
    records = [any_record(rng, 0x501 + number, batch=batch.run) for number in range(30)]
    write_all([batch, *records], tmp_path / "records")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    command = [sys.executable, "-u", "-c", KILLED, uri, str(tmp_path / "records")]
    killed = subprocess.run([*command, "kill"], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    store = reader(uri)
    first = store.with_points(store.runs())
    by_run = {record.run: record for record in (batch, *records)}
    assert 0 < len(first) < 31
    assert all(repr(record) == repr(by_run[record.run]) for record in first)  # none is partial
    assert len(killed.stdout.splitlines()) == len(first)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(31 - len(first))
    store = reader(uri)
    stored = sorted(store.runs(), key=lambda run: run.run)
    assert repr(store.with_points(stored)) == repr(sorted(by_run.values(), key=lambda r: r.run))
    parents = {run.tags.get("mlflow.parentRunId") for run in stored if run.run != batch.run}
    (parent,) = (run.id for run in stored if run.run == batch.run)
    assert parents == {parent}
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stdout == "0\n"
