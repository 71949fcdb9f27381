"""Flags of both training scripts. Light to import: Guild reads flags by importing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from door.env.tasks import TASKS
from door.training.tuned_flags import Tuned, fill
from rl.variants import TIME_LIMITS, VALUE_LOSSES
from runcatalog import record
from runcatalog.record import option
from runcatalog.record.config import checkpoint_folder

ROBOTS = ("floatinghook", "floatinggripper")
STARTS = ("near", "original")
REWARDS = ("shaped", "original")
HANDLE_REWARDS = ("own", "capped", "unlimited")
REWARD_SCALES = ("running", "restart", "none")
SCHEDULES = ("constant", "linear", "success")


def stop_option(default: float) -> Any:
    """Return the flag `stop_at`, whose default differs between the two scripts."""
    return option(
        default,
        "early stopping: when the mean opening rate of the last three validations, in other worlds than the "
        "reported ones, reaches this; 0: never (in the source a person chose the checkpoint)",
        low=0,
        high=1,
        unless={"eval_interval": 0},
    )


def schedule_option(default: str) -> Any:
    """Return the flag `lr_schedule`, whose default differs between the two scripts."""
    return option(
        default,
        "learning rate; linear: decays to 0 over the budget; success: decays with the fraction of validation worlds "
        "that stay closed, from 20 % on, to a tenth at 2 %, constant without validations; source: constant",
        choices=SCHEDULES,
    )


@dataclass(frozen=True)
class DoorConfig(record.Config):
    """Flags of both scripts. "Source" is the thesis "Hypernetwork-PPO for Continual RL"."""

    task: str = option("pull", "kind of door", choices=tuple(TASKS))
    robot: str = option("floatinghook", "robot", choices=ROBOTS)
    env_steps: int = option(1_000_000, "budget [decisions of 0.08 s]; source: 12 M or 24 M", low=1)
    num_envs: int = option(32, "parallel environments; source: 8", low=1, high=4096)
    num_steps: int = option(64, "decisions per environment in a rollout; source: 4096", low=1)
    epochs: int = option(6, "passes over a rollout; source: 10", low=1)
    minibatch_size: int = option(512, "samples per gradient step; source: 128", low=1)
    lr: float = option(1e-3, "Adam's step size [1]", low=0, low_open=True, high=1)
    lr_schedule: str = schedule_option("constant")
    clip_coef: float = option(
        0.3,
        "half-width of the trust region of the ratio [1]; source: 0.3 (HN-PPO), 0.2 (PPO)",
        low=0,
        low_open=True,
        high=1,
    )
    gamma: float = option(0.99, "discount per decision; source: 0.99", low=0, high=1)
    gae_lambda: float = option(0.95, "trace decay per decision; source: 0.95", low=0, high=1)
    time_limit: str = option(
        "bootstrap",
        "advantage at the time limit: cut: 0 (source); bootstrap: with the value of the last observation, "
        "so that short rollouts lose no samples",
        choices=TIME_LIMITS,
    )
    value_coef: float = option(0.5, "weight of the value loss; source: 0.5", low=0)
    network_size: str = option("64 64", 'widths of the hidden layers; source: "64 64"')
    network_width: int = option(0, "with network-depth: replaces network-size", low=0, high=4096)
    network_depth: int = option(0, "see network-width", low=0, high=8)
    squash_mean: bool = option(False, "tanh around the mean action; source: no")
    log_std: float = option(0.0, "start of the log standard deviation; source: 0", low=-5, high=2)
    normalise_obs: bool = option(True, "by running mean and standard deviation; source: no")
    reward_scale: str = option(
        "running",
        "division by the standard deviation of the discounted return; running: over the whole run; restart: "
        "statistics start anew at every update (source, which recreates its environments)",
        choices=REWARD_SCALES,
    )
    reward: str = option(
        "shaped",
        "original: the source's, in which turning the handle further pays most",
        choices=REWARDS,
    )
    handle_reward: str = option(
        "own",
        "the reward's term for turning the handle; own: of the flag reward; capped: as in shaped; unlimited: as in "
        "original",
        choices=HANDLE_REWARDS,
    )
    start: str = option("near", "near: 0.46 m from the handle; original: 1 m", choices=STARTS)
    world_seed: str = option(
        "run",
        "seed of the training worlds; run: the run's; none: other worlds every time, as in the source's "
        "first runs",
        choices=("run", "none"),
    )
    tuned: str = option(
        "",
        "a search, such as ppo:lr_size_clip_opt_ppo_lever, whose best trial gives the searched flags; "
        "flags that are typed stay",
    )
    pretrained: str = option("", "run or checkpoint of the previous task")
    stop_at: float = stop_option(0.98)
    eval_interval: int = option(10, "updates between validations; 0: none; source: 20", low=0)
    save_interval: int = option(
        50,
        "updates between checkpoints, of 48 MB with a hypernetwork; source: 5, which is 80 of these",
        low=1,
    )
    video: bool = option(True, "a video of the final policy, if the machine can render")
    threads: int = option(2, "simulator threads; no effect on results", low=1, resumable=True)
    envs_per_call: int = option(
        0, "environments per simulator call, 0: all; no effect on results", low=0, resumable=True
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tuned", fill(self, self.tuned))
        super().__post_init__()
        self.hidden()
        self.pretrained_path()
        rollout = self.num_envs * self.num_steps
        if rollout < 2:
            raise record.UserError(
                "--num-steps: a single sample has no spread to normalise advantages by"
            )
        if self.env_steps < rollout:
            raise record.UserError(
                f"--env-steps: {self.env_steps} is less than an update ({rollout})"
            )

    def tuned_from(self) -> Tuned | None:
        """Return the flags taken from the search of the flag `tuned`."""
        return getattr(self, "_tuned", None)

    def pretrained_path(self) -> Path | None:
        """Return the folder of the checkpoint to start from: as given, or below the project's folder."""
        if not self.pretrained:
            return None
        return checkpoint_folder("pretrained", self.pretrained)

    def hidden(self) -> tuple[int, ...]:
        """Return the widths of the hidden layers."""
        if bool(self.network_width) != bool(self.network_depth):
            raise record.UserError("--network-width and --network-depth go together")
        if self.network_width:
            return (self.network_width,) * self.network_depth
        words = self.network_size.replace(",", " ").split()
        if not words or not all(word.isdecimal() and 0 < int(word) <= 4096 for word in words):
            raise record.UserError(
                f'--network-size: {self.network_size!r} is not a list of widths such as "64 64"'
            )
        return tuple(int(word) for word in words)


def value_loss_option(default: str) -> Any:
    """Return the flag `value_loss`, whose default differs between the two scripts."""
    return option(
        default,
        "max: of clipped and unclipped (source of PPO); clipped: alone (source of HN-PPO); plain",
        choices=VALUE_LOSSES,
    )


def entropy_option(default: float, why: str) -> Any:
    """Return the flag `entropy_coef`, whose default differs between the two scripts."""
    return option(default, f"weight of the entropy bonus; {why}", low=0, high=1)


def target_kl_option(why: str) -> Any:
    """Return the flag `target_kl`, whose note on the source differs between the two scripts."""
    return option(0.03, f"no further epoch above this KL divergence [nat]; {why}", low=0)
