"""A run that cannot be sent is a line of the report; the others are sent. Points that MLflow lost are sent again."""

import hashlib
import json
import shutil
import sqlite3
import sys

import pytest

from mlflow_server import free_port, server
from runcatalog import record
from runcatalog.cli.main import main
from runcatalog.record.delivery.mlflow_client import MlflowError
from runcatalog.record.journal.files import locked, read_json, write_json
from runcatalog.store.client import Store
from runcatalog.store.sqlite_reader import reader
from runcatalog.sync import sync
from runcatalog.sync.sync import Sync


@pytest.fixture
def runs(project, monkeypatch):
    """Return a function that adds a finished run of the toy project, `add("name")`; its directory."""
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    first = project.root / "runs" / "first"

    def add(name):
        directory = first.with_name(name)
        if not first.exists():
            monkeypatch.setenv("RUN_DIR", str(first))
            with record.start(record.Config(), study="toy") as run:
                for step in range(1, 6):
                    run.log({"loss": 1 / step}, step)
                run.finish({"objective": {"name": "loss", "value": 0.2, "goal": "min", "at": 5}})
            monkeypatch.delenv("RUN_DIR")
        if directory != first:
            shutil.copytree(first, directory)
            change(
                directory / "journal" / "run.json",
                id=hashlib.sha256(name.encode()).hexdigest()[:32],
            )
        return directory

    add("first")
    return add


def change(path, **fields):
    write_json(path, read_json(path) | fields)


def synced(project, uri=None):
    """Syncs; returns the report."""
    return Sync(project, Store(uri), lambda line: None).run(None)


def nested(depth):
    value = "x"
    for _ in range(depth):
        value = [value]
    return value


def damage(runs):
    """Add one run per kind of damage; return their directories."""
    results = {
        "status": {"status": "PWNED"},
        "list": {"status": ["FINISHED"]},
        "reason": {"reason": 7},
        "digest": {"digest": "none"},
        "wall": {"wall_seconds": "long"},
        "ended": {"ended": 1e30},
    }
    if sys.version_info < (3, 12):  # later versions read this
        results["nested"] = {"result": {"summary": nested(600)}}
    bad = []
    for name, fields in results.items():
        bad.append(runs(f"bad-{name}"))
        path = bad[-1] / "result.json"
        path.write_text(json.dumps(read_json(path) | fields))
    bad.append(runs("bad-step"))
    path = bad[-1] / "journal" / "metrics.jsonl"  # as earlier versions wrote it
    lines = [line.partition(',"n":')[0] + "}\n" for line in path.read_text().splitlines()]
    path.write_text("".join([*lines, '{"t":1,"step":1180591620717411303424,"m":{"loss":1.0}}\n']))
    bad.append(runs("bad-session"))
    (bad[-1] / "journal" / "sessions.jsonl").write_text('{"session": "one"}\n')
    return bad


def test_bad_runs_block_no_other(project, runs, shell):
    bad = damage(runs)
    runs("later")
    report = synced(project)
    assert report.runs == len(bad) + 2
    assert report.sent == 3  # of one, only a line cannot be sent
    assert len(report.problems) == len(bad)
    for directory, line in zip(sorted(bad), report.problems, strict=True):
        assert directory.name in line or directory.name == "bad-step"
        assert "\n" not in line
    assert "'PWNED'" in report.problems[[d.name for d in sorted(bad)].index("bad-status")]
    statuses = {run.status for run in Store().runs()}
    assert statuses <= {"FINISHED", "RUNNING"}
    shell.root, shell.env["PROJECT_DIR"] = project.root, str(project.root)
    output = shell.inside("sync", code=1)
    assert " 0 sent\n" in output
    assert output.count("\ncatalog: ") == len(bad) - 1


def test_a_damaged_journal_is_sent_and_reported(project, runs):
    changed = {
        "flipped": ('"step":3', '"step":4'),  # the checksum is another
        "zeros": ('{"t":', "\0\0\0\0\0"),
        "cut": None,  # the last two lines are not there
    }
    ids = {}
    for name, change_ in changed.items():
        directory = runs(f"bad-{name}")
        ids[name] = read_json(directory / "journal" / "run.json")["id"]
        path = directory / "journal" / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        if change_ is None:
            lines = lines[:-2]
        else:
            lines[2] = lines[2].replace(*change_)
        path.write_text("".join(lines))
    report = synced(project)
    assert report.sent == 4
    prefixes = {name: f"{ids[name][:8]}: metrics.jsonl: " for name in ids}
    lost = "1 of 6 lines cannot be read (3)"
    digest = "its points are not those of which result.json has the digest"
    assert sorted(report.problems) == sorted(
        [prefixes["flipped"] + lost, prefixes["zeros"] + lost, prefixes["cut"] + digest]
    )
    tags = {run.run: run.tag("journal") for run in Store().runs()}
    assert tags.pop(read_json(runs("first") / "journal" / "run.json")["id"]) == ""
    assert sorted(tags.values()) == sorted([f"metrics.jsonl: {x}" for x in (lost, lost, digest)])
    assert len(points(project.root / "mlflow.db")) == 6 + 5 + 5 + 4
    assert (synced(project).sent, synced(project).problems) == (0, [])


def test_a_run_that_is_being_sent_is_left_for_the_end(project, runs, monkeypatch):
    monkeypatch.setattr(sync, "PATIENCE", 0.3)
    runs("later")
    lock = runs("busy") / "journal" / "mlflow.lock"
    with locked(lock):
        report = synced(project)
    assert (report.runs, report.sent) == (3, 2)
    (line,) = report.problems
    assert line.endswith("busy: another process is sending it")
    monkeypatch.setattr(sync, "PATIENCE", 60)
    runs("last")
    holding = locked(lock)
    holding.__enter__()
    # The other process is done while the others are sent.
    report = Sync(project, Store(), lambda line: holding.__exit__(None, None, None)).run(None)
    assert (report.sent, report.problems) == (2, [])


def test_a_run_that_goes_on_is_left_to_its_sender(project, monkeypatch):
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    monkeypatch.setenv("RUN_DIR", str(project.root / "runs" / "first"))
    with record.start(record.Config(), study="toy") as run:
        with locked(run.directory / "journal" / "mlflow.lock"):
            report = synced(project)  # waits for no lock, nor names the run as a problem
        assert (report.runs, report.sent, report.problems) == (1, 0, [])
        run.finish({"objective": {"name": "loss", "value": 0.2, "goal": "min", "at": 5}})
    assert synced(project).sent == 1


def test_an_unreachable_server_ends_the_sync(project, runs):
    with pytest.raises(MlflowError, match="did not answer"):
        synced(project, f"http://127.0.0.1:{free_port()}")


def points(database):
    with sqlite3.connect(database) as connection:
        return connection.execute("SELECT key, step, timestamp, value FROM metrics").fetchall()


BACK_IN_TIME = """
DELETE FROM metrics WHERE step > 3;
DELETE FROM latest_metrics;
INSERT INTO latest_metrics (key, value, timestamp, run_uuid, step, is_nan)
SELECT key, value, timestamp, run_uuid, step, is_nan FROM metrics WHERE step = 3;
"""


@pytest.mark.parametrize("kind", ["sqlite", "server"])
def test_points_that_mlflow_lost_are_sent_again(project, runs, wait_until, monkeypatch, kind):
    runs("second")
    if kind == "sqlite":
        check_lost_points(project, None, project.root / "mlflow.db")
        return
    port = free_port()
    with server(project.root, port) as answers:
        wait_until(answers)
        uri, database = f"http://127.0.0.1:{port}", project.root / "server.db"
        check_lost_points(project, uri, database)
        before = sorted(points(database))
        with sqlite3.connect(database) as connection:
            connection.execute("DELETE FROM metrics WHERE step = 2")
        assert synced(project, uri).sent == 0  # a server does not say how many points it has
        monkeypatch.setenv("GUILD_HOME", str(project.root))
        for more, code in (((), 1), (("--repair",), 0), ((), 0)):
            with pytest.raises(SystemExit) as ended:
                main(["verify", "--tracking-uri", uri, *more])
            assert ended.value.code == code
        assert sorted(points(database)) == before


def check_lost_points(project, uri, database):
    assert synced(project, uri).sent == 2
    assert synced(project, uri).sent == 0
    before = sorted(points(database))
    assert len(before) == 12
    with sqlite3.connect(database) as connection:
        connection.executescript(BACK_IN_TIME)
    assert len(points(database)) == 6
    assert synced(project, uri).sent == 2
    assert sorted(points(database)) == before
    assert synced(project, uri).sent == 0


def test_deleted_rows_are_sent_again(project, runs):
    assert synced(project).sent == 1
    database = project.root / "mlflow.db"
    before = sorted(points(database))
    with sqlite3.connect(database) as connection:
        connection.execute("DELETE FROM metrics WHERE step = 2")
    assert synced(project).sent == 1
    assert sorted(points(database)) == before


def test_a_deleted_run_that_was_sent_before_it_recorded_is_recorded_to_its_end(
    project, make, tmp_path, monkeypatch
):
    """It ended the sync: its row, which is replaced, was taken out of the list that was gone through."""
    before = make(1, status="RUNNING")
    Sync(project, Store(), lambda line: None)._put(before, {})
    directory = tmp_path / "home" / "trash" / "runs" / before.run
    directory.mkdir(parents=True)
    (tmp_path / "home" / "runs").mkdir()
    for name, value in (("RECORD_MLFLOW", "off"), ("RUN_DIR", directory), ("RUN_ID", before.run)):
        monkeypatch.setenv(name, str(value))
    with record.start(record.Config(), study="toy") as run:
        run.finish({})
    assert Sync(project, Store(), lambda line: None).run(tmp_path / "home").sent == 1
    assert [(s.run, s.status) for s in reader(None).runs()] == [(before.run, "FINISHED")]


def test_a_run_whose_journal_was_removed_keeps_its_row(project, tmp_path, monkeypatch):
    directory = tmp_path / "home" / "runs" / f"{1:032x}"
    attributes = {
        "started": 1_700_000_000_000_000,
        "stopped": 1_700_000_001_000_000,
        "exit_status": 0,
    }
    (directory / ".guild" / "attrs").mkdir(parents=True)
    (directory / ".guild" / "opref").write_text(f"guildfile:{project.root}/guild.yml '' toy train")
    for name, value in attributes.items():
        (directory / ".guild" / "attrs" / name).write_text(f"{value}\n")
    for name, value in (
        ("RECORD_MLFLOW", "off"),
        ("RUN_DIR", directory),
        ("RUN_ID", directory.name),
    ):
        monkeypatch.setenv(name, str(value))
    with record.start(record.Config(), study="toy") as run:
        for step in range(1, 4):
            run.log({"loss": 1 / step}, step)
        run.finish({"objective": {"name": "loss", "value": 0.2, "goal": "min", "at": 3}})

    def sync():
        report = Sync(project, Store(), lambda line: None).run(tmp_path / "home")
        source = reader(None)
        return report.sent, report.problems, source.with_points(source.runs())

    sent, problems, kept = sync()
    assert (sent, problems, len(kept[0].metrics["loss"].steps)) == (1, [], 3)
    shutil.rmtree(directory / "journal")
    assert sync() == (0, [], kept)
    with sqlite3.connect(project.root / "mlflow.db") as connection:
        connection.execute("UPDATE runs SET status = 'RUNNING'")
    assert sync() == (1, [], kept)


def test_a_run_that_is_removed_while_others_are_sent_keeps_its_row(project, tmp_path):
    def guild_run(number, started):
        directory = tmp_path / "home" / "runs" / f"{number:032x}"
        attributes = {
            "started": started,
            "stopped": started + 10**6,
            "exit_status": 0,
            "flags": f"lr: 0.{number}",
        }
        (directory / ".guild" / "attrs").mkdir(parents=True)
        (directory / ".guild" / "opref").write_text(
            f"guildfile:{project.root}/guild.yml '' toy train"
        )
        for name, value in attributes.items():
            (directory / ".guild" / "attrs" / name).write_text(f"{value}\n")
        return directory

    def remove_second(line):
        if line.startswith("00000000"):
            shutil.rmtree(second, ignore_errors=True)

    def rows():
        return {
            stored.run[-1]: (stored.status, stored.record.flags) for stored in reader(None).runs()
        }

    home, start = tmp_path / "home", 1_700_000_000_000_000
    second = guild_run(2, start + 10**7)
    Sync(project, Store(), lambda line: None).run(home)
    kept = rows()
    assert kept == {"2": ("FINISHED", {"lr": 0.2})}
    guild_run(1, start)
    (second / ".guild" / "attrs" / "label").write_text("changed")  # so that it would be sent again
    Sync(project, Store(), remove_second).run(home)
    assert not second.exists()
    assert rows() == kept | {"1": ("FINISHED", {"lr": 0.1})}
    Sync(project, Store(), lambda line: None).run(home)
    assert rows() == kept | {"1": ("FINISHED", {"lr": 0.1})}
