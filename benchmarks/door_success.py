"""Seconds until a policy opens 97 % of the lever's validation doors, ours and stable-baselines3's PPO.

Same reward, doors and network, and in both the same 100 validation doors after every 20,480 decisions, whose time
counts. Both are measured twice. With the settings of `ppo:train`: the peer (`ppo:sb3`) has our rollout (32 x 64
decisions), minibatch, epochs and optimiser's settings. And each with the settings that a search of its own chose on
another seed, with the same number of trials and decisions (`ppo:area_search`, `ppo:sb3_search`). What differs: ours
begins every rollout with new doors and clips the critic's loss; the peer plays whole episodes, and its critic's loss is
not clipped. The peer normalises observations and rewards as its zoo does (VecNormalize), and has its quickest vector of
environments here (DummyVecEnv). A turn is one seed. A training that does not get there within the budget counts with
all of its time.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

# The project's root instead of this folder, whose scripts are called as the packages are.
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from benchmarks import _report  # noqa: E402
from benchmarks.door import train  # noqa: E402

from runcatalog.record.journal.metrics import read_points  # noqa: E402

OPENED = 0.97  # of the validation doors
BUDGET = 1_000_000  # decisions
TARGET = 1 / 3  # of the peer's time
TRAININGS = {
    "ppo:train": ("train_ppo", {"video": "no"}),
    "ppo:train, searched": ("train_ppo", {"video": "no", "tuned": "ppo:area_search"}),
    "stable-baselines3 PPO": ("train_sb3", {}),
    "stable-baselines3 PPO, searched": ("train_sb3", {"tuned": "ppo:sb3_search"}),
}
PAIRS = {
    "settings of ppo:train": ("ppo:train", "stable-baselines3 PPO"),
    "settings of a search each": ("ppo:train, searched", "stable-baselines3 PPO, searched"),
}


def seconds(name: str, seed: int) -> tuple[float, bool]:
    """Train on the lever door; return seconds until enough doors opened, or the end, and whether they did."""
    script, more = TRAININGS[name]
    flags = {"task": "lever", "seed": seed, "env-steps": BUDGET, "stop-at": OPENED} | more
    words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    with tempfile.TemporaryDirectory() as folder:
        train([sys.executable, str(ROOT / f"src/door/{script}.py"), *words], f"{folder}/run")
        journal = Path(folder) / "run" / "journal"
        begin = json.loads((journal / "run.json").read_text())["started"]
        points = list(read_points(journal / "metrics.jsonl"))
    rates = [p for p in points if p.name == "validation_opening_rate"]
    reached = [p.time for p in rates if p.value >= OPENED]
    return ((reached or [points[-1].time])[0] - begin) / 1000, bool(reached)


def main() -> None:
    """Measure in turns, a seed each, and write the result."""
    options = _report.parser(__doc__).parse_args()
    turns, missed = dict.fromkeys(TRAININGS, 0), dict.fromkeys(TRAININGS, 0)

    def measure(name: str) -> float:
        turns[name] += 1
        taken, reached = seconds(name, turns[name])
        missed[name] += not reached
        print(f"{name}, seed {turns[name]}: {taken:.1f} s, {reached}", file=sys.stderr)
        return taken

    taken = _report.alternate(
        {name: lambda name=name: measure(name) for name in TRAININGS}, options.repeats
    )
    rows = []
    for settings, (ours, peer) in PAIRS.items():
        late = f", {missed[peer]} seeds not within {BUDGET:,} decisions" if missed[peer] else ""
        rows.append(
            _report.row(
                f"97% of lever's validation doors open, {options.repeats} seeds; {settings}",
                taken[ours],
                taken[peer],
                peer_name=f"stable-baselines3 PPO{late}",
                unit="s",
                target=TARGET,
                target_is="at most",
                missed={"ours": missed[ours], "peer": missed[peer]},
            )
        )
    _report.report("door_success", rows, dry_run=options.dry_run)


if __name__ == "__main__":
    main()
