"""Evaluation on held-out worlds: the same bits at every call, and the scripted controllers."""

import numpy as np
import pytest

from door.env.door_env import DoorVecEnv
from door.env.scripted import ScriptedGripper, ScriptedHook
from door.env.worlds import DECISION
from door.training.evaluation import DECISIONS, WORLDS, evaluate
from runcatalog.record import Seeds


@pytest.mark.parametrize(
    ("task", "worlds"),
    [("pull_left_fixed", 20), ("lever", WORLDS), ("round_left", 20), ("lever_push_left", 20)],
)
def test_a_scripted_hook_opens_the_doors(task: str, worlds: int):
    result = evaluate(ScriptedHook(task), task, seeds=Seeds(11), worlds=worlds)
    assert WORLDS == 100
    assert result.successes.shape == (worlds,)
    assert result.opening_rate == result.successes.mean() >= 0.9
    assert 0 < result.opening_time < DECISIONS * DECISION
    assert result.contact_rate == 1.0
    assert result.max_penetration <= 3.0  # mm


@pytest.mark.parametrize("task", ["pull", "lever_left", "round"])
def test_a_scripted_gripper_opens_the_doors(task: str):
    policy = ScriptedGripper(task)
    result = evaluate(policy, task, "floatinggripper", seeds=Seeds(12), worlds=20)
    assert result.opening_rate >= 0.9
    assert result.max_penetration <= 3.0  # mm


def test_an_idle_robot_opens_nothing():
    result = evaluate(
        lambda obs: np.zeros((len(obs), 7)), "pull", "floatinggripper", seeds=Seeds(0), worlds=20
    )
    assert (result.opening_rate, result.opening_time, result.contact_rate) == (0.0, -1.0, 0.0)
    assert not result.opened.any()


def test_evaluation_repeats_bit_for_bit_with_any_number_of_threads():
    results = [
        evaluate(ScriptedHook("lever"), "lever", seeds=Seeds(5), worlds=12, threads=threads)
        for threads in (0, 3)
    ]
    assert results[0].episode_return == results[1].episode_return
    assert np.array_equal(results[0].successes, results[1].successes)
    assert results[0].max_penetration == results[1].max_penetration


def test_the_evaluation_equals_a_loop_over_episodes():
    """The same trials, followed by hand."""
    result = evaluate(ScriptedHook("round"), "round", seeds=Seeds(8), worlds=20)
    env = DoorVecEnv("round", num_envs=20, seeds=Seeds(8), stagger=False, held_out=True)
    policy, obs, first = ScriptedHook("round"), env.observation, {}
    total = np.zeros(20)
    for decision in range(DECISIONS):
        obs, reward, _, info = env.step(policy(obs))
        total += reward
        for index in np.flatnonzero(info["success"]):
            first.setdefault(int(index), (decision + 1) * DECISION)
    assert sorted(first) == np.flatnonzero(result.successes).tolist()
    assert result.opening_time == pytest.approx(np.mean(list(first.values())))
    assert result.episode_return == pytest.approx(total.mean())
