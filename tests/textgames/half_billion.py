"""RAGEN's commands with a model of Qwen2.5-0.5B's size and random weights, on the CPU.

    python tests/textgames/half_billion.py

A folder with the architecture of Qwen2.5-0.5B is written, and the commands are typed as by a user who has the weights:
two updates of reinforcement learning, interrupted by SIGKILL after the first one's checkpoint and continued; an
evaluation of the run; an epoch of supervised training with LoRA. Prompts and replies are short. Every line shows the
CPU time of a command and the most memory that one of its processes had. Needs 20 GiB of memory and 25 GiB of disk.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]  # run as a script, not by pytest

import psutil  # noqa: E402
from safetensors import safe_open  # noqa: E402
from tests.textgames import qwen_folders  # noqa: E402

from runcatalog.record.lifecycle.status import last_session  # noqa: E402
from textgames.models import memory  # noqa: E402

SHORT = "device=cpu prompt=grid max-turns=1 max-response-length=4 val-data-num=1"
UPDATE = f"{SHORT} updates=2 save-freq=1 train-batch-size=2 n-rollout=1 ppo-batch-size=2 micro-batch-size=1"
EPOCH = f"{SHORT} epochs=1 train-levels=1 test-levels=1 batch-size=1 micro-batch-size=1"
POLL = 0.2  # s


class Session:
    """Commands of a user, with a Guild home of their own.

    Args:
        folder: A folder for runs.

    Attributes:
        runs: Folder of the runs.
    """

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "guild/runs"
        self.runs.parent.mkdir()
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("GUILD_", "RUN_", "RECORD"))}  # fmt: skip
        path = os.pathsep.join((str(ROOT / ".venv/bin"), kept["PATH"]))
        self._env = kept | {
            "GUILD_HOME": str(folder / "guild"),
            "RECORD_MLFLOW": "off",
            "PATH": path,
        }

    def type(self, line: str, kill_after: str = "") -> tuple[Path, float]:
        """Run a command to its end, or until a file of its run exists; return its run and its peak memory [bytes]."""
        before = set(self.runs.glob("*"))
        process = subprocess.Popen(
            line.split(), cwd=ROOT, env=self._env, start_new_session=True, stdin=subprocess.DEVNULL
        )
        killed = False
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if kill_after and not killed and any(self.runs.glob(f"*/{kill_after}")):
                for each in (*psutil.Process(process.pid).children(recursive=True), process):
                    each.kill()
                killed = True
            time.sleep(POLL)
        code = process.returncode = os.waitstatus_to_exitcode(status)
        assert killed if kill_after else code == 0, f"{line}: {code}"
        peak = usage.ru_maxrss * 1024  # of the process or of one that it waited for
        if not killed:
            print(
                f"{line}: {usage.ru_utime + usage.ru_stime:.0f} s of CPU, {peak / memory.GIB:.1f} GiB",
                flush=True,
            )
        new = set(self.runs.glob("*")) - before
        return (new.pop() if new else Path()), peak


def largest_change(before: Path, after: Path) -> float:
    """Return the largest difference of a weight between two models."""
    with (
        safe_open(before / "model.safetensors", "pt") as old,
        safe_open(after / "model.safetensors", "pt") as new,
    ):
        names = list(old.keys())
        assert set(names) == set(new.keys())
        return max(
            (new.get_tensor(n) - old.get_tensor(n).float()).abs().max().item() for n in names
        )


def check(run: Path, model: Path) -> None:
    """Check that a run ended well with finite numbers and other weights than before."""
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "FINISHED", result
    lines = (run / "journal/metrics.jsonl").read_text().splitlines()
    points = [json.loads(line)["m"] for line in lines]
    assert all(math.isfinite(value) for point in points for value in point.values())
    assert max(point.get("grad_norm", 0) for point in points) > 0
    assert 0 < largest_change(model, run / "artifacts/model") < 0.1


def main() -> int:
    total = psutil.virtual_memory().total
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = qwen_folders.write(folder / "model", qwen_folders.HALF_BILLION)
        weights = memory.count_weights(model)
        print(f"{weights / 1e6:.0f} million weights; {total / memory.GIB:.1f} GiB of memory here")
        user = Session(folder)
        operation = "ragen:sokoban_0_5B_instruct_ragen_main"
        first = "checkpoints/00000001/checkpoint.json"
        run, _ = user.type(f"guild run {operation} model={model} {UPDATE} -y", kill_after=first)
        _, peak = user.type(f"guild run --restart {run.name} -y")
        assert last_session(run)["session"] == 2
        check(run, model)
        # Gradients, two moments and the first model beside the weights, in fp32.
        assert 20 * weights < peak < total
        user.type(f"guild run ragen:evaluate checkpoint={run} val-data-num=1 max-turns=1 -y")
        run, peak = user.type(f"guild run ragen:sokoban_0_5B_instruct_sft model={model} {EPOCH} -y")
        check(run, model)
        assert peak < total
    return 0


if __name__ == "__main__":
    sys.exit(main())
