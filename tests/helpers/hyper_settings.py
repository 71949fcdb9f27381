"""HN-PPO settings for tests: those of the source, of which a test changes some."""

from typing import Any

from door.hypernet.agent import HyperSettings
from door.hypernet.update import UpdateSettings


def hyper_settings(**changes: Any) -> HyperSettings:
    """Return the settings with other values for some, of the gradient step too."""
    update = {
        "lr": 5e-3,
        "critic_lr": 0.0,
        "adam_eps": 1e-5,
        "max_grad_norm": 1e-4,
        "clip_critic_apart": False,
        "critic_grad_norm": 0.5,
        "beta": 1e-3,
        "look_ahead": True,
        "clip_regulariser": False,
    }
    agent = {
        "te_dim": 8,
        "hyper_width": 0,
        "chunked": False,
        "freshcritic": True,
        "squash_mean": False,
        "log_std": 0.0,
        "neutral_start": True,
    }
    for name, value in changes.items():
        (update if name in update else agent)[name] = value
    return HyperSettings(**agent, update=UpdateSettings(**update))
