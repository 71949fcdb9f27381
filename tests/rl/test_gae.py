"""Advantages against loops that are written from the definitions."""

import numpy as np
import pytest

from rl.gae import gae
from rl.variants import TIME_LIMITS


def _draw(seed: int, steps: int = 23, envs: int = 5) -> dict:
    rng = np.random.default_rng(seed)
    ends = rng.random((steps, envs)) < 0.2
    kind = rng.random((steps, envs)) < 0.5
    return {
        "rewards": rng.normal(size=(steps, envs)),
        "values": rng.normal(size=(steps + 1, envs)),
        "terminated": ends & kind,
        "truncated": ends & ~kind,
        "final_values": rng.normal(size=(steps, envs)),
    }


def _a2c_ppo_acktr(rewards, values, terminated, truncated, gamma, lam):
    """The source's loop: masks and bad_masks are 0 after an end and after a time limit."""
    steps, envs = rewards.shape
    returns = np.zeros((steps, envs))
    for env in range(envs):
        advantage = 0.0
        for t in reversed(range(steps)):
            mask = 0.0 if terminated[t, env] or truncated[t, env] else 1.0
            bad_mask = 0.0 if truncated[t, env] else 1.0
            delta = rewards[t, env] + gamma * values[t + 1, env] * mask - values[t, env]
            advantage = delta + gamma * lam * mask * advantage
            advantage *= bad_mask
            returns[t, env] = advantage + values[t, env]
    return returns


def _lambda_return(rewards, values, terminated, truncated, final_values, gamma, lam):
    """The lambda-return as a weighted sum of n-step returns, episode by episode."""
    steps, envs = rewards.shape
    returns = np.zeros((steps, envs))
    for env in range(envs):
        for t in range(steps):
            last = t
            while last < steps - 1 and not (terminated[last, env] or truncated[last, env]):
                last += 1
            n_step = []
            for n in range(1, last - t + 2):
                total = sum(gamma**k * rewards[t + k, env] for k in range(n))
                at = t + n - 1
                if truncated[at, env]:
                    total += gamma**n * final_values[at, env]
                elif not terminated[at, env]:
                    total += gamma**n * values[at + 1, env]
                n_step.append(total)
            weights = [(1 - lam) * lam**k for k in range(len(n_step) - 1)]
            weights.append(lam ** (len(n_step) - 1))
            returns[t, env] = np.dot(weights, n_step)
    return returns


@pytest.mark.parametrize("seed", range(4))
def test_cut_equals_the_loop_of_the_source(seed):
    data = _draw(seed)
    final = data.pop("final_values")
    advantages, returns = gae(**data, gamma=0.97, gae_lambda=0.9)
    np.testing.assert_allclose(returns, _a2c_ppo_acktr(**data, gamma=0.97, lam=0.9), atol=1e-5)
    np.testing.assert_allclose(advantages, returns - data["values"][:-1], atol=1e-5)
    at_limit = data["truncated"]
    assert at_limit.any()
    assert (advantages[at_limit] == 0).all()
    assert final.shape == returns.shape


@pytest.mark.parametrize("seed", range(4))
def test_bootstrap_equals_the_lambda_return(seed):
    data = _draw(seed)
    _, returns = gae(**data, gamma=0.97, gae_lambda=0.9, time_limit="bootstrap")
    np.testing.assert_allclose(returns, _lambda_return(**data, gamma=0.97, lam=0.9), atol=1e-5)


def test_bootstrap_has_no_value_after_an_end_at_the_time_limit():
    data = _draw(3) | {"gamma": 0.97, "gae_lambda": 0.9, "time_limit": "bootstrap"}
    ends = data["terminated"] | data["truncated"]
    both = gae(**data | {"terminated": ends})
    ended = gae(**data | {"terminated": ends, "truncated": np.zeros_like(ends)})
    np.testing.assert_array_equal(both, ended)


def test_without_episode_ends_both_treatments_agree():
    data = _draw(7)
    data["terminated"][:] = data["truncated"][:] = False
    results = [gae(**data, gamma=0.9, gae_lambda=0.8, time_limit=kind)[1] for kind in TIME_LIMITS]
    np.testing.assert_array_equal(*results)


def test_bootstrap_needs_the_final_values():
    data = _draw(0)
    del data["final_values"]
    with pytest.raises(ValueError, match="final_values"):
        gae(**data, gamma=0.9, gae_lambda=0.8, time_limit="bootstrap")
    with pytest.raises(ValueError, match="cut, bootstrap"):
        gae(**data, gamma=0.9, gae_lambda=0.8, time_limit="ignore")
