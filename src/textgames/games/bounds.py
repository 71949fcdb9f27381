"""What can be reached within so many turns, and what comes by chance: bounds that stand beside every result."""

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
from textgames.games.solver import advance, key_of, lengths, most_states, note, solved

EPISODES = 256  # of random actions, for a level that has too many moments


class Chances(NamedTuple):
    """Chance of success for each level within 1, 2, … turns, float64 [n, turns].

    Attributes:
        random: Of a player that takes each action equally often.
        optimal: Of the best player. On slippery ice it knows where it is, not how it will slip.
    """

    random: NDArray[np.float64]
    optimal: NDArray[np.float64]


def chances(config: GameConfig, seeds: NDArray[np.int64], turns: int) -> Chances:
    """Returns what can be reached on the levels of seeds; a turn is an action.

    Exact, by dynamic programming: over the cells of FrozenLake, over the moments of a level of Sokoban that can be met.
    Where those are more than `solver.MOST_STATES`, random actions are played, `EPISODES` of a level.

    Args:
        config: Flags; no game goes on after `max_steps`.
        seeds: int64 [n].
        turns: At least 1.
    """
    played = min(turns, config.max_steps)
    if config.env == BANDIT:
        shape = (len(seeds), played)
        found = Chances(np.full(shape, 0.5), np.ones(shape))
    elif config.env == SOKOBAN:
        cells = sokoban.generate(seeds, config.side, config.boxes, config.search_depth)
        needed = lengths(cells)[:, None]
        random = sokoban_random(cells, played)
        if len(many := np.flatnonzero(np.isnan(random[:, 0]))):
            random[many] = _tried(config, seeds[many], played)
        reached = (needed >= 0) & (needed <= np.arange(1, played + 1))
        found = Chances(random, reached.astype(np.float64))
    else:
        cells, player, _ = frozenlake.generate(seeds, config.side, config.frozen)
        found = lake(cells, player, played, config.slippery)
    held = np.minimum(np.arange(turns), played - 1)
    return Chances(found.random[:, held], found.optimal[:, held])


def bounds(config: GameConfig, seeds: NDArray[np.int64], turns: int) -> tuple[float, float]:
    """Returns the random and the best player's share of successes within `turns` turns, means over seeds' levels."""
    found = chances(config, seeds, turns)
    return float(found.random[:, -1].mean()), float(found.optimal[:, -1].mean())


def lake(
    cells: NDArray[np.uint8], player: NDArray[np.int64], turns: int, slippery: bool
) -> Chances:
    """Returns what can be reached on FrozenLake maps, uint8 [n, size, size], from the cells `player`, int64 [n]."""
    count, size = cells.shape[:2]
    grid, rows = cells.reshape(count, -1), np.arange(count)
    y, x = np.divmod(np.arange(size**2), size)
    high = size - 1
    to = np.stack(
        [
            y * size + np.maximum(x - 1, 0), np.minimum(y + 1, high) * size + x,
            y * size + np.minimum(x + 1, high), np.maximum(y - 1, 0) * size + x,
        ]
    )  # fmt: skip
    over = grid != frozenlake.FROZEN
    random, best = (grid == GOAL).astype(np.float64), (grid == GOAL).astype(np.float64)
    found = Chances(np.empty((count, turns)), np.empty((count, turns)))
    for turn in range(turns):
        for now, kept, choose in ((random, found.random, np.mean), (best, found.optimal, np.max)):
            moved = now[:, to]
            if slippery:
                moved = (moved + np.roll(moved, 1, 1) + np.roll(moved, -1, 1)) / 3
            now[:] = np.where(over, now, choose(moved, 1))
            kept[:, turn] = now[rows, player]
    return found


def sokoban_random(cells: NDArray[np.uint8], turns: int) -> NDArray[np.float64]:
    """Returns the chance that random actions solve each level, uint8 [n, size, size], within 1 to `turns` actions.

    float64 [n, turns]; not a number for a level that has more moments than the search looks at.
    """
    found = np.zeros((len(cells), turns))
    if len(cells):
        boxes = int((cells[0] & BOX > 0).sum())
        _spread(cells, boxes, most_states(cells.shape[1], boxes), found)
    return found


@kernel
def _spread(cells, boxes, most, found):  # type: ignore[no-untyped-def]
    """The chance to be at each moment of a level, action after action."""
    size, turns = cells.shape[1], found.shape[1]
    table, used = tables(size, boxes, most)
    index = np.empty(len(table), np.int32)  # of the moment whose key a slot holds
    states, to = np.empty((most, 1 + boxes), np.int16), np.empty((most, 4), np.int32)
    now, then = np.empty(most), np.empty(most)
    ends = np.empty(turns + 1, np.int64)  # how many moments are met within so many actions
    for n in range(len(cells)):
        grid = cells[n].reshape(-1)
        note(grid, states[0])
        slot = slot_of(key_of(states[0]), table)
        table[slot], used[0], index[slot] = key_of(states[0]), slot, 0
        at, seen, ends[0] = 0, 1, 1
        for turn in range(1, turns + 1):
            while at < ends[turn - 1] and seen < most:
                over = solved(grid, states[at])
                for action in range(4):
                    to[at, action] = at
                    if (
                        over
                        or seen == most
                        or not advance(grid, size, states[at], action + 1, states[seen])
                    ):
                        continue
                    key = key_of(states[seen])
                    slot = slot_of(key, table)
                    if table[slot] != key:
                        table[slot], used[seen], index[slot] = key, slot, seen
                        seen += 1
                    to[at, action] = index[slot]
                at += 1
            ends[turn] = seen
        leave(table, used, seen)
        if seen == most:
            found[n] = np.nan
            continue
        now[:seen] = 0
        now[0] = 1
        for turn in range(1, turns + 1):
            then[: ends[turn]] = 0
            for k in range(ends[turn - 1]):
                for action in range(4):
                    then[to[k, action]] += now[k] / 4
            now, then = then, now
            for k in range(ends[turn]):
                if now[k] > 0 and solved(grid, states[k]):
                    found[n, turn - 1] += now[k]


def _tried(config: GameConfig, seeds: NDArray[np.int64], turns: int) -> NDArray[np.float64]:
    """The share of `EPISODES` of random actions that solve each level within 1 to `turns` actions."""
    rng, game = np.random.default_rng(0), make_game(config)
    game.reset(np.repeat(seeds, EPISODES))
    found = np.empty((len(seeds), turns))
    for turn in range(turns):
        going = np.flatnonzero(~game.done)
        game.step(rng.integers(1, 5, size=len(going)), going)
        found[:, turn] = game.success.reshape(len(seeds), EPISODES).mean(1)
    return found
