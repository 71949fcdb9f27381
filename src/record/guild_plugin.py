"""Keeps `guild` quick in a project of many operations; Guild loads it by its entry point.

Guild 0.9 copies each flag that it imports from a script together with what the flag refers to: its
operation, and through it the whole Guild file with all flags copied so far. With n operations of m
flags each that takes time as (n m)^2; a copy that shares the operation, which Guild replaces right
after, takes it as n m.

It also reads what it knows of a script's flags for each operation of the script anew, with the slow
one of its YAML parsers; once is enough.
"""

from __future__ import annotations

import copy
import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import yaml
from guild import guildfile
from guild.plugin import Plugin

if TYPE_CHECKING:
    from guild.plugins.python_script import PythonScriptPlugin


class FlagCopies(Plugin):
    """Gives Guild's flags a way of being copied, and of being read once."""

    def __init__(self, ep: Any) -> None:
        # Not before Guild does it: it moves what its modules and ours are found by.
        from guild.plugins.python_script import PythonScriptPlugin

        super().__init__(ep)
        guildfile.FlagDef.__deepcopy__ = _copied
        PythonScriptPlugin._cached_data = _cached_data


def _copied(flag: guildfile.FlagDef, memo: dict[int, Any]) -> guildfile.FlagDef:
    made = copy.copy(flag)
    memo[id(flag)] = made  # its choices refer to it
    for name, value in vars(flag).items():
        if name != "opdef":
            setattr(made, name, copy.deepcopy(value, memo))
    return made


def _cached_data(self: PythonScriptPlugin, path: str, base_args: list[str]) -> tuple[Any, str]:
    """What Guild keeps of a script's flags, None if it is not of the script as it is; and where."""
    kept = self._cached_data_path(path, base_args)
    # A script's flags may come from a module beside it, which Guild does not look at.
    if not self._cache_valid(kept, path) or os.path.getmtime(kept) < _changed(path):
        return None, kept
    return copy.deepcopy(_read(kept, os.stat(kept).st_mtime_ns)), kept  # its reader changes it


def _changed(path: str) -> float:
    """When a module in a script's folder changed last, s since the epoch."""
    with os.scandir(os.path.dirname(path) or ".") as entries:
        return max(
            (each.stat().st_mtime for each in entries if each.name.endswith(".py")), default=0
        )


@lru_cache
def _read(path: str, changed: int) -> Any:
    with open(path, encoding="utf-8") as file:
        return yaml.load(file, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
