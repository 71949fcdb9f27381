"""Sokoban against plain rules: steps, levels, solutions, chances."""

import numpy as np
import pytest

from naive_games import Warehouse
from runcatalog.record import UserError
from textgames.games import bounds, levels, sokoban, solver
from textgames.games.config import GameConfig, make_game

VARIANTS = [
    {}, {"search_depth": 100}, {"search_depth": 500}, {"size": 8}, {"size": 10}, {"boxes": 2},
    {"size": 5}, {"size": 9, "boxes": 3},
]  # fmt: skip
SEEDS = np.arange(60) * 7919


def begun(seeds=SEEDS, **flags):
    config = GameConfig(env="sokoban", **flags)
    game = make_game(config)
    game.reset(seeds)
    return config, game, [Warehouse(text) for text in game.render(np.arange(len(seeds)))]


@pytest.mark.parametrize("flags", VARIANTS, ids=str)
def test_every_step_is_that_of_the_rules(flags):
    config, game, plain = begun(max_steps=40, **flags)
    rng, met = np.random.default_rng(0), set()
    solutions = solver.solutions(config, SEEDS)
    for turn in range(40):
        which = rng.permutation(np.flatnonzero(~game.done))
        actions = rng.integers(5, size=len(which))
        # Half of the games follow a solution, so that boxes are moved onto targets; some are moved away again.
        for i, b in enumerate(which):
            if b % 2 and turn < len(solutions[b]) - (b % 4 == 1):
                actions[i] = solutions[b][turn]
        outcome = game.step(actions, which)
        texts = game.render(which)
        for i, b in enumerate(which):
            reward, moved = plain[b].step(int(actions[i]))
            assert texts[i] == plain[b].text()
            assert outcome.reward[i] == pytest.approx(reward, abs=1e-6)
            assert outcome.effective[i] == moved
            assert outcome.penalty[i] == -float(actions[i] == 0)
            assert outcome.success[i] == plain[b].solved == game.success[b]
            assert outcome.done[i] == game.done[b] == (plain[b].solved or turn == 39)
            met.add(round(float(reward), 1))
    assert (game.steps <= 40).all()
    assert game.success.sum() >= 15
    assert {-0.1, 10.9} <= met


def test_moving_a_box_off_a_target_costs_reward():
    game = sokoban.Sokoban()
    text = "######\n#P√__#\n#____#\n#XO__#\n#____#\n######"
    signs = {sign: k for k, sign in enumerate(sokoban.SYMBOLS) if sign != "?"}
    game.load(np.array([[[signs[sign] for sign in row] for row in text.split("\n")]], np.uint8))
    taken = [4, 2, 0, 4, 4, 1, 3]
    rewards = [game.step(np.array([a]), np.array([0])).reward[0] for a in taken]
    plain = Warehouse("\n".join(" ".join(row) for row in text.split("\n")))
    assert rewards == pytest.approx([plain.step(a)[0] for a in taken], abs=1e-6)
    assert rewards == pytest.approx([-1.1, -0.1, -0.1, -0.1, -0.1, -0.1, 0.9], abs=1e-6)
    assert not game.done[0]


@pytest.mark.parametrize("flags", VARIANTS, ids=str)
def test_levels_are_valid_and_solvable(flags):
    config, game, plain = begun(**flags)
    for level in plain:
        assert level.shape == (config.side, config.side)
        assert len(level.boxes) == len(level.targets) == config.boxes
        assert not level.boxes & level.targets
        assert level.player not in level.targets | level.boxes
        border = {at for at in np.ndindex(*level.shape) if {*at} & {0, config.side - 1}}
        assert border <= level.walls
    assert (solver.lengths(game.cells) > 0).all()


@pytest.mark.parametrize("flags", [{}, {"boxes": 2}, {"size": 7, "boxes": 1}], ids=str)
def test_solutions_are_shortest_and_solve(flags):
    config, game, plain = begun(SEEDS[:40], **flags)
    solutions = solver.solutions(config, SEEDS[:40])
    assert [len(solution) for solution in solutions] == [level.shortest() for level in plain]
    assert solver.lengths(game.cells).tolist() == [len(solution) for solution in solutions]
    for b, actions in enumerate(solutions):
        for action in actions:
            assert not game.done[b]
            game.step(np.array([action]), np.array([b]))
    assert game.success.all()


def test_an_unsolvable_level_has_no_solution():
    _, game, _ = begun(SEEDS[:20])
    cells = game.cells.copy()
    cells[cells == sokoban.TARGET] = sokoban.WALL
    cells[:, 0, 0] = sokoban.TARGET
    assert solver.solve(cells) == [None] * 20
    assert (solver.lengths(cells) == -1).all()
    assert (bounds.sokoban_random(cells, 5) == 0).all()
    assert solver.solve(cells[:0]) == []


def test_solutions_from_a_later_state_have_the_remaining_length():
    config, game, _ = begun()
    before = solver.lengths(game.cells)
    first = np.array([solution[0] for solution in solver.solutions(config, SEEDS)])
    game.step(first, np.arange(len(SEEDS)))
    assert (solver.lengths(game.cells) == before - 1).all()


def test_levels_are_as_hard_as_those_of_the_source():
    """Of its generator 29, 50, 67, 87.9, 99.2 % can be solved in 1, 2, 4, 5, 8 moves; random ones solve 19.3, 26.3 and
    36.5 % in 5, 10, 25. Each was measured once, on some thousand levels at most."""
    cells = sokoban.generate(np.arange(10_000, 20_000))
    lengths = solver.lengths(cells)
    shares = [100 * (lengths <= n).mean() for n in (1, 2, 4, 5, 8)]
    assert shares == pytest.approx([29, 50, 67, 87.9, 99.2], abs=1.5)
    assert lengths.mean() == pytest.approx(3.3, abs=0.1)
    random = 100 * bounds.sokoban_random(cells[:4000], 25).mean(0)[[4, 9, 24]]
    assert random == pytest.approx([19.3, 26.3, 36.5], abs=1.5)


@pytest.mark.parametrize("flags", [{}, {"boxes": 2}, {"size": 8}], ids=str)
def test_random_players_succeed_as_often_as_computed(flags, monkeypatch):
    config = GameConfig(env="sokoban", max_steps=9, **flags)
    seeds = levels.validation(config, 40)
    exact = bounds.success_rates(config, seeds, 12)
    assert exact.random.shape == exact.optimal.shape == (40, 12)
    assert (exact.random[:, 8:] == exact.random[:, 8:9]).all()
    played = bounds.sampled_random_rates(config, seeds, 9)
    error = np.sqrt(0.25 / bounds.EPISODES / len(seeds))
    assert np.abs(played.mean(0) - exact.random[:, :9].mean(0)).max() < 4 * error
    assert (np.diff(exact.random, axis=1) >= -1e-12).all()
    assert (exact.random <= exact.optimal + 1e-12).all()
    # Where the moments of a level are too many to be counted, they are played.
    monkeypatch.setattr(bounds, "most_states", lambda *_: 8)
    assert (bounds.success_rates(config, seeds, 9).random != exact.random[:, :9]).any()
    assert (
        np.abs(bounds.success_rates(config, seeds, 9).random.mean(0) - played.mean(0)).max()
        < 4 * error
    )


def test_a_seed_gives_the_same_level_in_every_batch():
    together = sokoban.generate(SEEDS, 7, 2)
    order = np.random.default_rng(0).permutation(len(SEEDS))
    assert (sokoban.generate(SEEDS[order], 7, 2) == together[order]).all()
    assert (sokoban.generate(SEEDS[17:18], 7, 2)[0] == together[17]).all()
    assert len(np.unique(together.reshape(len(SEEDS), -1), axis=0)) > 0.9 * len(SEEDS)


def test_a_turned_level_is_the_same_level_in_another_position():
    cells = sokoban.generate(np.repeat(SEEDS, 20))
    moved = sokoban.turned(cells, np.random.default_rng(0))
    assert [*solver.lengths(moved)] == [*solver.lengths(cells)]
    positions = set()
    for before, after in zip(cells, moved, strict=True):
        forms = [np.rot90(before, quarters) for quarters in range(4)]
        forms += [form[:, ::-1] for form in forms]
        equal = [number for number, form in enumerate(forms) if (form == after).all()]
        assert equal
        if len(equal) == 1:
            positions.add(equal[0])
    assert positions == set(range(8))


@pytest.mark.parametrize(
    ("flags", "about"),
    [
        ({"size": 4}, "--size"),
        ({"size": 13}, "--size"),
        ({"size": 5, "boxes": 2}, "--boxes"),
        ({"search_depth": 2}, "--search-depth"),
        ({"size": 8, "boxes": 4, "search_depth": 5}, "--search-depth: 5 .* give 6 or more"),
        # Flags of other games, with whose texts a tiny model's tokenizer is trained.
        ({"low_name": "<arm>"}, "--low-name"),
        ({"frozen": 0.0}, "--frozen"),
    ],
)
def test_impossible_flags_are_refused(flags, about):
    with pytest.raises(UserError, match=about):
        GameConfig(env="sokoban", **flags)


@pytest.mark.parametrize("size", range(5, 13))
def test_the_largest_allowed_number_of_boxes_can_be_placed(size):
    most = max(n for n in range(1, 5) if n == 1 or n <= (size - 2) ** 2 // 8)
    config = GameConfig(env="sokoban", size=size, boxes=most, search_depth=10)
    assert len(levels.level_keys(config, np.arange(3))) == 3


def test_the_smallest_allowed_depth_has_levels_and_smaller_ones_none():
    """At depth 4 two boxes are pulled once each; the search's depth is its number of moves plus 2."""
    config = GameConfig(env="sokoban", boxes=2, search_depth=4, size=7)
    for moves in solver.solutions(config, np.arange(3), safe=True):
        assert len(moves) >= 2
    with pytest.raises(UserError, match="--search-depth: none of 10,000 rooms of 7 x 7"):
        sokoban.generate(np.arange(3), 7, 2, 3)


def test_a_finished_game_ignores_actions():
    config, game, _ = begun(SEEDS[:2])
    for action in solver.solutions(config, SEEDS[:1])[0]:
        game.step(np.array([action]), np.array([0]))
    with pytest.raises(ValueError, match="finished game"):
        game.step(np.array([1, 1]), np.array([1, 0]))
    with pytest.raises(ValueError, match="0 to 4"):
        game.step(np.array([5]), np.array([1]))
