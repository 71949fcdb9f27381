"""PPO settings for tests: common values, of which a test changes some."""

from typing import Any

from rl.agent import AgentSettings
from rl.ppo import PPOSettings


def ppo_settings(**changes: Any) -> PPOSettings:
    """Return settings with other values for some of them."""
    common: dict[str, Any] = {
        "clip_coef": 0.2,
        "epochs": 6,
        "minibatch_size": 512,
        "value_coef": 0.5,
        "entropy_coef": 0.0,
        "value_loss": "max",
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "time_limit": "cut",
        "target_kl": 0.0,
    }
    return PPOSettings(**common | changes)


def agent_settings(**changes: Any) -> AgentSettings:
    """Return settings of a plain agent with other values for some."""
    common: dict[str, Any] = {
        "lr": 1e-3,
        "max_grad_norm": 0.5,
        "adam_eps": 1e-5,
        "squash_mean": False,
        "mean_gain": 1.0,
        "log_std": 0.0,
    }
    return AgentSettings(**common | changes)
