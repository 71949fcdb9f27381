"""The private parts of torch and numba that the studies use do what they are used for."""

from importlib.metadata import version

import numba
import pytest
import torch

from rl.kernels import kernel


def compat(package: str):
    """The module of private parts; a failure names the package that moved them."""
    try:
        return __import__(f"rl.compat.{package}", fromlist=["*"])
    except ImportError as error:
        pytest.fail(f"{package} {version(package)} moved what rl/compat/{package}.py uses: {error}")


def tensors():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, generator=generator) for size in (3, 5, 1)]


def test_calls_over_many_tensors_equal_a_loop():
    private = compat("torch")
    added, multiplied, expected = tensors(), tensors(), tensors()
    private.add_to_each(added, 1)
    private.multiply_each(multiplied, torch.tensor(0.3))
    for a, m, e in zip(added, multiplied, expected, strict=True):
        assert torch.equal(a, e + 1)
        assert torch.equal(m, e * torch.tensor(0.3))


def test_fused_adam_is_a_step_of_torchs_adam():
    private = compat("torch")
    mine, theirs = tensors(), [t.requires_grad_() for t in tensors()]
    optimizer = torch.optim.Adam(theirs, lr=0.01, fused=True)
    for t in theirs:
        t.grad = t.detach().cos()
    optimizer.step()
    private.fused_adam(
        mine, [t.cos() for t in mine], [torch.zeros_like(t) for t in mine],
        [torch.zeros_like(t) for t in mine], [], [torch.ones(()) for _ in mine],
        lr=0.01, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip
    for m, t in zip(mine, theirs, strict=True):
        assert torch.equal(m, t.detach())


def test_numba_stores_machine_code_through_the_cache_that_is_set(tmp_path, monkeypatch):
    compat("numba")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))

    def double(x):
        return 2 * x

    assert kernel(double)(3) == 6
    stored = [p.suffix for p in tmp_path.rglob("*") if p.is_file()]
    assert {".nbi", ".nbc"} <= set(stored), f"numba {numba.__version__} stored {stored}"
