"""Small learners and trajectories for tests of PPO."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from textgames.learning import advantages
from textgames.learning.advantages import AdvantageSettings
from textgames.learning.networks import Networks
from textgames.learning.ppo import Learner, PPOSettings
from textgames.models.trajectories import Text, Trajectory

VOCABULARY = 30
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
GROUPS = np.arange(6) // 2
PPO = {
    "clip_low": 0.2, "clip_high": 0.2, "entropy_coef": 0.001, "kl_coef": 0.001, "minibatch_size": 6, "epochs": 1,
    "grad_clip": 1e9, "actor_lr": 1e-3, "critic_lr": 1e-3,
}  # fmt: skip
ADVANTAGES = {"estimator": "brpo", "credit": "outcome", "gamma": 1.0, "gae_lambda": 1.0}
NETWORKS = {"micro_batch_size": 2, "all_tokens": False, "temperature": 1.0}


def small_model(seed=3):
    """A random Qwen2 model."""
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(Qwen2Config(**SIZES))


def trajectories(rng, count=6, texts=1):
    """Random trajectories of games that are played twice."""
    played = []
    for b in range(count):
        turns = int(rng.integers(1, 4))
        trajectory = Trajectory(seed=b // 2, rewards=rng.normal(size=turns).tolist())
        for part in np.array_split(np.arange(turns), min(texts, turns)):
            labels = []
            for turn in part:
                labels += [-1] * int(rng.integers(2, 7)) + [int(turn)] * int(rng.integers(1, 5))
            tokens = rng.integers(VOCABULARY, size=len(labels))
            trajectory.texts.append(Text(tokens, np.array(labels)))
        played.append(trajectory)
    return played


class Trainer:
    """A learner with its estimator of advantages.

    Args:
        model: The policy.
        critic: For the estimator "gae".
        reference: Frozen policy; "copy": the policy as it is now.
        settings: Of PPO, of the advantages and of the networks, by name; others have the values above.
    """

    def __init__(
        self, model: Any, critic: Any = None, reference: Any = "copy", **settings: Any
    ) -> None:
        if isinstance(reference, str):
            reference = copy.deepcopy(model).requires_grad_(False)

        def chosen(defaults: dict[str, Any]) -> dict[str, Any]:
            return {name: settings.pop(name, value) for name, value in defaults.items()}

        ppo, estimator, networks = chosen(PPO), chosen(ADVANTAGES), chosen(NETWORKS)
        self.estimator = AdvantageSettings(**estimator, all_tokens=networks["all_tokens"])
        self.networks = Networks(model, reference=reference, critic=critic, **networks, **settings)
        self.learner = Learner(self.networks, PPOSettings(**ppo))

    def update(self, played, groups, rng, **how):
        """Advantages and a PPO update, as in the training script."""
        values = None
        if self.networks.critic is not None:
            texts = [trajectory.texts for trajectory in played]
            values = [value.cpu().numpy() for value in self.networks.values(texts)]
        estimates = advantages.estimate(played, groups, values, self.estimator)
        return self.learner.update(played, estimates, groups, rng, **how)


def weights(model):
    """All weights as a vector."""
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])
