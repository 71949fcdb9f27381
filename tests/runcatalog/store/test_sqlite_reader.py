"""The SQLite reader returns what MLflow's client returns, from the same database."""

import math
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from runcatalog.model.run_record import RunRecord
from runcatalog.record.delivery.mlflow_client import MlflowError
from runcatalog.store import sqlite_reader
from runcatalog.store.client import Store
from runcatalog.store.run_rows import Reader
from runcatalog.store.sqlite_reader import Database, reader

NAMES = ["lr", "a/b", "../x", "_x2F_", "max_x", "ü 🚪", "x" * 300, "return", "time/update"]
VALUES = [0.1, 1e-300, -0.0, 7.0, math.nan, math.inf, -math.inf, 5e-324]
TEXTS = ["", "pull | push", "<b>", "lr=0.1", "'", "line\nbreak", "é" * 40]


def some_run(rng: random.Random, number: int) -> RunRecord:
    """Any run."""
    names = rng.sample(NAMES, 4)
    record = RunRecord(
        run=f"{number:08x}" * 4,
        operation=rng.choice(TEXTS),
        study=rng.choice(["door", "cartpole", "gone"]),
        status=rng.choice(["RUNNING", "FINISHED", "FAILED", "KILLED"]),
        batch=rng.choice(["", f"{number // 5:08x}"]),
        label=rng.choice(TEXTS),
        reason=rng.choice(TEXTS),
        result=rng.choice([None, {}, {"objective": {"name": "return", "value": 0.5}}]),
        seed=rng.choice([None, 0, 2**40]),
        flags={name: rng.choice([1, 0.5, True, None, "5e-3", "", *TEXTS]) for name in names},
        versions={"python": "3.11"},
        started=rng.choice([None, 5, 1_700_000_000_000 + number]),
        wall_seconds=rng.choice([None, 1.25]),
        parents=tuple(rng.choice(([], [f"{number:032x}"]))),
    )
    curves = {
        name: [(step, rng.choice(VALUES)) for step in range(rng.choice([1, 3, 130]))]
        for name in rng.sample(NAMES, rng.randrange(4))
    }
    return record.with_points(curves)


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> Path:
    """An MLflow of forty runs, and of foreign runs and experiments."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    store = Store(f"sqlite:///{path}")
    rng = random.Random(1)
    ids = [store.write(some_run(rng, number)) for number in range(40)]
    store.write(some_run(rng, 7))  # a second run of the same run_id
    client = store.client
    for number in (3, 4, 9):
        client.delete_run(ids[number])
    client.set_tag(ids[5], "changed_flags", '{"lr": "0.7"}')
    for time, step, value in [(9, 4, 2.0), (8, 4, 1.0), (8, 4, math.nan), (8, 4, 0.5), (7, 5, 3.0)]:
        client.log_metric(ids[8], "twice", value, timestamp=time, step=step)
    client.create_run(client.create_experiment("foreign"), tags={"run_id": "no id"})
    client.create_run("0")
    client.delete_experiment(store.experiment("gone"))
    return path


def test_it_reads_what_the_client_reads(database):
    slow, quick = Store(f"sqlite:///{database}"), reader(f"sqlite:///{database}")
    assert type(quick) is Database
    for deleted in (False, True):
        assert quick.runs(deleted=deleted) == slow.runs(deleted=deleted)
    stored = quick.runs()
    assert 15 < len(stored) < len(quick.runs(deleted=True)) < 41
    assert repr([s.record for s in stored]) == repr([s.record for s in slow.runs()])
    # NaN is not equal to itself, its text is.
    points = quick.with_points(stored)
    assert repr(points) == repr(slow.with_points(slow.runs()))
    assert repr(quick.with_points(stored[3:9])) == repr(slow.with_points(stored[3:9]))
    assert any(record.metrics for record in points)


def test_the_last_value_of_a_metric_needs_no_curve(database):
    quick = reader(f"sqlite:///{database}")
    stored = quick.runs()
    for run, record in zip(stored, quick.with_points(stored), strict=True):
        assert repr({**run.last, "twice": 0}) == repr(
            {**{name: record.metrics[name].last for name in run.last}, "twice": 0}
        )


@pytest.mark.parametrize("rows", [0, 5, 1000])
def test_a_few_names_and_runs_read_what_all_do(database, monkeypatch, rows):
    monkeypatch.setattr(sqlite_reader, "ROWS", rows)
    kinds = ("tags", "params", "metrics")
    quick = reader(f"sqlite:///{database}")
    whole, few = quick.runs(), quick.runs(on_demand=kinds)
    flags, metrics = quick.names(few)
    assert (flags, metrics) == Reader.names(quick, whole)  # by reading every run
    assert "lr" in flags
    assert "return" in metrics
    for run, partial in zip(whole, few, strict=True):
        for name in sorted(flags | {"lost"}):
            assert partial.flag(name, "none") == run.flags.get(name, "none")
        for name in sorted(metrics | {"lost"}):
            assert repr(partial.last_value(name, "none")) == repr(run.last.get(name, "none"))
        for name in ("operation", "label", "seed", "changed_flags", "lost"):
            assert partial.tag(name) == run.tags.get(name, "")
    again = quick.runs(on_demand=kinds)
    for run, partial in zip(whole, again, strict=True):
        assert repr((partial.record, partial.last)) == repr((run.record, run.last))
        assert [len(partial.load(kind)) for kind in kinds] == [
            len(run.load(kind)) for kind in kinds
        ]


def test_of_many_runs_a_kind_is_read_once(database, monkeypatch):
    monkeypatch.setattr(sqlite_reader, "ROWS", 5)
    kinds = ("tags", "params", "metrics")
    reads = []
    read = sqlite_reader._RunFields.read
    monkeypatch.setattr(
        sqlite_reader._RunFields,
        "read",
        lambda fields, kind: (reads.append(kind), read(fields, kind)),
    )
    runs = reader(f"sqlite:///{database}").runs(on_demand=kinds)
    rows = [run.load(kind) for run in runs for kind in kinds]  # all of them before any is read
    assert all(len(dict(row.items())) == len(row) for row in rows)
    assert sorted(reads) == sorted(kinds)


def test_it_does_not_need_mlflow(database):
    code = f"""if True:
        import sys
        from runcatalog.store.sqlite_reader import reader
        quick = reader("sqlite:///{database}")
        assert any(record.metrics for record in quick.with_points(quick.runs()))
        heavy = {{"mlflow", "sqlalchemy", "torch", "pandas", "matplotlib"}} & set(sys.modules)
        assert not heavy, heavy
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_reads_while_another_process_writes(database):
    quick = reader(f"sqlite:///{database}")
    writer = sqlite3.connect(database)
    try:
        writer.execute("UPDATE tags SET value = 'changed'")  # not committed
        assert all("changed" not in run.tags.values() for run in quick.runs())
    finally:
        writer.close()


def test_a_missing_database_has_no_runs(tmp_path):
    path = tmp_path / "mlflow.db"
    assert reader(f"sqlite:///{path}").runs() == []
    assert not path.exists()


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "postgresql://group@host/mlflow"])
def test_a_server_is_read_by_the_client(uri):
    assert type(reader(uri)) is Store


def test_another_schema_is_read_by_the_client(database, tmp_path):
    path = tmp_path / "mlflow.db"
    for change in (
        "ALTER TABLE latest_metrics RENAME COLUMN is_nan TO nan",
        "UPDATE experiments SET workspace = 'other'",
        "DROP TABLE tags",
    ):
        shutil.copy(database, path)
        with sqlite3.connect(path) as connection:
            connection.execute(change)
        assert type(reader(f"sqlite:///{path}")) is Store
    path.write_bytes(b"no database" * 100)
    with pytest.raises(MlflowError, match="is damaged"):
        reader(f"sqlite:///{path}")


def test_an_unfinished_transaction_of_a_killed_writer_is_rolled_back(database, tmp_path):
    path = tmp_path / "mlflow.db"
    shutil.copy(database, path)
    code = f"""if True:
        import os, sqlite3
        connection = sqlite3.connect({str(path)!r}, isolation_level=None)
        connection.execute("PRAGMA cache_size = 5")  # pages; more changes are written before the end
        connection.execute("BEGIN")
        connection.execute("UPDATE tags SET value = 'changed' WHERE key <> 'run_id'")
        os.kill(os.getpid(), {int(signal.SIGKILL)})
    """
    subprocess.run([sys.executable, "-c", code], check=False)
    assert path.with_name("mlflow.db-journal").stat().st_size
    recovered, before = reader(f"sqlite:///{path}"), reader(f"sqlite:///{database}")
    assert recovered.runs() == before.runs()
    assert type(sqlite_reader.reader(f"sqlite:///{path}")) is Database  # repaired by the first


@pytest.mark.parametrize("tag", ["result", "reproduced", "search", "changed_flags", "versions"])
@pytest.mark.parametrize("text", ["[" * 3000, '{"a":' * 1000, f'{{"a": {"[" * 900}{"]" * 900}}}'])
def test_a_tag_that_is_nested_deeply_stops_no_reader(tmp_path, make, tag, text):
    """Anybody may write tags into a shared MLflow."""
    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    id_ = store.write(make(1, value=0.5))
    store.write(make(2, value=0.6))
    store.tag(id_, {tag: text})
    records = [run.record for run in reader(store.uri).runs()]
    assert [record.id8 for record in records] == ["00000001", "00000002"]
    assert records[1].objective["value"] == 0.6
