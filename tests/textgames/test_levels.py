"""The test sets share no level with training or validation, turned and mirrored ones included."""

import re

import numpy as np
import pytest

from runcatalog.record import UserError
from textgames.games import frozenlake, levels, sokoban, solver
from textgames.games.config import GameConfig

CONFIGS = [GameConfig(env="sokoban"), GameConfig(env="frozenlake")]


def grids(config, seeds):
    """Every grid as nested tuples, the player included."""
    if config.env == "sokoban":
        return sokoban.generate(seeds, config.side, config.boxes, config.search_depth)
    cells, player, _ = frozenlake.generate(seeds, config.side, config.frozen)
    cells = cells.reshape(len(seeds), -1).astype(int)
    cells[np.arange(len(seeds)), player] += 100
    return cells.reshape(len(seeds), config.side, config.side)


def forms(grid):
    """The eight turned and mirrored forms of a grid, by lists."""
    rows = [list(row) for row in grid]
    for _ in range(4):
        rows = [list(row) for row in zip(*rows[::-1], strict=True)]
        yield tuple(map(tuple, rows))
        yield tuple(tuple(row[::-1]) for row in rows)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.env)
@pytest.mark.parametrize("hard", [False, True])
def test_no_level_of_a_test_set_is_used_elsewhere(config, hard):
    seeds = levels.held_out(config, 200, hard=hard)
    assert len(seeds) == 200
    assert (np.diff(seeds) > 0).all()
    tested = [set(forms(grid)) for grid in grids(config, seeds)]
    elsewhere = [
        levels.validation(config),
        levels.training(config, 3000),
        levels.training(config, 3000, levels.FIRST_SFT),
    ]
    used = {tuple(map(tuple, grid)) for other in elsewhere for grid in grids(config, other)}
    assert not any(known & used for known in tested)
    assert len({min(known) for known in tested}) == 200
    moves = [len(other) for other in solver.solutions(config, seeds, safe=True)]
    assert min(moves) >= (levels.HARD if hard else 1)
    assert hard == (1 not in moves)
    assert (levels.held_out(config, 50, hard=hard) == seeds[:50]).all()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.env)
def test_levels_for_choices_are_those_of_no_training_and_no_test(config):
    seeds = levels.evaluation(config, "validation_disjoint", 100)
    assert len(seeds) == 100
    tests = [levels.evaluation(config, name) for name in ("test", "test_hard")]
    elsewhere = [*tests, levels.training(config, 3000, levels.FIRST_SFT)]
    used = {tuple(map(tuple, grid)) for other in elsewhere for grid in grids(config, other)}
    assert not any(set(forms(grid)) & used for grid in grids(config, seeds))


@pytest.mark.parametrize("name", ["test", "test_hard"])
def test_a_test_set_has_no_level_by_which_settings_are_chosen(name):
    config = GameConfig(env="frozenlake")
    chosen_by = levels.evaluation(config, "validation_disjoint")
    with pytest.raises(
        UserError, match=r"--val-data-num: 1000, but .*validation_disjoint"
    ) as error:
        levels.evaluation(config, name, 1000)
    most = int(re.search(r"give (\d+) or fewer", str(error.value))[1])
    assert 500 <= most < 1000
    assert not np.isin(levels.evaluation(config, name, most), chosen_by).any()
    following = levels.held_out(config, most + 200, hard=name == "test_hard")[most:]
    assert np.isin(following, chosen_by).any()


@pytest.fixture
def few_used(monkeypatch):
    """The test sets leave out the levels of 500 seeds of each training instead of 40,000."""
    caches = (levels._used_keys, levels._held_out_keys, levels._look_for)
    monkeypatch.setattr(levels, "USED", 500)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.env)
def test_a_training_on_more_levels_than_the_test_sets_leave_out_has_none_of_theirs(
    few_used, config
):
    trained = levels.training(config, 2000, levels.FIRST_SFT)
    assert len(trained) == 2000
    assert trained[-1] > levels.FIRST_SFT + levels.USED
    used = {tuple(map(tuple, grid)) for grid in grids(config, trained)}
    for name in ("test", "test_hard", "validation_disjoint"):
        tested = levels.evaluation(config, name, 500)
        assert not any(set(forms(grid)) & used for grid in grids(config, tested))


def test_a_training_on_fewer_levels_has_the_first_of_one_on_more(few_used):
    """Also where some are levels of a test set: no seeds are skipped after these."""
    config = GameConfig(env="sokoban")
    more = levels.training(config, 2500)
    for count in (100, 600, 2000):
        np.testing.assert_array_equal(levels.training(config, count), more[:count])


def test_a_training_has_no_level_of_a_test_set_with_fewer_levels_than_its_validation(
    few_used, monkeypatch
):
    monkeypatch.setattr(levels, "MOST_TRIED", 10_000)
    config = GameConfig(env="sokoban")
    with pytest.raises(UserError, match=r"--val-data-num: 1500, but only \d+ levels"):
        levels.evaluation(config, "test", 1500)
    trained = levels.training(config, 2000, levels.FIRST_SFT, excluded=1500)
    used = {tuple(map(tuple, grid)) for grid in grids(config, trained)}
    for name in ("test", "test_hard"):
        tested = levels.evaluation(config, name, 500)
        assert not any(set(forms(grid)) & used for grid in grids(config, tested))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.env)
def test_symmetric_keys_are_equal_for_turned_and_mirrored_grids_alone(config):
    seeds = np.arange(3000)
    keys = levels.symmetric_keys(config, seeds)
    expected = [min(forms(grid)) for grid in grids(config, seeds)]
    _, ours = np.unique(keys, return_inverse=True)
    names = {form: number for number, form in enumerate(dict.fromkeys(expected))}
    reference = np.array([names[form] for form in expected])
    assert len(names) < 3000  # some grids are equal
    same = dict(zip(ours.tolist(), reference.tolist(), strict=True))
    assert len(same) == len(names)
    assert [same[number] for number in ours.tolist()] == reference.tolist()
