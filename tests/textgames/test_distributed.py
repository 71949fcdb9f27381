"""A model that is sharded over processes learns what it learns in a single process."""

import json
import os
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from tests.textgames import sharded_learner

import prepared
from mlflow_server import free_port
from runcatalog.record import UserError
from textgames.models import distributed

ROOT = Path(__file__).parents[2]


def environment():
    own = ("RANK", "WORLD_SIZE", "RECORD", "RUN_ID", "GUILD_OP", "PROJECT_DIR")
    kept = {key: value for key, value in os.environ.items() if key not in own}
    path = os.pathsep.join(str(ROOT / folder) for folder in ("src", "tests/helpers", ""))
    return kept | {"RECORD_MLFLOW": "off", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def run_ranks(function, *arguments):
    """Call a function in two ranks, as a launcher such as torchrun starts them; return their exit codes."""
    name = function.__name__
    code = f"from tests.textgames import sharded_learner as s; s.{name}(*{arguments!r})"
    both = environment() | {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    ranks = [
        prepared.Process(
            [prepared.python(), "-c", code], env=both | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(2)
    ]
    return [rank.wait(300) for rank in ranks]


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """What learners of every kind learned, in one process and in two."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("learned") / "two.pt"
    assert run_ranks(sharded_learner.learn_all, str(out)) == [0, 0]
    alone = {
        kind: sharded_learner.learn(kind, distributed.Ranks()) for kind in sharded_learner.KINDS
    }
    return alone, torch.load(out, weights_only=True)


@pytest.mark.parametrize("kind", sharded_learner.KINDS)
def test_two_processes_learn_the_same_as_one(learned, kind):
    one, two = (results[kind] for results in learned)
    assert two["metrics"] == pytest.approx(one["metrics"], rel=1e-3, abs=1e-5)
    assert one["weights"].keys() == two["weights"].keys()
    for name, weight in two["weights"].items():
        torch.testing.assert_close(weight, one["weights"][name], atol=2e-4, rtol=1e-3, msg=name)
        torch.testing.assert_close(two["again"][name], weight, atol=0, rtol=0, msg=name)
    for name in ("first", "last"):
        torch.testing.assert_close(two[name], one[name], atol=5e-3, rtol=1e-2)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [5, 8, 11])
def test_work_is_shared_completely_and_in_equal_numbers_of_batches(size, count):
    every = [distributed.Ranks(rank, size) for rank in range(size)]
    items = list(range(count))
    assert [item for ranks in every for item in ranks.share(items)] == items
    batches = [ranks.micro_batches(items) for ranks in every]
    assert len({len(own) for own in batches}) == 1
    assert sorted(item for own in batches for item, counts in own if counts) == items
    assert len({ranks.stream_name("play") for ranks in every}) == size


def test_every_process_needs_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(
        UserError, match="--processes: 2 processes need a GPU each, this machine has 1"
    ):
        distributed.join(2, "auto")


FLAGS = shlex.split(
    """
    --processes 2 --device cpu --env sokoban --prompt grid --think no --max-turns 3 --max-response-length 3 --width 32
    --layers 2 --heads 2 --temperature 1 --top-p 1 --train-size 64 --train-batch-size 4 --n-rollout 3 --filter 0.5
    --ppo-batch-size 6 --micro-batch-size 2 --ppo-epochs 2 --updates 4 --test-freq 2 --save-freq 2 --val-data-num 7
    --kl-coef 0.01 --actor-lr 1e-3 --adv-estimator gae
    """
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with two ranks that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    assert run_ranks(sharded_learner.train_run, str(folder), FLAGS) == [0, 0]
    return result(folder)


def result(folder):
    return json.loads((folder / "result.json").read_text())


def assert_resumes(folder, whole):
    assert run_ranks(sharded_learner.train_run, str(folder), FLAGS) == [0, 0]
    resumed = result(folder)
    assert resumed["digest"] == whole["digest"]
    assert resumed["result"] == whole["result"]
    assert (folder / "artifacts/model/model.safetensors").exists()


def rank_1_of(process, script):
    """Return the second process of a run once it exists."""
    while True:
        assert process.poll() is None, process.stderr.read()
        with suppress(psutil.Error):  # others come and go
            fork = prepared.fork_of(process.pid, prepared.folder().parent)
            for child in psutil.Process(fork).children() if fork else ():
                if script in " ".join(child.cmdline()):
                    return child
        time.sleep(0.01)


def test_a_run_ends_with_its_second_process_and_resumes_bit_equal(tmp_path, whole):
    script = str(ROOT / "src/textgames/train.py")
    with (tmp_path / "output").open("w") as output:
        process = prepared.Process(
            [prepared.python(), script, *FLAGS], env=environment() | {"RUN_DIR": str(tmp_path / "run")},
            stdout=output, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        other = rank_1_of(process, script)
        while not (tmp_path / "run/checkpoints/00000002").is_dir():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        other.kill()
        _, errors = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "process 1 of the run ended with -9" in errors
    assert (tmp_path / "output").read_text().count("update 0 of 4") == 1  # rank 0 alone prints
    # It ends itself, or an operation with the other one fails before.
    assert result(tmp_path / "run")["status"] in ("KILLED", "FAILED")
    assert_resumes(tmp_path / "run", whole)


@pytest.mark.parametrize(
    ("number", "reason", "checkpoints"),
    [(signal.SIGUSR1, "SIGUSR1", 1), (signal.SIGINT, "Ctrl-C", 0)],
)
def test_a_signal_to_the_process_group_ends_the_run_as_one_with_a_single_process(
    tmp_path, number, reason, checkpoints
):
    script = str(ROOT / "src/textgames/train.py")
    longer = ["--updates", "200", "--save-freq", "200", "--test-freq", "200"]
    process = prepared.Process(
        [prepared.python(), script, *FLAGS, *longer],
        env=environment() | {"RUN_DIR": str(tmp_path / "run")},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        # It is ignored where the tests run in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    journal = tmp_path / "run/journal/metrics.jsonl"
    while not journal.is_file() or journal.read_text().count("loss/policy") < 2:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    os.killpg(prepared.fork_of(process.pid, prepared.folder().parent), number)
    _, errors = process.communicate(timeout=300)
    assert errors == ""
    ended = result(tmp_path / "run")
    assert (ended["status"], ended["reason"]) == ("KILLED", reason)
    assert len(list((tmp_path / "run").glob("checkpoints/[0-9]*"))) == checkpoints


def test_the_second_process_ends_with_the_first(tmp_path):
    script = tmp_path / "waits.py"
    script.write_text(
        "import time\nfrom textgames.models import distributed\n"
        "with distributed.join(2, 'cpu') as ranks:\n"
        "    print('joined', flush=True)\n"
        "    time.sleep(300)\n"
    )
    process = prepared.Process(
        [prepared.python(), str(script)], env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    other = rank_1_of(process, script.name)
    assert process.stdout.readline() == "joined\n"
    process.kill()
    process.communicate()
    psutil.wait_procs([other], timeout=240)
    assert not other.is_running()
