"""A model that is spread over processes learns what it learns in one."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch

from runcatalog.record import UserError
from textgames.models import distributed

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("sharded_learner.py")


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """What every kind of learner came to, by the number of processes."""
    found = {}
    for count in (1, 2):
        out = tmp_path_factory.mktemp("learned") / "found.pt"
        done = finished([sys.executable, str(SCRIPT), str(count), str(out)], out)
        assert done.returncode == 0, done.stderr
        found[count] = torch.load(out, weights_only=True)
    return found


@pytest.mark.parametrize("kind", ["full", "critic", "lora", "checkpointing"])
def test_two_processes_learn_what_one_learns(learned, kind):
    one, two = (learned[count][kind] for count in (1, 2))
    assert two["said"] == pytest.approx(one["said"], rel=1e-3, abs=1e-5)
    assert one["weights"].keys() == two["weights"].keys()
    for name, each in two["weights"].items():
        torch.testing.assert_close(each, one["weights"][name], atol=2e-4, rtol=1e-3, msg=name)
        torch.testing.assert_close(two["again"][name], each, atol=0, rtol=0, msg=name)
    for name in ("first", "last"):
        torch.testing.assert_close(two[name], one[name], atol=5e-3, rtol=1e-2)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [5, 8, 11])
def test_work_is_shared_out_whole_and_in_equal_turns(size, count):
    every = [distributed.Ranks(rank, size) for rank in range(size)]
    items = list(range(count))
    assert [each for one in every for each in one.share(items)] == items
    turns = [one.turns(items) for one in every]
    assert len({len(each) for each in turns}) == 1
    assert sorted(item for each in turns for item, counts in each if counts) == items
    assert len({one.stream("play") for one in every}) == size


def test_a_gpu_is_wanted_for_each_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(
        UserError, match="--processes: 2 of them need a GPU each, this machine has 1"
    ):
        distributed.join(2, "auto")


FLAGS = """
    --processes 2 --device cpu --env sokoban --prompt grid --think no --max-turns 3 --max-response-length 3 --width 32
    --layers 2 --heads 2 --temperature 1 --top-p 1 --train-size 64 --train-batch-size 4 --n-rollout 3 --filter 0.5
    --ppo-batch-size 6 --micro-batch-size 2 --ppo-epochs 2 --updates 4 --test-freq 2 --save-freq 2 --val-data-num 7
    --kl-coef 0.01 --actor-lr 1e-3 --adv-estimator gae
"""
TRAIN = [sys.executable, str(ROOT / "src/textgames/train.py"), *FLAGS.split()]


def environment(folder):
    found = {
        key: value
        for key, value in os.environ.items()
        if key not in ("RANK", "WORLD_SIZE", "RECORD")
    }
    return found | {"RUN_DIR": str(folder), "RECORD_MLFLOW": "off", "OMP_NUM_THREADS": "1"}


def finished(command, folder):
    return subprocess.run(
        command, env=environment(folder), capture_output=True, text=True, timeout=300
    )


def result(folder):
    return json.loads((folder / "result.json").read_text())


def begun(folder):
    """A training with its second process, once there is a checkpoint."""
    process = subprocess.Popen(TRAIN, env=environment(folder), stderr=subprocess.PIPE, text=True)
    while True:
        assert process.poll() is None, process.stderr.read()
        if (folder / "checkpoints/00000002").is_dir():
            for each in psutil.Process(process.pid).children():
                with suppress(psutil.Error):  # others come and go
                    if "--processes" in each.cmdline():
                        return process, each
        time.sleep(0.01)


def test_a_run_whose_processes_are_killed_ends_and_goes_on_to_the_bit(tmp_path):
    whole = finished(TRAIN, tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    assert whole.stdout.count("update 0 of 4") == 1  # one of them speaks
    folder = tmp_path / "killed"
    process, other = begun(folder)
    other.kill()
    _, said = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "process 1 of the run ended with -9" in said
    assert result(folder)["status"] != "finished"
    process, other = begun(folder)
    process.kill()
    process.communicate()
    psutil.wait_procs([other], timeout=30)
    assert not other.is_running()
    again = finished(TRAIN, folder)
    assert again.returncode == 0, again.stderr
    assert "continued after update" in again.stdout
    one, two = (result(tmp_path / name) for name in ("whole", "killed"))
    assert two["digest"] == one["digest"]
    assert two["result"] == one["result"]
    assert (folder / "artifacts/model/model.safetensors").exists()
