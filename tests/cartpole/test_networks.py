"""Stacked networks against torch: outputs, gradients, Adam, initialisation."""

import numpy as np
import pytest
import torch

from cartpole.policy_gradient import networks
from cartpole.policy_gradient.networks import Adam, Shape


def make(shape, runs=3, seed=0):
    return networks.initial(shape, [np.random.default_rng((seed, r)) for r in range(runs)])


def as_torch(params, run):
    layers = []
    for layer in range(len(params) // 2):
        weight, bias = params[f"w{layer}"][run], params[f"b{layer}"][run]
        linear = torch.nn.Linear(*weight.shape)
        linear.weight.data = torch.tensor(weight.T)
        linear.bias.data = torch.tensor(bias)
        layers += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


@pytest.mark.parametrize(
    "shape", [Shape((8, 4)), Shape((8, 4), 1), Shape((16,), 2), Shape((32, 32), 2)]
)
@pytest.mark.parametrize("samples", [1, 50, 171])
def test_outputs_gradients_and_adam_are_those_of_torch(shape, samples):
    rng = np.random.default_rng(1)
    params, lr = make(shape), np.array([1e-3, 2e-3, 5e-2])
    models = [as_torch(params, run) for run in range(3)]
    torch_adam = [
        torch.optim.Adam(m.parameters(), lr=step) for m, step in zip(models, lr, strict=True)
    ]
    adam = Adam(params, lr)
    for _ in range(3):
        inputs = rng.normal(size=(3, samples, 4)).astype(np.float32)
        delta = rng.normal(size=(3, samples, shape.outputs)).astype(np.float32) / samples
        activated = networks.activations(params, inputs)
        assert (activated[-1] == networks.forward(params, inputs)).all()
        grads = networks.gradients(params, activated, delta)
        for run, (model, optimiser) in enumerate(zip(models, torch_adam, strict=True)):
            outputs = model(torch.tensor(inputs[run]))
            np.testing.assert_allclose(
                activated[-1][run], outputs.detach(), atol=1e-5, err_msg="outputs"
            )
            optimiser.zero_grad()
            (outputs * torch.tensor(delta[run])).sum().backward()
            for layer, linear in enumerate(model[::2]):
                for name, tensor in ((f"w{layer}", linear.weight), (f"b{layer}", linear.bias)):
                    np.testing.assert_allclose(
                        grads[name][run], tensor.grad.numpy().T, atol=2e-5, err_msg=name
                    )
                    tensor.grad = torch.tensor(grads[name][run].T.copy())  # Adam by itself
            optimiser.step()
        adam.step(grads)
        for run, model in enumerate(models):
            for layer, linear in enumerate(model[::2]):
                np.testing.assert_allclose(
                    params[f"w{layer}"][run], linear.weight.detach().numpy().T, rtol=1e-5, atol=1e-6
                )


@pytest.mark.parametrize(
    "shape", [Shape((8, 4)), Shape((8, 4), 1), Shape((16,), 1), Shape((64,)), Shape((64, 64), 1)]
)
@pytest.mark.parametrize("samples", [50, 100, 350])
def test_a_run_computes_the_same_bits_alone_and_in_a_stack(shape, samples):
    rng = np.random.default_rng(2)
    params = make(shape, runs=7)
    inputs = rng.normal(size=(7, samples, 4)).astype(np.float32)
    delta = rng.normal(size=(7, samples, shape.outputs)).astype(np.float32)
    activated = networks.activations(params, inputs)
    together = networks.gradients(params, activated, delta)
    for run in range(7):
        own = networks.take(params, slice(run, run + 1))
        # Padded with zeros, as when another run's episode lasts longer.
        more, deltas = (
            np.pad(a[run : run + 1], ((0, 0), (0, 150), (0, 0))) for a in (inputs, delta)
        )
        alone = networks.activations(own, more)
        assert (alone[-1][0, :samples] == activated[-1][run]).all()
        for name, value in networks.gradients(own, alone, deltas).items():
            assert (value[0] == together[name][run]).all(), name
        for rows in (1, 10):
            assert (
                networks.forward(own, inputs[run : run + 1, :rows])[0]
                == networks.forward(params, inputs[:, :rows])[run]
            ).all()


def test_initialisation_is_that_of_torch_and_differs_between_runs():
    shape = Shape((64, 64), 2)
    params = make(shape, runs=2)
    for layer, (fan_in, fan_out) in enumerate(shape.layers):
        torch.manual_seed(0)
        linear = torch.nn.Linear(fan_in, fan_out)
        for ours, theirs in (
            (params[f"w{layer}"], linear.weight),
            (params[f"b{layer}"], linear.bias),
        ):
            assert ours.dtype == np.float32
            assert np.abs(ours).max() <= fan_in**-0.5
            if theirs.numel() >= 64:  # enough to estimate a spread
                assert ours.std() == pytest.approx(theirs.std().item(), rel=0.2)
            assert not (ours[0] == ours[1]).any()
    again = make(shape, runs=1)
    assert all((again[name][0] == params[name][0]).all() for name in params)


def test_a_stack_can_be_split_and_stacked_again():
    params = make(Shape((8, 4)), runs=3)
    single = [networks.take(params, run) for run in range(3)]
    assert single[0]["w0"].shape == (4, 8)
    again = networks.stacked(single)
    assert all((again[name] == params[name]).all() for name in params)


def test_adam_continues_from_its_state():
    rng = np.random.default_rng(3)
    params = make(Shape((8, 4)))
    grads = [
        {name: rng.normal(size=v.shape).astype(np.float32) for name, v in params.items()}
        for _ in range(4)
    ]
    adam = Adam(params, 1e-2)
    for gradient in grads[:2]:
        adam.step(gradient)
    other_params = networks.take(params, slice(None))
    other = Adam(other_params, 1e-2)
    other.restore(adam.state())
    for gradient in grads[2:]:
        adam.step(gradient)
        other.step(gradient)
    assert all((params[name] == other_params[name]).all() for name in params)
