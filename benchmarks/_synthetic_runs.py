"""A project with as many runs as wanted: journals and Guild's files as the real ones lie in run directories.

One run is really recorded; the others are that one with another id, flags, times, points and result.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import random
import uuid
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from runcatalog import record
from runcatalog.record.digest import metrics_digest

STEPS = 20
METRICS = ("return", "loss", "entropy", "kl", "success")  # STEPS points per metric: 100 per run
TRIALS = 20  # runs of a batch: five learning rates, four seeds
BLOCK = 100  # runs created together: three batches, 30 single runs, 10 without Guild
STUDY = "bench"
BEGIN = 1_700_000_000_000  # ms; when the first run began
_GRID = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
_TASKS = ("lever", "pull", "push", "round")
_OPERATIONS = {"train": "train", "long": "train", "wide": "train", "sweep": "train", "lr": "train"}
_GUILD_YML = "- include: [experiments/bench/guild.yml]\n"
_TEMPLATE = """## Benchmark

{{ count("bench:train") }} single runs; the sweeps are below.

{{ table(["bench:sweep", "bench:lr"]) }}

{{ figure("sweep", ["bench:sweep"], "return", flags=["lr"]) }}

{{ table(["bench:train", "bench:long", "bench:wide"], flags=["task", "lr"]) }}
"""


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of the synthetic runs."""

    task: str = record.option("lever", "task", choices=_TASKS)
    lr: float = record.option(1e-3, "learning rate", low=0)
    gamma: float = record.option(0.99, "discount factor", low=0, high=1)
    width: int = record.option(64, "units of a layer", low=1)
    layers: int = record.option(2, "layers", low=1)
    clip: float = record.option(0.2, "PPO's clipping", low=0)
    epochs: int = record.option(6, "epochs an update", low=1)
    minibatch: int = record.option(512, "steps of a minibatch", low=1)
    entropy: float = record.option(0.01, "entropy bonus", low=0)
    algo: str = record.option("ppo", "algorithm")


@dataclass(frozen=True)
class Template:
    """What the recorded run left: its journal's facts, session and result."""

    facts: dict[str, Any]
    session: dict[str, Any]
    result: dict[str, Any]


def number_of_runs(text: str) -> int:
    """Return a number of runs of the command line, a multiple of BLOCK."""
    if not text.strip().isdecimal() or not (count := int(text)) or count % BLOCK:
        raise argparse.ArgumentTypeError(f"{text!r} is no multiple of {BLOCK}")
    return count


def make_project(root: Path) -> Template:
    """Create an empty project in a new folder, and record one run as the template of the others."""
    study = root / "experiments" / STUDY
    study.mkdir(parents=True)
    (root / "guild.yml").write_text(_GUILD_YML)
    (root / "guild").joinpath("runs").mkdir(parents=True)
    lines = ["- model: bench", "  operations:"]
    lines += [f"    {name}: {{main: src/bench.{main}}}" for name, main in _OPERATIONS.items()]
    (study / "guild.yml").write_text("\n".join(lines) + "\n")
    (study / "catalog.md.j2").write_text(_TEMPLATE)
    inside = {"RUN_DIR": str(root / "one"), "PROJECT_DIR": str(root), "RECORD_MLFLOW": "off"}
    with _environment(inside), record.start(Config(), study=STUDY) as run:
        for step in range(1, STEPS + 1):
            run.log(dict.fromkeys(METRICS, float(step)), step)
        run.finish({"objective": _objective(1.0), "env_steps": STEPS})
    journal = root / "one" / "journal"
    return Template(
        json.loads((journal / "run.json").read_text()),
        json.loads((journal / "sessions.jsonl").read_text()),
        json.loads((root / "one" / "result.json").read_text()),
    )


def add_runs(root: Path, template: Template, first: int, count: int) -> None:
    """Add runs to a project.

    Args:
        root: Its folder; Guild's home is ``guild`` in it.
        template: The recorded run.
        first: Number of the first, a multiple of BLOCK.
        count: How many, a multiple of BLOCK.
    """
    blocks = range(first // BLOCK, (first + count) // BLOCK)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(partial(_add_block, root, template), blocks, chunksize=4))


def _add_block(root: Path, template: Template, block: int) -> None:
    for index in range(BLOCK):
        number = block * BLOCK + index
        rng = random.Random(number)
        batch, trial = divmod(index, TRIALS)
        flags = {"task": rng.choice(_TASKS), "lr": rng.choice(_GRID), "seed": number % 7}
        operation, origin = rng.choice(("train", "long", "wide")), number
        if batch < 3:  # trials copy the start and the random seed of their batch
            operation, origin = ("sweep", "lr")[batch % 2], block * BLOCK + batch * TRIALS
            flags = {"task": "lever", "lr": _GRID[trial // 4], "seed": trial % 4}
        run_id = uuid.UUID(int=rng.getrandbits(128)).hex
        end = ("KILLED", "SIGTERM") if number % 50 == 7 else ("FINISHED", "")
        if index < 90:
            directory = root / "guild" / "runs" / run_id
            _write_guild(directory, root, operation, flags, number, origin, end[0])
            _write_journal(directory, template, f"bench:{operation}", flags, number, end)
        else:
            directory = root / "runs" / run_id[:8]
            _write_journal(directory, template, "train", flags, number, end, run_id)


def _write_guild(
    directory: Path, root: Path, operation: str, flags: dict, number: int, origin: int, status: str
) -> None:
    """Write what Guild keeps of a run."""
    attrs = directory / ".guild" / "attrs"
    attrs.mkdir(parents=True)
    begin = BEGIN + 60_000 * number
    every = {name: value for name, value in _defaults().items() if name not in flags} | flags
    label = " ".join(f"{name}={value}" for name, value in flags.items())
    written = {
        "id": directory.name,
        "flags": "\n".join(f"{name}: {json.dumps(every[name])}" for name in sorted(every)),
        "label": label,
        "deps": "{}",
        "host": "host",
        "initialized": str(1000 * (BEGIN + 60_000 * origin)),
        "random_seed": str(origin),
        "started": str(1000 * begin),
        "stopped": str(1000 * (begin + 50_000)),
        "exit_status": "0" if status == "FINISHED" else "-15",
    }
    for name, content in written.items():
        (attrs / name).write_text(f"{content}\n")
    (directory / ".guild" / "opref").write_text(
        f"guildfile:{root / 'guild.yml'} {'0' * 32} bench {operation}"
    )


def _write_journal(
    directory: Path,
    template: Template,
    operation: str,
    flags: dict[str, Any],
    number: int,
    end: tuple[str, str],
    run_id: str = "",
) -> None:
    """Write what recording leaves of a run."""
    journal = directory / "journal"
    journal.mkdir(parents=True)
    begin = BEGIN + 60_000 * number
    lines, last = [], 0.0
    points = []
    rng = random.Random(number)
    for step in range(1, STEPS + 1):
        last = 1 - math.exp(-step * 100 * flags["lr"]) + rng.gauss(0, 0.02)
        metrics = {name: last / (i + 1) for i, name in enumerate(METRICS)}
        points += [(name, step, value) for name, value in metrics.items()]
        lines.append(_compact({"t": begin + 2000 * step, "step": step, "m": metrics}))
    (journal / "metrics.jsonl").write_text("".join(lines))
    facts = {
        **template.facts,
        "id": run_id or directory.name,
        "operation": operation,
        "flags": template.facts["flags"] | flags,
        "seed": flags["seed"],
        "started": begin,
    }
    (journal / "run.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    # Without number and checksum, which would be those of the template's line.
    session = {k: v for k, v in template.session.items() if k not in ("n", "crc")}
    (journal / "sessions.jsonl").write_text(_compact({**session, "started": begin}))
    finished = end[0] == "FINISHED"
    result = {
        **template.result,
        "status": end[0],
        "reason": end[1],
        "result": {"objective": _objective(last), "env_steps": STEPS} if finished else None,
        "digest": {
            "weights": hashlib.sha256(str(number).encode()).hexdigest(),
            "metrics": metrics_digest(points),
        },
        "started": begin,
        "ended": begin + 50_000,
        "wall_seconds": 50.0,
    }
    (directory / "result.json").write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")


def _objective(value: float) -> dict[str, Any]:
    return {
        "name": "return",
        "value": value,
        "kind": "mean",
        "goal": "max",
        "at": STEPS,
        "axis": "update",
    }


def _defaults() -> dict[str, Any]:
    return record.config.flags_of(Config())


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


@contextlib.contextmanager
def _environment(changed: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(changed)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
