"""Machine, commit and project are told as they are."""

import subprocess

import pytest

from runcatalog.record.delivery.mlflow_client import tracking_uri
from runcatalog.record.provenance import environment


@pytest.mark.parametrize(
    "text",
    [
        "box: {name: box1, gpu: none}",
        "box: box1",
        "machines: {box: {name: box1}}",
        "- {host: box, name: box1}",
    ],
)
def test_the_inventory_names_a_host(tmp_path, text):
    assert environment.machine_name(tmp_path, "box") == "box"
    (tmp_path / "experiments").mkdir()
    path = tmp_path / "experiments" / "machines.yml"
    path.write_text(text)
    assert environment.machine_name(tmp_path, "box") == "box1"
    assert environment.machine_name(tmp_path, "other") == "other"
    path.write_text("box: [unclosed")
    assert environment.machine_name(tmp_path, "box") == "box"


def test_commit_and_what_differs_from_it(tmp_path):
    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    assert environment.commit_facts(tmp_path) == {"commit": "", "dirty": ""}
    git("init", "-q")
    (tmp_path / "train.py").write_text("lr = 1\n")
    (tmp_path / ".gitignore").write_text("runs/\n")
    git("add", "-A")
    git("commit", "-qm", "first")
    clean = environment.commit_facts(tmp_path)
    assert (len(clean["commit"]), clean["dirty"]) == (40, "")
    (tmp_path / "README.md").write_text("prose changes no run")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "x").write_text("ignored")
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "benchmarks" / "results" / "speed.json").write_text("[]")
    assert environment.commit_facts(tmp_path) == clean
    digests = {""}
    for name, text in [("train.py", "lr = 2\n"), ("new.py", "a"), ("new.py", "b")]:
        (tmp_path / name).write_text(text)
        digests.add(environment.commit_facts(tmp_path)["dirty"])
    assert len(digests) == 4


def test_the_project_is_found_from_below(tmp_path, monkeypatch):
    monkeypatch.delenv("PROJECT_DIR", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "guild.yml").write_text("")
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    assert environment.project_root() == tmp_path
    assert tracking_uri() == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///own.db")
    assert tracking_uri() == f"sqlite:///{tmp_path}/own.db"
    monkeypatch.setenv("PROJECT_DIR", str(tmp_path / "a"))
    assert environment.project_root() == tmp_path / "a"
