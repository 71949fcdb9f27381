"""Updates of learners of different kinds, in one process or sharded over several."""

from __future__ import annotations

import copy
import os
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from tests.textgames.learners import GROUPS, Trainer, small_model, trajectories

from runcatalog import record
from textgames import train
from textgames.models import distributed
from textgames.models.distributed import Ranks
from textgames.models.scoring import Critic

KINDS = {
    "full": {"kl_coef": 0.1, "epochs": 2},
    "critic": {"estimator": "gae", "kl_coef": 0.0, "minibatch_size": 6},
    "lora": {"kl_coef": 0.1, "micro_batch_size": 1},
    "checkpointing": {"kl_coef": 0.0},
}


def learn(kind: str, ranks: Ranks) -> dict[str, Any]:
    """Return logits, metrics, weights after two updates, and the weights after a restart from the state."""
    played, results = trajectories(np.random.default_rng(6)), {}
    trainer = make_trainer(kind, ranks)
    results["first"] = logits(trainer)
    results["metrics"] = trainer.update(played, GROUPS, np.random.default_rng(1))
    stored = {
        name: distributed.full_tensor(weight.detach()).clone() for name, weight in trained(trainer)
    }
    state = copy.deepcopy(trainer.learner.state())
    trainer.update(played, GROUPS, np.random.default_rng(2))
    results["weights"] = full_weights(trainer)
    again = make_trainer(kind, ranks)
    with torch.no_grad():
        for name, weight in trained(again):
            distributed.copy_into(weight, stored[name])
    again.learner.restore(state)
    again.update(played, GROUPS, np.random.default_rng(2))
    results["again"] = full_weights(again)
    results["last"] = logits(again)
    return results


def make_trainer(kind: str, ranks: Ranks) -> Trainer:
    """Return a learner before its first update."""
    model, reference, critic = small_model(), small_model().requires_grad_(False), None
    if kind == "lora":
        torch.manual_seed(2)
        model, reference = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear")), None
    if kind == "critic":
        critic = Critic(model)
    if kind == "checkpointing":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    settings = {"minibatch_size": 3, "grad_clip": 1.0, **KINDS[kind]}
    return Trainer(model, critic, reference, ranks=ranks, **settings)


def logits(trainer: Trainer) -> torch.Tensor:
    """Return logits; a process can generate as often as it likes, without the others."""
    networks, tokens = trainer.networks, torch.arange(12)[None]
    with networks.generating(), torch.inference_mode():
        for _ in range(2 * networks.ranks.rank):
            networks.policy(input_ids=tokens)
        return networks.policy(input_ids=tokens).logits


def trained(trainer: Trainer) -> list[tuple[str, torch.Tensor]]:
    """Return all trained weights by name."""
    networks = trainer.networks
    critic = networks.critic.named_parameters() if networks.critic else ()
    policy = networks.policy.named_parameters()
    return [
        *((name, weight) for name, weight in policy if weight.requires_grad),
        *((f"critic.{name}", weight) for name, weight in critic),
    ]


def full_weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Return copies of all trained weights, gathered."""
    return {
        name: distributed.full_tensor(weight.detach()).clone() for name, weight in trained(trainer)
    }


def learn_all(out: str) -> None:
    """Let a rank update learners of all kinds; rank 0 saves what they learned."""
    with distributed.join(2, "cpu") as ranks:
        results = {kind: learn(kind, ranks) for kind in KINDS}
        if ranks.first:
            torch.save(results, out)


def train_run(folder: str, flags: list[str]) -> None:
    """Let a rank train in a run directory."""
    os.environ["RUN_DIR"] = folder
    train.main(record.parse(train.Config, flags))
