"""The stages: properties of all levels, checked by a search that is no part of the generator."""

import gymnasium
import numpy as np
import pytest

import skills
from skills import show_levels
from skills.levels import codes, generate
from skills.levels.codes import DOOR, GOAL, KEY, LOCKED, TARGET, TOOL, TYPE_MASK
from skills.levels.engine import Engine
from skills.levels.solver import solutions
from skills.levels.stages import CHAINS, LAST, MAX_STEPS, SIZE, STAGES, Stage, stage_table

SEEDS = np.arange(60) * 7919
OWN = [name for name, stage in STAGES.items() if isinstance(stage, Stage)]


def kinds(cells):
    return cells & TYPE_MASK


def colours(cells):
    return cells >> codes.COLOUR_SHIFT & codes.THREE_BITS


def test_the_stages_are_those_of_the_source():
    lengths = {name: len(chain) for name, chain in CHAINS.items()}
    assert lengths == {
        "gtg": 2, "pkp": 5, "pkpc": 3, "gto": 3, "tgl": 4, "tglc": 2, "all": 7, "nlm": 3,
    }  # fmt: skip
    assert sum(lengths.values()) == len(STAGES) == 29
    assert CHAINS["pkpc"] == ("pkpc1", "pkpc2", "pkpc3")
    assert CHAINS["gtg"] == ("gtg0", "gtg1")


@pytest.mark.parametrize("name", list(STAGES))
def test_every_level_is_solved_by_its_shortest_solution(name):
    drawn = generate.levels(name, SEEDS)
    lengths = show_levels.solve(drawn)
    assert len(lengths) == len(SEEDS)
    assert lengths.min() >= 1
    assert lengths.max() < MAX_STEPS


@pytest.mark.parametrize("name", OWN)
def test_a_mission_is_unambiguous(name):
    drawn, stage = generate.levels(name, SEEDS), STAGES[name]
    for cells, (verb, colour, kind, place) in zip(drawn.cells, drawn.mission, strict=True):
        assert (codes.VERBS[verb], place) == (stage.verb, 0)
        goals = kinds(cells) == GOAL
        assert goals.sum() == (stage.targets == ("goal",))
        if stage.verb == "nlm":
            assert ((kinds(cells) == DOOR) & (colours(cells) == colour)).sum() == 1
        elif stage.verb != "gtg":
            meant = (kinds(cells) == kind) & (colours(cells) == colour)
            assert meant.sum() == 1
            assert cells[meant][0] & TARGET
        marked = cells & TARGET > 0
        assert marked.sum() == (stage.targets != ("goal",))
        assert not (marked & (cells & TOOL > 0)).any()


@pytest.mark.parametrize("name", OWN)
def test_every_lock_has_one_key_and_every_door_its_own_colour(name):
    drawn, stage = generate.levels(name, SEEDS), STAGES[name]
    counts = set()
    for cells in drawn.cells:
        doors = kinds(cells) == DOOR
        locked = doors & (cells >> codes.STATE_SHIFT & codes.TWO_BITS == LOCKED)
        assert len(set(colours(cells[doors]))) == doors.sum()
        keys = cells[cells & TOOL > 0]
        assert (kinds(keys) == KEY).all()
        assert sorted(colours(keys)) == sorted(colours(cells[locked]))
        for key in keys:
            assert ((kinds(cells) == KEY) & (colours(cells) == colours(key))).sum() == 1
        counts.add(int(locked.sum()))
    assert counts <= set(range(stage.locks[0], stage.locks[1] + 1))
    assert max(counts) == stage.locks[1]


@pytest.mark.parametrize("name", OWN)
def test_a_level_has_the_properties_of_its_stage(name):
    drawn, stage = generate.levels(name, SEEDS), STAGES[name]
    for cells, (x, y, direction) in zip(drawn.cells, drawn.agent, strict=True):
        things = (
            (kinds(cells) >= KEY) & (kinds(cells) <= codes.BOX) & (cells & (TARGET | TOOL) == 0)
        )
        assert stage.distractors[0] <= things.sum() <= stage.distractors[1]
        used = kinds(cells) != codes.WALL
        assert not used[stage.room - 1 :].any()
        assert not used[:, stage.room - 1 :].any()
        assert not used[0].any()
        assert not used[:, 0].any()
        assert kinds(cells)[y, x] == codes.EMPTY
        dx, dy = ((1, 0), (0, 1), (-1, 0), (0, -1))[direction]
        assert kinds(cells)[y + dy, x + dx] in (codes.EMPTY, codes.WALL)
        room = _room(cells, x, y)
        if stage.apart:
            target = (cells & TARGET > 0) | (kinds(cells) == GOAL)
            beside = np.zeros_like(room)
            for axis, by in ((0, 1), (0, -1), (1, 1), (1, -1)):
                beside |= np.roll(room, by, axis)
            if kinds(cells[target])[0] == DOOR:
                assert not (beside & target).any()
            else:
                assert not (room & target).any()


def _room(cells, x, y):
    """The cells of the agent's room, by flood fill over all that is neither wall nor doorway."""
    inner = kinds(cells) != codes.WALL
    ways = (inner & np.roll(~inner, 1, 0) & np.roll(~inner, -1, 0)) | (
        inner & np.roll(~inner, 1, 1) & np.roll(~inner, -1, 1)
    )
    room = np.zeros_like(inner)
    room[y, x] = True
    for _ in range(SIZE**2):
        grown = room.copy()
        for axis, by in ((0, 1), (0, -1), (1, 1), (1, -1)):
            grown |= np.roll(room, by, axis)
        room = grown & inner & ~ways
    return room


@pytest.mark.parametrize("name", LAST)
def test_random_actions_solve_less_than_three_per_cent_of_a_last_stage(name):
    episodes = 4000
    assert show_levels.random_play(name, episodes, np.random.default_rng(1)) < 0.03 * episodes


def test_a_mixture_has_its_stages_in_equal_shares():
    verbs = generate.levels("all6", np.arange(4000)).mission[:, 0]
    shares = np.bincount(verbs, minlength=4) / 4000
    assert len(stage_table("all6")) == 4
    assert np.abs(shares - 0.25).max() < 0.03


def test_a_seed_gives_the_same_level_in_every_batch():
    together = generate.levels("pkp4", SEEDS)
    order = np.random.default_rng(0).permutation(len(SEEDS))
    shuffled = generate.levels("pkp4", SEEDS[order])
    assert (together.cells[order] == shuffled.cells).all()
    for i in (0, 17):
        alone = generate.levels("pkp4", SEEDS[i : i + 1])
        assert (alone.cells[0] == together.cells[i]).all()
        assert (alone.agent[0] == together.agent[i]).all()
    assert len(np.unique(together.cells.reshape(len(SEEDS), -1), axis=0)) == len(SEEDS)


@pytest.mark.parametrize("name", ["gtg1", "all6", "nlm2"])
def test_engine_and_minigrid_play_the_same_levels_one_after_the_other(name):
    engine, env = Engine(name, 1), gymnasium.make(skills.env_id(name)).unwrapped
    engine.reset(np.array([5]))
    env.reset(seed=5)
    for _ in range(3):
        assert env.reset()[1]["seed"] == _next(engine)
        assert (engine.state().cells[0] == generate.levels(name, engine.seeds).cells[0]).all()


def _next(engine: Engine) -> int:
    """The seed of the level that the engine begins by itself, when nothing is done."""
    ended = False
    while not ended:
        step = engine.step(np.array([codes.DONE]))
        ended = step.terminated[0] or step.truncated[0]
    return int(engine.seeds[0])


def test_an_unsolvable_level_has_no_solution():
    drawn = generate.levels("nlm2", SEEDS[:20])
    drawn.cells[drawn.cells & TOOL > 0] = codes.EMPTY
    assert solutions(drawn) == [None] * 20


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        ({"verb": "fly"}, "unknown verb"),
        ({"verb": "pkp", "targets": ("goal",)}, "goal"),
        ({"verb": "pkp", "rooms": (3, 2)}, "rooms"),
        ({"verb": "pkp", "locks": (0, 3)}, "locks"),
        ({"verb": "pkp", "room": 4}, "room"),
        ({"verb": "pkp", "apart": True}, "no other room"),
        ({"verb": "nlm", "rooms": (2, 2), "targets": ("goal",)}, "behind a door"),
    ],
)
def test_an_impossible_stage_is_refused(arguments, about):
    with pytest.raises(ValueError, match=about):
        Stage(**arguments)


def test_an_unknown_stage_is_named():
    with pytest.raises(ValueError, match="pkp9"):
        Engine("pkp9", 1)
