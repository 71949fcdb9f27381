"""Alternatives to recording: MLflow in the loop, wandb or Aim, `guild run` alone."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import _report

LOOPS = Path(__file__).with_name("_point_loops.py")
ROOT = Path(__file__).resolve().parent.parent
STEPS = 200  # of 5 metrics
PATIENCE = 60.0  # s that a sender may take to set its database up
FOREIGN = ("GUILD_", "MLFLOW_", "RUN_", "PROJECT_", "RECORD", "WANDB_", "PYTHONDONTWRITE")
_GUILD_YML = """\
- model: bench
  sourcecode:
    root: src
    dest: src
    select:
      - exclude: '*'
      - include: '*.py'
  operation-defaults: {pip-freeze: no, output-scalars: no}
  operations:
    plain: {main: src/trivial.plain, flags-import: all}
    recorded: {main: src/trivial.recorded, flags-import: all}
"""
_PLAIN = """\
import argparse

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    print(parser.parse_args().seed)
"""
_RECORDED = """\
import argparse

from runcatalog import record


def main(config):
    with record.start(config, study="bench") as run:
        run.log({"value": 1.0}, 1)
        run.finish({"objective": {"name": "value", "value": 1.0, "kind": "mean"}})


if __name__ == "__main__":
    record.run_script(main, record.Config, argparse.ArgumentParser())
"""


def loops(folder: Path, peers: dict[str, str], repeats: int) -> list[dict[str, Any]]:
    """Return rows for MLflow in the loop and for the peers: seconds spent in the training thread.

    Args:
        folder: An empty folder.
        peers: Python to run it with, by peer ("wandb", "aim").
        repeats: Alternating repeats.
    """
    pythons = {"ours": sys.executable, "mlflow": sys.executable, **peers}

    def once(what: str, patience: float = 0.0) -> float:
        seconds = _seconds(pythons[what], what, folder)
        _until_senders_end(folder, patience)
        return seconds

    for what in pythons:  # sets databases up
        once(what, PATIENCE)
    seconds_by_peer = _report.alternate({what: partial(once, what) for what in pythons}, repeats)
    names = {
        "mlflow": "mlflow.log_metric per value, SQLite",
        "wandb": "wandb offline, one log a step",
        "aim": "Aim, one track a step",
    }
    what = f"{STEPS * 5:,} points: time in the training thread"
    ours = seconds_by_peer.pop("ours")
    return [
        _report.row(
            what,
            ours,
            seconds,
            peer_name=names[peer],
            unit="s",
            target=1 / 20 if peer == "mlflow" else None,
            target_is="at most",
        )
        for peer, seconds in seconds_by_peer.items()
    ]


def guild_run(folder: Path, repeats: int) -> dict[str, Any]:
    """Return the row of `guild run` of a trivial script, with recording and without."""
    source = folder / "src"
    (source / "trivial").mkdir(parents=True)
    shutil.copytree(ROOT / "src" / "runcatalog", source / "runcatalog")
    (folder / "guild.yml").write_text(_GUILD_YML)
    (source / "trivial" / "plain.py").write_text(_PLAIN)
    (source / "trivial" / "recorded.py").write_text(_RECORDED)
    (folder / "home").mkdir()
    env = _environment() | {"GUILD_HOME": str(folder / "home"), "PYTHONPATH": str(source)}
    env["PYTHONWARNINGS"] = "ignore"

    def once(operation: str, patience: float = 0.0) -> float:
        guild = [str(Path(sys.executable).with_name("guild")), "run", f"bench:{operation}", "-y"]
        begin = time.perf_counter()
        subprocess.run(guild, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - begin
        _until_senders_end(folder, patience)
        return seconds

    for operation in ("plain", "recorded"):  # imports the flags, sets the database up
        once(operation, PATIENCE)
    seconds = _report.alternate(
        {"recorded": lambda: once("recorded"), "plain": lambda: once("plain")}, repeats
    )
    return _report.row(
        "guild run of a trivial script",
        seconds["recorded"],
        seconds["plain"],
        peer_name="the same without recording",
        unit="s",
        target=2.0,
        target_is="at most",
    )


def _seconds(python: str, what: str, folder: Path) -> float:
    command = [python, str(LOOPS), what, str(folder), str(STEPS)]
    done = subprocess.run(
        command, cwd=folder, env=_environment(), check=True, text=True, stdout=subprocess.PIPE
    )
    return json.loads(done.stdout.splitlines()[-1])["seconds"]


def _until_senders_end(folder: Path, patience: float) -> None:
    """Wait for the senders of the folder's runs, which outlive the runs, and end them.

    They would be at work during the next measurement. What they have not sent is in the journal.
    """
    end = time.monotonic() + patience
    while time.monotonic() < end and _senders(folder):
        time.sleep(0.1)
    for pid in _senders(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _senders(folder: Path) -> list[int]:
    children = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"runcatalog.record.delivery.sender" in words and any(
            os.fsencode(folder) in word for word in words
        ):
            children.append(int(path.parent.name))
    return children


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return kept | {"OMP_NUM_THREADS": "1"}
