"""How kernels are compiled: by numba, once for all copies of the same sources.

numba keeps what it compiled beside the source file, by the file's path, and does not see that a function of another
file changed. A run has its own copy of the sources (see docs/architecture.md), so each run would compile anew.
Here the place is named by a digest of a package's sources: equal sources share it, others never read it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba

from rl.compat.numba import CacheLocator, CompileResultCacheImpl, FunctionCache, set_cache

_OPTIONS = {"error_model": "numpy", "nogil": True, "no_cfunc_wrapper": True}
_FUSED = {"fastmath": {"contract"}}  # a product and a sum round once
part = numba.njit(**_OPTIONS, no_cpython_wrapper=True)
"""Compiles a function that kernels call; Python cannot."""
fused_part = numba.njit(**_OPTIONS, **_FUSED, no_cpython_wrapper=True)
"""The same with products and sums in one instruction, where the processor has it."""


def kernel(function: Callable[..., Any]) -> Any:
    """Compiles a function that Python calls; the machine code is kept, where a folder for it can be written."""
    return _kept(function, numba.njit(**_OPTIONS))


def fused_kernel(function: Callable[..., Any]) -> Any:
    """The same with products and sums in one instruction, where the processor has it."""
    return _kept(function, numba.njit(**_OPTIONS, **_FUSED))


def reordered_kernel(function: Callable[..., Any]) -> Any:
    """The same with sums in whatever order is fastest, too; NaN and infinity stay what they are."""
    return _kept(function, numba.njit(**_OPTIONS, fastmath={"contract", "reassoc"}))


def _kept(function: Callable[..., Any], compiled: Callable[..., Any]) -> Any:
    dispatcher = compiled(function)
    with suppress(RuntimeError):  # numba's, where no place is found
        set_cache(dispatcher, _Cache(function))
    return dispatcher


@cache
def digest(package: Path) -> str:
    """Return the digest of the sources of a package's kernels, in all its folders.

    These are the files of the package and of this one that import this module, and the constants in `codes`.
    """
    found = hashlib.sha256()
    for path in sorted([*Path(__file__).parent.glob("*.py"), *package.rglob("*.py")]):
        source = path.read_bytes()
        if path.name == "codes.py" or b"rl.kernels import" in source:
            found.update(path.name.encode() + b"\0" + source + b"\0")
    return found.hexdigest()[:16]


def folder(package: Path) -> Path:
    """Where the machine code of a package lies; `NUMBA_CACHE_DIR` names another place."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    place = Path(given or Path(home) / "experiment-catalog" / "numba")
    return place / f"{package.name}-{digest(package)}"


def _package_of(path: Path) -> Path:
    """Return the outermost package that contains a module; its own folder if it is in no package."""
    package = path.parent
    while (package.parent / "__init__.py").exists():
        package = package.parent
    return package


class _Locator(CacheLocator):
    def __init__(self, function: Callable[..., Any]) -> None:
        path = Path(function.__code__.co_filename)
        self._package = _package_of(path)
        name = "-".join(path.relative_to(self._package).with_suffix("").parts)
        self._name = f"{name}-{function.__code__.co_firstlineno}"

    def get_cache_path(self) -> str:
        return str(folder(self._package))

    def get_source_stamp(self) -> str:
        return digest(self._package)

    def get_disambiguator(self) -> str:
        return self._name

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator | None:
        found = cls(py_func)
        try:
            found.ensure_cache_path()
        except OSError:
            return None
        return found


class _Impl(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012


class _Cache(FunctionCache):
    _impl_class = _Impl

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):  # a full disk, a folder that is gone: compiled all the same
            super().save_overload(sig, data)
