"""How kernels are compiled: by numba, once for all copies of the same sources.

numba keeps what it compiled beside the source file, by the file's path, and does not see that a function of another
file changed. A run has its own copy of the sources (see docs/architecture.md), so each run would compile anew.
Here the place is named by a digest of a package's sources: equal sources share it, others never read it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

import numba

from rl.compat.numba import CacheLocator, CompileResultCacheImpl, FunctionCache, set_cache

_PATIENCE = 120.0  # s; the largest kernel compiles in 20 on an idle core
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
    """The digest of the sources that a package's kernels are made of.

    These are its own and this package's that import this module, and the numbers in its `codes`.
    """
    found = hashlib.sha256()
    for path in sorted([*Path(__file__).parent.glob("*.py"), *package.glob("*.py")]):
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


class _Locator(CacheLocator):
    def __init__(self, function: Callable[..., Any]) -> None:
        path = Path(function.__code__.co_filename)
        self._package = path.parent
        self._name = f"{path.stem}-{function.__code__.co_firstlineno}"

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
    """Machine code on the disk, compiled by one process while the others wait for it."""

    _impl_class = _Impl

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        locator = _Locator(function)
        self._lock_path = Path(locator.get_cache_path()) / f"{locator.get_disambiguator()}.lock"
        self._lock: IO[bytes] | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = super().load_overload(sig, target_context)
        if found is None and self._lock is None:
            with suppress(OSError):
                self._acquire()
                found = super().load_overload(sig, target_context)
            if found is not None:
                self._release()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):  # a full disk, a folder that is gone: compiled all the same
            super().save_overload(sig, data)
        self._release()

    def _acquire(self) -> None:
        """Wait for another process that compiles this function, `_PATIENCE` seconds at most."""
        self._lock = self._lock_path.open("wb")
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            with suppress(BlockingIOError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(0.05)

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
