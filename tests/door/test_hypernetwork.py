"""The hypernetwork against torch modules and autograd."""

import pytest
import torch

from door.hypernet.hypernetwork import Hypernetwork, regulariser


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _naive(network: Hypernetwork, embedding: torch.Tensor, theta: list) -> torch.Tensor:
    """Weights for one embedding [te_dim], chunk by chunk, by the definition."""
    inputs = [embedding]
    if network.chunks:
        inputs = [torch.cat((embedding, chunk)) for chunk in theta[-1]]
    pieces = []
    for hidden in inputs:
        for layer in range(network.layers):
            hidden = theta[2 * layer] @ hidden + theta[2 * layer + 1]
            if layer < network.layers - 1:
                hidden = hidden.clamp(min=0)
        pieces.append(hidden)
    return torch.cat(pieces)[: network.outputs]


@pytest.mark.parametrize("chunk_size", [0, 7, 40])
@pytest.mark.parametrize("add", [False, True])
def test_weights_and_gradients_equal_autograd(chunk_size, add):
    network = Hypernetwork(33, 4, (10, 12), _generator(), chunk_size=chunk_size)
    embeddings = torch.randn(3, 4, generator=_generator(1), requires_grad=True)
    theta = [tensor.clone().requires_grad_() for tensor in network.theta]
    expected = torch.stack([_naive(network, row, theta) for row in embeddings])
    generated = network.generate(embeddings.detach())
    torch.testing.assert_close(generated, expected)
    gradient = torch.randn(3, 33, generator=_generator(2))
    (expected * gradient).sum().backward()
    for memory in network.gradients:
        memory.fill_(0.5)
    of_embeddings = network.backward(embeddings.detach(), gradient, add=add)
    torch.testing.assert_close(of_embeddings, embeddings.grad)
    for ours, tensor in zip(network.gradients, theta, strict=True):
        torch.testing.assert_close(ours, tensor.grad + (0.5 if add else 0.0))


def test_gradients_at_another_theta():
    network = Hypernetwork(33, 4, (10,), _generator())
    embedding = torch.randn(1, 4, generator=_generator(1))
    other = [tensor + 0.1 for tensor in network.theta]
    leaves = [tensor.clone().requires_grad_() for tensor in other]
    _naive(network, embedding[0], leaves).sum().backward()
    network.backward(embedding, torch.ones(1, 33), other)
    for ours, leaf in zip(network.gradients, leaves, strict=True):
        torch.testing.assert_close(ours, leaf.grad)


def test_initial_weights_equal_torch_linear():
    network = Hypernetwork(500, 8, (640, 640), _generator())
    for layer, fan_in in enumerate((8, 640, 640)):
        for tensor in network.theta[2 * layer : 2 * layer + 2]:
            bound = fan_in**-0.5
            assert 0.95 * bound < tensor.abs().max() <= bound
            assert abs(tensor.mean()) < 0.06 * bound


def test_chunk_embeddings_are_standard_normal_and_part_of_theta():
    network = Hypernetwork(100_500, 8, (16,), _generator(), chunk_size=1000)
    chunks = network.named()["theta.chunks"]
    assert chunks.shape == (101, 5)
    assert 0.9 < chunks.std() < 1.1


def test_the_regulariser_is_a_sum_over_weights_and_a_mean_over_tasks():
    network = Hypernetwork(20, 4, (6,), _generator())
    embeddings = torch.randn(3, 4, generator=_generator(1))
    targets = torch.randn(3, 20, generator=_generator(2))
    loss, gradient = regulariser(network, embeddings, targets, beta=0.7)
    total = 0.0
    for row, target in zip(embeddings, targets, strict=True):
        total += sum(
            (a - b) ** 2 for a, b in zip(_naive(network, row, network.theta), target, strict=True)
        )
    assert loss == pytest.approx(0.7 / 3 * float(total), rel=1e-5)
    step = 1e-3
    for row, column in ((0, 0), (2, 19)):
        up, down = targets.clone(), targets.clone()
        up[row, column] -= step  # moving the weight up is moving its target down
        down[row, column] += step
        rise = regulariser(network, embeddings, up, 0.7)[0]
        fall = regulariser(network, embeddings, down, 0.7)[0]
        assert gradient[row, column].item() == pytest.approx((rise - fall) / (2 * step), abs=2e-2)
