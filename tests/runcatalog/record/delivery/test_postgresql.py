"""A run in MLflow on PostgreSQL, without a server between; where PostgreSQL and its driver are installed."""

import importlib.util
import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest

from mlflow_server import free_port
from runcatalog import record
from runcatalog.record.delivery.publish import publish
from runcatalog.record.journal import read_points

INITDB = shutil.which("initdb")
USER = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name

pytestmark = pytest.mark.skipif(
    INITDB is None or importlib.util.find_spec("psycopg") is None,
    reason="needs PostgreSQL (initdb on the PATH) and psycopg",
)


@pytest.fixture
def database(tmp_path_factory):
    """Returns (the address of a new database, its psycopg connection)."""
    import psycopg

    folder, port = tmp_path_factory.mktemp("postgresql"), free_port()
    programs = Path(INITDB).resolve().parent
    as_user = {}
    if os.getuid() == 0:  # which PostgreSQL refuses
        for path in (folder, *folder.parents[:2]):
            path.chmod(0o755)
        shutil.chown(folder, USER)
        as_user = {"user": USER}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder, **as_user}
    data = folder / "data"
    command = [programs / "initdb", "-D", data, "-A", "trust", "-U", USER, "--no-sync"]
    subprocess.run(command, check=True, **quiet)
    settings = ["-p", str(port), "-h", "127.0.0.1", "-k", folder, "-F"]
    with subprocess.Popen([programs / "postgres", "-D", data, *settings], **quiet) as server:
        address = f"postgresql://{USER}@127.0.0.1:{port}/postgres"
        while True:
            assert server.poll() is None
            try:
                connection = psycopg.connect(address, autocommit=True)
                break
            except psycopg.OperationalError:
                continue
        with connection:
            yield address, connection
        server.terminate()


def test_a_run_arrives_and_lost_points_come_back(project, monkeypatch, database):
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
