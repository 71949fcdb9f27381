"""Checkpoints: bit-exact round trip, atomic writes, no unpickling of code."""

import enum
import itertools
import os
import signal
import sys

import numpy as np
import pytest
import torch

from forked import killed
from runcatalog import record
from runcatalog.record.training.checkpoint import newest_checkpoint, save_checkpoint


def test_round_trip(tmp_path):
    tied = torch.randn(3, 4)
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    optimizer.step()
    generator = np.random.default_rng(1)
    state = {
        "optimizer": optimizer.state_dict(),
        "generator": generator.bit_generator.state,
        "env": {
            "qpos": np.arange(6.0).reshape(2, 3),
            "count": np.int64(3),
            "done": np.array([True]),
        },
        "pair": (1, [2.5, None, "text"]),
        "scalar": np.array(2.0),
    }
    save_checkpoint(tmp_path, 7, {"a": tied, "b": tied.T, "c": np.float64([1, 2])}, state)
    loaded = record.load_checkpoint(tmp_path, 7)
    assert torch.equal(loaded.tensors["b"], tied.T)
    assert loaded.tensors["c"].dtype == torch.float64
    assert loaded.state["generator"] == generator.bit_generator.state
    assert loaded.state["pair"] == (1, [2.5, None, "text"])
    env = loaded.state["env"]
    assert np.array_equal(env["qpos"], state["env"]["qpos"])
    assert (env["count"], env["done"].dtype, loaded.state["scalar"].shape) == (3, bool, ())
    again = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
    again.load_state_dict(loaded.state["optimizer"])
    assert torch.load(tmp_path / "00000007" / "state.pt", weights_only=True)


@pytest.mark.parametrize(
    "value", [np.float64(0.1), np.str_("a"), np.bytes_(b"a"), np.bool_(True), np.complex128(1j)]
)
def test_a_numpy_scalar_in_the_state_is_loaded_as_a_plain_value(tmp_path, value):
    save_checkpoint(tmp_path, 1, {}, {"value": value, "by_value": {value: 1}})
    state = record.load_checkpoint(tmp_path).state
    assert state == {"value": value.item(), "by_value": {value.item(): 1}}
    assert type(state["value"]) is type(value.item())


class Phase(enum.IntEnum):
    FIRST = 1


@pytest.mark.parametrize("value", [Phase.FIRST, np.longdouble(1), {Phase.FIRST: 1}])
def test_a_state_that_could_not_be_loaded_is_not_saved(tmp_path, value):
    with pytest.raises(TypeError, match=r"state\['value'\]"):
        save_checkpoint(tmp_path, 1, {}, {"value": value})
    assert list(tmp_path.iterdir()) == []


def test_state_that_could_run_code_is_refused_without_leftovers(tmp_path):
    with pytest.raises(TypeError, match=r"state\['f'\]"):
        save_checkpoint(tmp_path, 1, {"a": torch.ones(1)}, {"f": os.system})
    assert list(tmp_path.iterdir()) == []


def test_only_the_newest_remain(tmp_path):
    for step in range(6):
        save_checkpoint(tmp_path, step, {"a": torch.tensor([step])}, {}, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000004", "00000005"]


def test_a_checkpoint_below_damaged_ones_is_kept(tmp_path):
    for step in (8, 9):
        save_checkpoint(tmp_path, step, {"a": torch.tensor([step])}, {})
        (tmp_path / f"{step:08d}" / "state.pt").write_bytes(b"")
    saved = save_checkpoint(tmp_path, 3, {"a": torch.tensor([3])}, {}, keep=2)
    assert record.load_checkpoint(saved).step == newest_checkpoint(tmp_path).step == 3


@pytest.mark.parametrize("step", [-1, 1.5])
def test_a_step_under_which_no_checkpoint_would_be_found_is_refused(tmp_path, step):
    with pytest.raises(ValueError, match="a whole number from 0 to"):
        save_checkpoint(tmp_path, step, {}, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", range(8))
def test_a_kill_while_a_checkpoint_is_replaced_leaves_the_old_or_the_new_one(tmp_path, change):
    def save(value):
        save_checkpoint(tmp_path, 5, {"a": torch.tensor([value])}, {}, keep=1)

    def replace():
        changes = itertools.count()

        def kill(event, _):
            if event in ("os.rename", "os.remove", "os.rmdir") and next(changes) == change:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill)
        save(2)

    save(1)
    killed(replace)
    expected = 1 if change < 3 else 2
    for loaded in (record.load_checkpoint(tmp_path, 5), newest_checkpoint(tmp_path)):
        assert (loaded.step, loaded.tensors["a"].item()) == (5, expected)
    save(3)
    assert record.load_checkpoint(tmp_path).tensors["a"].item() == 3
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["00000005"]


@pytest.mark.parametrize("name", ["weights.safetensors", "state.pt", "checkpoint.json"])
def test_a_damaged_checkpoint_is_named_and_the_previous_one_loaded(tmp_path, name):
    folder = tmp_path / "checkpoints"
    for step in (1, 2):
        save_checkpoint(folder, step, {"a": torch.tensor([step])}, {"b": step})
    content = (folder / "00000002" / name).read_bytes()
    (folder / "00000002" / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(record.UserError, match=name):
        record.load_checkpoint(tmp_path)
    assert newest_checkpoint(folder).step == 1


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(record.UserError, match="nowhere"):
        record.load_checkpoint(tmp_path / "nowhere")
    with pytest.raises(record.UserError, match="no checkpoint there"):
        record.load_checkpoint(tmp_path)
    save_checkpoint(tmp_path / "checkpoints", 3, {"a": torch.ones(1)}, {}, run_id="f" * 32)
    with pytest.raises(record.UserError, match="steps: 3"):
        record.load_checkpoint(tmp_path, 4)
    for path in (tmp_path, tmp_path / "checkpoints", tmp_path / "checkpoints" / "00000003"):
        loaded = record.load_checkpoint(path)
        assert (loaded.step, loaded.run_id) == (3, "f" * 32)
