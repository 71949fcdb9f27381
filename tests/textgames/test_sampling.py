"""Sampling: the frequencies of tokens against the definition."""

import numpy as np
import pytest
import torch

from textgames.models.sampling import sample

LOGITS = torch.log(torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03]))


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ({"temperature": 1.0}, 5), ({"temperature": 2.0}, 5), ({"temperature": 1.0, "top_p": 0.7}, 2),
        ({"temperature": 1.0, "top_p": 0.91}, 4), ({"temperature": 1.0, "top_k": 3}, 3),
        ({"temperature": 1.0, "top_p": 0.01}, 1), ({"temperature": 0.5, "top_p": 0.99, "top_k": 2}, 2),
    ],
)  # fmt: skip
def test_frequencies_are_those_of_the_truncated_distribution(how, kept):
    order = torch.tensor([3, 0, 4, 1, 2])  # the likeliest is not the first
    logits = LOGITS[order].expand(20_000, 5)
    tokens = sample(logits, torch.Generator().manual_seed(1), **how)
    weights = np.array([0.5, 0.25, 0.15, 0.07, 0.03]) ** (1 / how["temperature"])
    weights[kept:] = 0
    expected = (weights / weights.sum())[order.numpy()]
    shares = np.bincount(tokens.numpy(), minlength=5) / 20_000
    np.testing.assert_allclose(shares, expected, atol=0.015)
    assert not shares[expected == 0].any()


def test_temperature_zero_takes_the_likeliest_token_without_a_random_draw():
    logits = torch.randn(50, 9, generator=torch.Generator().manual_seed(1))
    assert torch.equal(sample(logits, None, temperature=0), logits.argmax(-1))
