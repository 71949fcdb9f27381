"""PPO (Schulman et al. 2017) on whole stretches of a rollout, so that a memory can be learned.

The environments are divided among workers; each has its own network, and gradients are added in a fixed order. So
the result is the same, to the bit, for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from rl.adam import Adam
from rl.gae import gae
from rl.ppo import STATISTICS, Batch, PPOSettings, ppo_loss
from rl.rollout import NonFiniteError
from skills import gates
from skills.acting import Agent, NetworkAgent
from skills.engine import Engine
from skills.network import FROZEN, Network, Sequences, Shape, initial, split
from skills.playing import FIRST_TRAINING_SEED, Player
from skills.shaping import shaped
from skills.state import Levels

ADAM_EPS = 1e-5  # as in a2c_ppo_acktr
_T = TypeVar("_T")


class Worker:
    """A share of the environments, and what it takes to learn from them.

    Args:
        player: Of these environments.
        learner: Network with the same weights, for the update.
        gradient: Vector that its gradients are written into.
    """

    def __init__(self, player: Player, learner: Network, gradient: NDArray[np.float32]) -> None:
        self.player, self.learner, self.gradient = player, learner, gradient
        self._gradients = split(gradient, learner.shape)
        self.advantages = self.returns = np.zeros(0, np.float32)

    def look_back(self, settings: PPOSettings, shaping: float) -> None:
        """Advantages and returns of the rollout."""
        player, steps = self.player, self.player.steps
        reward = steps.reward[1:]
        if shaping:
            ends = steps.terminated[1:], steps.truncated[1:]
            reward = reward + shaping * shaped(player.potentials, *ends, settings.gamma)
        self.advantages, self.returns = gae(
            reward,
            player.values,
            steps.terminated[1:],
            steps.truncated[1:],
            gamma=settings.gamma,
            gae_lambda=settings.gae_lambda,
            time_limit=settings.time_limit,
            final_values=player.final_values,
        )

    def gradients(self, which: NDArray[np.int64], settings: PPOSettings) -> torch.Tensor:
        """Writes the gradient of the loss on some columns of the rollout; returns its statistics, see `rl.ppo`."""
        player = self.player
        outputs = self.forward(which)
        values = torch.from_numpy(outputs[..., -1].ravel())
        log_probs, entropies = np.empty((2, *outputs.shape[:2]), np.float32)
        self.policy(outputs, which, log_probs, entropies)
        old = (player.log_probs, player.values[:-1], self.advantages, self.returns)
        sample = Batch(values, values, *(torch.from_numpy(each[:, which].ravel()) for each in old))
        entropy = torch.from_numpy(entropies).mean()
        loss = ppo_loss(torch.from_numpy(log_probs.ravel()), entropy, values, sample, settings)
        shape = entropies.shape
        by_entropy = np.float32(-settings.entropy_coef / entropies.size)
        self.policy_backward(
            outputs, which, entropies,
            loss.d_log_probs.numpy().reshape(shape), by_entropy, loss.d_values.numpy().reshape(shape),
        )  # fmt: skip
        self.backward(outputs)
        return loss.statistics

    def forward(self, which: NDArray[np.int64]) -> NDArray[np.float32]:
        """What the network gives on some columns of the rollout, float32 [T, S, ...]."""
        player = self.player
        seen = Sequences(
            player.images[:-1], player.steps.direction[:-1], player.rows[:-1],
            player.begins[:-1], player.first_memory, which,
        )  # fmt: skip
        return self.learner.forward(seen, self.learner.films(player.missions))

    def backward(self, of_outputs: NDArray[np.float32]) -> None:
        """Writes the gradient of the weights from that of what :meth:`forward` gave."""
        self.learner.backward(of_outputs, self._gradients)

    def policy(self, outputs: Any, which: Any, log_probs: Any, entropies: Any) -> None:
        """See `gates.policy`."""
        gates.policy(outputs, self.player.actions, which, log_probs, entropies)

    def policy_backward(self, outputs: Any, which: Any, *told: Any) -> None:
        """See `gates.policy_backward`."""
        gates.policy_backward(outputs, self.player.actions, which, *told)


class Learner:
    """An agent that learns.

    Args:
        shape: Of its network.
        levels: It learns on, see `skills.engine.Engine`.
        envs: Environments in all.
        workers: Shares of them; another number gives other numbers.
        rollout: Steps between two updates.
        settings: Of PPO; `minibatch_size` counts environments of a worker.
        max_grad_norm: Limit of the gradient's norm.
        frozen: Weights that stay as they are, a name in `network.FROZEN`.
        seeds: Streams of the run.
        shaping: Weight of the potential of keys and locks, see `skills.shaping`; 0: none.
        make: What plays the levels, see `playing.Player`.

    Attributes:
        weights: Vector.
        statistics: Names of what `Worker.gradients` gives.
    """

    statistics: tuple[str, ...] = STATISTICS

    def __init__(
        self,
        shape: Shape,
        levels: str | Levels,
        *,
        envs: int,
        workers: int,
        rollout: int,
        settings: PPOSettings,
        max_grad_norm: float,
        frozen: str,
        seeds: Any,
        shaping: float = 0.0,
        make: Callable[..., Any] = Engine,
    ) -> None:
        self._shaping, self._make = shaping, make
        self.shape, self.settings, self._seeds = shape, settings, seeds
        self._max_grad_norm = max_grad_norm
        flat = initial(shape, seeds.torch("weights"))
        self.weights = torch.from_numpy(flat)
        self.weights.grad = torch.zeros_like(self.weights)
        self.optimizer = Adam([self.weights], 0.0, eps=ADAM_EPS)
        mask = np.ones_like(flat)
        for name, part in split(mask, shape).items():
            part[:] = name not in FROZEN[frozen]
        self._mask = torch.from_numpy(mask) if frozen != "nothing" else None
        first = seeds.generator("levels").integers(FIRST_TRAINING_SEED, 1 << 63, envs)
        self.levels, self.rollout = levels, rollout
        self.workers = [self.worker(i, part) for i, part in enumerate(np.split(first, workers))]
        self._gradients = [torch.from_numpy(each.gradient) for each in self.workers]

    def worker(self, index: int, seeds: NDArray[np.int64]) -> Worker:
        """Returns a share of the environments; `seeds`: of its first levels."""
        player = Player(*self.of_player(self.levels, seeds))
        return Worker(player, self.network(), np.zeros_like(self.weights.numpy()))

    def of_player(self, levels: str | Levels, seeds: NDArray[np.int64]) -> tuple[Any, ...]:
        """Arguments of `Player` for some environments."""
        network = self.network()
        return levels, len(seeds), self.rollout, network, seeds, self._make, self._shaping > 0

    def network(self) -> Network:
        """Another network that reads the weights."""
        return Network(self.shape, self.weights.numpy())

    @property
    def agent(self) -> Agent:
        """An agent with the present weights, until the next update."""
        return NetworkAgent(self.network())

    def update(
        self, number: int, lr: float, threads: ThreadPoolExecutor | None = None
    ) -> dict[str, float]:
        """Plays a rollout and learns from it.

        Args:
            number: Of the update, from 1.
            lr: Adam's step size.
            threads: From `thread_pool`, where workers run beside each other; None: one after the other.

        Returns:
            Statistics of `rl.ppo.update`, and of the rollout: episodes, successes.

        Raises:
            NonFiniteError: A loss or a gradient is not finite.
        """
        run = map if threads is None else threads.map
        self.collect(number, run)
        self.optimizer.lr = lr
        order = self._seeds.generator("minibatches", number)
        envs, size = len(self.workers[0].player.engine), self.settings.minibatch_size
        history, norms = [], []
        for _ in range(self.settings.epochs):
            columns = [order.permutation(envs) for _ in self.workers]
            for start in range(0, envs, size):
                which = [each[start : start + size] for each in columns]
                told = _each(
                    run,
                    lambda worker, some: worker.gradients(some, self.settings),
                    self.workers,
                    which,
                )
                history.append(torch.stack(told).mean(0))
                norms.append(self._step())
        means = torch.stack(history).mean(0).tolist()
        found = dict(zip(self.statistics, means, strict=True))
        found["grad_norm"] = float(np.mean(norms))
        for name, value in found.items():
            if not np.isfinite(value):
                raise NonFiniteError("gradient" if name == "grad_norm" else name)
        return found | self.episodes()

    def collect(self, number: int, run: Callable[..., Iterable[Any]]) -> None:
        """Plays the rollouts of an update, and what the loss needs to know of them."""
        self.play(number, run)
        _each(run, lambda worker: worker.look_back(self.settings, self._shaping), self.workers)
        self._normalise()

    def play(self, number: int, run: Callable[..., Iterable[Any]]) -> None:
        """Plays the rollouts of an update."""
        actions = self.workers[0].player.actions
        uniform = self._seeds.generator("actions", number).random(
            (len(self.workers), *actions.shape)
        )
        _each(run, lambda worker, draws: worker.player.rollout(draws), self.workers, uniform)

    def _normalise(self) -> None:
        """Advantages to mean 0 and spread 1 over the rollout."""
        together = np.concatenate([worker.advantages.ravel() for worker in self.workers])
        mean, spread = together.mean(), together.std(ddof=1) + 1e-5
        for worker in self.workers:
            worker.advantages = (worker.advantages - mean) / spread

    def _step(self) -> float:
        """Adam with the mean of the workers' gradients; returns its norm before clipping."""
        gradient = self.weights.grad
        torch.sum(torch.stack(self._gradients), 0, out=gradient)
        gradient.div_(len(self.workers))
        if self._mask is not None:
            gradient.mul_(self._mask)
        norm = torch.linalg.vector_norm(gradient).item()
        if norm > self._max_grad_norm:
            gradient.mul_(self._max_grad_norm / norm)
        self.optimizer.step()
        return norm

    def episodes(self) -> dict[str, float]:
        """Of the rollouts: episodes that ended, successes, mean reward."""
        steps = [worker.player.steps for worker in self.workers]
        episodes = sum(int(worker.player.begins[1:].sum()) for worker in self.workers)
        return {
            "episodes": float(episodes),
            "successes": float(sum(int((each.reward[1:] > 0).sum()) for each in steps)),
            "reward": float(sum(each.reward[1:].sum() for each in steps)) / max(episodes, 1),
        }

    def state(self) -> dict[str, Any]:
        """What it takes, besides the weights, to go on to the bit."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "players": [worker.player.state() for worker in self.workers],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state()`."""
        self.optimizer.load_state_dict(state["optimizer"])
        for worker, before in zip(self.workers, state["players"], strict=True):
            worker.player.restore(before)


def one_thread() -> None:
    """Lets matrix products use one thread from here on: the workers are what runs side by side."""
    torch.set_num_threads(1)
    threadpool_limits(1, "blas")


def thread_pool(count: int) -> ThreadPoolExecutor:
    """Returns threads for workers. Torch counts its own anew in each, and sums of several would round differently."""
    return ThreadPoolExecutor(count, initializer=one_thread)


def _each(run: Callable[..., Iterable[_T]], function: Callable[..., _T], *of: Any) -> list[_T]:
    """What a function gives for each, in order."""
    return list(run(function, *of))
