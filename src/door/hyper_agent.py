"""The HN-PPO agent: a hypernetwork generates the actor, for each task from its own embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from door.hypernetwork import CHUNK_SIZE, Hypernetwork, regulariser
from door.theta import Theta, ThetaSettings, adam
from rl.actor_critic import ActorCritic
from rl.compat.torch import multiply_each
from rl.normalise import ObservationNormaliser
from rl.policy import NetworkShape, Policy, count, critic_value, initial_weights, unflatten

DRAWS = 32  # random embeddings of which a neutral start takes one


@dataclass(frozen=True)
class HyperSettings:
    """How the hypernetwork is built, stepped and held to its past.

    Attributes:
        te_dim: size of a task embedding.
        hyper_width: width of its two hidden layers; 0: ten times the target's first (source).
        chunked: chunks of `CHUNK_SIZE` weights instead of all at once.
        freshcritic: the critic is an ordinary network, new for each task; else generated too.
        lr, adam_eps: of its three Adams: theta, the fresh critic, the present embedding.
        max_grad_norm: limit of the norm of the task's gradient.
        clip_critic_apart: clip the fresh critic's gradient by a norm of its own
            (`critic_grad_norm`); the source clips it jointly with theta's.
        critic_grad_norm: see `clip_critic_apart`.
        critic_lr: step size of the fresh critic; 0: `lr` (source).
        beta: strength of the regulariser; 0: none.
        look_ahead: evaluate the regulariser at theta + the step that Adam is about to make.
        clip_regulariser: the regulariser's gradient counts in the norm that is clipped; in the
            source it is added after clipping.
        squash_mean: tanh around the mean action.
        log_std: added to the generated log standard deviation.
        neutral_start: a further task begins as a new network does: of `DRAWS` random embeddings at the
            one with the smallest actor (norm of its weights), and exploring with exp(log_std), by what
            is added to the generated log standard deviation from then on. Else at one random embedding,
            with whatever the hypernetwork gives there (source): actions that are right for another
            task, and less exploration.
    """

    te_dim: int = 8
    hyper_width: int = 0
    chunked: bool = False
    freshcritic: bool = True
    lr: float = 5e-3
    adam_eps: float = 1e-5
    max_grad_norm: float = 1e-4
    clip_critic_apart: bool = False
    critic_grad_norm: float = 0.5
    critic_lr: float = 0.0
    beta: float = 1e-3
    look_ahead: bool = True
    clip_regulariser: bool = False
    squash_mean: bool = False
    log_std: float = 0.0
    neutral_start: bool = True


class HyperAgent:
    """Actor (and critic) of a sequence of tasks; see `rl.ppo.Agent` for what an update calls.

    Attributes:
        embeddings: [tasks, te_dim]; the last row is the present task's and the only one that is
            stepped.
        targets: [tasks - 1, P], what the hypernetwork gave for the old tasks when the present
            one began.
        normalisers: one per task: an old task's observations stay scaled as they were.
        log_stds: [tasks, A], added to the generated log standard deviations of each task.
        tasks: names, in the order in which they were learned.
    """

    def __init__(
        self,
        shape: NetworkShape,
        settings: HyperSettings,
        generator: torch.Generator,
        task: str = "",
    ) -> None:
        self.shape, self.settings = shape, settings
        self._generated_shapes = list(shape.actor)
        if not settings.freshcritic:
            self._generated_shapes += shape.critic
        width = settings.hyper_width or 10 * shape.hidden[0]
        self.hypernetwork = Hypernetwork(
            count(self._generated_shapes),
            settings.te_dim,
            (width, width),
            generator,
            chunk_size=CHUNK_SIZE if settings.chunked else 0,
        )
        self._network = ActorCritic(squash=settings.squash_mean)
        self._gradient = torch.zeros(count(self._generated_shapes))  # of the generated weights
        self.embeddings = torch.empty(0, settings.te_dim)
        self.log_stds = torch.empty(0, *shape.actor[-1])
        self.normalisers: list[ObservationNormaliser] = []
        self.tasks: list[str] = []
        self.begin_task(task, generator)

    def begin_task(self, task: str, generator: torch.Generator) -> None:
        """Adds a task: new embedding, fresh critic, new optimisers, targets of the old."""
        settings = self.settings
        self.targets = self.hypernetwork.generate(self.embeddings)
        neutral = settings.neutral_start and bool(self.tasks)
        draws = torch.randn(DRAWS if neutral else 1, settings.te_dim, generator=generator)
        actors = self.hypernetwork.generate(draws)[:, : count(self.shape.actor)]
        smallest = torch.linalg.vector_norm(actors, dim=1).argmin()
        self.embeddings = torch.cat((self.embeddings, draws[smallest][None]))
        self.normalisers.append(ObservationNormaliser(self.shape.observation_size))
        self.tasks.append(task)
        self.critic = torch.empty(0)
        if settings.freshcritic:
            self.critic = initial_weights(self.shape.critic, generator, output_gain=2**0.5)
        self._new_optimisers()
        log_std = torch.full(self.shape.actor[-1], settings.log_std)
        if neutral:
            log_std -= self._actor(self.weights())[-1]
        self.log_stds = torch.cat((self.log_stds, log_std[None]))

    def _new_optimisers(self) -> None:
        lr, eps = self.settings.lr, self.settings.adam_eps
        # A copy: what is stepped must not share memory with the frozen embeddings.
        self._embedding = self.embeddings[-1:].clone()
        self._theta = self._theta_kind()(
            self.hypernetwork,
            ThetaSettings(lr, eps, self.settings.beta, self.settings.look_ahead),
            self.targets,
        )
        self._embedding_adam = adam([self._embedding], [torch.zeros_like(self._embedding)], lr, eps)
        self._critic_adam = adam(
            [self.critic], [torch.zeros_like(self.critic)], self.settings.critic_lr or lr, eps
        )

    def _theta_kind(self) -> type[Theta]:
        """One pass over theta, where that gives the same and is worth its compilation."""
        network, settings = self.hypernetwork, self.settings
        if network.chunks or settings.clip_regulariser:
            return Theta
        from door.one_pass import SMALLEST, OnePass

        return OnePass if network.theta[-2].numel() >= SMALLEST else Theta

    def set_lr(self, fraction: float) -> None:
        """All step sizes as a fraction of what they began with."""
        settings = self.settings
        self._theta.set_lr(fraction * settings.lr)
        self._embedding_adam.lr = fraction * settings.lr
        self._critic_adam.lr = fraction * (settings.critic_lr or settings.lr)

    @property
    def normaliser(self) -> ObservationNormaliser:
        """Of the present task."""
        return self.normalisers[-1]

    def weights(self, task_id: int = -1) -> Tensor:
        """Generated weights [P] of a task, by default the present one."""
        embedding = self.embeddings[task_id][None]
        if task_id in (-1, len(self.tasks) - 1):
            embedding = self._embedding
        return self.hypernetwork.generate(embedding)[0]

    def policy(self, task_id: int = -1) -> Policy:
        """A frozen actor of a task, by default the present one."""
        return self._policy(self.weights(task_id), task_id)

    def _policy(self, weights: Tensor, task_id: int) -> Policy:
        actor = self._actor(weights)
        actor[-1] = actor[-1] + self.log_stds[task_id]
        return Policy(actor, self.normalisers[task_id], squash=self.settings.squash_mean)

    def policies(self) -> list[Policy]:
        """Frozen actors of all tasks, in the order of learning."""
        return [self.policy(i) for i in range(len(self.tasks))]

    def _actor(self, generated: Tensor) -> list[Tensor]:
        return unflatten(generated, self._generated_shapes)[: len(self.shape.actor)]

    def _split(self, generated: Tensor, critic: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        tensors = unflatten(generated, self._generated_shapes)
        actor, rest = tensors[: len(self.shape.actor)], tensors[len(self.shape.actor) :]
        return actor, rest or unflatten(critic, self.shape.critic)

    def evaluate_actions(
        self, observations: Tensor, actions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `rl.ppo.Agent`."""
        actor, critic = self._split(self.weights(), self.critic)
        actor[-1] = actor[-1] + self.log_stds[-1]
        return self._network.evaluate(actor, critic, observations, actions)

    def values(self, observations: Tensor) -> Tensor:
        """See `rl.ppo.Agent`."""
        return critic_value(self._split(self.weights(), self.critic)[1], observations)

    def optimise(self, of_log_probs: Tensor, of_entropy: float, of_values: Tensor) -> float:
        """One step in the source's order (HN-PPO, thesis algorithm 1).

        The task's gradient is clipped; the embedding is stepped; the regulariser is taken at
        theta + delta theta, where delta theta is the step that Adam would make now, and its
        gradient is added, unclipped; theta and the critic are stepped.

        Returns:
            Norm of the task's gradient before clipping.
        """
        self._network.backward(
            of_log_probs, of_entropy, of_values, *self._split(self._gradient, self.critic.grad)
        )
        self._embedding.grad.copy_(self._theta.backward(self._embedding, self._gradient))
        old = self.embeddings[:-1] if self.settings.beta and len(self.embeddings) > 1 else None
        if old is not None and self.settings.clip_regulariser:
            self._theta.add_regulariser(old)
            old = None
        norm = self._clip()
        self._embedding_adam.step()
        self.embeddings[-1] = self._embedding[0]
        self._theta.step(old)
        if self.settings.freshcritic:
            self._critic_adam.step()
        return norm

    def _clip(self) -> float:
        settings, critic = self.settings, self.critic.grad
        gradients = [self._embedding.grad]
        if settings.freshcritic and settings.clip_critic_apart:
            torch.nn.utils.clip_grads_with_norm_(
                self.critic, settings.critic_grad_norm, torch.linalg.vector_norm(critic)
            )
        elif settings.freshcritic:
            gradients.append(critic)
        squares = sum(torch.linalg.vector_norm(each).item() ** 2 for each in gradients)
        norm = math.sqrt(self._theta.square_norm() + squares)
        scale = settings.max_grad_norm / (norm + 1e-6)
        if scale < 1:
            self._theta.scale(scale)
            multiply_each(gradients, scale)
        return norm

    def regularisation(self) -> float:
        """The regulariser's present value, without its factor beta and without the look-ahead."""
        if not len(self.targets):
            return 0.0
        return regulariser(self.hypernetwork, self.embeddings[:-1], self.targets, 1.0)[0]

    def gradients(self) -> dict[str, Tensor]:
        """See `rl.ppo.Agent`."""
        named = {"generated weights": self._gradient, "critic": self.critic.grad}
        return {name: gradient for name, gradient in named.items() if gradient.numel()}

    def tensors(self) -> dict[str, Tensor]:
        """All weights by name, for a checkpoint and its digest."""
        named = self.hypernetwork.named() | {"embeddings": self.embeddings}
        if self.settings.freshcritic:
            named["critic"] = self.critic
        return named

    def state(self) -> dict[str, Any]:
        """Optimisers, targets, normalisers; loadable with weights_only."""
        adams = (self._theta.adam, self._embedding_adam, self._critic_adam)
        return {
            "squash_mean": self.settings.squash_mean,
            "log_std": self.settings.log_std,
            "tasks": self.tasks,
            "targets": self.targets,
            "log_stds": self.log_stds,
            "adams": [each.state_dict() for each in adams],
            "normalisers": [normaliser.state() for normaliser in self.normalisers],
        }

    def load(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Takes back what `tensors` and `state` gave, for a continuation to the bit.

        Raises:
            ValueError: they belong to another architecture; the message says how.
        """
        expected = self.tensors()
        for name, tensor in expected.items():
            found = tensors.get(name)
            if found is None or (name != "embeddings" and found.shape != tensor.shape):
                shape = None if found is None else tuple(found.shape)
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
        # Older checkpoints have one for all tasks.
        same = torch.full((len(self.tasks), *self.shape.actor[-1]), self.settings.log_std)
        self.log_stds = state.get("log_stds", same).clone()
        self.normalisers = []
        for saved in state["normalisers"]:
            self.normalisers.append(ObservationNormaliser(self.shape.observation_size))
            self.normalisers[-1].set_state(saved)
        self._new_optimisers()
        adams = (self._theta.adam, self._embedding_adam, self._critic_adam)
        for each, saved in zip(adams, state["adams"], strict=True):
            each.load_state_dict(saved)
