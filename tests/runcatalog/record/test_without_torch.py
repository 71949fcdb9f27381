"""Checkpoints where torch is not installed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from runcatalog.record.digest import file_digest
from runcatalog.record.errors import UserError
from runcatalog.record.training import checkpoint

SCRIPT = """
import sys
sys.modules["torch"] = None  # as if it were not installed
import argparse
import numpy as np
from runcatalog import record

def main(config):
    with record.start(config) as run:
        rng, done, total = run.seeds.generator("data"), 0, np.zeros(3)
        if (last := run.restore()) is not None:
            done, total = last.step, last.tensors["total"]
            rng.bit_generator.state = last.state["rng"]
        for step in range(done + 1, 7):
            total = total + rng.normal(size=3)
            run.checkpoint(step, {"total": total}, {"rng": rng.bit_generator.state})
            if step == 3 and not run.resumed:
                raise SystemExit(1)
        print("total", total.tolist())
        run.finish({"objective": {"name": "total", "value": float(total.sum()), "kind": "mean"}})

record.run_script(main, record.Config, argparse.ArgumentParser())
"""


@pytest.fixture
def without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not checkpoint._has_torch()


def test_a_saved_checkpoint_is_loaded(tmp_path, without_torch):
    tensors = {"w": np.arange(6, dtype=np.float32).reshape(2, 3).T, "n": np.float64(2.5)}
    state = {
        "rng": np.random.default_rng(1).bit_generator.state,
        "nan": float("nan"),
        3: (1, [b"\0\xff", None, True, "text"]),
        "array": np.array([[1 + 2j]]),
        "empty": {},
        "number": np.int64(7),
        "scalars": [np.float64(0.5), np.str_("a"), np.bytes_(b"a")],
    }
    checkpoint.save_checkpoint(tmp_path, 4, tensors, state, run_id="ab")
    loaded = checkpoint.load_checkpoint(tmp_path)
    assert (loaded.step, loaded.run_id) == (4, "ab")
    for name, value in tensors.items():
        np.testing.assert_array_equal(loaded.tensors[name], value)
        assert loaded.tensors[name].dtype == value.dtype
    array = loaded.state.pop("array")
    np.testing.assert_array_equal(array, state.pop("array"))
    assert np.isnan(loaded.state.pop("nan"))
    del state["nan"]
    assert loaded.state == state
    assert isinstance(loaded.state[3], tuple)


def test_torch_loads_the_same_checkpoint(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        checkpoint.save_checkpoint(tmp_path, 1, {"w": np.ones(2)}, {"step": (1, 2)})
    loaded = checkpoint.load_checkpoint(tmp_path)
    assert loaded.tensors["w"].tolist() == [1, 1]
    assert loaded.state == {"step": (1, 2)}


def test_a_checkpoint_of_torch_tensors_is_a_one_line_error(tmp_path, monkeypatch):
    checkpoint.save_checkpoint(tmp_path, 1, {"w": np.ones(2)}, {})
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match="install torch"):
        checkpoint.load_checkpoint(tmp_path)


@pytest.mark.parametrize("content", ["[", "3", '{"array": ["|O8", [1], ""]}', '{"code": 1}', "{}"])
def test_a_damaged_state(tmp_path, without_torch, content):
    path = checkpoint.save_checkpoint(tmp_path, 1, {"w": np.ones(2)}, {})
    (path / checkpoint.PLAIN_STATE).write_text(content)
    with pytest.raises(UserError):
        checkpoint.load_checkpoint(path)
    # Even where the manifest agrees.
    manifest = checkpoint.read_json(path / checkpoint.MANIFEST)
    files = {name: file_digest(path / name) for name in manifest["files"]}
    checkpoint.write_json(path / checkpoint.MANIFEST, manifest | {"files": files})
    with pytest.raises(UserError):
        checkpoint.load_checkpoint(path)


def test_a_refused_value_leaves_nothing(tmp_path, without_torch):
    with pytest.raises(TypeError, match=r"state\['x'\]"):
        checkpoint.save_checkpoint(tmp_path, 1, {}, {"x": object()})
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def run(tmp_path):
    """Return what runs a script in a project and returns its process."""
    (tmp_path / "guild.yml").write_text("")
    source = Path(checkpoint.__file__).parents[3]
    env = {"PYTHONPATH": str(source), "PATH": "/usr/bin:/bin", "RECORD_MLFLOW": "off"}

    def call(script: str, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        (tmp_path / "script.py").write_text(script)
        command = [sys.executable, "script.py", *words]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done

    return call


def test_a_script_resumes_bit_equal(tmp_path, run):
    run(SCRIPT, code=1)
    (directory,) = (tmp_path / "runs").iterdir()
    resumed = run(SCRIPT, "--resume", str(directory))
    whole = run(SCRIPT.replace("step == 3 and", "False and"))
    assert _total(resumed) == _total(whole)


def _total(done: subprocess.CompletedProcess[str]) -> str:
    (total,) = (line for line in done.stdout.splitlines() if line.startswith("total"))
    return total


def test_a_run_with_torch_does_not_begin_anew_without_it(tmp_path, run):
    with_torch = SCRIPT.replace('sys.modules["torch"] = None', "")
    run(with_torch, code=1)
    (directory,) = (tmp_path / "runs").iterdir()
    done = run(SCRIPT, "--resume", str(directory), code=2)
    assert "install torch to load it" in done.stderr
    resumed = run(with_torch, "--resume", str(directory))
    whole = run(with_torch.replace("step == 3 and", "False and"))
    assert _total(resumed) == _total(whole)
