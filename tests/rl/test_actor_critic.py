"""The written-out backward pass against autograd through torch's own modules."""

import itertools

import pytest
import torch

from rl.actor_critic import NetworkShape, backward, count, forward, unflatten


def _module(shape: NetworkShape, outputs: int, flat: torch.Tensor) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for inputs, width in itertools.pairwise((shape.observation_size, *shape.hidden, outputs)):
        layers += [torch.nn.Linear(inputs, width, dtype=torch.float64), torch.nn.Tanh()]
    network = torch.nn.Sequential(*layers[:-1])
    torch.nn.utils.vector_to_parameters(flat, network.parameters())
    return network


def _gradient(network: torch.nn.Module) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector([weight.grad for weight in network.parameters()])


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("hidden", [(8,), (16, 16), (12, 8, 4)])
def test_gradients_equal_autograd(hidden, squash):
    shape = NetworkShape(5, 3, hidden)
    generator = torch.Generator().manual_seed(len(hidden))

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    actor, critic = draw(count(shape.actor)), draw(count(shape.critic))
    observations, actions = draw(40, 5), draw(40, 3)
    d_log_probs, d_values, d_entropy = draw(40), draw(40), 0.37

    tensors = unflatten(actor, shape.actor), unflatten(critic, shape.critic)
    ours = forward(*tensors, observations, actions, squash=squash)
    gradients = torch.full_like(actor, 7.0), torch.full_like(critic, 7.0)
    views = unflatten(gradients[0], shape.actor), unflatten(gradients[1], shape.critic)
    backward(ours, d_log_probs, d_entropy, d_values, *views)

    mean, value = _module(shape, 3, actor[:-3]), _module(shape, 1, critic)
    log_std = actor[-3:].clone().requires_grad_()
    output = torch.tanh(mean(observations)) if squash else mean(observations)
    normal = torch.distributions.Normal(output, log_std.exp())
    log_probs, values = normal.log_prob(actions).sum(-1), value(observations)[:, 0]
    entropy = normal.entropy()[0].sum()
    torch.testing.assert_close(ours.log_probs, log_probs)
    torch.testing.assert_close(ours.entropy, entropy)
    torch.testing.assert_close(ours.values, values)
    ((d_log_probs * log_probs).sum() + d_entropy * entropy + (d_values * values).sum()).backward()
    torch.testing.assert_close(gradients[0], torch.cat((_gradient(mean), log_std.grad)))
    torch.testing.assert_close(gradients[1], _gradient(value))
