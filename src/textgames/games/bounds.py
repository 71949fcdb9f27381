"""Success rates of random actions and of the best possible player within a number of turns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl.kernels import kernel
from textgames.games import frozenlake, sokoban
from textgames.games.config import GameConfig, make_game
from textgames.games.frozenlake import GOAL
from textgames.games.interface import BANDIT, SOKOBAN
from textgames.games.sokoban import BOX, leave, slot_of, tables
from textgames.games.solver import advance, key_of, lengths, most_states, read_state, solved

EPISODES = 256  # random games of a level with too many states


class SuccessRates(NamedTuple):
    """Probability of success in every level within 1, 2, … turns, float64 [n, turns].

    Attributes:
        random: With uniformly random actions.
        optimal: Of the best player, who knows the rules and its position, but not the slips to come.
    """

    random: NDArray[np.float64]
    optimal: NDArray[np.float64]


def success_rates(config: GameConfig, seeds: NDArray[np.int64], turns: int) -> SuccessRates:
    """Return the success rates on the levels of seeds; a turn is an action.

    They are exact, by dynamic programming over the cells of FrozenLake and the reachable states of Sokoban. In a level
    with more than `solver.MOST_STATES` states `EPISODES` random games are played, and the optimal rate is 0 if
    `solver.solve` finds no solution: a lower bound.

    Args:
        config: The flags; no game continues after `max_steps`.
        seeds: int64 [n].
        turns: At least 1.
    """
    played = min(turns, config.max_steps)
    if config.env == BANDIT:
        shape = (len(seeds), played)
        rates = SuccessRates(np.full(shape, 0.5), np.ones(shape))
    elif config.env == SOKOBAN:
        cells = sokoban.generate(seeds, config.side, config.boxes, config.search_depth)
        needed = lengths(cells)[:, None]
        random = sokoban_random(cells, played)
        if len(large := np.flatnonzero(np.isnan(random[:, 0]))):
            random[large] = sampled_random_rates(config, seeds[large], played)
        solved_in_time = (needed >= 0) & (needed <= np.arange(1, played + 1))
        rates = SuccessRates(random, solved_in_time.astype(np.float64))
    else:
        cells, player, _ = frozenlake.generate(seeds, config.side, config.frozen)
        rates = frozenlake_rates(cells, player, played, config.slippery)
    column = np.minimum(np.arange(turns), played - 1)  # constant after the last action
    return SuccessRates(rates.random[:, column], rates.optimal[:, column])


def frozenlake_rates(
    cells: NDArray[np.uint8], player: NDArray[np.int64], turns: int, slippery: bool
) -> SuccessRates:
    """Return the success rates on FrozenLake maps, uint8 [n, size, size], from the cells `player`, int64 [n]."""
    rows, to = np.arange(len(cells)), _next_cells(cells.shape[1])
    goal = (cells.reshape(len(cells), -1) == GOAL).astype(np.float64)
    random, best = goal.copy(), goal
    rates = SuccessRates(np.empty((len(cells), turns)), np.empty((len(cells), turns)))
    for turn in range(turns):
        random = _before(cells, random, _after(random, to, slippery).mean(1))
        best = _before(cells, best, _after(best, to, slippery).max(1))
        rates.random[:, turn], rates.optimal[:, turn] = random[rows, player], best[rows, player]
    return rates


def frozenlake_actions(cells: NDArray[np.uint8], turns: int, slippery: bool) -> NDArray[np.int64]:
    """Return the first action 1 to 4 with the highest probability of success within `turns`, by value iteration.

    Args:
        cells: Maps, uint8 [n, size, size].
        turns: At least 1.
        slippery: See `FrozenLake`.

    Returns:
        int64 [n, cell].
    """
    to = _next_cells(cells.shape[1])
    best = (cells.reshape(len(cells), -1) == GOAL).astype(np.float64)
    for _ in range(turns - 1):
        best = _before(cells, best, _after(best, to, slippery).max(1))
    return _after(best, to, slippery).round(9).argmax(1) + 1  # ties, whatever the order of sums


def _next_cells(size: int) -> NDArray[np.int64]:
    """Return the cell after every action without slips, int64 [4, cell]."""
    y, x = np.divmod(np.arange(size**2), size)
    edge = size - 1
    return np.stack(
        [
            y * size + np.maximum(x - 1, 0), np.minimum(y + 1, edge) * size + x,
            y * size + np.minimum(x + 1, edge), np.maximum(y - 1, 0) * size + x,
        ]
    )  # fmt: skip


def _after(
    value: NDArray[np.float64], to: NDArray[np.int64], slippery: bool
) -> NDArray[np.float64]:
    """Return the mean of the next cells' values for every action and cell, float64 [n, 4, cell]."""
    moved = value[:, to]
    return (moved + np.roll(moved, 1, 1) + np.roll(moved, -1, 1)) / 3 if slippery else moved


def _before(
    cells: NDArray[np.uint8], value: NDArray[np.float64], chosen: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the values with one more turn; a game has ended in a hole or at the goal."""
    return np.where(cells.reshape(len(cells), -1) == frozenlake.FROZEN, chosen, value)


def sokoban_random(cells: NDArray[np.uint8], turns: int) -> NDArray[np.float64]:
    """Return the probability that random actions solve a level within 1 to `turns` actions.

    Args:
        cells: Levels, uint8 [n, size, size].
        turns: At least 1.

    Returns:
        float64 [n, turns]; not a number for a level with more states than the search visits.
    """
    rates = np.zeros((len(cells), turns))
    if len(cells):
        boxes = int((cells[0] & BOX > 0).sum())
        _random_rates(cells, boxes, most_states(cells.shape[1], boxes), rates)
    return rates


@kernel
def _random_rates(cells, boxes, most, rates):
    """Compute the probability of every state of a level, action after action."""
    size, turns = cells.shape[1], rates.shape[1]
    table, used = tables(size, boxes, most)
    index = np.empty(len(table), np.int32)  # of the state in a slot
    states, to = np.empty((most, 1 + boxes), np.int16), np.empty((most, 4), np.int32)
    now, then = np.empty(most), np.empty(most)
    # Number of states that are reachable within so many actions
    ends = np.empty(turns + 1, np.int64)
    for n in range(len(cells)):
        grid = cells[n].reshape(-1)
        read_state(grid, states[0])
        slot = slot_of(key_of(states[0]), table)
        table[slot], used[0], index[slot] = key_of(states[0]), slot, 0
        at, count, ends[0] = 0, 1, 1
        for turn in range(1, turns + 1):
            while at < ends[turn - 1] and count < most:
                is_solved = solved(grid, states[at])
                for action in range(4):
                    to[at, action] = at
                    if (
                        is_solved
                        or count == most
                        or not advance(grid, size, states[at], action + 1, states[count])
                    ):
                        continue
                    key = key_of(states[count])
                    slot = slot_of(key, table)
                    if table[slot] != key:
                        table[slot], used[count], index[slot] = key, slot, count
                        count += 1
                    to[at, action] = index[slot]
                at += 1
            ends[turn] = count
        leave(table, used, count)
        if count == most:
            rates[n] = np.nan
            continue
        now[:count] = 0
        now[0] = 1
        for turn in range(1, turns + 1):
            then[: ends[turn]] = 0
            for k in range(ends[turn - 1]):
                for action in range(4):
                    then[to[k, action]] += now[k] / 4
            now, then = then, now
            for k in range(ends[turn]):
                if now[k] > 0 and solved(grid, states[k]):
                    rates[n, turn - 1] += now[k]


def sampled_random_rates(
    config: GameConfig, seeds: NDArray[np.int64], turns: int
) -> NDArray[np.float64]:
    """Return the share of `EPISODES` random games of every level that are solved within 1 to `turns` actions."""
    rng, game = np.random.default_rng(0), make_game(config)
    game.reset(np.repeat(seeds, EPISODES))
    rates = np.empty((len(seeds), turns))
    for turn in range(turns):
        active = np.flatnonzero(~game.done)
        game.step(rng.integers(1, 5, size=len(active)), active)
        rates[:, turn] = game.success.reshape(len(seeds), EPISODES).mean(1)
    return rates
