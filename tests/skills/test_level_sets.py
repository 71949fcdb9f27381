"""The sets of levels share none, compared with levels written down as sets of objects and turned one by one."""

import numpy as np
import pytest

from skills.agents.evaluation import FIRST_TRAINING_SEED, TEST_SEEDS, VALIDATION_SEEDS
from skills.learning import level_sets
from skills.levels import content, generate
from skills.levels.codes import TYPE_MASK, WALL
from skills.levels.engine import Engine

SMALL = ("nlm0", "gtg0", "pkp0")  # in which other seeds often give the same level
STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))


def drawing(level):
    """A level's objects, agent and mission, at coordinates around the middle of its room, doubled to stay integers."""
    cells, (x, y, direction) = level.cells[0], level.agent[0].tolist()
    open_cells = np.argwhere((cells & TYPE_MASK) != WALL)
    side = int(open_cells.max()) + 2
    objects = {
        (2 * int(column) - side + 1, 2 * int(row) - side + 1): int(cells[row, column])
        for row, column in open_cells
    }
    agent = (2 * x - side + 1, 2 * y - side + 1), STEPS[direction]
    return side, objects, agent, tuple(level.mission[0].tolist())


def positions(level):
    """The eight turned and mirrored drawings of a level, any of which two levels may share."""
    side, objects, (place, ahead), mission = drawing(level)
    signs = [(a, b) for a in (-1, 1) for b in (-1, 1)]
    matrices = [(a, 0, 0, b) for a, b in signs] + [(0, a, b, 0) for a, b in signs]
    for a, b, c, d in matrices:

        def move(v, a=a, b=b, c=c, d=d):
            return a * v[0] + b * v[1], c * v[0] + d * v[1]

        yield (
            side,
            frozenset((move(v), o) for v, o in objects.items()),
            move(place),
            move(ahead),
            mission,
        )


def naive(stage, seeds):
    drawn = generate.levels(stage, np.asarray(seeds))
    return [set(positions(drawn[[n]])) for n in range(len(drawn))]


@pytest.mark.parametrize("stage", [*SMALL, "all1", "tgl0"])
def test_keys_are_equal_where_levels_are_in_any_position(stage):
    seeds = np.arange(300)
    drawn = generate.levels(stage, seeds)
    keys = content.symmetric_keys(drawn)
    assert (keys[0] == content.keys(drawn)).all()
    number: dict = {}
    labels = [
        number.setdefault(min(map(repr, map(_sorted, level))), len(number))
        for level in naive(stage, seeds)
    ]
    assert len(np.unique(keys.min(0))) == len(number)
    assert [len(set(column)) for column in keys.T] == [len(level) for level in naive(stage, seeds)]
    assert len(set(zip(labels, keys.min(0).tolist(), strict=True))) == len(number)


def _sorted(drawn):
    side, objects, place, ahead, mission = drawn
    return side, sorted(objects), place, ahead, mission


@pytest.mark.parametrize("stage", SMALL)
def test_training_levels_contain_no_test_or_validation_level(stage):
    out = level_sets.left_out(stage, 100)
    evaluated = [*TEST_SEEDS[::5], *level_sets.fresh_seeds(stage)[::5]]
    tested = set().union(*naive(stage, evaluated))
    validation = Engine(stage, 100, auto_reset=False, left_out=out.validation)
    validation.reset(np.asarray(VALIDATION_SEEDS[:100]))
    validated = set().union(*(positions(validation.state()[[n]]) for n in range(100)))
    assert not tested & validated
    drawn = np.random.default_rng(3).integers(FIRST_TRAINING_SEED, 1 << 62, 1500)
    seeds = np.concatenate([drawn, evaluated[::10]])  # some are sure to give a level of the sets
    count = len(seeds)
    engine = Engine(stage, count, left_out=out.training)
    engine.reset(seeds)
    trained = engine.state()
    drawn = [next(positions(trained[[n]])) for n in range(count)]
    assert not (tested | validated) & set(drawn)
    # Without the table there are such levels, so the test can fail; the others are unchanged.
    plain = generate.levels(stage, seeds)
    repeated = np.array([next(positions(plain[[n]])) in tested | validated for n in range(count)])
    changed = trained.seed != seeds
    assert repeated.any()
    assert changed[repeated].all()
    assert not changed.all()
    assert (trained.contents()[~changed] == plain.contents()[~changed]).all()


def test_the_level_that_follows_takes_the_place_of_one_that_is_left_out():
    seeds = np.arange(50)
    table = content.table_of([content.keys(generate.levels("pkp0", seeds[:20]))])
    engine = Engine("pkp0", 50, left_out=table)
    engine.reset(seeds)
    expected = [generate.next_seed(seed) if seed < 20 else seed for seed in seeds.tolist()]
    assert engine.seeds.tolist() == expected


def test_the_fresh_set_shares_no_level_with_the_first_one_or_with_validations():
    for stage in ("nlm0", "gtg0"):
        seeds = level_sets.fresh_seeds(stage)
        assert len(seeds) == level_sets.FRESH
        assert seeds.min() >= level_sets.FIRST_FRESH_SEED
        assert seeds.max() < FIRST_TRAINING_SEED
        fresh = naive(stage, seeds[:200])
        assert len({min(map(repr, map(_sorted, level))) for level in fresh}) == 200
        used = set().union(*naive(stage, TEST_SEEDS[:400]), *naive(stage, VALIDATION_SEEDS[:200]))
        assert not set().union(*fresh) & used


def test_validation_levels_for_choices_share_none_with_the_test_sets():
    stage = "nlm0"  # of which the seeds of validations repeat test levels
    seeds = level_sets.level_seeds(stage, level_sets.VALIDATION_SET, 300)
    assert len(set(seeds.tolist())) == 300
    assert set(seeds.tolist()) <= set(VALIDATION_SEEDS)
    fresh = level_sets.level_seeds(stage, level_sets.FRESH_SET, 1000)
    tested = set().union(*naive(stage, TEST_SEEDS), *naive(stage, fresh))
    assert not tested & set().union(*naive(stage, seeds))
    # The first of them that are left out are in a test set, so the test can fail.
    skipped = sorted(
        set(VALIDATION_SEEDS[: int(seeds[-1]) - VALIDATION_SEEDS[0]]) - set(seeds.tolist())
    )
    assert all(level & tested for level in naive(stage, skipped))
    assert skipped


def test_repeats_are_counted_as_in_a_naive_comparison():
    training = np.arange(1 << 33, (1 << 33) + 3000)
    tested = naive("nlm0", TEST_SEEDS)
    trained = {next(positions(generate.levels("nlm0", training[[n]]))) for n in range(3000)}
    expected = sum(bool(level & trained) for level in tested)
    assert expected > 0
    counts = level_sets.training_repeats("nlm0", training)
    assert counts["test"] == expected
    assert counts["test_same"] == sum(
        next(positions(generate.levels("nlm0", np.array([n])))) in trained for n in TEST_SEEDS
    )
