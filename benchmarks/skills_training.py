"""PPO on MiniGrid's levels: the engine, and the same learner on minigrid's environments in gymnasium's AsyncVectorEnv.

Network, update, samples of an update and levels are the same, beginnings of episodes included; only what plays the
levels differs. Minigrid's levels are drawn by the compiled generator too, which favours it. It runs with as many
environments as the engine, each a process, and with 16 and longer rollouts, as its users have it.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

# The project's root instead of this folder, whose scripts are called as the packages are.
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
from benchmarks import _report  # noqa: E402
from gymnasium.spaces import Box, Dict, Discrete  # noqa: E402
from gymnasium.vector import AsyncVectorEnv, AutoresetMode  # noqa: E402

import skills  # noqa: E402
from runcatalog import record  # noqa: E402
from skills.learning.options import Config  # noqa: E402
from skills.learning.ppo import (  # noqa: E402
    RecurrentPPO,
    thread_pool,
    use_one_torch_thread,
)
from skills.levels.engine import Engine, Step  # noqa: E402
from skills.levels.state import Levels  # noqa: E402

CORES, STAGE = 2, "all6"
FEW = 16  # environments; a rollout of as many samples is longer


class Seen(gymnasium.ObservationWrapper):
    """What the network takes: arrays that can lie in shared memory, the mission as its code."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        view = Box(0, 255, (7, 7, 3), np.uint8)
        code = Box(0, 255, (4,), np.uint8)
        self.observation_space = Dict({"image": view, "direction": Discrete(4), "mission": code})

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """See the class."""
        return observation | {"mission": self.unwrapped.mission_code}


def made(stage: str) -> gymnasium.Env:
    """An environment of minigrid's."""
    return Seen(gymnasium.make(skills.env_id(stage), disable_env_checker=True))


class Processes:
    """Environments of minigrid's, a process each, with `Engine`'s `reset` and `step`."""

    def __init__(self, stage: str, count: int) -> None:
        self.envs = AsyncVectorEnv(
            [partial(made, stage)] * count, autoreset_mode=AutoresetMode.SAME_STEP
        )
        self._count = count

    def __len__(self) -> int:
        return self._count

    def reset(self, seeds: np.ndarray, *, out: Step) -> Step:
        """Begin episodes."""
        observation, _ = self.envs.reset(seed=seeds.tolist())
        self._show(observation, out)
        return out

    def step(self, actions: np.ndarray, out: Step) -> Step:
        """Act in every environment; an ended episode is followed by the next one."""
        observation, out.reward[:], out.terminated[:], out.truncated[:], more = self.envs.step(
            actions
        )
        self._show(observation, out)
        for n in np.flatnonzero(out.terminated | out.truncated):
            last = more["final_obs"][n]
            out.last_image[n], out.last_direction[n] = last["image"], last["direction"]
        return out

    def _show(self, observation: dict[str, np.ndarray], out: Step) -> None:
        out.image[:], out.direction[:] = observation["image"], observation["direction"]
        out.mission[:] = observation["mission"]

    def close(self) -> None:
        """End the processes."""
        self.envs.close()


class Learning:
    """A learner whose updates are measured.

    Args:
        make: What plays the levels.
        envs: Environments.
        levels: The levels to play.
        samples: Environment steps of an update.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        envs: int,
        levels: str | Levels = STAGE,
        samples: int = Config.envs * Config.rollout,
    ) -> None:
        config = Config(envs=envs, workers=CORES, shaping=0.0)
        self.rollout = samples // envs
        self.learner = RecurrentPPO(
            replace(config.learner_settings(), rollout=self.rollout), config.ppo_settings(), 0.0, levels,
            record.Seeds(0), make,
        )  # fmt: skip
        self.samples, self._number = samples, 0

    def rate(self, updates: int) -> float:
        """Environment steps a second, end to end."""
        with thread_pool(CORES) as self.learner.threads:
            begin = time.perf_counter()
            for _ in range(updates):
                self._number += 1
                self.learner.collect(self._number)
                self.learner.compute_advantages()
                self.learner.optimise(self._number, 3e-4)
            return updates * self.samples / (time.perf_counter() - begin)

    def close(self) -> None:
        """End the processes of environments."""
        for worker in self.learner.workers:
            worker.rollout.engine.close()


def main() -> None:
    """Measure all in turn and write the result."""
    parser = _report.parser(__doc__)
    parser.add_argument("--updates", type=int, default=60, help="of a turn; a peer makes a fifth")
    options = parser.parse_args()
    use_one_torch_thread()
    many = Config().envs
    peers = {envs: Learning(Processes, envs) for envs in (many, FEW)}
    ours = Learning(Engine, many)
    measures = {"ours": partial(ours.rate, options.updates)}
    few = max(1, options.updates // 5)
    measures |= {str(envs): partial(each.rate, few) for envs, each in peers.items()}
    for each in (ours, *peers.values()):
        each.rate(1)
    rates = _report.alternate(measures, options.repeats)
    rows = [
        _report.row(
            f"PPO on the stage {STAGE}, rollout, update and all, {CORES} threads, {ours.samples} samples an update",
            rates["ours"], rates[str(envs)], unit="env steps/s", target=5,
            peer_name=f"the same on minigrid, AsyncVectorEnv, {envs} environments x {each.rollout} steps",
        )
        for envs, each in peers.items()
    ]  # fmt: skip
    for each in peers.values():
        each.close()
    _report.report("skills_training", rows, dry_run=options.dry_run)


if __name__ == "__main__":
    main()
