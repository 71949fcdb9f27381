"""A training that is small but real: a random walk with checkpoints, that can end in every way."""

import argparse
import ctypes
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runcatalog import record

ENDS = ("finish", "error", "nan", "memory", "nothing", "bad_result", "exit", "exit_0", "late_error")
ENDS += ("hog", "crash", "os_exit", "full_disk")


@dataclass(frozen=True)
class Config(record.Config):
    """A random walk."""

    lr: float = record.option(5e-3, "step size [1], 100 % in (0, 1]", low=0, low_open=True, high=1)
    task: str = record.option("pull", "task", choices=("pull", "lever"))
    te_dim: int = record.option(8, "length of the walk's vector", low=1)
    fresh: bool = record.option(True, "begin at zero")
    updates: int = record.option(20, "number of updates", low=1, resumable=True)
    every: int = record.option(4, "updates between checkpoints; 0: none", low=0, resumable=True)
    pause: float = record.option(0.0, "seconds between updates", low=0, resumable=True)
    hold: int = record.option(
        0, "update before which it waits to be killed; 0: none", low=0, resumable=True
    )
    end: str = record.option("finish", "how it ends", choices=ENDS, resumable=True)
    jump: float = record.option(0.0, "seconds by which the clock is set halfway", resumable=True)
    cgroup: str = record.option("", "cgroup to enter first", resumable=True)


def main(config):
    """Random walk that ends in the way that a flag names."""
    if config.cgroup:
        (Path(config.cgroup) / "cgroup.procs").write_text(str(os.getpid()))
    with record.start(config, study="toy") as run:
        generator = run.seeds.generator("walk")
        weights, first = np.zeros(config.te_dim), 1
        checkpoint = run.restore()
        if checkpoint:
            weights, first = checkpoint.tensors["weights"].numpy(), checkpoint.step + 1
            generator.bit_generator.state = checkpoint.state["generator"]
        for update in range(first, config.updates + 1):
            if update == config.hold:
                time.sleep(10**6)
            weights = weights + config.lr * generator.normal(size=config.te_dim)
            loss = float(np.square(weights).sum())
            run.log({"loss": loss, "noise": generator.normal()}, step=update)
            run.log({"time/update": time.time()}, step=update)
            run.progress(update, config.updates, "update")
            if run.checkpoint_due(update, config.every):
                state = {"generator": generator.bit_generator.state}
                run.checkpoint(update, {"weights": weights}, state)
            if config.jump and update == config.updates // 2:
                time.time = lambda right=time.time: right() + config.jump
            time.sleep(config.pause)
        return _end(run, config, weights, loss)


def _end(run, config, weights, loss):
    for line in range(30):
        print(f"line {line}", flush=True)
    if config.end == "error":
        raise ValueError("the toy\nbroke")
    if config.end == "nan":
        record.check_finite(config.updates, {"loss": np.array([1.0, np.nan])})
    if config.end == "exit":
        raise SystemExit(3)
    if config.end == "exit_0":
        raise SystemExit
    if config.end == "nothing":
        return None
    if config.end == "crash":
        ctypes.string_at(0)
    if config.end == "os_exit":
        os._exit(0)
    if config.end == "full_disk":
        _fill(run.directory / "filler")
        for update in range(config.updates + 1, 10**6):
            run.log({"loss": loss}, step=update)
    _use_memory(config.end)
    run.digest_weights({"weights": weights})
    run.artifact("figures/walk.txt").write_text("a figure\n")
    objective = {"name": "loss", "value": loss, "kind": "mean", "count": 1, "goal": "min"}
    objective |= {"at": config.updates, "axis": "update"}
    result = {"objective": objective, "env_steps": config.updates * 10, "task": config.task}
    if config.end == "bad_result":
        result["metrics"] = {"what": object()}
    finished = run.finish(result)
    if config.end == "late_error":
        raise OSError("no figure")
    return finished


def _use_memory(end):
    if end == "memory":
        np.zeros(1 << 58)
    if end == "hog":  # memory counts only once it is used
        kept = [np.ones(1 << 20) for _ in range(1000)]
        assert not kept


def _fill(path):
    """Write a file until the disk is full."""
    with path.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                return


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
