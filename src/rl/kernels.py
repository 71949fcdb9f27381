"""Compilation of kernels with numba, whose machine code is shared by all copies of the same sources.

By default numba stores machine code beside the source file, by the path of the file, and does not notice that a
function in another file changed. A run has its own copy of the sources (docs/architecture.md), so every run would
compile anew. Here the folder of the machine code is named by a digest of a study's sources: equal sources share a
folder, different ones never do.
"""

from __future__ import annotations

import ast
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
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True, "no_cfunc_wrapper": True}
_PART = _OPTIONS | {"no_cpython_wrapper": True}
_FUSED: dict[str, Any] = {"fastmath": {"contract"}}  # a product and a sum are rounded together
part = numba.njit(**_PART)
"""Compile a function that only other compiled functions call."""
fused_part = numba.njit(**_PART, **_FUSED)
"""The same, with fused multiply-add instructions where the processor has them."""


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls; store the machine code if its folder can be written."""
    return _stored(function, numba.njit(**_OPTIONS))


def fused_kernel(function: Callable[..., Any]) -> Any:
    """The same, with fused multiply-add instructions where the processor has them."""
    return _stored(function, numba.njit(**_OPTIONS, **_FUSED))


def reordered_kernel(function: Callable[..., Any]) -> Any:
    """The same, and sums in the fastest order; NaN and infinity keep their meaning."""
    return _stored(function, numba.njit(**_OPTIONS, fastmath={"contract", "reassoc"}))


def _stored(function: Callable[..., Any], compiled: Callable[..., Any]) -> Any:
    dispatcher = compiled(function)
    with suppress(RuntimeError):  # of numba, if no folder can be written
        set_cache(dispatcher, _Cache(function))
    return dispatcher


@cache
def digest(package: Path) -> str:
    """Return the digest of the sources of a package's kernels.

    These are the files of the package, in all its folders, and of `rl` that import this module, and the files of both
    that those import, directly or through others: a kernel is compiled with the values of their constants.
    """
    roots = {package.name: package, "rl": Path(__file__).parent}
    sources: dict[str, bytes] = {}
    waiting = [
        (f"{name}/{path.relative_to(root).as_posix()}", source)
        for name, root in roots.items()
        for path in root.rglob("*.py")
        if b"rl.kernels import" in (source := path.read_bytes())
    ]
    while waiting:
        name, source = waiting.pop()
        if name not in sources:
            sources[name] = source
            waiting += _imported(source, roots)
    result = hashlib.sha256()
    for name, source in sorted(sources.items()):
        result.update(name.encode() + b"\0" + source + b"\0")
    return result.hexdigest()[:16]


def _imported(source: bytes, roots: dict[str, Path]) -> list[tuple[str, bytes]]:
    """Return name and source of the files below some folders that a source imports at its top."""
    modules: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    names = [f"{m.replace('.', '/')}{end}" for m in modules for end in (".py", "/__init__.py")]
    paths = [(name, name.partition("/")) for name in names]
    return [
        (name, path.read_bytes())
        for name, (root, _, rest) in paths
        if root in roots and (path := roots[root] / rest).is_file()
    ]


def package_of(path: Path) -> Path:
    """Return the folder of the outermost package that contains a source file."""
    folder = path.parent
    while (folder / "__init__.py").is_file() and (folder.parent / "__init__.py").is_file():
        folder = folder.parent
    return folder


def folder(package: Path) -> Path:
    """Return the folder of a package's machine code, below `NUMBA_CACHE_DIR` if that is set."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    parent = os.environ.get("NUMBA_CACHE_DIR") or Path(cache) / "runcatalog" / "numba"
    return Path(parent) / f"{package.name}-{digest(package)}"


class _Locator(CacheLocator):
    def __init__(self, function: Callable[..., Any]) -> None:
        path = Path(function.__code__.co_filename)
        self._package = package_of(path)
        module = "-".join(path.relative_to(self._package).with_suffix("").parts)
        self._name = f"{module}-{function.__code__.co_firstlineno}"

    def get_cache_path(self) -> str:
        return str(folder(self._package))

    def get_source_stamp(self) -> str:
        return digest(self._package)

    def get_disambiguator(self) -> str:
        return self._name

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator | None:
        locator = cls(py_func)
        try:
            locator.ensure_cache_path()
        except OSError:
            return None
        return locator


class _Impl(CompileResultCacheImpl):
    _locator_classes: list[Any] = [_Locator]  # noqa: RUF012


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
        with suppress(OSError):  # a full disk or a deleted folder: the function works all the same
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
