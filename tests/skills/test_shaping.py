"""The potential of keys and locks against minigrid's own objects, and what shaping adds to an episode."""

import gymnasium
import numpy as np
import pytest

from skills import env_id
from skills.levels import codes
from skills.levels.engine import Engine
from skills.levels.generate import levels
from skills.levels.minigrid.babyai import begin, from_env
from skills.levels.shaping import shaping_rewards
from skills.levels.solver import solutions


def by_objects(env) -> float:
    """The potential from minigrid's objects: locks whose keys lie about or are carried, and the carried key."""
    things = [thing for thing in env.grid.grid if thing is not None]
    locked = {thing.color for thing in things if thing.type == "door" and thing.is_locked}
    hand = [] if env.carrying is None else [env.carrying]
    tools = [
        thing.color for thing in things + hand if thing.type == "key" and thing.marks & codes.TOOL
    ]
    has_tool = any(thing.marks & codes.TOOL and thing.color in locked for thing in hand)
    return sum(colour not in locked for colour in tools) + 0.5 * has_tool


@pytest.mark.parametrize("stage", ["nlm2", "pkp4", "tgl3"])
def test_the_potential_follows_keys_and_locks(stage: str) -> None:
    seeds = np.arange(12)
    drawn = levels(stage, seeds)
    env = gymnasium.make(env_id(stage), disable_env_checker=True).unwrapped
    values = set()
    for seed, actions in zip(seeds, solutions(drawn), strict=True):
        engine, potential = Engine(stage, 1, auto_reset=False), np.zeros(1, np.float32)
        engine.reset(np.array([seed]))
        env.reset(seed=int(seed))
        for action in actions:
            engine.potentials(potential)
            assert potential[0] == by_objects(env)
            values.add(float(potential[0]))
            engine.step(np.array([action]))
            env.step(int(action))
    assert values >= ({0, 0.5, 1, 1.5, 2} if stage == "nlm2" else {0, 0.5, 1})


def test_the_potential_follows_the_object_to_move() -> None:
    rng, values = np.random.default_rng(0), set()
    env = gymnasium.make("BabyAI-PutNextLocal-v0", disable_env_checker=True).unwrapped
    potential = np.zeros(1, np.float32)
    for seed in range(60):
        begin(env, seed)
        level = from_env(env)
        engine = Engine(level, 1, auto_reset=False)
        engine.load(level)
        for action in rng.choice((0, 1, 2, 2, 2, 3, 3, 4), 40):
            engine.potentials(potential)
            wanted = any(env.carrying is thing for thing in env.instrs.desc_move.obj_set)
            assert potential[0] == 0.5 * wanted
            values.add(wanted)
            engine.step(np.array([action]))
            env.step(int(action))
    assert values == {False, True}


def test_shaping_rewards_sum_to_minus_the_first_potential() -> None:
    """The discounted sum is minus the first potential for any actions; a time limit adds the discounted last one."""
    rng, gamma, steps = np.random.default_rng(1), 0.97, 40
    potential = rng.random((steps + 1, 2)).astype(np.float32)
    terminated, truncated = np.zeros((2, steps, 2), bool)
    terminated[-1, 0] = truncated[-1, 1] = True
    sums = (
        shaping_rewards(potential, terminated, truncated, gamma).T * gamma ** np.arange(steps)
    ).sum(1)
    left = gamma**steps * potential[-2, 1]
    np.testing.assert_allclose(sums, [-potential[0, 0], left - potential[0, 1]], atol=1e-5)
    truncated[-1, 0] = True  # a success in the last step is the end all the same
    both = shaping_rewards(potential, terminated, truncated, gamma)
    assert both[-1, 0] == -potential[-2, 0]
