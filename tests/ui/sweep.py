"""A committed sweep of learning rates, imported into a separate MLflow by the command that a user types."""

import json
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPERATION = "hnppo:lr_opt_pull"


class Sweep:
    """A project that holds one sweep, and its MLflow.

    Attributes:
        root: The project's folder.
        uri: Its MLflow.
        batch: Id of the newest batch of OPERATION.
        names: Names of its trials.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        self.uri = f"sqlite:///{folder / 'mlflow.db'}"
        records = {
            path: json.loads(text)
            for path in (ROOT / "experiments/records/door").glob("*.json")
            if OPERATION in (text := path.read_text())
        }
        batches = [r for r in records.values() if r["operation"] == OPERATION and not r["batch"]]
        self.batch = max(batches, key=lambda record: record["started"])["run"]
        kept = {p: r for p, r in records.items() if self.batch in (r["run"], r["batch"])}
        self.names = {r["label"] for r in kept.values() if r["batch"]}
        target = self.root / "experiments" / "records" / "door"
        target.mkdir(parents=True)
        for path in kept:
            shutil.copy(path, target)
        (self.root / "guild.yml").write_text("- include: experiments/door/guild.yml\n")
        shutil.copy(ROOT / "experiments/machines.yml", self.root / "experiments/machines.yml")
        for name in ("guild.yml", "config.yml", "catalog.md.j2"):
            place = self.root / "experiments" / "door" / name
            place.parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / "experiments" / "door" / name, place)
        figure = Path("experiments/door/figures/lr_opt.svg")
        (self.root / figure.parent).mkdir()
        shutil.copy(ROOT / figure, self.root / figure)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PROJECT_DIR", str(self.root))
            patch.setenv("MLFLOW_TRACKING_URI", self.uri)
            self._import()

    def _import(self) -> None:
        from runcatalog.cli import main

        with pytest.raises(SystemExit) as ended:
            main.main(["import", "-q"])
        assert ended.value.code == 0
