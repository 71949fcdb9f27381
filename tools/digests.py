#!/usr/bin/env python3
"""Digests of small runs of the training scripts, for comparing two versions of the code.

    .venv/bin/python tools/digests.py                 the working tree
    .venv/bin/python tools/digests.py df9dddd HEAD    commits, side by side

A move or a renaming keeps the digests of weights and metrics; where they differ, a training computes other numbers.
All versions run with the installed packages. A flag or a script that a version lacks is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOOR = {
    "task": "pull",
    "env-steps": 8192,
    "eval-interval": 2,
    "video": "no",
    "threads": 1,
    "network-size": "16 16",
}
PG = {"hidden": "8 4", "updates": 12, "episodes-per-update": 4}
CLONING = {"episodes": 20, "updates": 200, "starts": 40, "orders": 1}
ROOMS = {
    "size": 4,
    "limit": 6,
    "env-steps": 4000,
    "history-steps": 4000,
    "hidden": 8,
    "envs": 4,
    "lr": 3e-2,
    "test-tasks": 0,
}
DISTILL_ROOMS = {
    "sizes": "4", "window": 24, "width": 8, "layers": 2, "heads": 2, "feed-forward": 16, "updates": 40,
    "batch-size": 4, "evaluations": 2, "episodes": 5, "copies": 1, "save-interval": 10, "warmup": 5,
}  # fmt: skip
SKILL = {
    "epochs": 1, "epoch-steps": 4096, "envs": 16, "rollout": 16, "minibatches": 2, "channels": 4, "hidden": 16,
    "memory": 16, "eval-interval": 6, "eval-episodes": 5, "save-interval": 4, "threads": 1, "disjoint-levels": "no",
}  # fmt: skip
MIXTURE = {
    **SKILL,
    "stage": "all0",
    "episodes": 12,
    "gtg": "skill",
    "gto": "skill next",
    "pkp": "skill pkp",
    "tgl": "skill tgl",
}
GAME = {
    "think": "no", "prompt": "grid", "max-response-length": 2, "width": 32, "layers": 1, "heads": 2, "device": "cpu",
    "temperature": 1.0, "top-p": 1.0, "val-data-num": 8,
}  # fmt: skip
PLAY = {
    **GAME, "env": "bandit", "max-turns": 1, "train-size": 12, "train-batch-size": 4, "n-rollout": 4,
    "ppo-batch-size": 8, "micro-batch-size": 8, "updates": 4, "test-freq": 2, "kl-coef": 0.01, "actor-lr": 1e-3,
}  # fmt: skip


@dataclass(frozen=True)
class SmallRun:
    """A training of a few seconds.

    Attributes:
        script: The script below src, without suffix.
        flags: Values by flag.
        parents: Flags whose value is the name of an earlier run, whose directory they get.
    """

    script: str
    flags: dict[str, object]
    parents: tuple[str, ...] = ()


RUNS = {
    "ppo": SmallRun("door/train_ppo", DOOR),
    "hnppo": SmallRun("door/train_hnppo", DOOR | {"hyper-width": 32}),
    "hnppo next": SmallRun(
        "door/train_hnppo",
        DOOR | {"task": "lever", "hyper-width": 32, "task-id": 1, "pretrained": "hnppo"},
        ("pretrained",),
    ),
    "multitask": SmallRun("door/train_multitask", DOOR | {"task": "pull lever"}),
    "pg rloo": SmallRun("cartpole/train", PG | {"algo": "rloo"}),
    "pg value": SmallRun("cartpole/train", PG | {"algo": "value"}),
    "bc experts": SmallRun(
        "cartpole/experts", {"count": 2, "updates": 20, "validate": 5, "starts": 20}
    ),
    "bc": SmallRun("cartpole/clone", CLONING | {"experts": "bc experts"}, ("experts",)),
    "a2c": SmallRun("darkroom/train_sources", ROOMS),
    "ad": SmallRun("darkroom/train_ad", DISTILL_ROOMS | {"histories": "a2c"}, ("histories",)),
    "ad seed": SmallRun(
        "darkroom/train_ad",
        DISTILL_ROOMS | {"histories": "a2c", "layout": "cross", "seed": 2},
        ("histories",),
    ),
    "skill": SmallRun("skills/train", SKILL | {"stage": "gtg0"}),
    "skill next": SmallRun(
        "skills/train", SKILL | {"stage": "gto0", "pretrained": "skill"}, ("pretrained",)
    ),
    "skill pkp": SmallRun("skills/train", SKILL | {"stage": "pkp0"}),
    "skill tgl": SmallRun("skills/train", SKILL | {"stage": "tgl0"}),
    "subtasks": SmallRun(
        "skills/subtasks", SKILL | {"stage": "nlm0", "pretrained": "skill"}, ("pretrained",)
    ),
    "planner model": SmallRun(
        "skills/planner_model",
        {
            "stage": "nlm0",
            "levels": 20,
            "validation": 4,
            "updates": 6,
            "batch": 4,
            "width": 16,
            "layers": 1,
            "heads": 2,
            "save-interval": 3,
        },
    ),
    "distill": SmallRun("skills/distill", MIXTURE, ("gtg", "gto", "pkp", "tgl")),
    "moe": SmallRun("skills/moe", MIXTURE, ("gtg", "gto", "pkp", "tgl")),
    "sft": SmallRun(
        "textgames/sft",
        GAME
        | {"env": "sokoban", "max-turns": 3, "train-levels": 24, "test-levels": 8, "epochs": 2},
    ),
    "ragen": SmallRun("textgames/train", PLAY),
    "ragen gae": SmallRun("textgames/train", PLAY | {"adv-estimator": "gae", "warm-up": 1}),
}


def main() -> int:
    """Print a row per run and a column per version; return 1 if the versions differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commits", nargs="*", help="versions; without any, the working tree")
    parser.add_argument("--runs", default="", help="names of some runs, separated by commas")
    options = parser.parse_args()
    chosen = options.runs.split(",") if options.runs else list(RUNS)
    if unknown := set(chosen) - set(RUNS):
        parser.error(f"--runs: {', '.join(sorted(unknown))}: {', '.join(RUNS)} are expected")
    with tempfile.TemporaryDirectory() as folder:
        sources = {commit: checkout(commit, Path(folder)) for commit in options.commits}
        columns = {
            name: dict(measure(source, Path(folder, "runs", name), with_parents(chosen)))
            for name, source in (sources or {"working tree": ROOT}).items()
        }
    print("| run | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    different = []
    for name in chosen:
        cells = [column[name] for column in columns.values()]
        different += [name] if len(set(cells)) > 1 else []
        print(f"| {name} | " + " | ".join(cells) + " |")
    if different:
        print(f"different: {', '.join(different)}", file=sys.stderr)
    return 1 if different else 0


def with_parents(names: list[str]) -> list[str]:
    """Return the runs with those that they start from, in the order of the table."""
    needed = set(names)
    for name in reversed(RUNS):
        if name in needed:
            needed |= {str(RUNS[name].flags[flag]) for flag in RUNS[name].parents}
    return [name for name in RUNS if name in needed]


def checkout(commit: str, folder: Path) -> Path:
    """Write the files of a commit to a folder, and return it."""
    target = folder / "source" / commit.replace("/", "_")
    target.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=False
    )
    if archive.returncode:
        raise SystemExit(f"{commit}: a commit or the name of a branch is expected")
    subprocess.run(["tar", "-x", "-C", target], input=archive.stdout, check=True)
    return target


def measure(source: Path, folder: Path, names: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the names of runs and the first digits of their digests, "-" where a version lacks the script."""
    for name in names:
        run = RUNS[name]
        script = source / "src" / f"{run.script}.py"
        if not script.is_file():
            yield name, "-"
            continue
        print(f"{source.name}: {name}", file=sys.stderr)
        values = {
            flag: folder / str(value) if flag in run.parents else value
            for flag, value in run.flags.items()
        }
        yield name, digests(source, script, folder / name, values)


def digests(source: Path, script: Path, directory: Path, flags: dict[str, object]) -> str:
    """Run a script in a run directory; return the first digits of the digests of its weights and metrics."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    unset = ("RUN_ID", "GUILD_OP", "GUILD_HOME", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "RECORD")
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    environment |= {
        "PYTHONPATH": str(source / "src"),
        "RUN_DIR": str(directory),
        "RECORD_MLFLOW": "off",
        "PROJECT_DIR": str(source),
    }
    known = _run([sys.executable, script, "--help"], environment).stdout
    words = [
        word
        for flag, value in flags.items()
        if f"--{flag}" in known
        for word in (f"--{flag}", str(value))
    ]
    done = _run([sys.executable, script, *words], environment)
    if done.returncode:
        raise SystemExit(f"{script} {' '.join(words)} failed:\n{done.stderr[-2000:]}")
    digest = json.loads((directory / "result.json").read_text())["digest"]
    return " ".join(digest[key][:8] for key in ("weights", "metrics"))


def _run(command: list[object], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
