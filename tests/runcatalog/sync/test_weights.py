"""Export of weights: content, checks against the record, size limit."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from runcatalog import record
from runcatalog.guild import runs
from runcatalog.guild.runs import GuildRun
from runcatalog.model.errors import CatalogError
from runcatalog.model.run_record import RunRecord
from runcatalog.record.digest import weights_digest
from runcatalog.record.training.checkpoint import save_checkpoint
from runcatalog.sync import weights

RUN = "7623993d" * 4
TENSORS = {"head": torch.arange(6.0).reshape(2, 3), "bias": torch.zeros(3)}
STATE = {
    "shape": {"hidden": 16, "recurrent": True}, "stage": "gtg1", "order": [1, 2],
    "optimizer": {"moments": torch.ones(50, 50), "steps": 3}, "rng": {"key": np.arange(624)}, "rows": [torch.ones(2)],
}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a Guild home with one recorded run."""
    run = tmp_path / "home" / "runs" / RUN
    attributes = run / ".guild" / "attrs"
    attributes.mkdir(parents=True)
    (run / ".guild" / "opref").write_text(
        "guildfile:/home/me/project/guild.yml 8d969eef skill gtg1"
    )
    guild_attributes = {
        "id": RUN, "exit_status": 0, "started": 1795423609228000, "initialized": 1795423609000000,
        "flags": "{lr: 0.002, stage: gtg1}", "label": "gtg1 seed=1", "cmd": "[/home/me/.venv/bin/python]",
        "env": "{TOKEN: secret}",
    }  # fmt: skip
    for name, value in guild_attributes.items():
        (attributes / name).write_text(f"{value}\n")
    save_checkpoint(run / "checkpoints", 7, TENSORS, STATE, run_id=RUN)
    return tmp_path / "home"


def _export(home: Path, folder: Path, **changes: object) -> int:
    run_record = RunRecord(
        run=RUN, operation="skill:gtg1", study="skills", status="FINISHED",
        digest={"weights": weights_digest(TENSORS)},
    )  # fmt: skip
    run = GuildRun(RUN, str(home / "runs" / RUN))
    return weights.export_weights(dataclasses.replace(run_record, **changes), run, folder)


def test_an_export_loads_without_training_state(home: Path, tmp_path: Path) -> None:
    size = _export(home, tmp_path / "exported")
    checkpoint = record.load_checkpoint(tmp_path / "exported" / RUN)
    assert (checkpoint.step, checkpoint.run_id) == (7, RUN)
    assert weights_digest(checkpoint.tensors) == weights_digest(TENSORS)
    assert checkpoint.state == {
        "shape": {"hidden": 16, "recurrent": True}, "stage": "gtg1", "order": [1, 2], "optimizer": {"steps": 3},
    }  # fmt: skip
    files = [path for path in (tmp_path / "exported").rglob("*") if path.is_file()]
    assert size == sum(path.stat().st_size for path in files)
    assert not any(word in path.read_bytes() for path in files for word in (b"/home/me", b"secret"))
    run = GuildRun(RUN, str(tmp_path / "exported" / RUN))
    assert (run.operation, run.label) == ("skill:gtg1", "gtg1 seed=1")
    assert run.flags == {"lr": 0.002, "stage": "gtg1"}
    assert run.end() == ("FINISHED", "")


def test_exported_weights_are_not_listed_as_runs(home: Path, tmp_path: Path) -> None:
    assert [run.id for run in runs.read(home)] == [RUN]
    _export(home, tmp_path / "clone" / "runs")
    assert runs.read(tmp_path / "clone") == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "KILLED"}, "has not finished: KILLED"),
        ({"digest": {"weights": "0" * 64}}, "other weights than its record"),
        ({"digest": {}}, "other weights than its record"),
    ],
)
def test_other_weights_are_refused(
    home: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(CatalogError, match=message):
        _export(home, tmp_path / "exported", **changes)
    assert not (tmp_path / "exported").exists()


def test_large_weights_are_refused_and_an_older_export_stays(home: Path, tmp_path: Path) -> None:
    _export(home, tmp_path / "exported")
    large = {"head": torch.zeros(500, 500)}
    save_checkpoint(home / "runs" / RUN / "checkpoints", 8, large, STATE, run_id=RUN)
    with pytest.raises(CatalogError, match="bytes of weights, more than the limit of 1000000"):
        _export(home, tmp_path / "exported", digest={"weights": weights_digest(large)})
    assert [path.name for path in (tmp_path / "exported").iterdir()] == [RUN]
    assert record.load_checkpoint(tmp_path / "exported" / RUN).step == 7
