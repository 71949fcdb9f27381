"""Interface of a batch of games."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BANDIT, SOKOBAN, FROZENLAKE = "bandit", "sokoban", "frozenlake"
NONE = 0
"""Number of the invalid action, of a reply without an action."""
INVALID_PENALTY = -1.0  # for an invalid action; the bandit has none


class Outcome(NamedTuple):
    """Outcomes of the actions in n games.

    Attributes:
        reward: Reward of the environment, float32 [n].
        penalty: -1 for an invalid action, otherwise 0; always 0 in the bandit. float32 [n].
        done: Whether the game is over, bool [n].
        success: Whether the game is won, bool [n].
        effective: Whether the action moved something or pulled an arm, bool [n].
    """

    reward: NDArray[np.float32]
    penalty: NDArray[np.float32]
    done: NDArray[np.bool_]
    success: NDArray[np.bool_]
    effective: NDArray[np.bool_]


class Game(Protocol):
    """A batch of B games of the same kind. A game depends on its seed, its replay index and its actions alone.

    Attributes:
        name: A member of `config.GAMES`.
        actions: Names of the actions; action k is `actions[k - 1]`, 0 is invalid (`NONE`).
        success: Whether a game is won, bool [B].
        done: Whether a game is over, bool [B].
        steps: Number of actions so far, with invalid ones, int64 [B].
    """

    name: str
    actions: tuple[str, ...]
    success: NDArray[np.bool_]
    done: NDArray[np.bool_]
    steps: NDArray[np.int64]

    def reset(self, seeds: NDArray[np.int64], replays: NDArray[np.int64] | None = None) -> None:
        """Start a game for every seed.

        Args:
            seeds: int64 [B], 0 or more.
            replays: Replay indices, which select the random stream of slips and rewards; the level is the same for all
                of them. 0 is the seed's own stream. int64 [B], 0 or more; None: 0 for all games.
        """

    def step(self, actions: NDArray[np.int64], which: NDArray[np.int64]) -> Outcome:
        """Take an action in n games.

        Args:
            actions: int [n].
            which: Distinct indices of the games, int64 [n].

        Raises:
            ValueError: An action does not exist, or a game is over.
        """

    def render(self, which: NDArray[np.int64]) -> list[str]:
        """Return the grids of games as text; empty for the bandit."""


def check_actions(game: Game, actions: NDArray[np.int64], which: NDArray[np.int64]) -> None:
    """Raise ValueError if a game cannot take its action."""
    if game.done[which].any():
        raise ValueError("a finished game takes no action")
    if ((actions < 0) | (actions > len(game.actions))).any():
        raise ValueError(f"actions are 0 to {len(game.actions)}")


def grids(cells: NDArray[np.uint8], symbols: str) -> list[str]:
    """Return grids as text: a line per row; a space, the symbol, a space and a tab per cell.

    Args:
        cells: Indices into `symbols`, [n, rows, columns].
        symbols: A character per index.
    """
    texts = [f" {symbol} \t" for symbol in symbols]
    return [
        "\n".join("".join(map(texts.__getitem__, row)) for row in grid) for grid in cells.tolist()
    ]
