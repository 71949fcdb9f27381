"""A run in MLflow on PostgreSQL, without a server between; where PostgreSQL and its driver are installed."""

import pytest

from mlflow_server import free_port
from postgresql import MISSING, PostgreSQL
from runcatalog import record
from runcatalog.record.delivery.mlflow_client import MlflowError, connect
from runcatalog.record.delivery.publish import publish
from runcatalog.record.journal.metrics import read_points

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture
def database():
    """Return (the address of a new database, its psycopg connection)."""
    import psycopg

    server = PostgreSQL()
    try:
        server.start()
        with psycopg.connect(server.address, autocommit=True) as connection:
            yield server.address, connection
    finally:
        server.close()


def test_a_database_that_refuses_or_is_down_is_tried_once(database, monkeypatch):
    uri, connection = database
    connection.execute("CREATE ROLE stranger NOLOGIN")

    def no_retries(uri, **more):
        raise AssertionError("MLflow is asked, which tries again for minutes")

    monkeypatch.setattr("mlflow.MlflowClient", no_retries)
    place = uri.partition("@")[2]
    for address, why in (
        (f"postgresql://stranger:secret@{place}", "not permitted to log in"),
        (f"postgresql://me:secret@127.0.0.1:{free_port()}/postgres", "Connection refused"),
        ("postgresql://me:secret@mlflow.invalid/postgres", "mlflow.invalid: "),
    ):
        with pytest.raises(MlflowError, match=why) as caught:
            connect(address)
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_run_is_delivered_and_lost_points_are_sent_again(project, monkeypatch, database):
    uri, connection = database
    directory = project / "runs" / "run"
    monkeypatch.setenv("RUN_DIR", str(directory))
    with record.start(record.Config(), study="toy") as run:
        for step in range(1, 6):
            run.log({"loss": 1 / step}, step)
        run.finish({"objective": {"name": "loss", "value": 0.2, "goal": "min", "at": 5}})

    def stored_points():
        rows = connection.execute("SELECT timestamp, step, key, value FROM metrics")
        return sorted(rows.fetchall())

    publish(directory, uri)
    points = sorted(tuple(p) for p in read_points(directory / "journal" / "metrics.jsonl"))
    assert stored_points() == points
    connection.execute("DELETE FROM metrics WHERE step > 2")
    connection.execute("UPDATE latest_metrics SET step = 2")
    assert publish(directory, uri).points == len(points)
    assert stored_points() == points
    assert publish(directory, uri).points == 0
