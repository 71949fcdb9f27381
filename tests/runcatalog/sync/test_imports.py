"""`catalog import` of run directories from elsewhere: what is no regular file is named, and the others are imported."""

import json
import os
import shutil
import socket
import sqlite3

import pytest


def a_pipe(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def a_socket(path):
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(path.parent)  # an address has at most 107 characters
        server.bind(path.name)


def a_link(path):
    path.unlink(missing_ok=True)
    path.symlink_to(path.parents[3] / "outside")


def a_linked_folder(path):
    outside = path.parents[2] / f"elsewhere-{path.parent.name}"
    path.rename(outside)
    path.symlink_to(outside)


HOSTILE = [
    (a_pipe, "journal/metrics.jsonl"),
    (a_pipe, "journal/sessions.jsonl"),
    (a_pipe, "journal/progress.json"),
    (a_pipe, "result.json"),
    (a_pipe, "artifacts/notes.txt"),
    (a_socket, "artifacts/s"),
    (a_link, "journal/mlflow.lock"),
    (a_link, "journal/metrics.jsonl"),
    (a_link, "result.json"),
    (a_linked_folder, "journal"),
]


@pytest.fixture
def copied(shell, tmp_path):
    """A folder with copies of a run: a good one, and one per kind of damage."""
    shell("python src/toy/train.py --updates 3", RECORD_MLFLOW="off")
    (run,) = (shell.root / "runs").iterdir()
    folder = tmp_path / "copied"
    for number in range(len(HOSTILE) + 1):
        copy = folder / f"{number:08x}"
        shutil.copytree(run, copy)
        facts = json.loads((copy / "journal/run.json").read_text())
        (copy / "journal/run.json").write_text(json.dumps(facts | {"id": copy.name * 4}))
    shutil.rmtree(run)
    return folder


def test_irregular_files_are_named_and_the_others_are_imported(
    shell, copied, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    good, *bad = sorted(copied.iterdir())
    for directory, (make, name) in zip(bad, HOSTILE, strict=True):
        make(directory / name)
    output = shell.inside(f"import {copied}", code=1)
    assert "1 run read: 1 imported" in output
    lines = [line for line in output.splitlines() if line.startswith("catalog: ")]
    assert len(lines) == len(HOSTILE)
    for directory, (_, name) in zip(bad, HOSTILE, strict=True):
        assert any(line.startswith(f"catalog: {directory / name}: ") for line in lines), name
    assert not (tmp_path / "outside").exists()
    with sqlite3.connect(shell.root / "mlflow.db") as database:
        ids = database.execute("SELECT value FROM tags WHERE key = 'run_id'").fetchall()
    assert [run_id for (run_id,) in ids] == [good.name * 4]


def test_links_that_guild_makes_are_no_reason(shell, copied, tmp_path):
    good, other, *rest = sorted(copied.iterdir())
    for directory in rest:
        shutil.rmtree(directory)
    (good / "trial").symlink_to(other)
    (good / "gone").symlink_to(tmp_path / "nowhere")
    assert "2 runs read: 2 imported" in shell.inside(f"import {copied}")
