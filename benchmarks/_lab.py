"""A lab on this machine: a scheduler and workers, started by the commands that users type, and a project for them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from benchmarks._recording_peers import FOREIGN

from runcatalog.cluster import engines
from runcatalog.cluster.dask_engine import DaskEngine
from runcatalog.cluster.engine import EngineError
from runcatalog.record.journal.files import read_json

ENGINE, UNCHECKED = "lab", "unchecked"  # entries of engines.yml
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
    sleep: {main: src/sleep, flags-import: all}
    train: {main: src/train, flags-import: all}
"""
_SLEEP = '''\
"""Sleeps."""

import argparse
import time

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    time.sleep(parser.parse_args().seconds)
'''
_TRAIN = '''\
"""Records points of a random walk."""

import argparse
import time
from dataclasses import dataclass

import numpy as np

from runcatalog import record


@dataclass(frozen=True)
class Config(record.Config):
    points: int = record.option(100, "points", low=1)
    seconds: float = record.option(0.0, "seconds to sleep", low=0)


def main(config):
    with record.start(config, study="bench") as run:
        walk = np.random.default_rng(config.seed).normal(size=config.points).cumsum()
        for step, value in enumerate(walk, 1):
            run.log({"walk": float(value)}, step)
        time.sleep(config.seconds)
        run.finish({"objective": {"name": "walk", "value": float(walk[-1]), "kind": "mean"}})


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser())
'''
# The settings are the defaults, but for the entry whose check multiplies no matrices.
_ENGINES_YML = f"""\
{ENGINE}: &defaults
  scheduler: tls://127.0.0.1:PORT
  tls: tls
  scratch: scratch
{UNCHECKED}:
  <<: *defaults
  health: 0.001
"""
_PATIENCE = 120.0  # s


def seeds_flag(trials: int) -> str:
    """Return the flag of a batch with so many trials."""
    return f"seed=[{','.join(map(str, range(1, trials + 1)))}]"


class Lab:
    """A project whose runs may go to workers of this machine.

    Args:
        root: A new folder.

    Attributes:
        root: See above.
        settings: Its entry of engines.yml.
        environment: In which users type.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "src").mkdir(parents=True)
        (root / "guild").mkdir()
        (root / "experiments").mkdir()
        (root / "guild.yml").write_text(_GUILD_YML)
        (root / "src" / "sleep.py").write_text(_SLEEP)
        (root / "src" / "train.py").write_text(_TRAIN)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        (root / engines.FILE).write_text(_ENGINES_YML.replace("PORT", port))
        self.settings = engines.read(root, ENGINE)
        self._workers: list[str] = []
        self._certified: set[str] = set()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        # Of the Python that runs this, as an activated environment.
        path = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{kept['PATH']}"
        self.environment = kept | {
            "GUILD_HOME": str(root / "guild"),
            "OMP_NUM_THREADS": "1",
            "PATH": path,
            "PYTHONWARNINGS": "ignore",
        }
        for name in ("scheduler", self.settings.certificate):
            self._certify(name)
        self._catalog("start", "scheduler")

    def set_workers(self, count: int) -> None:
        """Start or stop workers until there are so many, and wait until the scheduler knows them."""
        while len(self._workers) > count:
            self._catalog("stop", self._workers.pop())
        while len(self._workers) < count:
            name = f"box{len(self._workers) + 1}"
            self._certify(name)
            self._catalog("start", name, *(["--as-root"] if os.geteuid() == 0 else []))
            self._workers.append(name)
        engine = DaskEngine(self.settings)
        try:
            until = time.monotonic() + _PATIENCE
            while len(self._known(engine)) != count:
                if time.monotonic() > until:
                    raise SystemExit(f"the scheduler does not know {count} workers")
                time.sleep(0.1)
        finally:
            engine.close()

    @staticmethod
    def _known(engine: DaskEngine) -> list[dict[str, Any]]:
        try:
            return engine.workers()
        except EngineError:
            return []

    def guild(self, *words: str, engine: str = "", **variables: str) -> float:
        """Run a command of Guild; return the seconds from its start to its end.

        Args:
            words: The command.
            engine: Entry of engines.yml; "" runs them here.
            variables: More environment variables.
        """
        environment = self.environment | ({engines.VARIABLE: engine} if engine else {}) | variables
        begin = time.perf_counter()
        self._typed(["guild", *words], environment)
        return time.perf_counter() - begin

    def sleepers_rate(self, workers: int, trials: int, seconds: float) -> float:
        """Run a batch of trials that sleep on so many workers; return the trials a minute.

        Args:
            workers: How many of this machine.
            trials: How many in the batch.
            seconds: That each sleeps.
        """
        self.set_workers(workers)
        flags = [f"seconds={seconds:g}", seeds_flag(trials)]
        return 60 * trials / self.guild("run", "bench:sleep", *flags, "-y", engine=ENGINE)

    def begin(self, *words: str, engine: str, **variables: str) -> subprocess.Popen[bytes]:
        """Start a command of Guild whose output is not wanted; see `guild`."""
        environment = self.environment | {engines.VARIABLE: engine} | variables
        quiet = subprocess.DEVNULL
        return subprocess.Popen(
            ["guild", *words],
            cwd=self.root,
            env=environment,
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
        )

    def processes(self) -> dict[str, psutil.Process]:
        """Return the processes of the lab by name."""
        names = ("scheduler", *self._workers)
        states = {name: read_json(self.settings.scratch / name / "process.json") for name in names}
        return {name: psutil.Process(state["pid"]) for name, state in states.items() if state}

    def runs(self) -> list[Path]:
        """Return the directories of its runs."""
        return list((self.root / "guild" / "runs").glob("*"))

    def close(self) -> None:
        """Stop all processes."""
        self.set_workers(0)
        self._catalog("stop", "scheduler")
        shutil.rmtree(self.settings.scratch, ignore_errors=True)

    def _certify(self, name: str) -> None:
        if name not in self._certified:
            self._catalog("certificate", name)
            self._certified.add(name)

    def _catalog(self, *words: str) -> None:
        self._typed(["catalog", "workers", *words, "--engine", ENGINE], self.environment)

    def _typed(self, command: list[str], environment: dict[str, str]) -> None:
        done = subprocess.run(
            command, cwd=self.root, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-3000:]}")
