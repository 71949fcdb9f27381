"""Recurrent PPO (Schulman et al. 2017, arXiv 1707.06347, algorithm 1) with advantages by GAE (Schulman et al. 2016).

One update, with the papers' symbols (and the flags that set them):

    collect: play T steps (rollout) in N environments (envs) with pi_old; note the memory h_0 before the first
    compute_advantages:
        r_t = reward_t + shaping (gamma F(s_(t+1)) - F(s_t))
        delta_t = r_t + gamma V_old(s_(t+1)) - V_old(s_t)
        A_t = sum over l of (gamma lambda)^l delta_(t+l) within the episode;  R_t = A_t + V_old(s_t)
        A = (A - mean A) / (std A + 1e-5) over all steps of all environments
    optimise: for K passes, for all minibatches of whole environments in random order:
        pi, V = network unrolled through the T steps from h_0
        rho_t = pi(a_t | s_t) / pi_old(a_t | s_t)
        L = mean of [-min(rho_t A_t, clip(rho_t, 1 - eps, 1 + eps) A_t) + c_1 L_V(V, R_t) - c_2 entropy(pi(. | s_t))]
        Adam step with the gradient of L, its norm limited to max_grad_norm

eps is clip_coef, c_1 value_coef, c_2 entropy_coef. The environments are divided over workers with their own networks,
whose gradients are averaged in a fixed order: the result is the same, bit for bit, with any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from rl.adam import Adam
from rl.gae import gae
from rl.ppo import STATISTICS, PPOSettings, Targets, ppo_loss
from runcatalog import record
from skills.agents import kernels
from skills.agents.evaluation import FIRST_TRAINING_SEED
from skills.agents.network import FROZEN, Network, Shape, initial_weights, named_views
from skills.agents.policy import Agent, NetworkAgent
from skills.agents.rollout import Rollout
from skills.levels.engine import Engine
from skills.levels.shaping import shaping_rewards
from skills.levels.state import Levels

ADAM_EPS = 1e-5  # as in a2c_ppo_acktr
_T = TypeVar("_T")


@dataclass(frozen=True)
class LearnerSettings:
    """Settings of a learner, whatever its loss.

    Attributes:
        shape: Sizes of the network.
        envs: Number of environments N.
        workers: Number of equal parts of them; another number gives other results.
        rollout: Steps T between two updates.
        passes: Passes K over a rollout.
        minibatch_size: Environments of a worker in a minibatch.
        max_grad_norm: Limit of the gradient's norm.
        frozen: Weights that do not train, a name in `network.FROZEN`.
    """

    shape: Shape
    envs: int
    workers: int
    rollout: int
    passes: int
    minibatch_size: int
    max_grad_norm: float
    frozen: str


@dataclass
class Worker:
    """A part of the environments, its own network with the shared weights, and the gradient that it computes.

    Attributes:
        rollout: The environments and the latest rollout.
        network: Network for the loss.
        gradient: Gradient of the loss, float32 [weights].
        advantages, returns: A_t and R_t, float32 [T, N / workers].
    """

    rollout: Rollout
    network: Network
    gradient: NDArray[np.float32]
    advantages: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    returns: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))

    def forward(self, columns: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the network's logits and values for some environments of the rollout, float32 [T, S, ...]."""
        film = self.network.film_tables(self.rollout.missions)
        return self.network.forward(self.rollout.inputs(columns), film)

    def backward(self, grad_outputs: NDArray[np.float32]) -> None:
        """Write `gradient` from the gradient of the last `forward`'s outputs."""
        self.network.backward(grad_outputs, named_views(self.gradient, self.network.shape))


class Learner:
    """Rollouts, minibatches and Adam; subclasses define the loss.

    Args:
        settings: See `LearnerSettings`.
        levels: Stage or levels to train on, see `skills.levels.engine.Engine`.
        seeds: Random streams of the run.
        make: Makes the environments from levels and their number.

    Attributes:
        weights: All weights as a vector, with `grad`.
        threads: Threads that run the workers in parallel; None: one worker after the other.
        statistics: Names of the values that `loss_gradient` returns.
    """

    statistics: tuple[str, ...]
    shaping: float = 0.0

    def __init__(
        self,
        settings: LearnerSettings,
        levels: str | Levels,
        seeds: record.Seeds,
        make: Callable[..., Any] = Engine,
    ) -> None:
        self.settings, self.shape, self.levels = settings, settings.shape, levels
        self.threads: ThreadPoolExecutor | None = None
        self._seeds, self._make = seeds, make
        flat = initial_weights(self.shape, seeds.torch("weights"))
        self.weights = torch.from_numpy(flat)
        self.weights.grad = torch.zeros_like(self.weights)
        self.optimizer = Adam([self.weights], 0.0, eps=ADAM_EPS)
        mask = np.ones_like(flat)
        for name, view in named_views(mask, self.shape).items():
            view[:] = name not in FROZEN[settings.frozen]
        self._mask = torch.from_numpy(mask) if settings.frozen != "nothing" else None
        first = seeds.generator("levels").integers(FIRST_TRAINING_SEED, 1 << 63, settings.envs)
        self.workers = [
            Worker(self.make_rollout(index, part), self.network(), np.zeros_like(flat))
            for index, part in enumerate(np.split(first, settings.workers))
        ]
        self._gradients = [torch.from_numpy(worker.gradient) for worker in self.workers]

    def make_rollout(self, index: int, seeds: NDArray[np.int64]) -> Rollout:
        """Return the environments of a worker, with the seeds of their first levels."""
        engine = self._make(self.levels, len(seeds))
        shaped = self.shaping > 0
        return Rollout(engine, self.network(), self.settings.rollout, seeds, shaping=shaped)

    def network(self) -> Network:
        """Return a new network on the learner's weights."""
        return Network(self.shape, self.weights.numpy())

    @property
    def agent(self) -> Agent:
        """An agent with the current weights, valid until the next update."""
        return NetworkAgent(self.network())

    def collect(self, update: int) -> None:
        """Play the rollout of an update, numbered from 1."""
        shape = (len(self.workers), *self.workers[0].rollout.actions.shape)
        uniform = self._seeds.generator("actions", update).random(shape)
        self._map(lambda worker, draws: worker.rollout.collect(draws), self.workers, uniform)

    def loss_gradient(self, worker: Worker, columns: NDArray[np.int64]) -> torch.Tensor:
        """Write the loss's gradient over some environments of a worker's rollout; return the values of `statistics`."""
        raise NotImplementedError

    def optimise(self, update: int, lr: float) -> dict[str, float]:
        """Make all gradient steps of an update.

        Args:
            update: Number of the update, from 1.
            lr: Adam's step size.

        Returns:
            Means of `statistics` and `grad_norm` over the gradient steps, and `episode_statistics`.

        Raises:
            NumericalError: A loss or a gradient is not finite.
        """
        self.optimizer.lr = lr
        history, norms = [], []
        for minibatch in self._minibatches(self._seeds.generator("minibatches", update)):
            statistics = self._map(self.loss_gradient, self.workers, minibatch)
            history.append(torch.stack(statistics).mean(0))
            norms.append(self._adam_step())
        means = torch.stack(history).mean(0).tolist()
        result = dict(zip(self.statistics, means, strict=True))
        result["grad_norm"] = float(np.mean(norms))
        for name, value in result.items():
            if not np.isfinite(value):
                raise record.NumericalError(update, "gradient" if name == "grad_norm" else name)
        return result | self.episode_statistics()

    def _minibatches(self, rng: np.random.Generator) -> Iterator[list[NDArray[np.int64]]]:
        """Yield the environments of every worker for every minibatch of every pass, int64 [minibatch_size]."""
        envs = self.settings.envs // len(self.workers)
        size = self.settings.minibatch_size
        for _ in range(self.settings.passes):
            orders = [rng.permutation(envs) for _ in self.workers]
            for start in range(0, envs, size):
                yield [order[start : start + size] for order in orders]

    def _adam_step(self) -> float:
        """Step Adam with the workers' mean gradient, clipped by its norm; return the norm before clipping."""
        gradient = self.weights.grad
        torch.sum(torch.stack(self._gradients), 0, out=gradient)
        gradient.div_(len(self.workers))
        if self._mask is not None:
            gradient.mul_(self._mask)
        norm = torch.linalg.vector_norm(gradient).item()
        if norm > self.settings.max_grad_norm:
            gradient.mul_(self.settings.max_grad_norm / norm)
        self.optimizer.step()
        return norm

    def episode_statistics(self) -> dict[str, float]:
        """Return the number of episodes that ended in the rollout, and of successes, and the sum of rewards."""
        rollouts = [worker.rollout for worker in self.workers]
        rewards = [rollout.steps.reward[1:] for rollout in rollouts]
        episodes = sum(int(rollout.begins[1:].sum()) for rollout in rollouts)
        return {
            "episodes": float(episodes),
            "successes": float(sum(int((reward > 0).sum()) for reward in rewards)),
            "reward": float(sum(reward.sum() for reward in rewards)),
        }

    def state(self) -> dict[str, Any]:
        """Return the checkpoint state without the weights, from which `restore` continues bit for bit."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "players": [worker.rollout.state() for worker in self.workers],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state()`."""
        self.optimizer.load_state_dict(state["optimizer"])
        for worker, saved in zip(self.workers, state["players"], strict=True):
            worker.rollout.restore(saved)

    def _map(self, function: Callable[..., _T], *arguments: Any) -> list[_T]:
        """Return the results of a function for all workers, in their order."""
        run = map if self.threads is None else self.threads.map
        return list(run(function, *arguments))


class RecurrentPPO(Learner):
    """Recurrent PPO; see the module.

    Args:
        settings, levels, seeds, make: See `Learner`.
        ppo: Coefficients of the loss, discount and trace decay.
        shaping: Weight of the potential of keys and locks, see `skills.levels.shaping`; 0: none.
    """

    statistics = STATISTICS

    def __init__(
        self,
        settings: LearnerSettings,
        ppo: PPOSettings,
        shaping: float,
        levels: str | Levels,
        seeds: record.Seeds,
        make: Callable[..., Any] = Engine,
    ) -> None:
        self.ppo, self.shaping = ppo, shaping
        super().__init__(settings, levels, seeds, make)

    def compute_advantages(self) -> None:
        """Compute A_t and R_t of the rollout, and normalise A over all workers."""
        self._map(self._compute_advantages, self.workers)
        together = np.concatenate([worker.advantages.ravel() for worker in self.workers])
        mean, spread = together.mean(), together.std(ddof=1) + 1e-5
        for worker in self.workers:
            worker.advantages = (worker.advantages - mean) / spread

    def _compute_advantages(self, worker: Worker) -> None:
        rollout = worker.rollout
        terminated, truncated = rollout.steps.terminated[1:], rollout.steps.truncated[1:]
        reward = rollout.steps.reward[1:]
        if self.shaping:
            reward = reward + self.shaping * shaping_rewards(
                rollout.potentials, terminated, truncated, self.ppo.gamma
            )
        worker.advantages, worker.returns = gae(
            reward,
            rollout.values,
            terminated,
            truncated,
            gamma=self.ppo.gamma,
            gae_lambda=self.ppo.gae_lambda,
            time_limit=self.ppo.time_limit,
            final_values=rollout.final_values,
        )

    def loss_gradient(self, worker: Worker, columns: NDArray[np.int64]) -> torch.Tensor:
        """See `Learner`; returns `rl.ppo.STATISTICS`."""
        rollout = worker.rollout
        outputs = worker.forward(columns)  # becomes log-probabilities, then the gradient
        log_probs, entropies = np.empty((2, *outputs.shape[:2]), np.float32)
        self.log_probs_and_entropies(rollout, outputs, columns, log_probs, entropies)
        values = torch.from_numpy(outputs[..., -1].ravel())
        targets = Targets(
            log_probs=torch.from_numpy(rollout.log_probs[:, columns].ravel()),
            values=torch.from_numpy(rollout.values[:-1, columns].ravel()),
            advantages=torch.from_numpy(worker.advantages[:, columns].ravel()),
            returns=torch.from_numpy(worker.returns[:, columns].ravel()),
        )
        loss = ppo_loss(
            torch.from_numpy(log_probs.ravel()),
            torch.from_numpy(entropies).mean(),
            values,
            targets,
            self.ppo,
        )
        self.log_probs_and_entropies_backward(
            rollout,
            outputs,
            columns,
            entropies,
            loss.d_log_probs.numpy().reshape(entropies.shape),
            np.float32(-self.ppo.entropy_coef / entropies.size),
            loss.d_values.numpy().reshape(entropies.shape),
        )
        worker.backward(outputs)
        return loss.statistics

    def log_probs_and_entropies(
        self,
        rollout: Any,
        outputs: NDArray[np.float32],
        columns: NDArray[np.int64],
        log_probs: NDArray[np.float32],
        entropies: NDArray[np.float32],
    ) -> None:
        """Write log pi(a_t | s_t) and the policy's entropies, see `kernels.log_probs_and_entropies`."""
        kernels.log_probs_and_entropies(outputs, rollout.actions, columns, log_probs, entropies)

    def log_probs_and_entropies_backward(
        self,
        rollout: Any,
        outputs: NDArray[np.float32],
        columns: NDArray[np.int64],
        entropies: NDArray[np.float32],
        by_log_prob: NDArray[np.float32],
        by_entropy: np.float32,
        by_value: NDArray[np.float32],
    ) -> None:
        """Turn `outputs` into the loss's gradient, see `kernels.log_probs_and_entropies_backward`."""
        kernels.log_probs_and_entropies_backward(
            outputs, rollout.actions, columns, entropies, by_log_prob, by_entropy, by_value
        )


def use_one_torch_thread() -> None:
    """Restrict torch and BLAS to one thread from here on: the workers are what runs in parallel."""
    torch.set_num_threads(1)
    threadpool_limits(1, "blas")


def thread_pool(count: int) -> ThreadPoolExecutor:
    """Return threads for the workers, each with one torch thread, since sums over several round differently."""
    return ThreadPoolExecutor(count, initializer=use_one_torch_thread)
