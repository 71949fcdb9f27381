"""The client of MLflow: a new database is created once, errors are distinguished, drivers are named."""

import http.server
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading

import pytest

import prepared
from mlflow_server import free_port
from runcatalog.record import UserError
from runcatalog.record.delivery.mlflow_client import (
    MlflowError,
    MlflowInternalError,
    _copy_empty,
    connect,
    experiment_id,
    one_line_errors,
    tracking_uri,
)
from runcatalog.record.journal.files import locked

OPEN_AND_WRITE = """
import sys
from runcatalog.record.delivery.mlflow_client import connect, experiment_id
client = connect(sys.argv[1])
client.log_metric(client.create_run(experiment_id(client, sys.argv[1], "toy")).info.run_id, "loss", 1.0)
"""


def test_eight_processes_open_one_new_database(tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    started = [subprocess.Popen([prepared.python(), "-c", OPEN_AND_WRITE, uri]) for _ in range(8)]
    assert [process.wait() for process in started] == [0] * 8
    client = connect(uri)
    (experiment,) = [e for e in client.search_experiments() if e.name == "toy"]
    runs = client.search_runs([experiment.experiment_id])
    assert [run.data.metrics for run in runs] == [{"loss": 1.0}] * 8


def test_a_copied_new_database_equals_the_one_that_mlflow_creates(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    dumps = []
    for name, folder in (("created", "one"), ("copied", "two")):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)  # the place of the default experiment's artifacts
        connect(f"sqlite:///{tmp_path}/{name}.db")
        with sqlite3.connect(tmp_path / f"{name}.db") as database:
            database.execute("UPDATE experiments SET creation_time = 0, last_update_time = 0")
            dumps.append("\n".join(database.iterdump()))
    assert str(tmp_path / "two") in dumps[1]
    assert dumps[1] == dumps[0].replace(str(tmp_path / "one"), str(tmp_path / "two"))
    (kept,) = (tmp_path / "cache" / "runcatalog").iterdir()
    content = kept.read_bytes()
    for damaged in (b"", content[:5000], b"\0" * len(content)):
        kept.write_bytes(damaged)
        assert not _copy_empty(tmp_path / "new.db")
        assert not (tmp_path / "new.db").exists()
    kept.write_bytes(content)
    assert _copy_empty(tmp_path / "new.db")


def test_a_ready_database_is_opened_without_waiting(tmp_path):
    """Opening takes seconds on a busy machine: one after the other, eight processes would give up."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    connect(uri)
    with locked(tmp_path / "mlflow.db.lock"):
        code = f"{OPEN_AND_WRITE}\nprint('written')"
        command = [prepared.python(), "-c", code, uri]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.stdout == "written\n"


@pytest.mark.parametrize("is_copy", [False, True])
def test_artifacts_are_beside_a_database_that_was_moved_or_copied(tmp_path, is_copy):
    """They went to the folder of before, which was made again, or belongs to another project by now."""

    def add(folder, name):
        uri = f"sqlite:///{folder}/mlflow.db"
        client = connect(uri)
        run_id = client.create_run(experiment_id(client, uri, "türen auf")).info.run_id
        client.log_text(run_id, name, f"{name}.txt")
        return client

    def found(client):
        (experiment,) = [e for e in client.search_experiments() if e.name == "türen auf"]
        runs = client.search_runs([experiment.experiment_id])
        return sorted(f.path for run in runs for f in client.list_artifacts(run.info.run_id))

    old, new = tmp_path / "it's 50 %_1", tmp_path / "new #1"
    old.mkdir()
    add(old, "first")
    shutil.copytree(old, new) if is_copy else old.rename(new)
    assert found(add(new, "second")) == ["first.txt", "second.txt"]
    assert {path.name for path in new.rglob("*.txt")} == {"first.txt", "second.txt"}
    assert [path.name for path in old.rglob("*.txt")] == ["first.txt"] * is_copy
    if is_copy:
        assert found(add(old, "third")) == ["first.txt", "third.txt"]
        (tmp_path / "backup").mkdir()  # without the artifacts, which stay where they are
        shutil.copy(old / "mlflow.db", tmp_path / "backup")
        assert found(connect(f"sqlite:///{tmp_path}/backup/mlflow.db")) == [
            "first.txt",
            "third.txt",
        ]


@pytest.fixture
def client(tmp_path):
    return connect(f"sqlite:///{tmp_path}/mlflow.db")


def error_of(uri, action, run="run"):
    """Return an action's error as `one_line_errors` converts it."""
    with pytest.raises(UserError) as caught, one_line_errors(uri, run):
        action()
    assert "\n" not in str(caught.value)
    return caught.value


def test_errors_of_a_run(client, tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run = client.create_run(experiment_id(client, uri, "toy")).info.run_id
    for action in (
        lambda: client.set_terminated(run, "PWNED"),
        lambda: client.set_terminated(run, "FINISHED", 10**30),
        lambda: client.log_metric(run, "loss", 1.0, step=2**70),
        lambda: client.log_metric(run, "../loss", 1.0),
        lambda: client.get_run("f" * 32),
        lambda: {}["field"],
        lambda: (tmp_path / "missing").read_text(),
    ):
        assert not isinstance(error_of(uri, action), MlflowError)


def test_errors_of_the_database(client, tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"

    def locked_database():
        with sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None) as first:
            first.execute("BEGIN EXCLUSIVE")
            sqlite3.connect(tmp_path / "mlflow.db", timeout=0).execute("SELECT * FROM runs")

    (tmp_path / "text.db").write_text("no database, but longer than its head would be" * 10)
    for action in (
        locked_database,
        lambda: sqlite3.connect(tmp_path / "text.db").execute("SELECT * FROM runs"),
    ):
        error = error_of(uri, action)
        assert type(error) is MlflowError
        how = "is damaged" if action is not locked_database else f"MLflow at {uri} did not answer"
        assert how in str(error)


class Broken(http.server.BaseHTTPRequestHandler):
    """Answer every request with the server's status."""

    def do_GET(self):
        self.send_response(self.server.status)
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *words):
        pass


@pytest.mark.parametrize(
    ("status", "kind"),
    [(500, MlflowInternalError), (503, MlflowError), (401, MlflowError), (400, UserError)],
)
def test_errors_of_a_server(status, kind):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Broken) as answering:
        answering.status = status
        threading.Thread(target=answering.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{answering.server_port}"
        client = connect(uri)
        assert type(error_of(uri, lambda: client.get_run("f" * 32))) is kind
        answering.shutdown()


def test_an_unreachable_server(tmp_path):
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        uri = f"http://127.0.0.1:{port}"
        client = connect(uri)
    assert type(error_of(uri, lambda: client.get_run("f" * 32))) is MlflowError


@pytest.mark.parametrize(
    ("driver", "package"), [("psycopg", "psycopg[binary]"), ("psycopg2", "psycopg2-binary")]
)
def test_a_missing_driver_is_named(monkeypatch, driver, package):
    monkeypatch.setitem(sys.modules, driver, None)  # as where it is not installed
    with pytest.raises(MlflowError) as caught:
        connect(f"postgresql+{driver}://me:secret@127.0.0.1:9/mlflow")
    advice = f"; the driver of the database is missing: pip install '{package}'"
    assert str(caught.value).endswith(advice)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("http://127.0.0.1:{port}", "Connection refused"),
        ("https://127.0.0.1:{port}/mlflow", "Connection refused"),
        ("http://mlflow.invalid", "mlflow.invalid: "),
        ("http://127.0.0.1:no", "Port could not be cast"),
        ("http://me:se/cret@127.0.0.1:{port}", "(127.0.0.1: Connection refused)"),
    ],
)
def test_an_address_without_a_server_is_an_error(address, why, monkeypatch):
    def no_retries(uri, **more):
        raise AssertionError("MLflow is asked, which tries again for minutes")

    monkeypatch.setattr("mlflow.MlflowClient", no_retries)
    with pytest.raises(MlflowError) as caught:
        connect(address.format(port=free_port()))
    line = str(caught.value)
    assert why in line
    assert "did not answer" in line
    assert "cret" not in line
    assert "\n" not in line


def test_a_database_in_a_missing_folder_is_an_error_and_is_not_created(tmp_path):
    path = tmp_path / "no" / "such" / "mlflow.db"
    with pytest.raises(MlflowError, match=f"there is no folder {path.parent}"):
        connect(f"sqlite:///{path}")
    assert not (tmp_path / "no").exists()


def test_a_folder_instead_of_a_database_is_an_error_before_mlflow_tries_it_for_minutes(tmp_path):
    with pytest.raises(MlflowError, match=f"{tmp_path}: a file that may be read is expected"):
        connect(f"sqlite:///{tmp_path}")


def test_a_database_of_another_version_of_mlflow_is_named_with_what_to_do(client, tmp_path):
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("UPDATE alembic_version SET version_num = 'of_later'")
    shutil.move(tmp_path / "mlflow.db", tmp_path / "other.db")  # a store that MLflow has not opened
    uri = f"sqlite:///{tmp_path}/other.db"
    for run in ("", "run"):
        with pytest.raises(MlflowError) as caught, one_line_errors(uri, run):
            connect(uri).search_experiments()
        assert f"{tmp_path}/other.db is of another version of MLflow" in str(caught.value)
        assert f"`mlflow db upgrade {uri}`, or move it away" in str(caught.value)
        assert not isinstance(caught.value, MlflowInternalError)  # the next run would get it too


@pytest.mark.parametrize("content", [b"no database at all" * 100, None])
def test_a_damaged_database_is_named_with_what_to_do(client, tmp_path, content):
    path = tmp_path / "damaged.db"
    path.write_bytes(content or (tmp_path / "mlflow.db").read_bytes()[:20_000])
    uri = f"sqlite:///{path}"
    with (
        pytest.raises(MlflowError, match="is damaged") as caught,
        one_line_errors(uri),
    ):
        connect(uri).search_experiments()
    assert str(caught.value).startswith(str(path))


def test_a_word_is_no_address():
    with pytest.raises(MlflowError, match="'foo' is no address of MLflow"):
        connect("foo")


@pytest.mark.parametrize("name", ["what? now", "my%20project"])
def test_a_folder_whose_name_an_address_changes_is_refused(name, tmp_path, monkeypatch):
    """SQLAlchemy would open `what` beside the project, or `my project`."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("PROJECT_DIR", str(tmp_path / name))
    with pytest.raises(UserError, match="rename it, or set MLFLOW_TRACKING_URI"):
        tracking_uri()
    address = f"sqlite:///{tmp_path}/mlflow.db"
    assert tracking_uri(address) == address
    monkeypatch.setenv("PROJECT_DIR", str(tmp_path / "100% sure"))
    assert tracking_uri().endswith("/100% sure/mlflow.db")
