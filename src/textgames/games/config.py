"""Flags of a game, and the game that they describe."""

from __future__ import annotations

from dataclasses import dataclass

from runcatalog import record
from runcatalog.record import option
from textgames.games.interface import BANDIT, FROZENLAKE, SOKOBAN, Game

GAMES = (BANDIT, SOKOBAN, FROZENLAKE)
_SIZES = {BANDIT: 0, SOKOBAN: 6, FROZENLAKE: 4}
_LEAST = {BANDIT: 0, SOKOBAN: 5, FROZENLAKE: 2}
ORDERS = ("shuffled", "low-first", "high-first")
SETS = (VALIDATION_SET, DISJOINT_VALIDATION_SET, TEST_SET, HARD_TEST_SET) = (
    "validation", "validation_disjoint", "test", "test_hard",
)  # fmt: skip
"""Sets of levels that a model is judged on, see `levels`; the hard one has none of one or two moves."""


@dataclass(frozen=True)
class GameConfig(record.Config):
    """Flags of a game and of its prompts.

    Sokoban's variants are combinations: `--search-depth 100` (hard) or 500 (extra hard), `--size 8` (large) or 10
    (extra large), `--boxes 2` (multi).

    Raises:
        UserError: A flag or a combination is invalid.
    """

    env: str = option(BANDIT, "game", choices=GAMES)
    size: int = option(
        0, "side of the grid [cells], Sokoban's with its walls; 0: 6, FrozenLake 4", low=0, high=12
    )
    boxes: int = option(1, "Sokoban: boxes and targets", low=1, high=4)
    search_depth: int = option(
        30, "Sokoban: moves of the reverse play that places boxes", low=3, high=1000
    )
    slippery: bool = option(
        True,
        "FrozenLake: a step goes in the intended direction or to either side, with probability 1/3 each",
    )
    frozen: float = option(0.8, "FrozenLake: probability that a cell is frozen", low=0.0, high=1.0)
    max_steps: int = option(
        100, "actions after which a game ends, with invalid ones", low=1, high=10_000
    )
    low_name: str = option("phoenix", "bandit: name of the low-risk arm, with the lower mean")
    high_name: str = option("dragon", "bandit: name of the high-risk arm, with the higher mean")
    names_swapped: bool = option(False, "bandit: the arms exchange their names")
    names_order: str = option("shuffled", "bandit: which arm a prompt names first", choices=ORDERS)
    prompt: str = option(
        "full",
        "content of a prompt; grid: the grid alone (bandit: the names)",
        choices=("full", "grid"),
    )
    context: str = option(
        "whole", "context of a reply: the conversation so far, or the current state alone", choices=("whole", "last")
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        # The texts of all games train a tiny model's tokenizer, so flags of other games are checked, too.
        self._check_names()
        if self.frozen == 0 and (self.env != FROZENLAKE or self.side > 2):
            raise record.UserError(
                "--frozen: without frozen cells hardly any goal is reachable; give 0.1 or more"
            )
        if self.size and self.size < _LEAST[self.env]:
            raise record.UserError(
                f"--size: {self.size} is too small for {self.env}; {_LEAST[self.env]} or more"
            )
        if self.env == SOKOBAN and self.boxes > (room := max(1, (self.side - 2) ** 2 // 8)):
            raise record.UserError(
                f"--boxes: {self.boxes} boxes do not fit on a grid of {self.side}; give {room} or fewer"
            )
        # Depth 2 has no move, see `sokoban`, and every box has to be pulled away from its target.
        if self.env == SOKOBAN and self.search_depth < (least := self.boxes + 2):
            raise record.UserError(
                f"--search-depth: {self.search_depth} is too little to pull {self.boxes} boxes; give {least} or more"
            )

    def _check_names(self) -> None:
        names = self.low_name, self.high_name
        for flag, name in zip(("low-name", "high-name"), names, strict=True):
            if (
                not name
                or name != " ".join(name.split())
                or set(name) & set("<>")
                or name.isdigit()
            ):
                raise record.UserError(
                    f"--{flag}: {name!r} is no name; give words without < and >, not a number"
                )
        if names[0].lower() == names[1].lower():
            raise record.UserError(f"--high-name: {names[1]!r} is also the name of the other arm")

    @property
    def side(self) -> int:
        """Side of the grid [cells]."""
        return self.size or _SIZES[self.env]

    @property
    def grid(self) -> tuple[str, int, int]:
        """Game, side and number of boxes: equal levels agree in them."""
        return self.env, self.side, self.boxes if self.env == SOKOBAN else 0

    @property
    def is_stochastic(self) -> bool:
        """Whether the same actions may have other outcomes in a replay of the game."""
        return self.env == BANDIT or (self.env == FROZENLAKE and self.slippery)

    @property
    def names(self) -> tuple[str, str]:
        """Names of the bandit's arms, low risk first."""
        names = self.low_name, self.high_name
        return (names[1], names[0]) if self.names_swapped else names


def make_game(config: GameConfig) -> Game:
    """Return the game that the flags describe; it is empty until `reset`."""
    if config.env == SOKOBAN:
        from textgames.games.sokoban import Sokoban

        return Sokoban(config.side, config.boxes, config.search_depth, config.max_steps)
    if config.env == FROZENLAKE:
        from textgames.games.frozenlake import FrozenLake

        return FrozenLake(config.side, config.frozen, config.slippery, config.max_steps)
    from textgames.games.bandit import Bandit

    return Bandit(config.names, config.names_order)
