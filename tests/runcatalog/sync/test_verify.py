"""`catalog verify` reports damage to journals, results, checkpoints, MLflow and records and repairs what it can."""

import json
import shutil
import sqlite3
import subprocess
import time

import pytest

import prepared

RUN = """
import numpy as np
from runcatalog import record

with record.start(record.Config(), study="toy") as run:
    for update in range(1, 51):
        run.log({"loss": 1 / update, "odd": float("inf") if update == 9 else float("nan")}, update)
    run.checkpoint(50, {"weights": np.arange(4.0)}, {})
    run.finish({"objective": {"name": "loss", "value": 0.02, "kind": "mean", "goal": "min"}})
"""


@pytest.fixture(scope="module")
def clean(shell_in, tmp_path_factory):
    """A project with two runs, sent and exported."""
    shell = shell_in(tmp_path_factory.mktemp("verify"))
    (shell.root / "run.py").write_text(RUN)
    for _ in range(2):
        shell("python run.py", RECORD_MLFLOW="off")
    shell.inside("sync -q")
    shell.inside("export")
    return shell


@pytest.fixture
def shell(clean, shell_in, tmp_path):
    """A copy of the project, to be damaged."""
    shutil.copytree(clean.root, tmp_path / "project")
    return shell_in(tmp_path)


def journal_of(shell):
    return sorted(shell.root.glob("runs/*/journal"))[0]


def in_mlflow(shell, statement):
    with sqlite3.connect(shell.root / "mlflow.db") as database:
        database.execute("PRAGMA foreign_keys = OFF")
        assert database.execute(statement).rowcount > 0


def test_sent_and_exported_runs_agree(shell):
    printed = shell.inside("verify")
    assert printed.splitlines() == [
        "compared: 2 journals with their results and checkpoints, 2 with MLflow, "
        "2 of experiments/records with MLflow: no differences"
    ]


def drop_lines(shell):
    path = journal_of(shell) / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:10] + lines[12:]))


def flip_digit(shell):
    path = journal_of(shell) / "metrics.jsonl"
    path.write_text(path.read_text().replace('"loss":0.5', '"loss":0.6'))


def zeros(shell):
    path = journal_of(shell) / "metrics.jsonl"
    content = bytearray(path.read_bytes())
    content[1000:1200] = bytes(200)
    path.write_bytes(content)


def drop_last_line(shell):
    path = journal_of(shell) / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def damage_checkpoint(shell):
    path = next(journal_of(shell).parent.glob("checkpoints/*/weights.safetensors"))
    path.write_bytes(path.read_bytes()[:-1] + b"\1")


def damage_result(shell):
    (journal_of(shell).parent / "result.json").write_text("{")


def change_record(shell):
    path = sorted(shell.root.glob("experiments/records/*/*.json"))[0]
    content = json.loads(path.read_text())
    content["metrics"]["loss"]["curve"][3][1] = 7.0
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (drop_lines, "journal/metrics.jsonl: 2 lines are missing"),
        (flip_digit, "journal/metrics.jsonl: 1 of 51 lines cannot be read"),
        (zeros, "journal/metrics.jsonl: "),
        (drop_last_line, "the journal has other points than result.json's digest"),
        (damage_checkpoint, "weights.safetensors is missing or damaged"),
        (damage_result, "result.json cannot be read"),
        (change_record, "record: metrics differs from MLflow"),
    ],
)
def test_damage_is_reported(shell, damage, words):
    damage(shell)
    printed = shell.inside("verify", code=1)
    assert words in printed
    assert "no differences" not in printed


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (
            "DELETE FROM metrics WHERE key = 'loss' AND step > 40",
            "10 of 101 points are missing in MLflow (loss)",
        ),
        ("DELETE FROM runs", "is not in MLflow"),
        ("UPDATE runs SET status = 'RUNNING'", "status is RUNNING in MLflow, FINISHED here"),
    ],
)
def test_points_missing_in_mlflow_are_sent_again(shell, statement, words):
    in_mlflow(shell, statement)
    assert words in shell.inside("verify", code=1)
    repaired = shell.inside("verify --repair")
    assert "sent again: 2 runs" in repaired
    assert repaired.splitlines()[-1].endswith("no differences")


def test_surplus_points_in_mlflow_stay_a_difference(shell):
    in_mlflow(shell, "UPDATE metrics SET value = value + 1 WHERE key = 'loss' AND step = 7")
    printed = shell.inside("verify --repair", code=1)
    assert "1 points in MLflow are not in the journal (loss)" in printed


def test_a_checkpoint_is_checked_once_its_run_has_ended(shell):
    before = {*shell.root.glob("runs/*/checkpoints/0*/*")}
    (shell.root / "waits.py").write_text(RUN.replace("run.finish(", "input()\n    run.finish("))
    with prepared.Process(
        [prepared.python(), "waits.py"], cwd=shell.root, env=shell.env | {"RECORD_MLFLOW": "off"},
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        while not (files := {*shell.root.glob("runs/*/checkpoints/0*/*")} - before):
            assert process.poll() is None
            time.sleep(0.05)
        # As while it removes one that newer ones replace.
        next(path for path in files if path.name == "weights.safetensors").unlink()
        running = shell.inside("verify")
        process.kill()
    assert "still running" in running
    assert "weights.safetensors is missing or damaged" in shell.inside("verify", code=1)


def test_runs_that_could_not_be_compared_are_named(shell):
    in_mlflow(shell, "UPDATE runs SET lifecycle_stage = 'deleted'")
    printed = shell.inside("verify")
    assert "not compared: 2 deleted in MLflow" in printed
    assert "not compared: 2 committed records that are not in MLflow" in printed
    (journal_of(shell).parent / "result.json").unlink()
    (journal_of(shell) / "progress.json").write_text('{"seconds": Infinity}')
    assert "not compared: 1 no readable journal" in shell.inside("verify")


def test_an_error_is_no_difference(shell):
    (shell.root / "mlflow.db").write_text("no database")
    assert "is damaged" in shell.inside("verify", code=2)
