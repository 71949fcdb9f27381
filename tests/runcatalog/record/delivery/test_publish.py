"""MLflow has every point exactly once, whatever fails: real databases, a real server."""

import contextlib
import dataclasses
import json
import math
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import ends_table
import prepared
from mlflow_server import free_port, server
from runcatalog import record
from runcatalog.record.delivery.hidden_tags import plain_names
from runcatalog.record.delivery.mlflow_client import MlflowError, connect, shown, tracking_uri
from runcatalog.record.delivery.publish import Publisher, RunIsBusy, publish
from runcatalog.record.delivery.tags import run_tags
from runcatalog.record.journal import HIDDEN
from runcatalog.record.journal.files import read_json, write_json
from runcatalog.record.journal.lines import append_line
from runcatalog.record.journal.metrics import read_points
from runcatalog.record.lifecycle.status import status_of
from runcatalog.store.sqlite_reader import reader

LIGHT = ("--every", 0)  # no checkpoints, for which torch would be loaded


def stored_points(uri, run_id):
    """Return the points that MLflow holds of a run, as a sorted list."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    names = client.get_run(run_id).data.metrics
    return sorted(
        (point.timestamp, point.step, name, point.value)
        for name in names
        for point in client.get_metric_history(run_id, name)
    )


def logged(directory):
    """Return the points of the journal, as a sorted list."""
    return sorted(tuple(p) for p in read_points(directory / "journal" / "metrics.jsonl"))


def runs_of(uri, study="toy"):
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    return client.search_runs([client.get_experiment_by_name(study).experiment_id])


@pytest.fixture
def finished(toy):
    assert toy.run("--updates", 8, "--lr", 0.02, *LIGHT)[0] == 0
    return toy.directory


def test_a_run_is_delivered_completely_and_sending_again_adds_nothing(project, finished):
    uri = tracking_uri()
    assert uri == f"sqlite:///{project}/mlflow.db"
    first = publish(finished, extra_tags={"batch": "abc"})
    assert first.points == len(logged(finished)) == 25
    assert publish(finished).points == 0
    (finished / "journal" / "mlflow.json").unlink()
    again = publish(finished)
    assert (again.mlflow_run_id, again.points) == (first.mlflow_run_id, 25)
    (run,) = runs_of(uri)
    assert stored_points(uri, run.info.run_id) == logged(finished)
    result = read_json(finished / "result.json")
    assert run.info.status == "FINISHED"
    assert run.info.end_time == result["ended"]
    assert run.info.start_time == result["started"]
    assert run.info.run_name == "toy_training"
    assert run.data.params["lr"] == "0.02"
    tags = run.data.tags
    assert (tags["batch"], tags["seed"], tags["study"], tags["env_steps"]) == (
        "abc",
        "1",
        "toy",
        "80",
    )
    assert tags["run_id"] == read_json(finished / "journal" / "run.json")["id"]
    hidden = "mlflow.catalog."  # MLflow's pages do not show such tags
    assert tags[f"{hidden}digest_metrics"] == result["digest"]["metrics"]
    assert '"name": "loss"' in tags[f"{hidden}result"]
    shown = {name: value for name, value in tags.items() if not name.startswith("mlflow.")}
    assert not [name for name, value in shown.items() if value.startswith(("{", "["))]
    assert str(result["started"]) not in shown.values()
    files = [
        path.relative_to(project / "mlartifacts").as_posix().split("/artifacts/")[1]
        for path in (project / "mlartifacts").rglob("*")
        if path.is_file()
    ]
    assert sorted(files) == ["figures/walk.txt", "result.json"]


def test_a_sender_that_comes_after_the_sync_keeps_what_that_said(project, toy, finished):
    """The sync knows the run's batch and dependencies, and that Guild made the label."""
    (finished / ".guild" / "attrs").mkdir(parents=True)
    (finished / ".guild" / "attrs" / "label").write_text("lr=0.02 updates=8\n")
    said = {"label": "", "parents": "abc", "batch": "def"}
    publish(finished, extra_tags=said)

    def tags():
        (run,) = runs_of(tracking_uri())
        return {name: run.data.tags.get(name, "") for name in said}

    assert Publisher(finished).send(again=False).points == 0
    assert tags() == said
    # A continued run has another end, which its sender reports.
    assert toy.run("--updates", 12, "--lr", 0.02, *LIGHT)[0] == 0
    assert Publisher(finished).send(again=False).points
    (run,) = runs_of(tracking_uri())
    assert stored_points(tracking_uri(), run.info.run_id) == logged(finished)


@dataclasses.dataclass(frozen=True)
class Noted(record.Config):
    """A flag that is a text."""

    note: str = record.option("", "text")


def test_a_flag_that_is_no_utf8_is_recorded_sent_and_continued(project, monkeypatch):
    odd = os.fsdecode(b"M\xfcller")
    monkeypatch.setattr(sys, "argv", ["toy.py", "--note", odd])
    monkeypatch.setenv("RUN_DIR", str(project / "here"))
    (project / "here" / ".guild" / "attrs").mkdir(parents=True)
    with pytest.raises(record.UserError), record.start(Noted(note=odd), study="toy") as run:
        raise record.UserError(f"no folder {odd}")
    assert "no folder M?ller" in (run.directory / "artifacts" / "error.txt").read_text()
    publish(run.directory)
    (sent,) = runs_of(tracking_uri())
    assert (sent.info.status, sent.data.tags["reason"]) == ("FAILED", "no folder M?ller")
    assert (sent.data.params["note"], sent.data.tags["command"][-8:]) == ("M?ller", "'M?ller'")
    with record.start(Noted(note=odd), study="toy") as run:
        assert run.resumed
        run.finish({"summary": f"read {odd}"})
    assert publish(run.directory).status.status == "FINISHED"


def test_a_secret_is_hidden_in_a_file_whose_other_bytes_stay(project, monkeypatch):
    content = "Länge;Wert\r\ntoken=0a1b2c3d4e5f;1\r\n"
    with record.start(record.Config(), study="toy") as run:
        run.artifact("tables/länge.csv").write_bytes(content.encode("latin-1"))
        run.finish({"summary": "a table"})
    publish(run.directory)
    (sent,) = (project / "mlartifacts").rglob("tables/*")
    expected = content.replace("0a1b2c3d4e5f", HIDDEN)
    assert (sent.name, sent.read_bytes()) == ("länge.csv", expected.encode("latin-1"))


def test_a_copied_journal_with_nan_and_a_failure_is_sent_unchanged(project, monkeypatch):
    monkeypatch.setenv("RUN_DIR", str(project / "here"))
    run = record.start(record.Config(), study="toy")
    with contextlib.suppress(ZeroDivisionError), run:
        run.log({"loss": math.nan, "return": 1e-300}, 1)
        run.log({"loss": -1.5}, 2)
        run.artifact("video.mp4").write_bytes(b"video")
        raise ZeroDivisionError("division by zero")
    (run.directory / ".guild" / "attrs").mkdir(parents=True)
    (run.directory / ".guild" / "attrs" / "label").write_text("lr=0.1\n")
    (run.directory / ".guild" / "output").write_text("".join(f"line {i}\n" for i in range(30)))
    shutil.copytree(run.directory, project / "copied")
    shutil.rmtree(run.directory)
    uri = f"sqlite:///{project}/other.db"
    run_id = publish(project / "copied", uri).mlflow_run_id
    (stored,) = runs_of(uri)
    assert (stored.info.status, stored.info.run_name) == ("FAILED", "lr=0.1")
    assert stored.data.tags["reason"] == "ZeroDivisionError: division by zero"
    points = stored_points(uri, run_id)
    assert [point[1:3] for point in points] == [(1, "loss"), (1, "return"), (2, "loss")]
    assert math.isnan(points[0][3])
    assert points[1][3] == 1e-300
    folder = project / "mlartifacts" / "toy" / run_id / "artifacts"
    assert {path.name for path in folder.iterdir()} == {
        "error.txt",
        "log_tail.txt",
        "result.json",
        "video.mp4",
    }
    assert (folder / "log_tail.txt").read_text().splitlines()[0] == "line 10"


def test_a_journal_with_names_that_mlflow_rejects_is_sent(project, finished):
    """Earlier versions wrote such names, and the lines have checksums."""
    names = ["loss/", "a//b", "./a", "a/./b", "."]
    values = dict.fromkeys(names, 0.5)
    path = finished / "journal" / "metrics.jsonl"
    append_line(path, {"t": 1, "step": 9, "m": values})
    publish(finished)
    (run,) = reader(tracking_uri()).runs()
    assert {name: run.last[name] for name in names} == values
    assert publish(finished).points == 0


def test_trials_are_children_of_their_batch_and_a_lost_database_is_filled_again(project, finished):
    uri = tracking_uri()
    batch = publish(finished).mlflow_run_id
    trial = project / "runs" / "trial"
    shutil.copytree(finished, trial)
    facts = read_json(trial / "journal" / "run.json")
    write_json(trial / "journal" / "run.json", facts | {"id": "e" * 32})
    publish(trial, extra_tags={"mlflow.parentRunId": batch})
    tags = {run.data.tags["run_id"]: run.data.tags for run in runs_of(uri)}
    assert tags["e" * 32]["mlflow.parentRunId"] == batch
    other = f"sqlite:///{project}/fresh.db"
    state = (finished / "journal" / "mlflow.json").read_text()
    (finished / "journal" / "mlflow.json").write_text(state.replace("mlflow.db", "fresh.db"))
    run_id = publish(finished, other).mlflow_run_id
    assert stored_points(other, run_id) == logged(finished)


def test_the_run_that_mlflow_run_created_is_used(project, toy, wait_until):
    from mlflow import MlflowClient

    uri = tracking_uri()
    client = MlflowClient(uri)
    created = client.create_run("0")
    client.log_param(created.info.run_id, "lr", "2e-2")  # as it was typed
    environment = {"MLFLOW_RUN_ID": created.info.run_id, "RECORD_MLFLOW": "on"}
    assert toy.run("--updates", 2, "--lr", "2e-2", env=environment)[0] == 0
    wait_until(lambda: client.get_run(created.info.run_id).info.status == "FINISHED")
    (toy.directory / "journal" / "mlflow.json").unlink()
    assert publish(toy.directory).mlflow_run_id == created.info.run_id
    assert client.get_run(created.info.run_id).data.params["lr"] == "2e-2"
    assert stored_points(uri, created.info.run_id) == logged(toy.directory)


def test_who_comes_before_the_sender_waits_until_it_has_found_the_run_of_mlflow_run(project, toy):
    from mlflow import MlflowClient

    uri = tracking_uri()
    client = MlflowClient(uri)
    created = client.create_run("0").info.run_id
    environment = {"MLFLOW_RUN_ID": created, "RECORD_MLFLOW": "on"}
    with contextlib.closing(sqlite3.connect(project / "mlflow.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")  # its sender has to wait
        assert toy.run("--updates", 2, env=environment)[0] == 0
        with pytest.raises(RunIsBusy):
            publish(toy.directory, client=client, patience=0.0)
        other.execute("ROLLBACK")
    assert publish(toy.directory).mlflow_run_id == created
    experiments = [e.experiment_id for e in client.search_experiments()]
    (run,) = client.search_runs(experiments)
    assert run.info.status == "FINISHED"
    # The directory alone makes nobody wait: the sender of a copy is not at work.
    copied = project / "copied"
    shutil.copytree(toy.directory, copied)
    (copied / "journal" / "mlflow.json").unlink()
    assert publish(copied, patience=0.0).mlflow_run_id == created


def test_a_run_directory_takes_over_no_run_of_mlflow(project, finished):
    """Whoever sends a run directory from elsewhere may name any run in it."""
    from mlflow import MlflowClient

    uri = tracking_uri()
    client = MlflowClient(connect(uri).tracking_uri)
    victim = client.create_run("0", tags={"owner": "somebody"}).info.run_id
    path = finished / "journal" / "run.json"
    write_json(path, read_json(path) | {"mlflow_run_id": victim})
    assert publish(finished).mlflow_run_id != victim
    untouched = client.get_run(victim).data
    assert "run_id" not in untouched.tags
    assert not untouched.metrics
    # Nor does the sender of a run whose variable names the run of another.
    client.log_metric(victim, "loss", 1.0)
    path = finished / "journal" / "run.json"
    write_json(path, read_json(path) | {"id": "e" * 32})
    (finished / "journal" / "mlflow.json").unlink()
    assert Publisher(finished, created=victim).send().mlflow_run_id != victim
    assert "run_id" not in client.get_run(victim).data.tags


def test_a_locked_database_delays_but_loses_nothing(project, finished, toys, wait_until):
    uri = tracking_uri()
    publish(finished)
    other = sqlite3.connect(project / "mlflow.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    late = toys("late")
    assert late.run("--updates", 8, *LIGHT, env={"RECORD_MLFLOW": "on"})[0] == 0  # it does not wait
    log = late.directory / "journal" / "sender.log"
    wait_until(lambda: "locked" in log.read_text())
    assert log.read_text().count("\n") == log.read_text().count("MLflow at")  # one per line
    other.execute("ROLLBACK")
    other.close()
    published = publish(late.directory)
    assert stored_points(uri, published.mlflow_run_id) == logged(late.directory)
    ends_table.check("MLflow locked", *published.status[:2])


def test_two_senders_at_once_create_one_database_and_one_run(project, finished):
    code = f"from runcatalog.record.delivery.publish import publish; publish({str(finished)!r})"
    senders = [subprocess.Popen([prepared.python(), "-c", code]) for _ in range(2)]
    assert [sender.wait() for sender in senders] == [0, 0]
    (run,) = runs_of(tracking_uri())
    assert stored_points(tracking_uri(), run.info.run_id) == logged(finished)


def test_the_sender_reports_the_end_of_a_killed_training(project, toy, wait_until):
    process = toy.start("--updates", 10**6, *LIGHT, "--pause", 0.02, env={"RECORD_MLFLOW": "on"})
    wait_until(lambda: "offset" in str(read_json(toy.directory / "journal" / "mlflow.json")))
    (run,) = runs_of(tracking_uri())
    assert run.info.status == "RUNNING"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    # Nothing calls publish: the sender detects that the training process is gone.
    wait_until(lambda: runs_of(tracking_uri())[0].info.status == "KILLED")
    assert stored_points(tracking_uri(), run.info.run_id) == logged(toy.directory)
    assert (toy.directory / "journal" / "sender.log").read_text() == ""


@contextlib.contextmanager
def listener(port, answer):
    """Serve connections with `answer(connection)`; yield (port, list of connections)."""
    taken = []
    with socket.create_server(("127.0.0.1", port)) as server:

        def take():
            with contextlib.suppress(OSError):
                while True:
                    taken.append(server.accept()[0])
                    threading.Thread(target=answer, args=[taken[-1]], daemon=True).start()

        threading.Thread(target=take, daemon=True).start()
        yield server.getsockname()[1], taken
        server.shutdown(socket.SHUT_RDWR)
    for connection in taken:
        connection.close()


def slowly(port):
    """Return a function that forwards a connection to a port and delays every part of the answer by 0.5 s."""

    def copy(source, target, seconds):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                time.sleep(seconds)
                target.sendall(data)

    def answer(connection):
        with socket.create_connection(("127.0.0.1", port)) as server:
            asking = threading.Thread(target=copy, args=[connection, server, 0], daemon=True)
            asking.start()
            copy(server, connection, 0.5)

    return answer


def test_a_server_that_hangs_is_down_and_is_killed_costs_no_point(project, toys, wait_until):
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    environment = {"MLFLOW_TRACKING_URI": uri, "RECORD_MLFLOW": "on"}
    hung, slow, early, late = (toys(name) for name in ("hung", "slow", "early", "late"))
    with listener(port, lambda connection: None) as (_, taken):
        assert hung.run("--updates", 5, *LIGHT, env=environment)[0] == 0
        wait_until(lambda: taken)  # by the sender, which the training did not wait for
    assert early.run("--updates", 5, *LIGHT, env=environment)[0] == 0  # no server answers
    with pytest.raises(MlflowError, match=f"127.0.0.1:{port} did not answer"):
        publish(early.directory, uri)
    with server(project, port) as answers:
        wait_until(answers)
        process = late.start("--updates", 10**6, *LIGHT, "--pause", 0.1, env=environment)
        wait_until(lambda: "offset" in str(read_json(late.directory / "journal" / "mlflow.json")))
    killed_at = late.lines()
    wait_until(lambda: late.lines() > killed_at + 20)  # the training does not notice
    process.send_signal(signal.SIGTERM)
    process.communicate()
    with server(project, port) as answers, listener(0, slowly(port)) as (near, taken):
        wait_until(answers)
        behind = f"http://127.0.0.1:{near}"
        assert (
            slow.run("--updates", 5, *LIGHT, env=environment | {"MLFLOW_TRACKING_URI": behind})[0]
            == 0
        )
        ended = {"MLflow hangs": hung, "MLflow away": early, "SIGTERM": late}
        for case, toy in ended.items():
            published = publish(toy.directory, uri)
            assert stored_points(uri, published.mlflow_run_id) == logged(toy.directory)
            ends_table.check(case, *published.status[:2])
        wait_until(lambda: "result.json" in str(read_json(slow.directory / "journal/mlflow.json")))
        published = publish(slow.directory, uri)
        assert taken
        assert stored_points(uri, published.mlflow_run_id) == logged(slow.directory)
        ends_table.check("MLflow slow", *published.status[:2])
        statuses = sorted(run.info.status for run in runs_of(uri))
        assert statuses == ["FINISHED", "FINISHED", "FINISHED", "KILLED"]


def test_no_password_is_shown_or_kept():
    assert shown("postgresql://me:secret@box/db") == "postgresql://me:***@box/db"
    assert shown("postgresql://me:se/cr@et@box/db") == "postgresql://me:***@box/db"
    assert shown("postgresql://me:secret@/db?host=/tmp") == "postgresql://me:***@/db?host=/tmp"
    assert shown("http://127.0.0.1:5000") == "http://127.0.0.1:5000"


def test_a_missing_journal_is_a_one_line_error(tmp_path):
    with pytest.raises(record.UserError, match=r"no run \("):
        publish(tmp_path)


def test_a_database_whose_creation_is_killed_is_created_again(tmp_path: Path) -> None:
    """MLflow creates its tables in many steps; the real ones run here, so that a kill can interrupt them."""
    code = "import sys; from runcatalog.record.delivery import mlflow_client; mlflow_client.connect(sys.argv[1])"
    path = tmp_path / "mlflow.db"
    command = [sys.executable, "-c", code, f"sqlite:///{path}"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}  # without a ready one
    with subprocess.Popen(command, env=environment) as process:
        while not (new := path.with_name("mlflow.db.new")).exists() or not new.stat().st_size:
            assert process.poll() is None
            time.sleep(0.001)
        process.kill()
    assert not path.exists()
    assert connect(f"sqlite:///{path}").search_experiments()
    assert not new.exists()


def test_a_sender_goes_on_after_an_error_of_its_run(project, toy, wait_until):
    process = toy.start("--updates", 10**6, *LIGHT, "--pause", 0.02, env={"RECORD_MLFLOW": "on"})
    facts, log = toy.directory / "journal" / "run.json", toy.directory / "journal" / "sender.log"
    wait_until(toy.lines)
    whole = facts.read_text()
    facts.write_text("{}")
    wait_until(lambda: "'id' is missing or invalid: refused" in log.read_text())
    facts.write_text(whole)
    wait_until(lambda: "offset" in str(read_json(toy.directory / "journal" / "mlflow.json")))
    process.send_signal(signal.SIGTERM)
    process.communicate()
    wait_until(lambda: runs_of(tracking_uri())[0].info.status == "KILLED")
    (run,) = runs_of(tracking_uri())
    assert stored_points(tracking_uri(), run.info.run_id) == logged(toy.directory)


def test_a_result_stays_json_whatever_its_metrics_are_called(finished, monkeypatch):
    """Texts such as `loss_per_token: 1.23456789` look like an assigned secret."""
    monkeypatch.setenv("DB_PASSWORD", "correct-horse-battery")
    content = read_json(finished / "result.json")
    content["result"] |= {
        "metrics": {"loss_per_token": 1.23456789},
        "note": "correct-horse-battery",
    }
    content["failed_at"] = {"loss_per_token": 1.23456789}
    write_json(finished / "result.json", content)
    publish(
        finished, extra_tags={"search": '{"token": 1.23456789, "said": "correct-horse-battery"}'}
    )
    (run,) = runs_of(tracking_uri())
    sent = plain_names(run.data.tags)
    assert json.loads(sent["result"])["metrics"] == {"loss_per_token": 1.23456789}
    assert json.loads(sent["result"])["note"] == HIDDEN
    assert json.loads(sent["failed_at"]) == {"loss_per_token": 1.23456789}
    assert json.loads(sent["search"]) == {"token": 1.23456789, "said": HIDDEN}


def test_a_run_of_hundreds_of_parents_keeps_all_of_them(finished):
    """MLflow cuts a tag at 8,000 characters, which are those of 242 ids."""
    parents = [f"{number:032x}" for number in range(600)]
    write_json(finished / "journal" / "parents.json", {"parents": parents})
    for _ in range(2):
        publish(finished)
        (stored,) = reader(tracking_uri()).runs()
        assert list(stored.record.parents) == parents
        assert stored.tag("parents") == ",".join(parents)


@pytest.mark.parametrize("long", ["metrics", "also", "name"])
def test_a_result_that_is_too_long_is_shortened_to_json(finished, long):
    objective = {"name": "loss", "value": 0.5, "kind": "mean"}
    result = {"objective": objective, "evaluation": {"split": "test", "name": "levels"}}
    if long == "metrics":
        result["metrics"] = {f"metric {i}": i for i in range(5000)}
    elif long == "also":
        objective["also"] = [{"name": f"metric {i}", "value": i} for i in range(5000)]
    else:
        objective["name"] = "x" * 40_000
    facts, status = read_json(finished / "journal/run.json"), status_of(finished)
    content = {**read_json(finished / "result.json"), "result": result}
    sent = json.loads(run_tags(finished, facts, content, status, "")["result"])
    expected = {"name": "loss", "value": 0.5, "kind": "mean"}
    assert sent.get("objective") == (None if long == "name" else expected)
