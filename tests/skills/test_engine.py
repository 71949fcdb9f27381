"""The engine equals minigrid, and an environment does not depend on its batch."""

from collections import Counter

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from minigrid.core.grid import Grid
from minigrid.core.world_object import Door, Wall
from minigrid.utils.baby_ai_bot import BabyAIBot

from skills.levels import codes, generate, rules
from skills.levels.codes import CLOSED, DONE, DOOR, EMPTY, OPEN, PICKUP, TARGET, TOGGLE, cell
from skills.levels.engine import Engine, Step
from skills.levels.minigrid import comparison
from skills.levels.minigrid.babyai import bank, begin, from_env
from skills.levels.stages import STAGES
from skills.levels.state import Levels

NAMES = (*STAGES, *comparison.BABYAI, *comparison.MINIGRID)


@pytest.fixture(scope="module")
def compared():
    rng = np.random.default_rng(3)
    parts = {}
    for name in NAMES:
        parts[name] = comparison.Comparison(name, 6, rng)
        parts[name].play(135)
    return parts


def test_nothing_differs_from_minigrid(compared):
    different = {name: dict(part.fields) for name, part in compared.items() if part.fields}
    assert different == {}
    transitions, mismatches, _, _ = comparison.totals(list(compared.values()))
    assert (transitions >= 30_000, mismatches) == (True, 0)


@pytest.mark.parametrize("event", comparison.EVENTS)
def test_everything_that_can_happen_happened(compared, event):
    assert comparison.totals(list(compared.values()))[3][event] >= 5


def test_the_comparison_reports_a_difference(monkeypatch):
    monkeypatch.setattr(comparison, "FIELDS", ("image",))
    rng = np.random.default_rng(0)
    part = comparison.Comparison("pkp4", 4, rng)
    part.play(5)
    assert part.mismatches == 0
    part._engine.load(generate.levels("pkp4", np.arange(4)))
    part.play(5)
    assert part.mismatches > 0
    assert part.fields["image"] > 0


@settings(max_examples=300)
@given(st.lists(st.integers(0, 127), min_size=7, max_size=7))
def test_sight_spreads_over_a_view_as_minigrid_says(rows):
    grid, table = Grid(7, 7), rules.sight_table()
    for y, x in np.ndindex(7, 7):
        if not rows[y] >> x & 1:
            grid.set(x, y, Door("red") if x % 2 else Wall())
    expected, visible = grid.process_vis((3, 6)), 1 << 3
    for y in range(6, -1, -1):
        row = int(table[visible << 7 | rows[y]])
        assert [bool(row >> x & 1) for x in range(7)] == expected[:, y].tolist()
        visible = row >> 7


def play(engine, actions):
    return [[np.array(output) for output in engine.step(a)] for a in actions]


@pytest.mark.parametrize("name", ["all6", "nlm1"])
def test_an_environment_does_not_depend_on_the_others(name):
    rng = np.random.default_rng(1)
    seeds, actions = rng.integers(2**62, size=12), rng.integers(7, size=(300, 12))
    whole = Engine(name, 12)
    whole.reset(seeds)
    expected = play(whole, actions)
    order = rng.permutation(12)[:5]
    some = Engine(name, 5)
    some.reset(seeds[order])
    for actual, reference in zip(play(some, actions[:, order]), expected, strict=True):
        for a, b in zip(actual, reference, strict=True):
            assert (a == b[order]).all()
    assert np.sum([step[4] | step[5] for step in expected]) > 12


def test_a_state_is_saved_and_restored():
    rng = np.random.default_rng(2)
    engine = Engine("gto2", 8)
    engine.reset(np.arange(8))
    play(engine, rng.integers(7, size=(60, 8)))
    kept, actions = engine.state(), rng.integers(7, size=(200, 8))
    expected = play(engine, actions)
    other = Engine("gto2", 8)
    other.load(kept)
    for actual, reference in zip(play(other, actions), expected, strict=True):
        assert all((a == b).all() for a, b in zip(actual[:6], reference[:6], strict=True))


def test_steps_are_written_into_given_arrays():
    engine, buffers = Engine("pkp1", 3), Step.buffers(5, 3)
    first = engine.reset(np.arange(3), out=buffers.at(0))
    assert np.shares_memory(first.image, buffers.image)
    for t in range(1, 5):
        engine.step(np.full(3, codes.FORWARD), buffers.at(t))
    again = Engine("pkp1", 3)
    assert (again.reset(np.arange(3)).image == buffers.image[0]).all()
    for t in range(1, 5):
        step = again.step(np.full(3, codes.FORWARD))
        assert (step.image == buffers.image[t]).all()
        assert (step.mission == buffers.mission[t]).all()


def test_some_environments_are_reset_while_the_others_stay():
    engine = Engine("pkp2", 4, auto_reset=False)
    engine.reset(np.arange(4))
    play(engine, np.random.default_rng(0).integers(0, 3, size=(9, 4)))
    before = engine.state()
    engine.reset(np.arange(10, 14), np.array([False, True, False, True]))
    after = engine.state()
    assert after.seed.tolist() == [0, 11, 2, 13]
    assert after.steps.tolist() == [9, 0, 9, 0]
    assert (after.cells[[0, 2]] == before.cells[[0, 2]]).all()
    assert (after.cells[[1, 3]] == generate.levels("pkp2", np.array([11, 13])).cells).all()


def room(*things: tuple[int, int, int], mission: tuple, steps: int = 0, carried: int = 0) -> Levels:
    """An empty room with cells at (x, y); the agent at (2, 2) looks to the right, at (3, 2)."""
    level = generate.levels("pkp1", np.array([0]))
    level.cells[0, 1:-1, 1:-1] = EMPTY
    for x, y, what in things:
        level.cells[0, y, x] = what
    level.agent[0] = 2, 2, 0
    level.mission[0], level.steps[0], level.carried[0, 0] = mission, steps, carried
    return level


def outcome(level: Levels, *actions: int) -> tuple[float, bool, bool]:
    engine = Engine(level, 1, auto_reset=False)
    engine.load(level)
    for action in actions:
        step = engine.step(np.array([action]))
    return round(float(step.reward[0]), 6), bool(step.terminated[0]), bool(step.truncated[0])


BALL = cell(codes.BALL, 0)
NOTHING, LOST = (0.0, False, False), (0.0, True, False)
FETCH = (codes.PKP, 0, codes.BALL, 0)


def test_success_at_the_last_step_is_terminated_and_truncated():
    level = room((3, 2, BALL | TARGET), mission=FETCH, steps=120)
    assert outcome(level, PICKUP) == (0.1, True, True)
    assert outcome(level, DONE) == (0.0, False, True)
    level.steps[0] = 0
    assert outcome(level, PICKUP) == (round(1 - 0.9 / 121, 6), True, False)


@pytest.mark.parametrize(
    ("verb", "kind", "faced", "action", "expected"),
    [
        # Pick up: only the target, and keys of locks; no box may be opened.
        (codes.PKP, codes.BALL, cell(codes.BALL, 1), PICKUP, LOST),
        (codes.PKP, codes.BALL, cell(codes.KEY, 1), PICKUP, LOST),
        (codes.PKP, codes.BALL, cell(codes.KEY, 1, 0, codes.TOOL), PICKUP, NOTHING),
        (codes.PKP, codes.BALL, cell(codes.BOX, 1), TOGGLE, LOST),
        (codes.PKP, codes.BALL, cell(DOOR, 1, CLOSED), TOGGLE, NOTHING),
        # The composite task: the same.
        (codes.NLM, codes.GOAL, cell(codes.BALL, 1), PICKUP, LOST),
        (codes.NLM, codes.GOAL, cell(codes.KEY, 1, 0, codes.TOOL), PICKUP, NOTHING),
        (codes.NLM, codes.GOAL, cell(codes.BOX, 1), TOGGLE, LOST),
        # Toggle: another one of the target's type is wrong, others are not.
        (codes.TGL, codes.BOX, cell(codes.BOX, 1), TOGGLE, LOST),
        (codes.TGL, codes.BOX, cell(DOOR, 1, CLOSED), TOGGLE, NOTHING),
        (codes.TGL, DOOR, cell(DOOR, 1, CLOSED), TOGGLE, LOST),
        (codes.TGL, DOOR, cell(DOOR, 1, OPEN), TOGGLE, LOST),
        (codes.TGL, DOOR, cell(DOOR, 1, codes.LOCKED), TOGGLE, NOTHING),
        (codes.TGL, DOOR, cell(DOOR, 1, codes.LOCKED, TARGET), TOGGLE, NOTHING),
        (codes.TGL, DOOR, cell(codes.BOX, 1), TOGGLE, NOTHING),
        (codes.TGL, DOOR, cell(codes.BALL, 1), PICKUP, NOTHING),
        # Go to: nothing is wrong.
        (codes.GTO, codes.BALL, cell(codes.BALL, 1), PICKUP, NOTHING),
        (codes.GTG, codes.GOAL, cell(codes.BOX, 1), TOGGLE, NOTHING),
    ],
)
def test_actions_that_fail_a_mission(verb, kind, faced, action, expected):
    level = room((3, 2, faced), mission=(verb, 0, kind, 0))
    assert outcome(level, action) == expected
    level.strict[0] = False  # by BabyAI's rules, nothing does
    assert outcome(level, action) == NOTHING


def test_babyai_means_the_objects_of_its_location_words():
    env = bank("BabyAI-PickupLoc-v0", range(200))
    placed = env.mission[:, 3] > 0
    assert 40 < placed.sum() < 160
    fewer = 0
    for cells, (_, colour, kind, _) in zip(env.cells[placed], env.mission[placed], strict=True):
        alike = (cells & codes.TYPE_MASK == kind) & (
            (cells >> codes.COLOUR_SHIFT & 7 == colour) | (colour == codes.ANY_COLOUR)
        )
        marked = cells & TARGET > 0
        assert (alike | ~marked).all()
        assert marked.any()
        fewer += marked.sum() < alike.sum()
    assert fewer > 0  # somewhere an equal object lies elsewhere and is not meant


def test_a_bank_is_drawn_from_by_seed():
    levels = bank("BabyAI-GoToLocal-v0", range(6))
    engine = Engine(levels, 200)
    engine.reset(np.arange(200))
    drawn = engine.state().cells
    which = [(levels.cells == cells).all(axis=(1, 2)).argmax() for cells in drawn]
    assert set(which) == set(range(6))
    assert (levels.cells[which] == drawn).all()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("BabyAI-GoToSeq-v0", "only missions with one verb"),
        ("BabyAI-OpenRedBlueDoorsDebug-v0", "strict verifier|one verb"),
        ("BabyAI-PutNextS5N2Carrying-v0", "an object in the hand"),
        ("MiniGrid-Fetch-5x5-N2-v0", "its own rules"),
    ],
)
def test_missions_that_the_engine_does_not_know_are_refused(name, problem):
    with pytest.raises(ValueError, match=problem):
        bank(name, range(20))


@pytest.mark.parametrize(
    ("name", "verbs"),
    [
        ("BabyAI-UnlockPickup-v0", {codes.PKP}),
        ("BabyAI-PutNextLocal-v0", {codes.PUT}),
        ("BabyAI-SynthLoc-v0", {codes.GTO, codes.PKP, codes.TGL, codes.PUT}),
    ],
)
def test_what_babyais_bot_solves_is_solved_in_the_engine(name, verbs):
    env, solved = gymnasium.make(name).unwrapped, Counter()
    for seed in range(100):
        begin(env, seed)
        level = from_env(env, seed)
        engine, verb = Engine(level, 1, auto_reset=False), int(level.mission[0, 0])
        engine.load(level)
        bot, action, ended = BabyAIBot(env), None, False
        while not ended:
            action = bot.replan(action)
            seen, reward, *ends, _ = env.step(action)
            step = engine.step(np.array([action]))
            assert (step.image[0] == seen["image"]).all()
            assert (step.reward[0], step.terminated[0], step.truncated[0]) == (
                np.float32(reward),
                *ends,
            )
            ended = any(ends)
        solved[verb] += reward > 0
        if min(solved[verb] for verb in verbs) >= 3:
            return
    assert min(solved[verb] for verb in verbs) >= 3, solved


def test_wrong_calls_are_errors():
    engine = Engine("pkp0", 2)
    engine.reset(np.arange(2))
    for actions in ([0, 7], [-1, 0], [0]):
        with pytest.raises(ValueError, match="2 integers from 0 to 6"):
            engine.step(np.array(actions))
    with pytest.raises(ValueError, match="seed"):
        engine.reset(np.array([-1, 0]))
    with pytest.raises(ValueError, match="are needed"):
        engine.load(generate.levels("pkp0", np.arange(3)))
    with pytest.raises(ValueError, match="no levels"):
        Engine(generate.levels("pkp0", np.arange(0)), 1)


def test_an_environment_is_read_as_it_was_loaded():
    import skills

    level = generate.levels("nlm2", np.array([4]))
    env = gymnasium.make(skills.env_id("nlm2"))
    env.reset(options={"level": level})
    loaded = from_env(env, seed=4)
    for name in Levels.__dataclass_fields__:
        assert (getattr(loaded, name) == getattr(level, name)).all(), name
