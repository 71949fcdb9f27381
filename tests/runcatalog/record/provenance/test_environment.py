"""Facts of a run: machine, CPU, flags, package versions, commit, project."""

import json
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

from refusing_git import refuse
from runcatalog import record
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


def test_of_two_machines_with_one_host_name_the_gpu_decides(tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "machines.yml").write_text(
        "- {host: vm, name: box1, gpu: ''}\n- {host: vm, name: gpu1, gpu: H100}"
    )
    assert environment.machine_name(tmp_path, "vm", "H100") == "gpu1"
    assert environment.machine_name(tmp_path, "vm", "") == "box1"
    assert environment.machine_name(tmp_path, "vm", "another") == "box1"


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
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "engines.yml").write_text("lab: {scheduler: tls://box:8786}")
    assert environment.commit_facts(tmp_path) == clean
    digests = {""}
    for name, text in [("train.py", "lr = 2\n"), ("new.py", "a"), ("new.py", "b")]:
        (tmp_path / name).write_text(text)
        digests.add(environment.commit_facts(tmp_path)["dirty"])
    assert len(digests) == 4


@pytest.mark.parametrize("command", ["diff", "ls-files"])
def test_changes_that_git_does_not_tell_are_not_none(tmp_path, monkeypatch, command):
    work = tmp_path / "work"
    work.mkdir()
    for line in ("init -q", "-c user.name=a -c user.email=a@b commit -qm first --allow-empty"):
        subprocess.run(["git", *line.split()], cwd=work, check=True, capture_output=True)
    assert environment.commit_facts(work)["dirty"] == ""
    refuse(monkeypatch, tmp_path / "bin", command)
    assert environment.commit_facts(work)["dirty"] == "unknown"


def test_the_project_is_detected_from_a_subfolder(tmp_path, monkeypatch):
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


@dataclass(frozen=True)
class Config(record.Config):
    lr: float = record.option(0.0, "learning rate; 0: derived from the width")
    width: int = record.option(8, "width")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lr:
            object.__setattr__(self, "lr", 1 / self.width)


def test_a_run_notes_every_effective_flag_cpu_and_versions(tmp_path, monkeypatch):
    monkeypatch.setenv("RUN_DIR", str(tmp_path))
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    with record.start(Config(width=4), study="toy") as run:
        run.finish({})
    facts = json.loads((tmp_path / "journal" / "run.json").read_text())
    assert facts["flags"] == {"seed": 1, "lr": 0.25, "width": 4}
    assert facts["host_cpu"] == environment.cpu_name()
    assert facts["versions"]["python"] == platform.python_version()
    for name in ("llvmlite", "numba", "numpy"):
        assert facts["versions"][name] == metadata.version(name)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="no /proc/cpuinfo")
def test_the_cpu_is_recorded_with_its_model_numbers():
    facts = Path("/proc/cpuinfo").read_text()
    if "cpu family" in facts:  # x86
        assert "(family " in environment.cpu_name()
        assert environment.cpu_name().partition(" (")[0] in facts
