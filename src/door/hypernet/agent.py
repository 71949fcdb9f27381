"""The HN-PPO agent: a hypernetwork generates the actor of every task from the task's embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from door.hypernet.hypernetwork import CHUNK_SIZE, Hypernetwork, regulariser
from door.hypernet.update import HyperUpdate, UpdateSettings, split_weights
from rl.actor_critic import (
    Forward,
    NetworkShape,
    count,
    critic_value,
    forward,
    initial_weights,
    unflatten,
)
from rl.normalise import ObservationNormaliser
from rl.policy import Policy
from rl.ppo import Loss

NEUTRAL_CANDIDATES = 32  # random embeddings from which a neutral start chooses
# Weights of the last layer: for fewer, importing numba (about 1 s) is not worthwhile
FUSED_MIN_WEIGHTS = 1 << 18


@dataclass(frozen=True)
class HyperSettings:
    """Architecture of the agent, start of a task, and hyperparameters of the gradient step.

    Attributes:
        te_dim: Size of a task embedding.
        hyper_width: Width of the hypernetwork's two hidden layers; 0: ten times the target's first (source).
        chunked: Generate `CHUNK_SIZE` weights at a time instead of all at once.
        freshcritic: The critic is an ordinary network, new for every task; otherwise it is generated too.
        squash_mean: Pass the mean action through tanh.
        log_std: Added to the generated log standard deviation.
        neutral_start: A further task starts like a new network: with the one of `NEUTRAL_CANDIDATES` random embeddings
            that gives the smallest actor (norm of its weights), and with the exploration exp(log_std), by a correction
            of the generated log standard deviation. Otherwise it starts at a random embedding (source): with actions
            for other tasks, and less exploration.
        update: Of the gradient step.
    """

    te_dim: int
    hyper_width: int
    chunked: bool
    freshcritic: bool
    squash_mean: bool
    log_std: float
    neutral_start: bool
    update: UpdateSettings


class HyperAgent:
    """Actor and critic for a sequence of tasks, an `rl.ppo.Agent`.

    Attributes:
        hypernetwork: Generates the weights.
        embeddings: [tasks, te_dim]; only the last row, of the current task, changes.
        targets: [tasks - 1, P], weights of the old tasks at the start of the current one.
        critic: [Q], weights of the fresh critic; empty if the critic is generated.
        normalisers: One per task: the observations of old tasks keep their scale.
        log_stds: [tasks, A], added to the generated log standard deviations.
        tasks: Names in the order of learning.
    """

    def __init__(
        self,
        shape: NetworkShape,
        settings: HyperSettings,
        generator: torch.Generator,
        task: str = "",
    ) -> None:
        """Draw a new agent and start its first task."""
        self.shape, self.settings = shape, settings
        generated = count(shape.actor) + (0 if settings.freshcritic else count(shape.critic))
        width = settings.hyper_width or 10 * shape.hidden[0]
        self.hypernetwork = Hypernetwork(
            generated,
            settings.te_dim,
            (width, width),
            generator,
            chunk_size=CHUNK_SIZE if settings.chunked else 0,
        )
        self.embeddings = torch.empty(0, settings.te_dim)
        self.log_stds = torch.empty(0, *shape.actor[-1])
        self.normalisers: list[ObservationNormaliser] = []
        self.tasks: list[str] = []
        self.begin_task(task, generator)

    def begin_task(self, task: str, generator: torch.Generator, like: int | None = None) -> None:
        """Add a task: store the old tasks' weights; new embedding, normaliser, fresh critic and optimisers.

        Args:
            task: Its name.
            generator: Source of the new weights.
            like: Place of the old task as which the new one acts at first, with the exploration of a new network; None:
                `neutral_start` decides.
        """
        settings = self.settings
        self.targets = self.hypernetwork.generate(self.embeddings)
        neutral = settings.neutral_start and bool(self.tasks)
        candidates = torch.randn(
            NEUTRAL_CANDIDATES if neutral else 1, settings.te_dim, generator=generator
        )
        normaliser = ObservationNormaliser(self.shape.observation_size)
        if like is None:
            actors = self.hypernetwork.generate(candidates)[:, : count(self.shape.actor)]
            embedding = candidates[torch.linalg.vector_norm(actors, dim=1).argmin()]
        else:
            embedding = self.embeddings[like]
            normaliser.set_state(self.normalisers[like].state())
        self.embeddings = torch.cat((self.embeddings, embedding[None]))
        self.normalisers.append(normaliser)
        self.tasks.append(task)
        self.critic = torch.empty(0)
        if settings.freshcritic:
            self.critic = initial_weights(self.shape.critic, generator, output_gain=2**0.5)
        self._update = self._new_update()
        log_std = torch.full(self.shape.actor[-1], settings.log_std)
        if neutral or like is not None:
            log_std -= self._actor(self.weights())[-1]
        self.log_stds = torch.cat((self.log_stds, log_std[None]))

    def _new_update(self) -> HyperUpdate:
        """Return the optimisers of the current task; fused, if that is possible and worth its compilation."""
        network, kind = self.hypernetwork, HyperUpdate
        possible = not network.chunks and not self.settings.update.clip_regulariser
        if possible and network.theta[-2].numel() >= FUSED_MIN_WEIGHTS:
            from door.hypernet.fused_step import FusedHyperUpdate as kind
        return kind(
            network,
            self.embeddings[-1:].clone(),  # no memory shared with the frozen embeddings
            self.critic,
            self.embeddings[:-1],
            self.targets,
            self.shape,
            self.settings.update,
        )

    def set_lr(self, fraction: float) -> None:
        """Set all step sizes to a fraction of their initial values."""
        self._update.set_lr(fraction)

    @property
    def normaliser(self) -> ObservationNormaliser:
        """The current task's."""
        return self.normalisers[-1]

    def weights(self, task_id: int = -1) -> Tensor:
        """Return the generated weights [P] of a task, by default the current one."""
        current = task_id in (-1, len(self.tasks) - 1)
        embedding = self._update.embedding if current else self.embeddings[task_id][None]
        return self.hypernetwork.generate(embedding)[0]

    def _actor(self, generated: Tensor) -> list[Tensor]:
        return unflatten(generated[: count(self.shape.actor)], self.shape.actor)

    def policy(self, task_id: int = -1) -> Policy:
        """Return a frozen copy of a task's actor, by default of the current one."""
        actor = self._actor(self.weights(task_id))
        actor[-1] = actor[-1] + self.log_stds[task_id]
        return Policy(actor, self.normalisers[task_id], squash=self.settings.squash_mean)

    def policies(self) -> list[Policy]:
        """Return frozen actors of all tasks, in the order of learning."""
        return [self.policy(i) for i in range(len(self.tasks))]

    def values(self, observations: Tensor) -> Tensor:
        """Return the critic's values [B] of observations [B, O]."""
        if self.settings.freshcritic:  # no weights need to be generated
            return critic_value(unflatten(self.critic, self.shape.critic), observations)
        return critic_value(split_weights(self.weights(), self.critic, self.shape)[1], observations)

    def forward(self, observations: Tensor, actions: Tensor) -> Forward:
        """Generate the current task's weights, and evaluate actor and critic on a minibatch."""
        actor, critic = split_weights(self.weights(), self.critic, self.shape)
        actor[-1] = actor[-1] + self.log_stds[-1]
        return forward(actor, critic, observations, actions, squash=self.settings.squash_mean)

    def gradient_step(self, forward: Forward, loss: Loss) -> float:
        """Do the step of `door.hypernet.update`; return the norm of the gradient before clipping."""
        norm = self._update.step(forward, loss)
        self.embeddings[-1] = self._update.embedding[0]
        return norm

    def regularisation(self) -> float:
        """Return the regulariser's value without beta and look-ahead: mean squared change of old tasks' weights."""
        if not len(self.targets):
            return 0.0
        return regulariser(self.hypernetwork, self.embeddings[:-1], self.targets, 1.0)[0]

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of the last loss by name."""
        named = {"generated weights": self._update.weights_gradient, "critic": self.critic.grad}
        return {name: gradient for name, gradient in named.items() if gradient.numel()}

    def tensors(self) -> dict[str, Tensor]:
        """Return all weights by name, for a checkpoint and its digest."""
        named = self.hypernetwork.named() | {"embeddings": self.embeddings}
        if self.settings.freshcritic:
            named["critic"] = self.critic
        return named

    def state(self) -> dict[str, Any]:
        """Return the state of optimisers, targets and normalisers, loadable with `weights_only`."""
        return {
            "squash_mean": self.settings.squash_mean,
            "log_std": self.settings.log_std,
            "tasks": self.tasks,
            "targets": self.targets,
            "log_stds": self.log_stds,
            "adams": [adam.state_dict() for adam in self._update.adams],
            "normalisers": [normaliser.state() for normaliser in self.normalisers],
        }

    def load(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Restore the weights from `tensors` and the rest from `state`; training then continues to the bit.

        Raises:
            ValueError: They belong to another architecture; the message names the difference.
        """
        for name, tensor in self.tensors().items():
            saved = tensors.get(name)
            if saved is None or (name != "embeddings" and saved.shape != tensor.shape):
                shape = None if saved is None else tuple(saved.shape)
                raise ValueError(f"{name} is {shape} there, {tuple(tensor.shape)} here")
        if tensors["embeddings"].shape[1] != self.settings.te_dim:
            raise ValueError(f"te-dim is {tensors['embeddings'].shape[1]} there")
        for name in ("squash_mean", "log_std"):
            if state[name] != getattr(self.settings, name):
                raise ValueError(f"{name.replace('_', '-')} is {state[name]} there")
        for name, tensor in self.hypernetwork.named().items():
            tensor.copy_(tensors[name])
        self.embeddings = tensors["embeddings"].clone()
        if self.settings.freshcritic:
            self.critic = tensors["critic"].clone()
        self.tasks, self.targets = list(state["tasks"]), state["targets"].clone()
        # Old checkpoints have the same log_std for all tasks.
        same = torch.full((len(self.tasks), *self.shape.actor[-1]), self.settings.log_std)
        self.log_stds = state.get("log_stds", same).clone()
        self.normalisers = []
        for saved_normaliser in state["normalisers"]:
            self.normalisers.append(ObservationNormaliser(self.shape.observation_size))
            self.normalisers[-1].set_state(saved_normaliser)
        self._update = self._new_update()
        for adam, saved_adam in zip(self._update.adams, state["adams"], strict=True):
            adam.load_state_dict(saved_adam)
