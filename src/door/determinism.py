"""Run a small training several times and compare the results, bit for bit.

The runs differ in the number of threads and of environments per simulator call, which must not affect the result. A
further run is killed with SIGKILL at a random update and resumed. Digests of the final weights and of all metrics are
compared.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from door.env.tasks import TASKS
from door.training.flags import ROBOTS
from runcatalog import record
from runcatalog.record import option
from runcatalog.record.journal.metrics import read_points

ENVS_PER_CALL = (0, 8, 5)  # of the runs, cyclically; 0: all


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `hnppo:determinism_test` and `ppo:determinism_test`."""

    seed: int = option(1000, "seed of the repeated run; source: 1000", low=0, high=2**63 - 1)
    agent: str = option("hnppo", "which training script", choices=("hnppo", "ppo"))
    task: str = option("lever", "kind of door; source: lever", choices=tuple(TASKS))
    robot: str = option("floatinggripper", "robot; source: floatinggripper", choices=ROBOTS)
    lr: float = option(1e-3, "Adam's step size [1]; source: 1e-3", low=0, low_open=True, high=1)
    clip_coef: float = option(
        0.3, "half-width of the trust region [1]; source: 0.3", low=0, low_open=True, high=1
    )
    updates: int = option(12, "length of a run [updates of 2048 decisions]", low=4, high=10_000)
    threads: str = option(
        "1 2 4", "simulator threads, one number per run; source: 1 and 8 processes"
    )
    world_seed: str = option(
        "run", "see train_ppo; none: the result differs every time", choices=("run", "none")
    )
    timeout: float = option(1800.0, "time limit of a run [s]", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        words = self.threads.split()
        if len(words) < 2 or not all(w.isdecimal() and 0 < int(w) <= 64 for w in words):
            raise record.UserError(
                f"--threads: {self.threads!r} is not a list of two or more numbers from 1 to 64"
            )

    def variants(self) -> list[tuple[int, int]]:
        """Return threads and environments per simulator call of the runs."""
        cycle = itertools.cycle(ENVS_PER_CALL)
        return [(int(word), envs) for word, envs in zip(self.threads.split(), cycle, strict=False)]


def main(config: Config) -> dict[str, Any]:
    """Run, kill, resume and compare; return the content of `result.json`."""
    with (
        record.start(config, study="door") as run,
        tempfile.TemporaryDirectory(prefix="determinism-") as folder,
    ):
        outcomes = []
        variants = config.variants()
        killed = (variants[-1][0], 0)
        for index, variant in enumerate(variants):
            outcomes.append(_repeat(config, Path(folder) / f"run{index}", variant))
            run.event(_describe(variant, outcomes[-1]))
            run.progress(index + 1, len(variants) + 1, "run")
        # Not from the run's seed, so that repeated tests kill at different moments.
        wanted = 1 + int(np.random.default_rng().integers(config.updates - 1))
        directory = Path(folder) / "killed"
        killed_at = _kill(config, directory, killed, wanted)
        outcomes.append(_repeat(config, directory, killed, resume=True))
        run.event(f"killed at update {killed_at}, continued: {_describe(killed, outcomes[-1])}")
        run.progress(len(outcomes), len(outcomes), "run")
        result = judge(outcomes, killed_at)
        run.artifact("outcomes.json").write_text(json.dumps(outcomes, indent=1) + "\n")
        run.log(result["metrics"], config.updates)
        return run.finish(result | {"task": config.task, "variant": {"agent": config.agent}})


def judge(outcomes: list[dict[str, Any]], killed_at: int) -> dict[str, Any]:
    """Compare the digests of all outcomes with the first; return the result.

    Args:
        outcomes: With `threads`, `weights` and `metrics` (digests) and `resume_mismatch`; the last run was killed.
        killed_at: Update at which it was killed.
    """
    first = outcomes[0]
    equal = [
        all(outcome[name] == first[name] for name in ("weights", "metrics"))
        and outcome["resume_mismatch"] == 0
        for outcome in outcomes
    ]
    together, resumed = sum(equal[:-1]), equal[-1]
    threads = ", ".join(str(outcome["threads"]) for outcome in outcomes[:-1])
    verdict = "deterministic" if all(equal) else "not deterministic"
    return {
        "objective": {
            "name": "equal_runs",
            "value": float(np.mean(equal)),
            "kind": "rate",
            "count": len(equal),
            "goal": "max",
        },
        "summary": (
            f"{verdict}: {together} of {len(equal) - 1} runs equal with {threads} threads; "
            f"killed at update {killed_at} and resumed: {'equal' if resumed else 'different'}"
        ),
        "metrics": {"equal_runs": float(together), "resumed_equal": float(resumed)},
        "env_steps": sum(outcome["env_steps"] for outcome in outcomes),
    }


def _start(
    config: Config, directory: Path, variant: tuple[int, int], resume: bool
) -> subprocess.Popen[str]:
    """Start the training script with its own run directory and without MLflow."""
    script = Path(__file__).with_name(f"train_{config.agent}.py")
    flags: dict[str, Any] = {
        "seed": config.seed,
        "task": config.task,
        "robot": config.robot,
        "lr": config.lr,
        "clip-coef": config.clip_coef,
        "num-envs": 32,
        "num-steps": 64,
        "env-steps": config.updates * 2048,
        "eval-interval": 5,
        "save-interval": 3,
        "stop-at": 0,
        "video": "no",
        "threads": variant[0],
        "envs-per-call": variant[1],
        "world-seed": config.world_seed,
    }
    if resume:
        flags["resume"] = str(directory)
    own = ("RUN_ID", "GUILD_OP", "MLFLOW_RUN_ID")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    environment |= {"RUN_DIR": str(directory), "RECORD_MLFLOW": "off"}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return subprocess.Popen(
        [sys.executable, str(script), *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _repeat(
    config: Config, directory: Path, variant: tuple[int, int], resume: bool = False
) -> dict[str, Any]:
    """Run to the end; return the digests."""
    child = _start(config, directory, variant, resume)
    try:
        output, _ = child.communicate(timeout=config.timeout)
    except subprocess.TimeoutExpired:
        raise record.RunFailed(f"a run took more than {config.timeout:g} s") from None
    finally:
        child.kill()
    if child.returncode != 0:
        last = output.strip().splitlines()[-1:] or ["no output"]
        raise record.RunFailed(f"a run ended with exit code {child.returncode}: {last[0]}")
    result = json.loads((directory / "result.json").read_bytes())
    return {
        "threads": variant[0],
        "envs_per_call": variant[1],
        **result["digest"],
        "resume_mismatch": result["resume_mismatch"],
        "env_steps": result["env_steps"],
    }


def _kill(config: Config, directory: Path, variant: tuple[int, int], wanted: int) -> int:
    """Start a run and kill it when update `wanted` is logged; return its last logged update."""
    child = _start(config, directory, variant, resume=False)
    try:
        until = time.monotonic() + config.timeout
        while child.poll() is None and _logged(directory) < wanted:
            if time.monotonic() > until:
                raise record.RunFailed(f"a run took more than {config.timeout:g} s")
            time.sleep(0.005)
    finally:
        child.kill()
        output, _ = child.communicate()
    if child.returncode != -signal.SIGKILL:
        last = output.strip().splitlines()[-1:] or ["no output"]
        raise record.RunFailed(f"the run to be killed ended by itself: {last[0]}")
    return _logged(directory)


def _logged(directory: Path) -> int:
    """Return the last update in a run's journal; 0 before the first."""
    points = read_points(directory / "journal" / "metrics.jsonl")
    return max((point.step for point in points), default=0)


def _describe(variant: tuple[int, int], outcome: dict[str, Any]) -> str:
    threads, envs = variant
    return (
        f"{threads} threads, {envs or 'all'} environments a call: "
        f"weights {outcome['weights'][:12]}, metrics {outcome['metrics'][:12]}"
    )


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
