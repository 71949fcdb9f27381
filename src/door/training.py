"""What the two training scripts share: a run's course round the algorithm."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from door import snapshots
from door.env import HORIZON
from door.evaluate import Evaluation, evaluate
from door.groups import DoorGroups
from door.options import DoorConfig
from door.reward import RewardConfig
from rl.normalise import ReturnScaler
from rl.policy import NetworkShape, Policy
from rl.ppo import PPOSettings
from rl.rollout import NonFiniteError, Rollout, collect
from runcatalog import record

TEST, VALIDATION = 0, 1  # sets of held-out worlds: reported; and looked at while training
# KL divergence of an update [nats] of an exploded policy, at least. Three of 391 committed records have more: two with
# hyperparameters of the source that exploded there too, and a trial of a search; the next 6.8, and half less than .1.
EXPLODED = 10.0
TOGETHER = 3  # validations whose mean decides on a stop: one high reading among many is often luck


class DoorAgent(Protocol):
    """What a run needs of an agent beside `rl.ppo.Agent`."""

    normaliser: Any

    def policy(self) -> Policy:
        """A frozen copy of the actor."""

    def policies(self) -> list[Policy]:
        """Those of all tasks that it tells apart, the present one's last."""

    def set_lr(self, fraction: float) -> None:
        """All step sizes as a fraction of the first."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights."""

    def state(self) -> dict[str, Any]:
        """All else."""

    def load(self, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        """Takes both back."""


def ppo_settings(config: DoorConfig, value_loss: str) -> PPOSettings:
    """What `rl.ppo.update` takes."""
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


class Training:
    """One run: environments, statistics, log, validation, checkpoints, and where it stands.

    Attributes:
        update: number of the present update, from 1.
        steps: decisions taken.
        curve: (update, decisions, opening rate) of each validation.
        tasks: names of the tasks that the agent tells apart, in the order of learning.
    """

    def __init__(self, run: record.Run, config: DoorConfig) -> None:
        self.run, self.config = run, config
        torch.set_num_threads(1)  # the networks are small: more threads are slower
        self.env = DoorGroups(
            config.task,
            config.robot,
            config.num_envs,
            seeds=run.seeds,
            threads=config.threads,
            envs_per_call=config.envs_per_call,
            reward=RewardConfig.of(config.reward),
            start=config.start,
        )
        self.shape = NetworkShape(self.env.obs_size, self.env.action_size, config.hidden())
        self.scaler = ReturnScaler(
            config.num_envs, config.gamma, enabled=config.reward_scale != "none"
        )
        self.total = config.env_steps // (config.num_envs * config.num_steps)
        self.update, self.steps = 0, 0
        self.curve: list[tuple[int, int, float]] = []
        self.tasks: Sequence[str] = [config.task]
        self.stopped = False
        self.exploded = ""  # when the policy first did
        self._clock = time.perf_counter()

    def __enter__(self) -> Training:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.env.close()
        if isinstance(error, NonFiniteError):
            raise record.NumericalError(self.update, error.tensor) from error

    def load_pretrained(self, agent: DoorAgent) -> bool:
        """Fills the agent from the checkpoint that the flags name; whether they name one."""
        path = self.config.pretrained_path()
        if path is None:
            return False
        checkpoint = record.load_checkpoint(path)
        try:
            agent.load(checkpoint.tensors, checkpoint.state["agent"])
        except (ValueError, KeyError) as error:
            raise record.UserError(f"--pretrained {self.config.pretrained}: {error}") from None
        self.run.add_parent(checkpoint.run_id)
        return True

    def restore(self, agent: DoorAgent) -> None:
        """Continues from the run's own newest checkpoint, if it has one."""
        checkpoint = self.run.restore()
        if checkpoint is None:
            return
        state = checkpoint.state
        try:
            agent.load(checkpoint.tensors, state["agent"])
        except (ValueError, KeyError) as error:
            raise record.UserError(f"checkpoint {checkpoint.path}: {error}") from None
        self.env.set_state(state["env"])
        self.scaler.set_state(state["scaler"])
        self.update, self.steps = state["update"], state["steps"]
        self.curve = [tuple(point) for point in state["curve"]]
        self.stopped = state["stopped"]
        self.exploded = state.get("exploded", "")  # older checkpoints do not tell
        self.run.event(f"continued after update {self.update}")

    def updates(self, agent: DoorAgent) -> Iterator[np.random.Generator]:
        """Counts the updates; each comes with the source of its minibatches' order.

        After the body of the loop: a validation and a checkpoint, where they are due. Bad numbers
        end the run with the update and the tensor.
        """
        if self.update == 0:
            self.snapshot(agent)
            if self.config.eval_interval and self.config.pretrained:
                self._validate(agent)  # what the tasks before are worth here; nothing, without
        while self.update < self.total and not self.stopped:
            self.update += 1
            if self.config.lr_schedule == "linear":
                agent.set_lr(1 - (self.update - 1) / self.total)
            elif self.config.lr_schedule == "success" and self.curve:
                agent.set_lr(min(1.0, max(0.1, (1 - self.curve[-1][2]) / 0.2)))
            yield self.run.seeds.generator("minibatches", self.update)
            interval = self.config.eval_interval
            if interval and (self.update % interval == 0 or self.update == self.total):
                self._validate(agent)
            ended = self.stopped or self.update == self.total
            if ended or self.update % self.config.save_interval == 0:
                self._checkpoint(agent, keep=1 if ended else 3)
            self.run.progress(self.update, self.total, "update")

    def rollout(self, agent: DoorAgent) -> tuple[Rollout, np.ndarray]:
        """New worlds everywhere, then one rollout; and its rewards as the agent is to see them."""
        self._clock = time.perf_counter()
        config = self.config
        observations = self.env.new_worlds()
        self.scaler.restart(statistics=config.reward_scale == "restart")
        rollout = collect(
            self.env.groups,
            agent.policy(),
            observations,
            config.num_steps,
            self.run.seeds.generator("exploration", self.update),
            keep_final=config.time_limit == "bootstrap",
            at_end=("episode_return", "episode_length", "success"),
            beside=self.env.beside,
        )
        self.steps += rollout.rewards.size
        return rollout, self.scaler(rollout.rewards, rollout.ends)

    def log(self, rollout: Rollout, statistics: dict[str, float]) -> None:
        """The update's numbers into the journal."""
        metrics = {
            **statistics,
            "env_steps": float(self.steps),
            "reward": float(rollout.rewards.mean()),
            "time/steps_per_second": rollout.rewards.size / (time.perf_counter() - self._clock),
        }
        # The worlds are new and begin at different times: what ends first is a part of an episode.
        whole = rollout.episodes["episode_length"] == HORIZON
        if whole.any():
            metrics["episode_return"] = float(rollout.episodes["episode_return"][whole].mean())
            metrics["train_opening_rate"] = float(rollout.episodes["success"][whole].mean())
        self.run.log(metrics, self.update)
        if statistics["approx_kl"] > EXPLODED and not self.exploded:
            self.exploded = f"at update {self.update} (KL {statistics['approx_kl']:.0f})"
            self.run.event(f"the policy exploded {self.exploded}")

    def evaluate(self, policy: Policy, worlds: int, task: str = "") -> Evaluation:
        """The deterministic policy on 100 held-out worlds: set `TEST` or `VALIDATION`."""
        config = self.config
        return evaluate(
            policy,
            task or config.task,
            config.robot,
            seeds=self.run.seeds,
            start=config.start,
            reward=RewardConfig.of(config.reward),
            threads=config.threads,
            index=worlds,
        )

    def snapshot(self, agent: DoorAgent) -> None:
        """Keeps the policies as they are now, of the tasks before too."""
        snapshots.save(self.run.directory, self.update, self.policies(agent))

    def policies(self, agent: DoorAgent) -> list[tuple[str, Policy]]:
        """Task and policy of each task that the agent tells apart, the present one last."""
        return list(zip(self.tasks, agent.policies(), strict=True))

    def _validate(self, agent: DoorAgent) -> None:
        self.snapshot(agent)
        seen = self.evaluate(agent.policy(), VALIDATION)
        self.curve.append((self.update, self.steps, seen.opening_rate))
        self.run.log(
            {
                "validation_opening_rate": seen.opening_rate,
                "validation_episode_return": seen.episode_return,
            },
            self.update,
        )
        self.run.event(
            f"update {self.update} of {self.total}, {self.steps} decisions: opened "
            f"{seen.successes.sum()} of {len(seen.successes)} validation worlds"
        )
        latest = [rate for _, _, rate in self.curve[-TOGETHER:]]
        enough = (
            len(latest) == TOGETHER and math.fsum(latest) >= TOGETHER * self.config.stop_at - 1e-9
        )
        self.stopped = bool(self.config.stop_at) and enough

    def _checkpoint(self, agent: DoorAgent, keep: int) -> None:
        state = {
            "update": self.update,
            "steps": self.steps,
            "curve": self.curve,
            "stopped": self.stopped,
            "exploded": self.exploded,
            "agent": agent.state(),
            "env": self.env.state(),
            "scaler": self.scaler.state(),
        }
        self.run.checkpoint(self.update, agent.tensors(), state, keep)
