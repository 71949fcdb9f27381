"""A run of `skill:moe`, and how its gate decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from runcatalog import record
from runcatalog.record.checkpoint import find_checkpoint
from skills import agents
from skills.acting import NetworkAgent
from skills.codes import VERBS
from skills.engine import Step
from skills.levels import levels_of
from skills.mixing import GateLearner, Mixture, Switch, entropy
from skills.options import MixtureConfig
from skills.playing import Played, play
from skills.training import Training


class Looks:
    """What a mixture's gate gave its experts in the episodes that `playing.play` played.

    Attributes:
        steps: By verb, int64 [V].
        weights: Sums over the steps, float64 [V, K].
        entropies: Sums of the gate's entropy [nats], float64 [V].
        highest: Steps in which each expert had the highest weight, int64 [V, K].
    """

    def __init__(self, mixture: Mixture) -> None:
        self._mixture = mixture
        size = len(VERBS), len(mixture.experts)
        self.steps, self.entropies = np.zeros(len(VERBS), np.int64), np.zeros(len(VERBS))
        self.weights, self.highest = np.zeros(size), np.zeros(size, np.int64)

    def __call__(self, step: Step, going: NDArray[np.bool_]) -> None:
        """Takes in a step of the episodes that go on."""
        verbs = step.mission[going, 0]
        weights = self._mixture.weights[going].astype(np.float64)
        np.add.at(self.steps, verbs, 1)
        np.add.at(self.weights, verbs, weights)
        np.add.at(self.entropies, verbs, entropy(weights))
        np.add.at(self.highest, (verbs, weights.argmax(1)), 1)

    def metrics(self) -> dict[str, float]:
        """Means over steps: `gate/VERB/EXPERT`, `gate_entropy/VERB`, and `highest/VERB/EXPERT` as a share."""
        found = {}
        for verb in np.flatnonzero(self.steps):
            name, steps = VERBS[verb], int(self.steps[verb])
            found[f"gate_entropy/{name}"] = self.entropies[verb] / steps
            for k, expert in enumerate(self._mixture.experts):
                found[f"gate/{name}/{expert}"] = self.weights[verb, k] / steps
                found[f"highest/{name}/{expert}"] = self.highest[verb, k] / steps
        return found


def episode(mixture: Mixture, stage: str, seed: int) -> NDArray[np.float32]:
    """Returns the gate's weights in each step of one episode with the likeliest actions, float32 [n, K]."""
    found = []
    play(
        mixture,
        stage,
        [seed],
        None,
        watch=lambda step, going: found.append(mixture.weights[0].copy()),
    )
    return np.stack(found)


class Gating(Training):
    """A run of `skill:moe`.

    Attributes:
        experts: By name.
    """

    config: MixtureConfig
    learner: GateLearner

    def make(self) -> GateLearner:
        """See `Training`."""
        config = self.config
        self.tested = agents.TEST[: config.episodes]
        self.experts = dict(agents.specialists(config.specialists()))
        chosen: dict[Path, str] = {}
        for word, folder in config.others(self.run).items():
            same = chosen.setdefault(find_checkpoint(folder), word)
            if same != word:
                raise record.UserError(
                    f"--more: {same} and {word} are the same agent; name each expert once"
                )
            agent, name = agents.load(folder), Path(word).name
            if not isinstance(agent, NetworkAgent) or name in (*self.experts, agents.GATE):
                raise record.UserError(
                    f"--more: {word}: an expert is a single network with a name of its own"
                )
            self.experts[name] = agent
        for expert in self.experts.values():
            self.run.add_parent(expert.run_id)
        return GateLearner(
            self.experts, levels=config.stage, shaping=config.shaping, **self.of_learner()
        )

    def take_over(self) -> None:
        """A gate begins with nothing, its experts with what they learned."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """See `Training`; the experts' too, so that the checkpoint is an agent by itself."""
        found = agents.tensors_of(self.learner.network(), agents.GATE)
        for name, expert in self.experts.items():
            found |= agents.tensors_of(expert.network, name)
        return found

    def own(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """See `Training`."""
        return agents.within(tensors, agents.GATE)

    def about(self) -> dict[str, Any]:
        """See `Training`."""
        return super().about() | {"experts": agents.about_experts(self.experts)}

    def compared(self) -> tuple[dict[str, dict[str, dict[str, Played]]], Looks]:
        """The reported episodes by verb, `all` too: of the mixture, and of each verb's own expert without a gate.

        And how the gate decides in those of `all`, with actions drawn.
        """
        found, mixture = {}, self.learner.agent
        looks = Looks(mixture)
        stages = {"all": self.config.stage, **levels_of(self.config.stage)}
        for index, (name, stage) in enumerate(stages.items()):
            alone = self.experts.get(name, self.switch)
            watches = {"moe": looks if name == "all" else None, "switch": None}
            found[name] = {
                who: agents.both(
                    agent,
                    stage,
                    self.tested,
                    self.run.seeds.generator("test", index),
                    watch=watches[who],
                )
                for who, agent in (("moe", mixture), ("switch", alone))
            }
        return found, looks

    @property
    def switch(self) -> Switch:
        """The experts without a gate that learned."""
        return Switch(NetworkAgent(self.learner.network()), self.experts)
