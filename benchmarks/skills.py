"""The engine of MiniGrid levels compared with minigrid, one thread each.

Both play the same levels with the same random actions, one episode after the other, beginnings of episodes included:
256 environments of the engine; in minigrid the first of them alone, since one at a time is how it steps. The rows of
this project's levels draw them by the same compiled generator on both sides, which favours minigrid. BabyAI's rows
play its own levels, in the engine from a bank that was made before. The last row is the generator against BabyAI's.
"""

import argparse
import contextlib
import io
import os
import sys
import time
from functools import partial
from pathlib import Path

# The project's root instead of this folder, whose scripts are called as the packages are.
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
from benchmarks import _report  # noqa: E402

import skills  # noqa: E402
from skills.levels.engine import Engine  # noqa: E402
from skills.levels.generate import levels  # noqa: E402
from skills.levels.minigrid.babyai import bank  # noqa: E402
from skills.levels.stages import STAGES  # noqa: E402

ENVS, ACTIONS = 256, 7
CASES = ("pkp0", "all6", "nlm2", "BabyAI-GoToLocal-v0", "BabyAI-OpenDoor-v0")


class Ours:
    """Steps of the engine."""

    def __init__(self, name: str, steps: int) -> None:
        source = name if name in STAGES else bank(name, range(500))
        self.engine = Engine(source, ENVS)
        self.engine.reset(np.arange(ENVS))
        self.actions = np.random.default_rng(0).integers(ACTIONS, size=(steps, ENVS))

    def rate(self) -> float:
        """Environment steps a second."""
        begin = time.perf_counter()
        for actions in self.actions:
            self.engine.step(actions)
        return self.actions.size / (time.perf_counter() - begin)


class Minigrid:
    """Steps of one environment of minigrid's."""

    def __init__(self, name: str, steps: int) -> None:
        wanted = skills.env_id(name) if name in STAGES else name
        self.env = gymnasium.make(wanted, disable_env_checker=True).unwrapped
        self.env.reset(seed=0)
        self.actions = np.random.default_rng(0).integers(ACTIONS, size=(steps, ENVS))[:, 0].tolist()

    def rate(self) -> float:
        """Environment steps a second."""
        begin = time.perf_counter()
        for action in self.actions:
            _, _, terminated, truncated, _ = self.env.step(action)
            if terminated or truncated:
                self.env.reset()
        return len(self.actions) / (time.perf_counter() - begin)


def drawn(count: int) -> float:
    """Levels a second of the generator, with inner walls, doors, locks and the check that they can be solved."""
    begin = time.perf_counter()
    levels("all6", np.arange(count))
    return count / (time.perf_counter() - begin)


def reset(env: gymnasium.Env, count: int) -> float:
    """Levels a second of an environment of BabyAI's."""
    begin = time.perf_counter()
    for seed in range(count):
        env.reset(seed=seed)
    return count / (time.perf_counter() - begin)


def main() -> None:
    """Measure all in turn and write the result."""
    parser = _report.parser(__doc__)
    parser.add_argument("--steps", type=int, default=2000, help="of a turn, of each environment")
    options = parser.parse_args()
    with contextlib.redirect_stdout(io.StringIO()):  # BabyAI prints every level that it rejects
        rows = [step_row(name, options) for name in CASES] + [generator_row(options)]
    _report.report("skills", rows, dry_run=options.dry_run)


def step_row(name: str, options: argparse.Namespace) -> dict:
    """Environment steps a second of one stage, or of one environment of BabyAI's."""
    ours, peer = Ours(name, options.steps), Minigrid(name, options.steps)
    rates = _report.alternate({"ours": ours.rate, "peer": peer.rate}, options.repeats)
    what = f"stage {name}" if name in STAGES else name
    return _report.row(
        f"random actions, {what}, {ENVS} environments",
        rates["ours"], rates["peer"], peer_name="minigrid, one environment", unit="env steps/s", target=200,
    )  # fmt: skip


def generator_row(options: argparse.Namespace) -> dict:
    """Levels a second."""
    env = gymnasium.make("BabyAI-GoToLocal-v0", disable_env_checker=True).unwrapped
    measures = {
        "ours": partial(drawn, 20 * options.steps),
        "peer": partial(reset, env, options.steps // 10),
    }
    rates = _report.alternate(measures, options.repeats)
    return _report.row(
        "levels of the stage all6", rates["ours"], rates["peer"],
        peer_name="BabyAI-GoToLocal, one room", unit="levels/s", target=None,
    )  # fmt: skip


if __name__ == "__main__":
    main()
