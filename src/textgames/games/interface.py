"""Interface of a batch of games, and what the games share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BANDIT, SOKOBAN, FROZENLAKE = "bandit", "sokoban", "frozenlake"
NONE = 0
"""No action: the reply was not understood."""
INVALID_PENALTY = -1.0  # for a reply that was not understood; the bandit has none


class Outcome(NamedTuple):
    """What became of the actions of n games.

    Attributes:
        reward: The environment's, float32 [n].
        penalty: -1 for an action that was not understood, else 0; the bandit has none. float32 [n].
        done: Whether the game is over, bool [n].
        success: Whether it was won, bool [n].
        effective: Whether the action moved something; of the bandit, pulled an arm. bool [n].
    """

    reward: NDArray[np.float32]
    penalty: NDArray[np.float32]
    done: NDArray[np.bool_]
    success: NDArray[np.bool_]
    effective: NDArray[np.bool_]


class Game(Protocol):
    """A batch of B games of one kind. Each depends on its seed, its luck and its actions alone.

    Attributes:
        name: One of `games.GAMES`.
        actions: Words for the actions; action k is `actions[k - 1]`, 0 is none (`NONE`).
        success: Whether each game was won, bool [B].
        done: Whether it is over, bool [B].
        steps: Actions so far, not understood ones too, int64 [B].
    """

    name: str
    actions: tuple[str, ...]
    success: NDArray[np.bool_]
    done: NDArray[np.bool_]
    steps: NDArray[np.int64]

    def reset(self, seeds: NDArray[np.int64], luck: NDArray[np.int64] | None = None) -> None:
        """Begins one game for each seed, int64 [B], 0 or more.

        Args:
            luck: How chance treats each game: what is seen at its beginning is the same with all, slips and rewards are
                others. 0: as the seed has it; int64 [B], 0 or more. None: 0 for all.
        """

    def step(self, actions: NDArray[np.int64], which: NDArray[np.int64]) -> Outcome:
        """Takes an action, int [n], in each of the games `which`, int64 [n], all different.

        Raises:
            ValueError: There is no such action, or one of the games is over.
        """

    def render(self, which: NDArray[np.int64]) -> list[str]:
        """The grids of games as text; of the bandit, nothing."""


def checked(game: Game, actions: NDArray[np.int64], which: NDArray[np.int64]) -> None:
    """Raises ValueError if a game cannot take its action."""
    if game.done[which].any():
        raise ValueError("a game that is over takes no action")
    if ((actions < 0) | (actions > len(game.actions))).any():
        raise ValueError(f"actions are 0 to {len(game.actions)}")


def grids(cells: NDArray[np.uint8], symbols: str) -> list[str]:
    """Grids as text: each cell a space, its symbol, a space and a tab; rows on lines of their own.

    Args:
        cells: Index into `symbols` for each cell, [n, rows, columns].
        symbols: One for each index.
    """
    texts = [f" {each} \t" for each in symbols]
    return [
        "\n".join("".join(map(texts.__getitem__, row)) for row in grid) for grid in cells.tolist()
    ]
