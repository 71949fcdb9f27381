"""Muon: orthogonal steps, every matrix by itself, as its formulas say."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from darkroom.distillation.ad_options import Config
from darkroom.distillation.muon import COEFFICIENTS, Muon, orthogonalise
from darkroom.distillation.transformer import Transformer
from darkroom.distillation.update import optimizers


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 20), st.integers(2, 20), st.integers(0, 2**31))
def test_the_iteration_approximates_the_orthogonal_factor(rows, columns, seed):
    matrix = np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    orthogonal = orthogonalise(torch.from_numpy(matrix)[None])[0].numpy()
    # The iteration is a polynomial of the singular values: every value changes by itself, the directions stay.
    expected = values / np.linalg.norm(matrix)
    a, b, c = COEFFICIENTS
    for _ in range(5):
        expected = a * expected + b * expected**3 + c * expected**5
    assert np.abs(orthogonal - left * expected @ right).max() < 1e-3
    large = values / np.linalg.norm(matrix) > 0.05
    assert (expected[large] > 0.6).all()
    assert (expected[large] < 1.3).all()


def test_a_step_is_that_of_every_matrix_by_itself():
    rng = np.random.default_rng(0)
    shapes = [((1, 4, 12), 3), ((2, 4, 8), 1), ((1, 8, 4), 1), ((1, 4, 4), 1)]
    parameters = [
        (torch.nn.Parameter(torch.from_numpy(rng.normal(size=shape).astype(np.float32))), parts)
        for shape, parts in shapes
    ]
    before = [p.detach().numpy().copy() for p, _ in parameters]
    muon = Muon(parameters, lr=0.1, momentum=0.9, weight_decay=0.5)
    momenta = [np.zeros_like(values) for values in before]
    for _ in range(3):
        gradients = [rng.normal(size=values.shape).astype(np.float32) for values in before]
        for (parameter, _), gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.from_numpy(gradient.copy())
        muon.step()
        for i, (_, parts) in enumerate(parameters):
            momenta[i] = 0.9 * momenta[i] + gradients[i]
            ahead = gradients[i] + 0.9 * momenta[i]
            for stream in range(len(ahead)):
                for block in np.split(np.arange(ahead.shape[2]), parts):
                    matrix = torch.from_numpy(ahead[stream][:, block])[None]
                    scale = max(1, len(block) / ahead.shape[1]) ** 0.5
                    here = before[i][stream][:, block] * (1 - 0.1 * 0.5)
                    before[i][stream][:, block] = (
                        here - 0.1 * scale * orthogonalise(matrix)[0].numpy()
                    )
    for (parameter, _), expected in zip(parameters, before, strict=True):
        assert np.abs(parameter.detach().numpy() - expected).max() < 1e-5


@pytest.mark.parametrize("layout", ["one", "cross"])
def test_every_weight_has_exactly_one_optimizer(layout):
    config = Config(layout=layout)
    model = Transformer(config.shape(9, 20), torch.Generator())
    both = optimizers(model, config.settings())
    stepped = [
        id(p) for optimizer in both for group in optimizer.param_groups for p in group["params"]
    ]
    assert sorted(stepped) == sorted(map(id, model.parameters()))
    muon = {id(p) for p in both[1].param_groups[0]["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in muon}
    assert len(names) == 4 * 4
    assert all(name.startswith("blocks.") and name.endswith(".weight") for name in names)
    # Biases and norms are not pulled to zero.
    decayed = {id(p) for p in both[0].param_groups[0]["params"]}
    pulled = {name for name, p in model.named_parameters() if id(p) in decayed}
    assert pulled == {"tables.places", "tables.others", "positions", "head.weight"}
    (alone,) = optimizers(model, Config(preset="seed").settings())
    assert sum(len(g["params"]) for g in alone.param_groups) == len(list(model.parameters()))
