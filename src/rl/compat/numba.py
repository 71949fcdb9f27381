"""Undocumented parts of numba 0.68 that decide where the machine code of a function is stored."""

from collections.abc import Callable
from typing import Any

from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.caching import _CacheLocator as CacheLocator

__all__ = ["CacheLocator", "CompileResultCacheImpl", "FunctionCache", "set_cache"]


def set_cache(dispatcher: Callable[..., Any], cache: FunctionCache) -> None:
    """Let a compiled function load and store its machine code through a cache."""
    dispatcher._cache = cache  # type: ignore[attr-defined]
