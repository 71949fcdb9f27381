"""FrozenLake against gymnasium's: transitions, and the success of an optimal player."""

import gymnasium
import numpy as np
import pytest

from runcatalog.record import UserError
from textgames.games import bounds, frozenlake, levels, solver
from textgames.games.config import GameConfig, make_game

SEEDS = np.arange(50) * 7919 + 5


def peer(cells, player, slippery=True):
    """gymnasium's table of a map: (cell, action) → probabilities, next cells, rewards and ends."""
    letters = np.array(["F", "H", "G"])[cells]
    letters.reshape(-1)[player] = "S"
    env = gymnasium.make(
        "FrozenLake-v1", desc=["".join(row) for row in letters], is_slippery=slippery
    )
    return env.unwrapped.P


@pytest.mark.parametrize("slippery", [True, False])
def test_transitions_are_those_of_gymnasium(slippery):
    config = GameConfig(env="frozenlake", slippery=slippery, max_steps=30)
    game = make_game(config)
    game.reset(SEEDS)
    tables = [peer(*level, slippery) for level in zip(game.cells, game.player, strict=True)]
    rng, ways = np.random.default_rng(0), np.zeros(3, int)
    for turn in range(30):
        which = rng.permutation(np.flatnonzero(~game.done))
        before, actions = game.player[which], rng.integers(5, size=len(which))
        outcome = game.step(actions, which)
        for i, b in enumerate(which):
            now = int(game.player[b])
            assert outcome.penalty[i] == -float(actions[i] == 0)
            assert outcome.effective[i] == (now != before[i])
            if actions[i] == 0:
                assert now == before[i]
                assert outcome.reward[i] == 0
                assert outcome.done[i] == (turn == 29)
                continue
            table = tables[b][before[i]][actions[i] - 1]
            fitting = [k for k, (_, to, _, _) in enumerate(table) if to == now]
            assert fitting
            _, _, reward, end = table[fitting[0]]
            assert (outcome.reward[i], outcome.success[i]) == (reward, reward == 1)
            assert outcome.done[i] == game.done[b] == (end or turn == 29)
            ways[fitting[0]] += len({to for _, to, _, _ in table}) == 3
    assert game.success.sum() >= 5
    assert (game.done & ~game.success).sum() >= 5
    if slippery:
        assert np.abs(ways / ways.sum() - 1 / 3).max() < 5 * np.sqrt(2 / 9 / ways.sum())


def test_a_seed_determines_map_and_slips():
    rng, config = np.random.default_rng(1), GameConfig(env="frozenlake", frozen=1.0, size=8)
    one, many = make_game(config), make_game(config)
    one.reset(SEEDS[7:8])
    many.reset(SEEDS)
    while not one.done[0] and one.steps[0] < 30:
        actions = rng.integers(5, size=len(SEEDS))
        which = rng.permutation(np.flatnonzero(~many.done))
        many.step(actions[which], which)
        one.step(actions[7:8], np.zeros(1, np.int64))
        assert one.player[0] == many.player[7]
        assert one.render(np.array([0])) == many.render(np.array([7]))


@pytest.mark.parametrize(("size", "frozen"), [(4, 0.8), (8, 0.8), (2, 0.5), (4, 0.3), (3, 1.0)])
def test_maps_are_valid_and_solvable(size, frozen):
    cells, player, _ = frozenlake.generate(np.arange(300), size, frozen)
    for grid, start in zip(cells, player, strict=True):
        assert (grid == frozenlake.GOAL).sum() == 1
        assert grid.reshape(-1)[start] == frozenlake.FROZEN
    assert (solver.walk(cells[:1], player[:1])[0] >= 1).all()
    ways = solver.walk(cells, player)
    assert all(1 <= len(way) < size**2 for way in ways)
    holes = (cells == frozenlake.HOLE).mean()
    assert 0 <= holes <= 1 - frozen + 0.01
    starts = np.bincount(player, minlength=size**2)
    assert starts.min() > 0 or size == 8


@pytest.mark.parametrize("turns", [5, 10, 25, 100])
def test_bounds_are_those_of_value_iteration(turns):
    """The numbers are the source's maps' (p .8, random start and goal), measured once on some hundred of them."""
    config = GameConfig(env="frozenlake")
    reported = {5: (15.7, 29.8), 10: (21.9, 50.7), 25: (28.7, 78.8), 100: (32.5, 91.8)}[turns]
    rates = bounds.success_rates(config, np.arange(100_000, 108_000), turns)
    assert [100 * of_maps[:, -1].mean() for of_maps in rates] == pytest.approx(reported, abs=2)
    cells, player, _ = frozenlake.generate(SEEDS[:8])
    exact = bounds.success_rates(config, SEEDS[:8], turns)
    for b in range(8):
        table = peer(cells[b], player[b])
        best, random = np.zeros(16), np.zeros(16)
        for _ in range(turns):
            action_values = np.array(
                [
                    [expected(table[s][a], v) for a in range(4) for v in (best, random)]
                    for s in range(16)
                ]
            )
            best, random = action_values[:, 0::2].max(1), action_values[:, 1::2].mean(1)
        assert exact.optimal[b, -1] == pytest.approx(best[player[b]], abs=1e-12)
        assert exact.random[b, -1] == pytest.approx(random[player[b]], abs=1e-12)


def expected(outcomes, values):
    return sum(chance * (reward + (not end) * values[to]) for chance, to, reward, end in outcomes)


def test_without_slips_the_optimal_player_takes_the_shortest_way():
    config = GameConfig(env="frozenlake", slippery=False)
    rates = bounds.success_rates(config, SEEDS, 15)
    lengths = np.array([len(solution) for solution in solver.solutions(config, SEEDS)])
    assert (rates.optimal == (lengths[:, None] <= np.arange(1, 16))).all()
    assert (rates.random <= rates.optimal + 1e-12).all()


def test_random_players_succeed_as_often_as_computed():
    config = GameConfig(env="frozenlake")
    seeds = np.arange(20_000)
    game, rng = make_game(config), np.random.default_rng(0)
    game.reset(seeds)
    exact = bounds.success_rates(config, seeds, 10).random.mean(0)
    for turn in range(10):
        which = np.flatnonzero(~game.done)
        game.step(rng.integers(1, 5, size=len(which)), which)
        assert game.success.mean() == pytest.approx(exact[turn], abs=4 * 0.5 / np.sqrt(20_000))


@pytest.mark.parametrize("slippery", [True, False])
def test_optimal_actions_are_those_of_value_iteration_on_gymnasiums_table(slippery):
    cells, player, _ = frozenlake.generate(SEEDS[:12])
    for turns in (1, 4, 25):
        found = bounds.frozenlake_actions(cells, turns, slippery)
        for n, start in enumerate(player):
            table, grid = peer(cells[n], start, slippery), cells[n].reshape(-1)
            value = (grid == frozenlake.GOAL).astype(float)
            for left in range(turns):
                quality = np.array([
                    [sum(p * value[to] for p, to, _, _ in table[cell][action]) for action in range(4)]
                    for cell in range(16)
                ])  # fmt: skip
                if left < turns - 1:
                    value = np.where(grid == frozenlake.FROZEN, quality.max(1), value)
            for cell in np.flatnonzero(grid == frozenlake.FROZEN):
                chosen = found[n, cell] - 1
                assert quality[cell, chosen] == pytest.approx(quality[cell].max(), abs=1e-8)
                assert (quality[cell, :chosen] < quality[cell].max() - 1e-10).all()  # the first one


@pytest.mark.parametrize("safe", [False, True])
def test_solutions_reach_the_goal(safe):
    config = GameConfig(env="frozenlake")
    for seed, actions in zip(SEEDS, solver.solutions(config, SEEDS, safe=safe), strict=True):
        game = make_game(GameConfig(env="frozenlake", slippery=not safe))
        game.reset(np.array([seed]))
        for action in actions:
            assert not game.done[0]
            game.step(np.array([action]), np.zeros(1, np.int64))
        assert game.success[0]


def test_a_goal_behind_holes_is_unreachable():
    cells = np.zeros((1, 4, 4), np.uint8)
    cells[0, 1], cells[0, 3, 3] = frozenlake.HOLE, frozenlake.GOAL
    _, _, rng = frozenlake.generate(np.array([3]))
    assert solver.walk(cells, np.array([0])) == [None]
    assert solver.walk(cells, np.array([0]), rng) == [None]
    assert bounds.frozenlake_rates(cells, np.array([0]), 50, True).optimal.max() == 0


@pytest.mark.parametrize(
    ("flags", "about"),
    [({"size": 1}, "--size"), ({"frozen": 0.0}, "--frozen"), ({"frozen": 2.0}, "--frozen")],
)
def test_impossible_flags_are_refused(flags, about):
    with pytest.raises(UserError, match=about):
        GameConfig(env="frozenlake", **flags)


@pytest.mark.parametrize("first", [None, 100_000])
def test_a_grid_all_of_whose_levels_are_for_validation_is_refused(first):
    with pytest.raises(UserError, match="--size"):
        levels.training(GameConfig(env="frozenlake", size=2), 50, first)


@pytest.mark.parametrize("env", ["sokoban", "frozenlake"])
@pytest.mark.parametrize("first", [None, 100_000])
def test_training_and_validation_share_no_level(env, first):
    config = GameConfig(env=env)
    validation = levels.validation(config)
    assert validation.tolist() == list(
        range(levels.FIRST[env] + 10_000, levels.FIRST[env] + 10_500)
    )
    seeds = levels.training(config, 12_000, first)
    assert len(np.unique(seeds)) == 12_000
    assert (np.diff(seeds) > 0).all()
    assert seeds[0] < (first or levels.FIRST[env]) + 50
    assert not set(seeds.tolist()) & set(validation.tolist())
    game = make_game(config)
    shown = []
    for split in (validation, seeds):
        game.reset(split)
        shown.append(set(game.render(np.arange(len(split)))))
    assert not shown[0] & shown[1]
    # The excluded seeds do not depend on the number of seeds.
    assert (levels.training(config, 700, first) == seeds[:700]).all()
    game.reset(plain := (first or levels.FIRST[env]) + np.arange(700))
    fitting = [text not in shown[0] for text in game.render(np.arange(700))]
    assert (plain[fitting] == seeds[: sum(fitting)]).all()


def test_luck_changes_the_slips_and_nothing_visible():
    seeds, luck = np.full(4000, 100_007), np.arange(4000)
    one, other = frozenlake.FrozenLake(), frozenlake.FrozenLake()
    one.reset(seeds[:3])
    other.reset(seeds, luck)
    assert (other.cells == one.cells[0]).all()
    assert (other.player == one.player[0]).all()
    one.reset(seeds[:1], luck[:1])
    again = frozenlake.FrozenLake()
    again.reset(seeds[:1])
    assert one.slips(np.array([0])) == again.slips(np.array([0]))
    # From one cell, the three outcomes of an action are equally frequent.
    start = int(other.player[0])
    other.step(np.full(4000, 2), luck)
    y, x = divmod(start, 4)
    ways = [(y, max(x - 1, 0)), (min(y + 1, 3), x), (y, min(x + 1, 3))]  # left, down, right
    ways = [4 * row + column for row, column in ways]
    led, count = np.unique(other.player, return_counts=True)
    expected_counts = {way: ways.count(way) * 4000 / 3 for way in set(ways)}
    assert dict(zip(led.tolist(), count.tolist(), strict=True)) == pytest.approx(
        expected_counts, rel=0.1
    )
