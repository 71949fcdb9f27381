"""Updates of learners of each kind, in some number of processes: `sharded_learner.py PROCESSES OUT`."""

import copy
import sys
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from test_ppo import GROUPS, made, talks

from textgames.learning.ppo import Learner, Settings
from textgames.models import distributed
from textgames.models.scoring import Critic

KINDS = {
    "full": {"kl_coef": 0.1, "epochs": 2},
    "critic": {"estimator": "gae", "kl_coef": 0.0, "minibatch": 6},
    "lora": {"kl_coef": 0.1, "micro": 1},
    "checkpointing": {"kl_coef": 0.0},
}


def main(processes: int, out: str) -> None:
    """Writes what each kind of learner came to."""
    with distributed.join(processes, "cpu") as among:
        torch.set_num_threads(1)
        found = {kind: learned(kind, among) for kind in KINDS}
        if among.first:
            torch.save(found, out)


def learned(kind: str, among: distributed.Ranks) -> dict[str, Any]:
    """The weights after two updates, what was measured, and the weights once more after a restart from the state."""
    settings = Settings(**{"minibatch": 3, "micro": 2, **KINDS[kind]})
    played, found = talks(np.random.default_rng(6)), {}
    learner = built(settings, kind, among)
    found["first"] = spoken(learner)
    found["said"] = learner.update(played, GROUPS, np.random.default_rng(1))
    stored = {name: distributed.full(each.detach()) for name, each in named(learner)}
    stored = {name: each.clone() for name, each in stored.items()}
    state = copy.deepcopy(learner.state())
    learner.update(played, GROUPS, np.random.default_rng(2))
    found["weights"] = {name: distributed.full(each.detach()) for name, each in named(learner)}
    again = built(settings, kind, among)
    with torch.no_grad():
        for name, each in named(again):
            distributed.put(each, stored[name])
    again.restore(state)
    again.update(played, GROUPS, np.random.default_rng(2))
    found["again"] = {name: distributed.full(each.detach()) for name, each in named(again)}
    found["last"] = spoken(again)
    return found


def built(settings: Settings, kind: str, among: distributed.Ranks) -> Learner:
    """A learner as it is when it begins."""
    model, before, critic = made(), made().requires_grad_(False), None
    if kind == "lora":
        torch.manual_seed(2)
        model, before = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear")), None
    if kind == "critic":
        critic = Critic(model)
    if kind == "checkpointing":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return Learner(model, settings, 1e-3, before, critic, 1e-3, among=among)


def spoken(learner: Learner) -> torch.Tensor:
    """Logits, as often as a process likes, without the other processes."""
    tokens = torch.arange(12)[None]
    with learner.playing(), torch.inference_mode():
        for _ in range(2 * learner.ranks.rank):
            learner.model(input_ids=tokens)
        return learner.model(input_ids=tokens).logits


def named(learner: Learner) -> list[tuple[str, torch.Tensor]]:
    """All that is learned."""
    critic = learner.critic.named_parameters() if learner.critic else ()
    return [
        *((name, each) for name, each in learner.model.named_parameters() if each.requires_grad),
        *((f"critic.{name}", each) for name, each in critic),
    ]


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
