"""Flags of one policy-gradient run, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from cartpole.policy_gradient.algorithms import ALGORITHMS, EPISODES_PER_UPDATE
from cartpole.policy_gradient.reinforce import RESETS, Setting
from runcatalog import record
from runcatalog.record import option

DEFAULT_UPDATES = 5000


@dataclass(frozen=True)
class BudgetConfig(record.Config):
    """Flags that a single run and a study share."""

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
        widths(self.hidden)
        if self.updates and self.episodes:
            raise record.UserError(
                f"--updates {self.updates} and --episodes {self.episodes}: give one of them"
            )


@dataclass(frozen=True)
class PolicyGradientConfig(BudgetConfig):
    """Flags of one run."""

    algo: str = option("rloo", "the advantage, see cartpole.algorithms", choices=ALGORITHMS)
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
        "one start state for all episodes (source), or a new one for each",
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
    def setting(self) -> Setting:
        """What the learner needs to know."""
        return Setting(
            self.algo,
            self.seed,
            self.lr,
            self.gamma,
            self.entropy,
            self.normalise_returns,
            self.reset,
        )


def widths(hidden: str) -> tuple[int, ...]:
    """Widths of hidden layers from text such as "8 4".

    Raises:
        UserError: They are none.
    """
    try:
        found = tuple(int(word) for word in hidden.split())
    except ValueError:
        found = ()
    if not 1 <= len(found) <= 4 or not all(1 <= width <= 512 for width in found):
        raise record.UserError(
            f"--hidden: {hidden!r} is no list of 1 to 4 widths from 1 to 512, such as '8 4'"
        )
    return found
