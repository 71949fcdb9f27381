"""Training the gate of a mixture of experts by PPO: the same update with the mixture's policy.

pi(a | s) = sum over k of g_k(s) pi_k(a | s). The gate g and its value train; the experts pi_k are frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl.ppo import PPOSettings
from runcatalog import record
from runcatalog.record.training.checkpoint import find_checkpoint
from skills.agents import checkpoints, kernels, mixture_kernels
from skills.agents.evaluation import TEST_SEEDS, Episodes, play, play_sampled_and_greedy
from skills.agents.mixture import Mixture, Switch, entropy, expert_policies
from skills.agents.network import Array, Network
from skills.agents.policy import NetworkAgent
from skills.agents.rollout import Rollout
from skills.learning.level_sets import FIRST_SET, declare_levels
from skills.learning.options import MixtureConfig
from skills.learning.ppo import LearnerSettings, RecurrentPPO
from skills.learning.results import level_outcomes
from skills.learning.trainer import Trainer
from skills.levels.codes import ACTIONS, VERBS
from skills.levels.engine import Engine, Step
from skills.levels.stages import stages_by_verb


class MixtureRollout(Rollout):
    """Rollouts of a mixture.

    Args:
        engine, network, steps, seeds, shaping: See `Rollout`; `network` is the gate's.
        experts: The K experts.

    Attributes:
        opinions: The experts' action probabilities pi_k, float32 [T, N, K, ACTIONS].
        weights: The gate's weights g_k, float32 [T, N, K].
    """

    def __init__(
        self,
        engine: Any,
        network: Network,
        steps: int,
        seeds: NDArray[np.int64],
        *,
        shaping: bool,
        experts: Sequence[NetworkAgent],
    ) -> None:
        super().__init__(engine, network, steps, seeds, shaping=shaping)
        self.experts = experts
        count = len(seeds)
        self.opinions = np.zeros((steps, count, len(experts), ACTIONS), np.float32)
        self.weights = np.zeros((steps, count, len(experts)), np.float32)
        self._expert_memories = [expert.start(count) for expert in experts]
        self._mixed = np.zeros((count, ACTIONS + 1), np.float32)

    def _act(self, t: int, outputs: Array, draws: NDArray[np.float64]) -> None:
        for memory in self._expert_memories:
            kernels.reset_memory(memory, self.begins[t])
        self.opinions[t], self._expert_memories = expert_policies(
            self.experts, self.steps.at(t), self._expert_memories
        )
        mixture_kernels.mix_policies(outputs, self.opinions[t], self.weights[t], self._mixed)
        super()._act(t, self._mixed, draws)

    def state(self) -> dict[str, Any]:
        """See `Rollout`."""
        return super().state() | {"others": self._expert_memories}

    def restore(self, state: dict[str, Any]) -> None:
        """See `Rollout`."""
        super().restore(state)
        self._expert_memories = [np.ascontiguousarray(memory) for memory in state["others"]]


class GatePPO(RecurrentPPO):
    """PPO for the gate of a mixture.

    Args:
        experts: Frozen experts by name; the settings' shape has one choice per expert.
        settings, ppo, shaping, levels, seeds, make: See `RecurrentPPO`.
    """

    def __init__(
        self,
        experts: Mapping[str, NetworkAgent],
        settings: LearnerSettings,
        ppo: PPOSettings,
        shaping: float,
        levels: str,
        seeds: record.Seeds,
        make: Callable[..., Any] = Engine,
    ) -> None:
        self.experts = dict(experts)
        super().__init__(settings, ppo, shaping, levels, seeds, make)

    def make_rollout(self, index: int, seeds: NDArray[np.int64]) -> MixtureRollout:
        """See `Learner`."""
        experts = [expert.copy() for expert in self.experts.values()]
        return MixtureRollout(
            self._make(self.levels, len(seeds)), self.network(), self.settings.rollout, seeds,
            shaping=self.shaping > 0, experts=experts,
        )  # fmt: skip

    def log_probs_and_entropies(
        self,
        rollout: Any,
        outputs: NDArray[np.float32],
        columns: NDArray[np.int64],
        log_probs: NDArray[np.float32],
        entropies: NDArray[np.float32],
    ) -> None:
        """See `mixture_kernels.log_probs_and_entropies`."""
        mixture_kernels.log_probs_and_entropies(
            outputs, rollout.opinions, rollout.actions, columns, log_probs, entropies
        )

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
        """See `mixture_kernels.log_probs_and_entropies_backward`."""
        mixture_kernels.log_probs_and_entropies_backward(
            outputs, rollout.opinions, rollout.actions, columns, by_log_prob, by_entropy, by_value
        )

    @property
    def agent(self) -> Mixture:
        """See `Learner`."""
        return Mixture(NetworkAgent(self.network()), self.experts)

    def episode_statistics(self) -> dict[str, float]:
        """See `Learner`; with the gate's mean entropy [nats]."""
        weights = np.concatenate([worker.rollout.weights.ravel() for worker in self.workers])
        weights = weights.reshape(-1, len(self.experts)).astype(np.float64)
        return super().episode_statistics() | {"gate_entropy": float(entropy(weights).mean())}


class GateTrainer(Trainer[GatePPO, MixtureConfig]):
    """Trainer of `skill:moe`."""

    def make_learner(self) -> GatePPO:
        """See `Trainer`."""
        config = self.config
        self.test_seeds = TEST_SEEDS[: config.episodes]
        self.experts = self._load_experts()
        for expert in self.experts.values():
            self.run.add_parent(expert.run_id)
        return GatePPO(
            self.experts, config.learner_settings(), config.ppo_settings(), config.shaping, config.stage,
            self.run.seeds, self.training_engine,
        )  # fmt: skip

    def _load_experts(self) -> dict[str, NetworkAgent]:
        """Return the four specialists and the further experts by name."""
        experts = dict(checkpoints.load_specialists(self.config.specialists()))
        names: dict[Path, str] = {}
        for word, folder in self.config.further_experts(self.run.directory).items():
            same = names.setdefault(find_checkpoint(folder), word)
            if same != word:
                raise record.UserError(
                    f"--more: {same} and {word} are the same agent; name each expert once"
                )
            agent, name = checkpoints.load(folder), Path(word).name
            if not isinstance(agent, NetworkAgent) or name in (*experts, checkpoints.GATE):
                raise record.UserError(
                    f"--more: {word}: an expert is a single network with a name of its own"
                )
            experts[name] = agent
        return experts

    def initialise(self) -> None:
        """See `Trainer`; the gate begins with random weights."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """See `Trainer`; with the experts' weights, so that the checkpoint is a complete agent."""
        tensors = checkpoints.named_tensors(self.learner.network(), checkpoints.GATE)
        for name, expert in self.experts.items():
            tensors |= checkpoints.named_tensors(expert.network, name)
        return tensors

    def trained_tensors(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """See `Trainer`."""
        return checkpoints.part_tensors(tensors, checkpoints.GATE)

    def description(self) -> dict[str, Any]:
        """See `Trainer`."""
        experts = checkpoints.expert_descriptions(self.experts)
        return super().description() | {"experts": experts}

    def compare(self) -> tuple[dict[str, dict[str, dict[str, Episodes]]], GateStatistics]:
        """Play the test episodes of all verbs together (`all`) and of every verb.

        Returns:
            Episodes by verb, then of the mixture (`moe`) and without a gate (`switch`: the verb's own expert), then
            sampled and greedy; and the gate's statistics in the sampled episodes of `all`.
        """
        seeds = np.asarray(self.test_seeds)
        contents = declare_levels(self.run, FIRST_SET, {self.config.stage: seeds})
        mixture = self.learner.agent
        switch = Switch(NetworkAgent(self.learner.network()), self.experts)
        statistics = GateStatistics(mixture)
        episodes: dict[str, dict[str, dict[str, Episodes]]] = {}
        stages = {"all": self.config.stage, **stages_by_verb(self.config.stage)}
        for index, (name, stage) in enumerate(stages.items()):
            episodes[name] = {}
            for who, agent in (("moe", mixture), ("switch", self.experts.get(name, switch))):
                watch = statistics if (name, who) == ("all", "moe") else None
                uniform = self.run.seeds.generator("test", index)
                episodes[name][who] = play_sampled_and_greedy(
                    agent, stage, self.test_seeds, uniform, watch=watch
                )
        self.outcomes = [level_outcomes(contents[self.config.stage], episodes["all"]["moe"])]
        return episodes, statistics


class GateStatistics:
    """The gate's weights by verb over the episodes of `play`, as its `watch`.

    Attributes:
        steps: Steps by verb, int64 [V].
        weights: Sums of the weights over the steps, float64 [V, K].
        entropies: Sums of the gate's entropy [nats], float64 [V].
        highest: Steps in which an expert had the highest weight, int64 [V, K].
    """

    def __init__(self, mixture: Mixture) -> None:
        self._mixture = mixture
        size = len(VERBS), len(mixture.experts)
        self.steps, self.entropies = np.zeros(len(VERBS), np.int64), np.zeros(len(VERBS))
        self.weights, self.highest = np.zeros(size), np.zeros(size, np.int64)

    def __call__(self, step: Step, unfinished: NDArray[np.bool_]) -> None:
        """Add a step of the unfinished episodes."""
        verbs = step.mission[unfinished, 0]
        weights = self._mixture.weights[unfinished].astype(np.float64)
        np.add.at(self.steps, verbs, 1)
        np.add.at(self.weights, verbs, weights)
        np.add.at(self.entropies, verbs, entropy(weights))
        np.add.at(self.highest, (verbs, weights.argmax(1)), 1)

    def metrics(self) -> dict[str, float]:
        """Return means over steps: `gate/VERB/EXPERT`, `gate_entropy/VERB`, and `highest/VERB/EXPERT` as a share."""
        metrics = {}
        for verb in np.flatnonzero(self.steps):
            name, steps = VERBS[verb], int(self.steps[verb])
            metrics[f"gate_entropy/{name}"] = self.entropies[verb] / steps
            for k, expert in enumerate(self._mixture.experts):
                metrics[f"gate/{name}/{expert}"] = self.weights[verb, k] / steps
                metrics[f"highest/{name}/{expert}"] = self.highest[verb, k] / steps
        return metrics


def episode_weights(mixture: Mixture, stage: str, seed: int) -> NDArray[np.float32]:
    """Return the gate's weights in every step of one greedy episode, float32 [steps, K]."""
    weights = []
    play(
        mixture,
        stage,
        [seed],
        None,
        watch=lambda step, unfinished: weights.append(mixture.weights[0].copy()),
    )
    return np.stack(weights)
