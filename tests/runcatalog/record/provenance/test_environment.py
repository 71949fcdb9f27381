"""Facts of a run: flags, CPU, package versions, project."""

import json
import platform
from dataclasses import dataclass
from importlib import metadata

from runcatalog import record
from runcatalog.record.delivery.mlflow_client import tracking_uri
from runcatalog.record.provenance import environment, machine


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
    assert facts["host_cpu"] == machine.cpu_name()
    assert facts["versions"]["python"] == platform.python_version()
    for name in ("llvmlite", "numba", "numpy"):
        assert facts["versions"][name] == metadata.version(name)
