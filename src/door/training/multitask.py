"""Several tasks trained at once: doors of all tasks side by side; observations end with the task as a one-hot."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from door.env.door_env import DoorVecEnv, Seeds
from door.training.evaluation import Evaluation, HeldOutWorlds
from door.training.flags import DoorConfig
from door.training.trainer import DoorAgent, Trainer
from rl.actor_critic import NetworkShape
from rl.agent import AgentSettings, PPOAgent
from rl.normalise import ObservationNormaliser
from rl.policy import Policy
from runcatalog import record


@dataclass(frozen=True)
class TaskSeeds:
    """The seeds of one of several tasks, whose random numbers are independent of the others'."""

    seeds: Seeds
    task: str

    def generator(self, purpose: str, index: int = 0) -> np.random.Generator:
        """Return a generator that depends on the seed, the task, the purpose and the index."""
        return self.seeds.generator(f"{self.task} {purpose}", index)


class IndexedDoors:
    """Doors of one task, an `rl.rollout.VectorEnv`; observations are [n, obs_size + number of tasks]."""

    def __init__(self, env: DoorVecEnv, index: int, tasks: int) -> None:
        self.env, self.num_envs = env, env.num_envs
        self._one_hot = np.zeros((env.num_envs, tasks), np.float32)
        self._one_hot[:, index] = 1

    def new_worlds(self) -> np.ndarray:
        """Draw a new world for every environment; return observations."""
        return self._indexed(self.env.new_worlds())

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        """Simulate one decision, see `DoorVecEnv.step`."""
        observations, reward, truncated, info = self.env.step(action)
        info["final_obs"] = self._indexed(info["final_obs"])
        return self._indexed(observations), reward, truncated, info

    def _indexed(self, observations: np.ndarray) -> np.ndarray:
        return np.concatenate((observations, self._one_hot), 1)


class TaskGroups:
    """The doors of several tasks, a group each, with equal shares of the environments; see `DoorGroups`."""

    def __init__(
        self, tasks: str, robot: str, num_envs: int, *, seeds: Seeds, threads: int, **more: Any
    ) -> None:
        """Take the arguments of `DoorGroups`; `tasks` has the names, separated by spaces."""
        names = tasks.split()
        self.parallel = threads > 1 and len(names) > 1
        self.groups = [
            IndexedDoors(
                DoorVecEnv(
                    name,
                    robot,
                    num_envs // len(names),
                    seeds=TaskSeeds(seeds, name),
                    threads=1 if self.parallel else threads,
                    **more,
                ),
                index,
                len(names),
            )
            for index, name in enumerate(names)
        ]
        env = self.groups[0].env
        self.obs_size, self.action_size = env.obs_size + len(names), env.action_size

    def new_worlds(self) -> np.ndarray:
        """Draw a new world for every environment; return observations [n, obs_size]."""
        with ThreadPoolExecutor(len(self.groups) if self.parallel else 1) as threads:
            return np.concatenate(list(threads.map(IndexedDoors.new_worlds, self.groups)))

    def state(self) -> dict[str, Any]:
        """Return the states of the groups."""
        return {"groups": [group.env.state() for group in self.groups]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore `state()`."""
        for group, saved in zip(self.groups, state["groups"], strict=True):
            group.env.set_state(saved)

    def close(self) -> None:
        """Stop all threads."""
        for group in self.groups:
            group.env.close()


class MultitaskAgent(PPOAgent):
    """A PPO agent for several tasks, whose observations end with the task's one-hot index."""

    def __init__(
        self,
        shape: NetworkShape,
        settings: AgentSettings,
        generator: torch.Generator,
        *,
        tasks: Sequence[str],
    ) -> None:
        super().__init__(shape, settings, generator)
        self._tasks = list(tasks)

    def policies(self) -> list[Policy]:
        """Return a policy per task, for observations without the index."""
        return [self._policy_of(index) for index in range(len(self._tasks))]

    def _policy_of(self, index: int) -> Policy:
        """Return the policy of a task: the index is constant, so its part of the first layer goes into the bias."""
        size = self.shape.observation_size - len(self._tasks)
        observation = np.zeros(self.shape.observation_size, np.float32)
        observation[size + index] = 1
        one_hot = torch.from_numpy(self.normaliser(observation)[size:])
        weight, bias, *rest = self._actor
        state = self.normaliser.state()
        normaliser = ObservationNormaliser(size)
        normaliser.set_state(state | {name: state[name][:size] for name in ("mean", "variance")})
        first = [weight[:, :size].contiguous(), bias + weight[:, size:] @ one_hot]
        return Policy([*first, *rest], normaliser, squash=self.settings.squash_mean)

    def state(self) -> dict[str, Any]:
        """See `PPOAgent`; with the tasks in the order of their index."""
        return super().state() | {"tasks": self._tasks}

    def load(self, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        """See `PPOAgent`; the tasks have to be the same, in the same order."""
        super().load(tensors, state)
        if state.get("tasks", self._tasks) != self._tasks:  # older checkpoints lack them
            raise ValueError(f"task is {' '.join(state['tasks'])!r} there")


class MultitaskTrainer(Trainer):
    """A training run of all tasks of the flag `task`; success is the mean over the tasks."""

    environments = TaskGroups

    def __init__(self, run: record.Run, config: DoorConfig) -> None:
        super().__init__(run, config)
        self.tasks = config.task.split()

    def opening_rate(self, agent: DoorAgent, worlds: HeldOutWorlds) -> float:
        """Return the mean success over the tasks [1]."""
        return float(np.mean(list(self.rates_of_tasks(agent, worlds).values())))

    def evaluate(self, agent: DoorAgent, worlds: HeldOutWorlds) -> Evaluation:
        """Return the evaluation in the worlds of all tasks together."""
        return pooled([worlds.evaluate(policy, task) for task, policy in self.policies(agent)])

    def rates_of_tasks(self, agent: DoorAgent, worlds: HeldOutWorlds) -> dict[str, float]:
        """Return the success on each task, as metrics."""
        return {
            f"opening_rate/{index}_{task}": worlds.opening_rate(policy, task)
            for index, (task, policy) in enumerate(self.policies(agent))
        }


def pooled(parts: list[Evaluation]) -> Evaluation:
    """Return evaluations with equal numbers of worlds as one."""
    successes = np.concatenate([part.successes for part in parts])
    times = [part.opening_time for part in parts if part.successes.any()]
    counts = [part.successes.sum() for part in parts if part.successes.any()]
    return Evaluation(
        opening_rate=float(successes.mean()),
        successes=successes,
        opened=np.concatenate([part.opened for part in parts]),
        opening_time=float(np.average(times, weights=counts)) if times else -1.0,
        episode_return=float(np.mean([part.episode_return for part in parts])),
        max_penetration=max(part.max_penetration for part in parts),
        contact_rate=float(np.mean([part.contact_rate for part in parts])),
        worlds=[world for part in parts for world in part.worlds],
    )
