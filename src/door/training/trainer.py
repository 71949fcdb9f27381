"""The trainer of a door run: environments, learning rate, log, validation, early stopping, checkpoints.

The algorithm is in the training scripts (`door.train_ppo`, `door.train_hnppo`), `rl.ppo` and `door.hypernet.update`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from door.env.door_env import HORIZON
from door.env.groups import DoorGroups
from door.env.reward import RewardConfig
from door.training import snapshots
from door.training.evaluation import (
    DECISIONS,
    FIRST_WORLDS,
    TEST,
    TRIAL,
    VALIDATION,
    WORLDS,
    Evaluation,
    HeldOutWorlds,
)
from door.training.flags import DoorConfig
from rl.actor_critic import NetworkShape
from rl.normalise import ObservationNormaliser, ReturnScaler
from rl.policy import Policy
from rl.ppo import Agent, PPOSettings
from rl.rollout import NonFiniteError, Rollout, VectorEnv, collect
from runcatalog import record

# KL divergence of an update [nat] from which the policy counts as exploded. docs/door.md names the committed records
# that are above; all others are below 7.
EXPLODED = 10.0
TRIALS = 16  # worlds in which an earlier task's policy is tried: together about a rollout
ADAM_EPS = 1e-5  # as in a2c_ppo_acktr; torch has 1e-8


class DoorAgent(Agent, Protocol):
    """An `rl.ppo.Agent` with the further methods that the trainer calls."""

    normaliser: ObservationNormaliser

    def policy(self) -> Policy:
        """Return a frozen copy of the actor."""

    def policies(self) -> list[Policy]:
        """Return a policy per task if tasks have their own; the current task's last."""

    def set_lr(self, fraction: float) -> None:
        """Set all step sizes to a fraction of their initial values."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the weights by name."""

    def state(self) -> dict[str, Any]:
        """Return the rest of the state."""

    def load(self, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        """Restore weights and state."""


def ppo_settings(config: DoorConfig, value_loss: str) -> PPOSettings:
    """Return the hyperparameters of `rl.ppo.update`."""
    return PPOSettings(
        clip_coef=config.clip_coef,
        epochs=config.epochs,
        minibatch_size=config.minibatch_size,
        value_coef=config.value_coef,
        entropy_coef=config.entropy_coef,
        value_loss=value_loss,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        time_limit=config.time_limit,
        target_kl=config.target_kl,
    )


class Environments(Protocol):
    """Doors in groups that step independently, as `rl.rollout.collect` takes them; see `DoorGroups`."""

    groups: Sequence[VectorEnv]
    parallel: bool
    obs_size: int
    action_size: int

    def new_worlds(self) -> np.ndarray:
        """Draw a new world for every environment; return observations [n, obs_size]."""

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore `state`."""

    def close(self) -> None:
        """Stop all threads."""


class Trainer:
    """One training run.

    Attributes:
        run: The recorded run.
        config: Flags.
        env: Training environments.
        shape: Of actor and critic.
        total: Updates in the budget.
        update: Number of the current update, from 1.
        steps: Decisions so far.
        curve: (update, decisions, opening rate) per validation.
        tasks: Tasks for which the agent has a policy, in the order of learning.
        stopped: Whether early stopping has ended the run.
        exploded: Update and KL divergence at which the policy first exploded; "" if it did not.
    """

    environments: Callable[..., Environments] = DoorGroups

    def __init__(self, run: record.Run, config: DoorConfig) -> None:
        self.run, self.config = run, config
        torch.set_num_threads(1)  # for small networks one thread is the fastest
        self._reward = RewardConfig.of(config.reward, config.handle_reward)
        self.env = self.environments(
            config.task,
            config.robot,
            config.num_envs,
            seeds=run.seeds if config.world_seed == "run" else record.Seeds(secrets.randbits(63)),
            threads=config.threads,
            envs_per_call=config.envs_per_call,
            reward=self._reward,
            start=config.start,
        )
        self._validation = self._held_out(VALIDATION, WORLDS, FIRST_WORLDS)
        self.shape = NetworkShape(self.env.obs_size, self.env.action_size, config.hidden())
        self._scaler = ReturnScaler(
            config.num_envs, config.gamma, enabled=config.reward_scale != "none"
        )
        self.total = config.env_steps // (config.num_envs * config.num_steps)
        self.update, self.steps = 0, 0
        self.curve: list[tuple[int, int, float]] = []
        self.tasks: Sequence[str] = [config.task]
        self.stopped = False
        self.exploded = ""
        self._clock = time.perf_counter()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.env.close()
        self._validation.close()
        if isinstance(error, NonFiniteError):
            raise record.NumericalError(self.update, error.tensor) from error

    def load_pretrained(self, agent: DoorAgent) -> bool:
        """Load the agent from the checkpoint of the flag `pretrained`; return whether there is one."""
        path = self.config.pretrained_path()
        if path is None:
            return False
        checkpoint = record.load_checkpoint(path)
        try:
            agent.load(checkpoint.tensors, checkpoint.state["agent"])
        except ValueError as error:
            raise record.UserError(f"--pretrained {self.config.pretrained}: {error}") from None
        except KeyError as error:
            raise record.UserError(
                f"--pretrained {self.config.pretrained}: no checkpoint of door training ({error} is missing)"
            ) from None
        self.run.add_parent(checkpoint.run_id)
        return True

    def best_policy(self, policies: Sequence[Policy], tasks: Sequence[str]) -> int | None:
        """Return the place of the policy that opens most doors of this task; None if none opens half of them.

        A policy that opens fewer may be a local optimum: one that opened 26 % of the lever doors opened no more of them
        190,000 decisions later.

        All are tried in the same worlds, a set for this purpose; the decisions count.

        Args:
            policies: Of earlier tasks.
            tasks: Their names, for the log.
        """
        config = self.config
        with self._held_out(TRIAL, TRIALS) as worlds:
            rates = [worlds.opening_rate(policy, config.task) for policy in policies]
        self.steps += len(rates) * TRIALS * DECISIONS
        named = zip(tasks, rates, strict=True)
        self.run.log({f"trial_opening_rate/{i}_{task}": r for i, (task, r) in enumerate(named)}, 0)
        best = int(np.argmax(rates))
        if rates[best] < 0.5:
            self.run.event("no policy of an earlier task opens half of the doors: a new start")
            return None
        self.run.event(f"starts with the policy of task {best}, {tasks[best]}")
        return best

    def start(self, agent: DoorAgent) -> None:
        """Continue from the run's newest checkpoint; without one, save the initial policies.

        A pretrained agent is validated before its first update: the effect of the previous tasks on this one.
        """
        checkpoint = self.run.restore()
        if checkpoint is None:
            self.save_policies(agent)
            if self.config.eval_interval and self.config.pretrained:
                self._validate(agent)
            return
        state = checkpoint.state
        try:
            agent.load(checkpoint.tensors, state["agent"])
        except (ValueError, KeyError) as error:
            raise record.UserError(f"checkpoint {checkpoint.path}: {error}") from None
        self.env.set_state(state["env"])
        self._scaler.set_state(state["scaler"])
        self.update, self.steps = state["update"], state["steps"]
        self.curve = [tuple(point) for point in state["curve"]]
        self.stopped = state["stopped"]
        self.exploded = state.get("exploded", "")  # older checkpoints lack it
        self.run.event(f"continued after update {self.update}")

    def updates(self) -> Iterator[int]:
        """Yield the numbers of the remaining updates, until the budget or early stopping ends the run."""
        while self.update < self.total and not self.stopped:
            self.update += 1
            yield self.update
            self.run.progress(self.update, self.total, "update")

    def schedule_lr(self, agent: DoorAgent) -> None:
        """Set the learning rate of the current update (flag `lr_schedule`)."""
        if self.config.lr_schedule == "linear":
            agent.set_lr(1 - (self.update - 1) / self.total)
        elif self.config.lr_schedule == "success" and self.curve:
            agent.set_lr(min(1.0, max(0.1, (1 - self.curve[-1][2]) / 0.2)))

    def collect(self, agent: DoorAgent) -> tuple[Rollout, np.ndarray]:
        """Draw new worlds and collect a rollout in them; return it with its scaled rewards [T, N]."""
        self._clock = time.perf_counter()
        config = self.config
        observations = self.env.new_worlds()
        self._scaler.restart(statistics=config.reward_scale == "restart")
        rollout = collect(
            self.env.groups,
            agent.policy(),
            observations,
            config.num_steps,
            self.run.seeds.generator("exploration", self.update),
            keep_final=config.time_limit == "bootstrap",
            episode_info=("episode_return", "episode_length", "success"),
            parallel=self.env.parallel,
        )
        self.steps += rollout.rewards.size
        return rollout, self._scaler(rollout.rewards, rollout.ends)

    def log(self, rollout: Rollout, statistics: dict[str, float]) -> None:
        """Log the metrics of the current update."""
        metrics = {
            **statistics,
            "env_steps": float(self.steps),
            "reward": float(rollout.rewards.mean()),
            "time/steps_per_second": rollout.rewards.size / (time.perf_counter() - self._clock),
        }
        # The first episodes of a rollout start at staggered times; a rollout shorter than an episode has no whole one.
        complete = rollout.episodes["episode_length"] == HORIZON
        if complete.any():
            metrics["episode_return"] = float(rollout.episodes["episode_return"][complete].mean())
            metrics["train_opening_rate"] = float(rollout.episodes["success"][complete].mean())
        self.run.log(metrics, self.update)
        if statistics["approx_kl"] > EXPLODED and not self.exploded:
            self.exploded = f"at update {self.update} (KL {statistics['approx_kl']:.0f})"
            self.run.event(f"the policy exploded {self.exploded}")

    def validate_if_due(self, agent: DoorAgent) -> None:
        """Evaluate on the validation worlds every `eval_interval` updates, and decide on early stopping."""
        if record.is_due(self.update, self.config.eval_interval, self.total):
            self._validate(agent)

    def checkpoint_if_due(self, agent: DoorAgent) -> None:
        """Save a checkpoint every `save_interval` updates and after the last one."""
        last = self.stopped or self.update == self.total
        if not last and not self.run.checkpoint_due(self.update, self.config.save_interval):
            return
        state = {
            "update": self.update,
            "steps": self.steps,
            "curve": self.curve,
            "stopped": self.stopped,
            "exploded": self.exploded,
            "agent": agent.state(),
            "env": self.env.state(),
            "scaler": self._scaler.state(),
        }
        self.run.checkpoint(self.update, agent.tensors(), state, 1 if last else 3)

    def opening_rate(self, agent: DoorAgent, worlds: HeldOutWorlds) -> float:
        """Return the success of the current policy on the task that is trained [1]."""
        return worlds.opening_rate(agent.policy(), self.config.task)

    def evaluate(self, agent: DoorAgent, worlds: HeldOutWorlds) -> Evaluation:
        """Return the evaluation of the current policy on the task that is trained."""
        return worlds.evaluate(agent.policy(), self.config.task)

    def rates_of_tasks(self, agent: DoorAgent, worlds: HeldOutWorlds) -> dict[str, float]:
        """Return the success on the tasks learned before this one, as metrics."""
        return {
            f"opening_rate/{index}_{task}": worlds.opening_rate(policy, task)
            for index, (task, policy) in enumerate(self.policies(agent)[:-1])
        }

    def validation_return(self, agent: DoorAgent) -> float:
        """Return the mean return of whole trials in the validation worlds, which searches maximise."""
        return self.evaluate(agent, self._validation).episode_return

    def test_worlds(self) -> HeldOutWorlds:
        """Return the 100 test worlds; the caller closes them."""
        return self._held_out(TEST, WORLDS)

    def save_policies(self, agent: DoorAgent) -> None:
        """Save a snapshot of the current policies of all tasks."""
        snapshots.save(self.run.directory, self.update, self.policies(agent))

    def policies(self, agent: DoorAgent) -> list[tuple[str, Policy]]:
        """Return task and policy of all tasks for which the agent has one; the current task last."""
        return list(zip(self.tasks, agent.policies(), strict=True))

    def _held_out(self, index: int, worlds: int, first: int = 0) -> HeldOutWorlds:
        config = self.config
        return HeldOutWorlds(
            config.robot,
            seeds=self.run.seeds,
            worlds=worlds,
            start=config.start,
            reward=self._reward,
            threads=config.threads,
            index=index,
            first=first,
        )

    def _validate(self, agent: DoorAgent) -> None:
        self.save_policies(agent)
        rate = self.opening_rate(agent, self._validation)
        self.curve.append((self.update, self.steps, rate))
        self.run.log({"validation_opening_rate": rate}, self.update)
        tasks = len(self.config.task.split())
        tried = tasks * (WORLDS if rate else min(FIRST_WORLDS, WORLDS))
        self.run.event(
            f"update {self.update} of {self.total}, {self.steps} decisions: opened {rate * tried:.0f} of {tried} "
            "validation worlds"
        )
        self.stopped = record.reached_target(
            [rate for _, _, rate in self.curve], self.config.stop_at
        )
