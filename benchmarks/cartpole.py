"""The CartPole study compared with one run at a time, and with PPO and A2C to the same return.

The first row is all of `pg:compare` (four algorithms, 20 seeds, 5,000 updates) as users run it, with journal and
figures. The second row compares environment steps per second: a smaller study, with its start and end, and the source's
loop on one core with long episodes, where it is fastest. The other rows are seconds per seed until the mean of the last
100 episodes is 475: ours with the fastest configuration, 20 seeds at once and one alone.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from functools import partial
from pathlib import Path

# The project's root instead of this folder, whose scripts are called as the packages are.
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)
# With small matrices, several threads slow one another down, here as in the study's processes.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np  # noqa: E402
import yaml  # noqa: E402
from benchmarks import _cartpole_peers as peers  # noqa: E402
from benchmarks import _report  # noqa: E402

from cartpole.policy_gradient.grid import configurations  # noqa: E402
from cartpole.policy_gradient.options import PolicyGradientConfig  # noqa: E402
from cartpole.policy_gradient.reinforce import Learner  # noqa: E402
from cartpole.study import Config as StudyConfig  # noqa: E402

ALGORITHMS = ("vpg", "mean", "value", "rloo")
LIMIT = 10.0  # min, for the whole of pg:compare on 2 cores
BUDGET = 500_000  # environment steps until a peer gives up
SEEDS = 20


def study(updates: int) -> tuple[float, int]:
    """Return seconds and environment steps of `pg:compare`, from process start to process end."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"RUN_DIR": f"{folder}/run", "RECORD_MLFLOW": "off"}
        command = [sys.executable, str(ROOT / "src/cartpole/study.py"), "--updates", str(updates)]
        begin = time.perf_counter()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - begin
        result = json.loads((Path(folder) / "run/result.json").read_text())
    return seconds, result["env_steps"]


def study_rate(updates: int) -> float:
    """Return the environment steps per second of a study of this size."""
    seconds, steps = study(updates)
    return steps / seconds


def source_rate(seconds: float) -> float:
    """Return the environment steps per second of the source's loop over the four algorithms."""
    rates = [peers.source_loop(algo, seconds / len(ALGORITHMS)) for algo in ALGORITHMS]
    return statistics.harmonic_mean(rates)


def fastest() -> PolicyGradientConfig:
    """Return the configuration that `pg:fastest` declares."""
    declared = yaml.safe_load((ROOT / "experiments/cartpole/guild.yml").read_text())
    (model,) = (model for model in declared if model.get("model") == "pg")
    flags = model["operations"]["fastest"]["flags"]
    kinds = {field.name: type(field.default) for field in dataclasses.fields(StudyConfig)}
    given = {name.replace("-", "_"): value or "" for name, value in flags.items()}
    config = StudyConfig(**{name: kinds[name](value) for name, value in given.items()})
    (point,) = configurations(config).values()
    return point


def ours_to_return(point: PolicyGradientConfig, seeds: range, budget: int) -> tuple[float, int]:
    """Return seconds per seed to a mean length of 475 over 100 episodes, and how many seeds did not reach it."""
    begin, rounds = time.perf_counter(), -(-peers.WINDOW // point.batch)
    settings = [dataclasses.replace(point.run_settings, seed=seed) for seed in seeds]
    learner = Learner(settings, point.widths, point.batch)
    played: deque[np.ndarray] = deque(maxlen=rounds)
    missing, steps = np.ones(len(seeds), bool), np.zeros(len(seeds))
    while (missing & (steps < budget)).any():
        rollout = learner.collect()
        learner.update(rollout)
        played.append(rollout.lengths)
        steps += rollout.lengths.sum(1)
        if len(played) == rounds:
            recent = np.concatenate(played, axis=1)[:, -peers.WINDOW :]
            missing &= recent.mean(1) < peers.REACHED
    return (time.perf_counter() - begin) / len(seeds), int(missing.sum())


def main() -> None:
    """Measure everything and report the rows."""
    parser = _report.parser(__doc__)
    parser.add_argument("--updates", type=int, default=5000, help="of the whole study")
    parser.add_argument("--part", type=int, default=500, help="updates of the smaller study")
    parser.add_argument("--seconds", type=float, default=40.0, help="of the source's loop, a turn")
    parser.add_argument("--budget", type=int, default=BUDGET, help="environment steps of a peer")
    options = parser.parse_args()
    rows = study_rows(options) + return_rows(options)
    _report.report("cartpole", rows, dry_run=options.dry_run)


def study_rows(options: argparse.Namespace) -> list[dict]:
    """Return the rows of the whole study and of its rate."""
    whole, steps = study(options.updates)
    size = f"{len(ALGORITHMS)} algorithms x {SEEDS} seeds"
    rates = _report.alternate(
        {
            "ours": lambda: study_rate(options.part),
            "source": lambda: source_rate(options.seconds),
        },
        options.repeats,
    )
    return [
        _report.row(
            f"pg:compare, {size} x {options.updates} updates, {steps / 1e6:.0f} M steps, one run",
            [whole / 60],
            [LIMIT],
            peer_name="the limit",
            unit="min",
            target=1,
            target_is="at most",
        ),
        _report.row(
            f"pg:compare, {size} x {options.part} updates, start to end",
            rates["ours"],
            rates["source"],
            peer_name="one run at a time as in the source's loop, long episodes",
            unit="env steps/s",
            target=20,
        ),
    ]


def return_rows(options: argparse.Namespace) -> list[dict]:
    """Return the rows of seconds per seed to the same return."""
    point = fastest()
    turns = dict.fromkeys(("many", "one", "cleanrl", "PPO", "A2C"), 0)
    missed = dict.fromkeys(turns, 0)

    def seconds_of(name: str) -> float:
        turns[name] += 1
        seed = turns[name]
        if name == "cleanrl":
            seconds, reached = peers.cleanrl_ppo(seed, options.budget)
            gave_up = int(not reached)
        elif name in ("PPO", "A2C"):
            seconds, reached = peers.stable_baselines(name, seed, options.budget)
            gave_up = int(not reached)
        else:
            count = SEEDS if name == "many" else 1
            seeds = range(1000 + count * seed, 1000 + count * (seed + 1))
            seconds, gave_up = ours_to_return(point, seeds, options.budget)
        missed[name] += gave_up
        return seconds

    measures = {name: partial(seconds_of, name) for name in turns}
    seconds = _report.alternate(measures, options.repeats)
    names = {
        "cleanrl": "PPO as in CleanRL, its defaults",
        "PPO": "stable-baselines3 PPO, settings of its zoo",
        "A2C": "stable-baselines3 A2C, settings of its zoo",
    }
    rows = []
    for kind, what, seeds in (("many", f"{SEEDS} seeds at once", SEEDS), ("one", "one seed", 1)):
        own = f", {missed[kind]} of {seeds * options.repeats} gave up" if missed[kind] else ""
        for name, peer_name in names.items():
            late = f", {missed[name]} of {options.repeats} gave up" if missed[name] else ""
            rows.append(
                _report.row(
                    f"to a mean length of 475 over 100 episodes, {what}{own}",
                    seconds[kind],
                    seconds[name],
                    peer_name=f"{peer_name}{late}",
                    unit="s per seed",
                    target=1,
                    target_is="at most",
                )
            )
    return rows


if __name__ == "__main__":
    main()
