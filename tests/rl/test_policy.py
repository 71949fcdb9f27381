"""The functional networks against torch's own modules and distributions."""

import itertools

import numpy as np
import pytest
import torch

from rl.actor_critic import (
    NetworkShape,
    actor_mean,
    count,
    critic_value,
    entropy,
    initial_weights,
    log_prob,
    unflatten,
)
from rl.normalise import ObservationNormaliser
from rl.policy import Policy

SHAPE = NetworkShape(15, 6, (64, 64))


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _actor(seed: int = 0) -> list[torch.Tensor]:
    flat = initial_weights(SHAPE.actor, _generator(seed), output_gain=1.0, log_std=-0.5)
    return unflatten(flat, SHAPE.actor)


def test_sizes_of_the_source():
    assert count(SHAPE.actor) == 5580
    assert count(SHAPE.critic) == 5249


@pytest.mark.parametrize("hidden", [(64, 64), (32,), (16, 8, 4)])
def test_an_mlp_equals_torch(hidden):
    shape = NetworkShape(5, 3, hidden)
    flat = torch.randn(count(shape.critic), generator=_generator())
    widths = (5, *hidden, 1)
    modules: list[torch.nn.Module] = []
    for inputs, width in itertools.pairwise(widths):
        modules += [torch.nn.Linear(inputs, width), torch.nn.Tanh()]
    network = torch.nn.Sequential(*modules[:-1])
    torch.nn.utils.vector_to_parameters(flat, network.parameters())
    inputs = torch.randn(9, 5, generator=_generator(1))
    expected = network(inputs)[:, 0]
    torch.testing.assert_close(critic_value(unflatten(flat, shape.critic), inputs), expected)


def test_density_and_entropy_equal_torch():
    mean = torch.randn(7, 6, generator=_generator(2))
    actions = torch.randn(7, 6, generator=_generator(3))
    log_std = torch.linspace(-1, 1, 6)
    normal = torch.distributions.Normal(mean, log_std.exp())
    torch.testing.assert_close(log_prob(actions, mean, log_std), normal.log_prob(actions).sum(-1))
    torch.testing.assert_close(entropy(log_std), normal.entropy()[0].sum())


def test_initial_weights_are_orthogonal_with_their_gains():
    tensors = _actor()
    first, output = tensors[0], tensors[4]
    torch.testing.assert_close(first.T @ first, 2 * torch.eye(15), atol=1e-5, rtol=0)
    torch.testing.assert_close(output @ output.T, torch.eye(6), atol=1e-5, rtol=0)
    assert (tensors[1] == 0).all()
    assert (tensors[-1] == -0.5).all()
    assert not torch.equal(first, _actor(1)[0])


def test_a_squashed_mean_stays_within_the_motors():
    tensors = [100 * tensor for tensor in _actor()]
    inputs = torch.randn(50, 15, generator=_generator(4))
    squashed = actor_mean(tensors, inputs, squash=True)
    assert squashed.abs().max() <= 1
    torch.testing.assert_close(squashed, torch.tanh(actor_mean(tensors, inputs, squash=False)))


def test_a_policy_is_a_copy_and_samples_around_its_mean():
    tensors = _actor()
    normaliser = ObservationNormaliser(15)
    rng = np.random.default_rng(0)
    raw = rng.normal(2, 3, size=(40, 15)).astype(np.float32)
    normaliser.update(raw)
    policy = Policy(tensors, normaliser, squash=False)
    mean = policy(raw)
    noise = rng.standard_normal((40, 6), np.float32)
    scaled, log_probs = policy.scale_noise(noise)
    actions = policy.act(normaliser(raw), scaled)
    np.testing.assert_allclose(actions, mean + np.exp(np.float32(-0.5)) * noise, rtol=1e-5)
    again = log_prob(torch.from_numpy(actions), torch.from_numpy(mean), tensors[-1])
    np.testing.assert_allclose(log_probs, again.numpy(), rtol=1e-4, atol=1e-4)
    tensors[0].zero_()
    np.testing.assert_array_equal(policy(raw), mean)
