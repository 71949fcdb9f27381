"""How well estimated advantages predict the value of a turn of FrozenLake, compared with group-relative ones (GRPO).

A policy that goes the shortest way and slips into a random action now and then plays slippery maps, each many times.
What each of its turns is worth is known exactly, by dynamic programming; measured is the correlation over all turns.
Each repeat has maps of its own.
"""

import argparse
import sys
from pathlib import Path

# The project's root instead of this folder, whose scripts are called as the packages are.
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

import numpy as np  # noqa: E402
from benchmarks import _report  # noqa: E402

from textgames.games import solver  # noqa: E402
from textgames.games.frozenlake import FROZEN, GOAL, FrozenLake  # noqa: E402
from textgames.learning import advantages, state_advantages  # noqa: E402

SIZE, ACTIONS, TURNS, GAMMA, ASTRAY = 4, 4, 25, 0.9, 0.4
MAPS = 32


def leads() -> np.ndarray:
    """Where an action leads from a cell, meant so or slipped to either side, int64 [cells, actions, 3]."""
    y, x = np.divmod(np.arange(SIZE**2)[:, None], SIZE)
    steps = np.array([(0, -1), (1, 0), (0, 1), (-1, 0)])
    to = np.clip(y + steps[:, 0], 0, SIZE - 1) * SIZE + np.clip(x + steps[:, 1], 0, SIZE - 1)
    return np.stack([np.roll(to, turn, axis=1) for turn in (-1, 0, 1)], axis=2)


def policy_of(cells: np.ndarray) -> np.ndarray:
    """Chances of actions in each cell of a map, [cells, actions]."""
    grids = np.repeat(cells[None], SIZE**2, axis=0)
    chances = np.full((SIZE**2, ACTIONS), ASTRAY / ACTIONS)
    for cell, way in enumerate(solver.walk(grids, np.arange(SIZE**2), None)):
        if way is None or not len(way):
            chances[cell] = 1 / ACTIONS
        else:
            chances[cell, way[0] - 1] += 1 - ASTRAY
    return chances


def exact(cells: np.ndarray, policy: np.ndarray, to: np.ndarray) -> np.ndarray:
    """Advantages of actions in each cell, [cells, actions]."""
    kinds, values = cells.reshape(-1), np.zeros(SIZE**2)
    for _ in range(200):
        told = np.where(kinds == GOAL, 1.0, np.where(kinds == FROZEN, GAMMA * values, 0.0))
        worth = told[to].mean(2)
        values = (policy * worth).sum(1)
    return worth - values[:, None]


class Plays:
    """What a policy did on maps, and what that was worth.

    Args:
        rng: Of the maps and the policy.
        times: That each map is played.
        own_luck: Each time with slips of its own.
    """

    def __init__(self, rng: np.random.Generator, times: int, own_luck: bool) -> None:
        seeds = rng.integers(1 << 40, size=MAPS)
        game, self.groups = FrozenLake(SIZE, 0.8, True, TURNS), np.repeat(np.arange(MAPS), times)
        luck = np.tile(np.arange(times), MAPS) * own_luck
        game.reset(seeds[self.groups], luck)
        policies = [policy_of(cells) for cells in game.cells[::times]]
        to = leads()
        worth = [exact(cells, each, to) for cells, each in zip(game.cells[::times], policies, strict=True)]  # fmt: skip
        told = [([], [], [], []) for _ in self.groups]  # states, actions, rewards, what is exact
        going = np.arange(len(self.groups))
        for _ in range(TURNS):
            cells = game.player[going].copy()
            sure = np.array(
                [policies[self.groups[b]][c] for b, c in zip(going, cells, strict=True)]
            )
            actions = 1 + (rng.random((len(going), 1)) > sure.cumsum(1)[:, :-1]).sum(1)
            outcome = game.step(actions, going)
            for b, cell, action, reward in zip(going, cells, actions, outcome.reward, strict=True):
                each = (
                    int(cell),
                    int(action),
                    float(reward),
                    worth[self.groups[b]][cell, action - 1],
                )
                for of, value in zip(told[b], each, strict=True):
                    of.append(value)
            going = going[~outcome.done]
            if not len(going):
                break
        over = np.isin(np.arange(len(self.groups)), going, invert=True)
        self.paths = [
            state_advantages.Path(*each[:3], bool(done), int(of))
            for each, done, of in zip(told, over, luck, strict=True)
        ]
        self.exact = np.concatenate([each[3] for each in told])


def of_states(plays: Plays) -> float:
    """The correlation of `adv-estimator=states`, before it is said how much likelier an action is to become."""
    found = []
    for group in range(MAPS):
        which = np.flatnonzero(plays.groups == group)
        found += state_advantages.certainty_equivalence([plays.paths[i] for i in which], GAMMA)
    told = np.concatenate([each.advantage for each in found])
    return float(np.corrcoef(told, plays.exact)[0, 1])


def of_outcomes(plays: Plays) -> float:
    """The correlation of `adv-estimator=grpo`."""
    scores = np.array([sum(path.rewards) for path in plays.paths])
    found = advantages.outcome_advantages("grpo", scores, plays.groups)
    told = np.repeat(found, [len(path.rewards) for path in plays.paths])
    return float(np.corrcoef(told, plays.exact)[0, 1])


def row(times: int, own_luck: bool, options: argparse.Namespace) -> dict:
    """Both estimates of the same turns."""
    plays = [Plays(np.random.default_rng(k), times, own_luck) for k in range(options.repeats)]
    turns = {"ours": iter(plays), "peer": iter(plays)}
    rates = _report.alternate(
        {
            "ours": lambda: of_states(next(turns["ours"])),
            "peer": lambda: of_outcomes(next(turns["peer"])),
        },
        options.repeats,
    )
    slips = "slips of its own" if own_luck else "the same slips"
    return _report.row(
        f"turns of {MAPS} maps, each played {times} times with {slips}", rates["ours"], rates["peer"],
        peer_name="group-relative outcomes", unit="correlation with the exact advantage", target=2,
    )  # fmt: skip


def main() -> None:
    """Measure all in turn and write the result."""
    options = _report.parser(__doc__).parse_args()
    rows = [row(times, luck, options) for times, luck in ((16, False), (16, True), (64, True))]
    _report.report("textgames_advantages", rows, dry_run=options.dry_run)


if __name__ == "__main__":
    main()
