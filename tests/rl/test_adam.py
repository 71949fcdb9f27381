"""Adam against torch's."""

import copy
import subprocess
import sys

import pytest
import torch

from rl.adam import Adam

SHAPES = ((70, 30), (30,), (1,))


def _tensors() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def _gradients(tensors, step: int) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for tensor in tensors:
        tensor.grad = torch.randn(tensor.shape, generator=generator) * 10.0 ** (step % 7 - 4)
    if step % 3 == 0:
        tensors[1].grad = None  # this one stays as it is


def _steps(optimiser, tensors, steps: range) -> None:
    for step in steps:
        _gradients(tensors, step)
        optimiser.step()


@pytest.mark.parametrize("about", [{}, {"betas": (0.9, 0.99), "eps": 1e-5}])
def test_steps_equal_torch_to_the_bit_and_states_are_interchangeable(about):
    ours, theirs = _tensors(), _tensors()
    adam = Adam(ours, 3e-3, **about)
    torchs = torch.optim.Adam(theirs, lr=3e-3, fused=True, **about)
    _steps(adam, ours, range(8))
    _steps(torchs, theirs, range(8))
    assert all(map(torch.equal, ours, theirs))

    again = [tensor.clone() for tensor in ours]
    taken = Adam(again, 1.0)
    saved = copy.deepcopy(torchs.state_dict())
    taken.load_state_dict(saved)
    back = torch.optim.Adam(ours, lr=1.0, fused=True)
    back.load_state_dict(copy.deepcopy(adam.state_dict()) | {"param_groups": saved["param_groups"]})
    _steps(torchs, theirs, range(8, 14))
    _steps(taken, again, range(8, 14))
    _steps(back, ours, range(8, 14))
    assert all(map(torch.equal, again, theirs))
    assert all(map(torch.equal, ours, theirs))


def test_steps_do_not_change_a_saved_state():
    tensors = _tensors()
    adam = Adam(tensors, 1e-3)
    _steps(adam, tensors, range(1, 2))
    saved = copy.deepcopy(adam.state_dict())
    kept = copy.deepcopy(saved)
    other = Adam(_tensors(), 1e-3)
    other.load_state_dict(saved)
    _steps(other, other.tensors, range(2, 4))
    for index, state in kept["state"].items():
        assert all(torch.equal(value, saved["state"][index][name]) for name, value in state.items())


def test_the_state_of_other_tensors_is_refused():
    saved = Adam(_tensors(), 1e-3).state_dict()
    with pytest.raises(ValueError, match="3 tensors there, 2 here"):
        Adam(_tensors()[:2], 1e-3).load_state_dict(saved)
    with pytest.raises(ValueError, match=r"exp_avg is \(70, 30\) there, \(70, 31\) here"):
        Adam([torch.zeros(70, 31), *_tensors()[1:]], 1e-3).load_state_dict(saved)


def test_the_compiler_is_not_imported():
    code = """
import sys, torch
from rl.adam import Adam
tensor = torch.ones(2); tensor.grad = torch.ones(2)
adam = Adam([tensor], 1e-3); adam.step(); adam.load_state_dict(adam.state_dict())
print("torch._dynamo" in sys.modules, tensor[0].item() < 1)
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False True\n"
