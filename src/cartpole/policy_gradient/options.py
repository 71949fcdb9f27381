"""Flags of one policy-gradient run, and the settings that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

from cartpole.policy_gradient.reinforce import (
    ALGORITHMS,
    EPISODES_PER_UPDATE,
    RESETS,
    RunSettings,
)
from runcatalog import record
from runcatalog.record import option

DEFAULT_UPDATES = 5000


@dataclass(frozen=True)
class BudgetConfig(record.Config):
    """Flags shared by a single run and a study."""

    hidden: str = option("8 4", "widths of the hidden layers, both networks; source: 8 4")
    episodes_per_update: int = option(
        0, "episodes of one update; 0: 10 for rloo and rloo_step, else 1 (source)", low=0, high=1000
    )
    updates: int = option(
        0, f"budget [updates]; 0 with episodes=0: {DEFAULT_UPDATES}", low=0, high=10**6
    )
    episodes: int = option(
        0, "budget [episodes], in place of updates; source: 5000", low=0, high=10**7
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.widths  # raises an error if they cannot be parsed
        if self.updates and self.episodes:
            raise record.UserError(
                f"--updates {self.updates} and --episodes {self.episodes}: give only one of the two"
            )

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the hidden layers.

        Raises:
            UserError: The flag is not a list of widths.
        """
        try:
            parsed = tuple(int(word) for word in self.hidden.split())
        except ValueError:
            parsed = ()
        if not 1 <= len(parsed) <= 4 or not all(1 <= width <= 512 for width in parsed):
            raise record.UserError(
                f"--hidden: {self.hidden!r} is no list of 1 to 4 widths from 1 to 512, such as '8 4'"
            )
        return parsed


@dataclass(frozen=True)
class PolicyGradientConfig(BudgetConfig):
    """Flags of one run."""

    algo: str = option(
        "rloo",
        "algorithm: its baseline, see cartpole.policy_gradient.reinforce",
        choices=ALGORITHMS,
    )
    lr: float = option(
        1e-3, "Adam's step size [1], of both networks; source: 1e-3", low=0, low_open=True, high=1
    )
    gamma: float = option(0.99, "discount factor [1]; source: 0.99", low=0, high=1)
    entropy: float = option(
        0.0, "entropy coefficient [1]; source: 0, and 0.001 with its bonus", low=0, high=10
    )
    normalise_returns: bool = option(False, "standardise the advantages of an update; source: no")
    reset: str = option(
        "fixed",
        "fixed: one start state for all episodes (source); random: a new one for each episode",
        choices=RESETS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.algo == "rloo" and self.batch < 2:
            raise record.UserError(
                "--episodes-per-update: rloo compares the episodes of an update, it needs at least 2"
            )

    @property
    def batch(self) -> int:
        """Episodes of one update."""
        return self.episodes_per_update or EPISODES_PER_UPDATE[self.algo]

    @property
    def update_count(self) -> int:
        """Budget in updates; a budget in episodes is rounded up to whole updates."""
        if self.episodes:
            return -(-self.episodes // self.batch)
        return self.updates or DEFAULT_UPDATES

    @property
    def episode_count(self) -> int:
        """Budget in episodes."""
        return self.episodes or self.update_count * self.batch

    @property
    def run_settings(self) -> RunSettings:
        """Settings of the learner."""
        return RunSettings(
            algo=self.algo,
            seed=self.seed,
            lr=self.lr,
            gamma=self.gamma,
            entropy=self.entropy,
            normalise=self.normalise_returns,
            reset=self.reset,
        )
