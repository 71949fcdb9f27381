"""PPO: its losses on cases that can be worked out by hand, and that it really learns."""

import gymnasium
import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from ppo_settings import agent_settings, ppo_settings
from rl.actor_critic import NetworkShape
from rl.agent import PPOAgent
from rl.normalise import ReturnScaler
from rl.ppo import (
    Batch,
    PPOSettings,
    compute_advantages,
    policy_loss,
    update,
    value_loss,
)
from rl.rollout import NonFiniteError, collect
from rl.variants import VALUE_LOSSES


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, True),
        (1.5, 2.0, -2.4, False),  # already more likely by more than the clip: no pull
        (0.5, 2.0, -1.0, True),  # less likely although good: pulled back
        (0.5, -2.0, 1.6, False),
        (1.5, -2.0, 3.0, True),
    ],
)
def test_clipped_surrogate(ratio, advantage, loss, slope):
    log_ratio = torch.tensor([np.log(ratio)], dtype=torch.float64)
    value, gradient = policy_loss(log_ratio, torch.tensor([advantage], dtype=torch.float64), 0.2)
    assert value.item() == pytest.approx(loss)
    assert (gradient.abs().item() > 0) == slope


@pytest.mark.parametrize(
    ("value", "target", "losses", "gradients"),
    [
        # old value 0, clip 0.2; in the order max, clipped, plain
        (0.1, 1.0, (0.405, 0.405, 0.405), (-0.9, -0.9, -0.9)),
        (0.5, 1.0, (0.32, 0.32, 0.125), (0, 0, -0.5)),
        # The variant of HN-PPO gives up on a value that has left the range, even a wrong one.
        (0.5, -1.0, (1.125, 0.72, 1.125), (1.5, 0, 1.5)),
    ],
)
def test_value_losses(value, target, losses, gradients):
    for kind, expected, slope in zip(VALUE_LOSSES, losses, gradients, strict=True):
        values = torch.tensor([value])
        loss, gradient = value_loss(values, torch.zeros(1), torch.tensor([target]), 0.2, kind)
        assert loss.item() == pytest.approx(expected)
        assert gradient.item() == pytest.approx(slope)
    with pytest.raises(ValueError, match="max, clipped, plain"):
        value_loss(torch.zeros(1), torch.zeros(1), torch.zeros(1), 0.2, "huber")


@pytest.mark.parametrize("kind", VALUE_LOSSES)
def test_gradients_of_the_losses_equal_autograd(kind):
    generator = torch.Generator().manual_seed(3)
    log_ratio, advantages, values, old, returns = (
        0.4 * torch.randn(400, generator=generator, dtype=torch.float64) for _ in range(5)
    )
    log_ratio.requires_grad_()
    ratio = log_ratio.exp()
    loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    torch.testing.assert_close(
        policy_loss(log_ratio.detach(), advantages, 0.2),
        (loss.detach(), torch.autograd.grad(loss, log_ratio)[0]),
    )
    values.requires_grad_()
    plain = (values - returns).square()
    clipped = (old + (values - old).clamp(-0.2, 0.2) - returns).square()
    by_kind = {"max": torch.maximum(plain, clipped), "clipped": clipped, "plain": plain}
    loss = 0.5 * by_kind[kind].mean()
    torch.testing.assert_close(
        value_loss(values.detach(), old, returns, 0.2, kind),
        (loss.detach(), torch.autograd.grad(loss, values)[0]),
    )


def _pendulum() -> gymnasium.vector.VectorEnv:
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    return gymnasium.make_vec(
        "InvertedPendulum-v5", num_envs=8, vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": mode},
    )  # fmt: skip


def _agent(seed: int = 0, **settings) -> PPOAgent:
    generator = torch.Generator().manual_seed(seed)
    changed = agent_settings(**{"lr": 3e-3} | settings)
    return PPOAgent(NetworkShape(4, 1, (64, 64)), changed, generator)


def _train(updates: int, agent: PPOAgent, settings: PPOSettings) -> list[float]:
    """Return the fraction of falls per step of every rollout."""
    torch.set_num_threads(1)
    env = _pendulum()
    observations, _ = env.reset(seed=0)
    scaler = ReturnScaler(8, settings.gamma)
    falls = []
    for index in range(updates):
        rng = np.random.default_rng([1, index])
        rollout = collect(
            [env], agent.policy(), observations, 64, rng,
            keep_final=settings.time_limit == "bootstrap",
        )  # fmt: skip
        observations = rollout.raw_observations[-1]
        batch = compute_advantages(agent, rollout, scaler(rollout.rewards, rollout.ends), settings)
        update(agent, batch, settings, rng)
        agent.normaliser.update(rollout.raw_observations[:-1])
        falls.append(float(rollout.terminated.mean()))
    env.close()
    return falls


def test_it_learns_to_balance_a_pole():
    settings = ppo_settings(minibatch_size=128, epochs=8, time_limit="bootstrap")
    falls = _train(40, _agent(mean_gain=0.01, log_std=-1.0), settings)
    assert falls[0] > 0.05
    assert np.mean(falls[-5:]) < 0.01


def test_the_same_seed_gives_the_same_weights_and_a_state_continues_them():
    settings = ppo_settings(minibatch_size=128, epochs=2)
    first, second = _agent(), _agent()
    _train(2, first, settings)
    _train(2, second, settings)
    assert torch.equal(first.weights, second.weights)
    third = _agent(seed=5)
    third.load(first.tensors(), first.state())
    _train(2, first, settings)
    _train(2, third, settings)
    assert torch.equal(first.weights, third.weights)


def _batch(size: int = 256) -> Batch:
    generator = torch.Generator().manual_seed(1)
    columns = [torch.randn(size, width, generator=generator) for width in (4, 1)]
    rest = [torch.randn(size, generator=generator) for _ in range(4)]
    return Batch(*rest, *columns)


def test_target_kl_ends_an_update_early():
    batch, rng = _batch(), np.random.default_rng(0)
    settings = ppo_settings(minibatch_size=64, epochs=6, target_kl=1e-6)
    assert update(_agent(), batch, settings, rng)["gradient_steps"] == 4
    settings = ppo_settings(minibatch_size=64, epochs=6)
    assert update(_agent(), batch, settings, rng)["gradient_steps"] == 24


def test_target_kl_is_compared_with_the_mean_of_the_last_epoch():
    batch, agent, rng = _batch(), _agent(lr=1e-4), np.random.default_rng(0)
    batch.log_probs = agent.forward(batch.observations, batch.actions).log_probs
    one = ppo_settings(minibatch_size=64, epochs=1)
    divergences = [update(agent, batch, one, rng)["approx_kl"] for _ in range(4)]
    assert divergences == sorted(divergences)
    settings = ppo_settings(minibatch_size=64, epochs=6, target_kl=0.99 * divergences[-1])
    result = update(_agent(lr=1e-4), batch, settings, np.random.default_rng(0))
    assert result["gradient_steps"] == 4 * 4
    assert result["approx_kl"] == pytest.approx(np.mean(divergences))


def test_advantages_are_standardised():
    env, agent = _pendulum(), _agent()
    observations, _ = env.reset(seed=3)
    rollout = collect([env], agent.policy(), observations, 2, np.random.default_rng(0))
    advantages = compute_advantages(agent, rollout, rollout.rewards, ppo_settings()).advantages
    spread, mean = torch.std_mean(advantages)  # of a sample, with n - 1
    assert spread.item() == pytest.approx(1, abs=2e-3)
    assert mean.item() == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(
    ("field", "tensor"),
    [("advantages", "policy_loss"), ("returns", "value_loss")],
)
def test_a_value_that_is_not_finite_is_named(field, tensor):
    batch = _batch()
    getattr(batch, field)[3] = float("nan")
    with pytest.raises(NonFiniteError) as error:
        update(_agent(), batch, ppo_settings(minibatch_size=64), np.random.default_rng(0))
    assert error.value.tensor == tensor


def test_exploded_weights_are_named_by_the_first_array_that_is_not_finite():
    agent, env, rng = _agent(), _pendulum(), np.random.default_rng(0)
    env.reset(seed=0)
    agent.weights[-1] = float("inf")  # the critic's last bias
    rollout = collect([env], agent.policy(), np.ones((8, 4)), 4, rng)
    with pytest.raises(NonFiniteError) as error:
        compute_advantages(agent, rollout, rollout.rewards, ppo_settings())
    assert error.value.tensor == "values"
    agent.weights[:300] = float("nan")
    env.reset(seed=0)
    with pytest.raises(NonFiniteError) as error:
        collect([env], agent.policy(), np.ones((8, 4)), 4, rng)
    assert error.value.tensor in ("observations", "actions")


def test_a_rollout_equals_a_replay():
    env, agent = _pendulum(), _agent()
    observations, _ = env.reset(seed=3)
    rollout = collect([env], agent.policy(), observations, 32, np.random.default_rng(0))
    again = _pendulum()
    replayed, _ = again.reset(seed=3)
    for t in range(32):
        np.testing.assert_array_equal(rollout.raw_observations[t], replayed.astype(np.float32))
        replayed, rewards, terminated, _, _ = again.step(rollout.actions[t])
        np.testing.assert_array_equal(rollout.rewards[t], rewards)
        np.testing.assert_array_equal(rollout.terminated[t], terminated)
    assert rollout.terminated.any()
    batch = compute_advantages(agent, rollout, rollout.rewards, ppo_settings())
    forward = agent.forward(batch.observations, batch.actions)
    torch.testing.assert_close(forward.log_probs, batch.log_probs, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(forward.values, batch.values, atol=1e-5, rtol=1e-5)


def test_rollout_threads_use_torchs_number_of_threads(monkeypatch):
    """OpenMP stores the number per thread: a new thread would use all cores."""
    env, numbers = _pendulum(), []
    step = env.step

    def note_and_step(actions):
        openmp = [pool for pool in threadpool_info() if pool["user_api"] == "openmp"]
        numbers.extend(pool["num_threads"] for pool in openmp if "torch" in pool["filepath"])
        return step(actions)

    monkeypatch.setattr(env, "step", note_and_step)
    observations, _ = env.reset(seed=0)
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            collect([env], _agent().policy(), observations, 2, np.random.default_rng(0))
            assert set(numbers) == {threads}
            numbers.clear()
    finally:
        torch.set_num_threads(before)
