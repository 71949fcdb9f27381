"""Random streams depend on seed, purpose and index alone."""

import subprocess
import sys

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from runcatalog.record import Seeds


@given(st.integers(0, 2**63 - 1), st.text(max_size=20), st.integers(0, 10**6))
def test_same_names_same_bits(seed, purpose, index):
    one, two = Seeds(seed), Seeds(seed)
    two.generator("something else").normal(size=3)
    assert np.array_equal(
        one.generator(purpose, index).integers(0, 2**63, 8),
        two.generator(purpose, index).integers(0, 2**63, 8),
    )


def test_streams_differ_by_seed_purpose_and_index():
    names = [(s, p, i) for s in (1, 2) for p in ("world", "action", "w", "") for i in range(20)]
    first = {int(Seeds(s).generator(p, i).integers(0, 2**63)) for s, p, i in names}
    assert len(first) == len(names)


def test_streams_are_uncorrelated():
    draws = np.stack([Seeds(1).generator("world", i).normal(size=4000) for i in range(16)])
    correlation = np.corrcoef(draws) - np.eye(16)
    assert np.abs(correlation).max() < 5 / np.sqrt(4000)


def test_another_process_draws_the_same():
    code = "from runcatalog.record import Seeds; print(Seeds(7).generator('world', 3).integers(0, 2**62))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == Seeds(7).generator("world", 3).integers(0, 2**62)


def test_torch_streams_repeat():
    draws = [torch.rand(5, generator=Seeds(3).torch("init", i)) for i in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
