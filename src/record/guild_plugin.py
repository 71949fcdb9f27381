"""Keeps `guild` quick in a project of many operations; Guild loads it by its entry point.

Guild 0.9 copies each flag that it imports from a script together with what the flag refers to: its
operation, and through it the whole Guild file with all flags copied so far. With n operations of m
flags each that takes time as (n m)^2; a copy that shares the operation, which Guild replaces right
after, takes it as n m.
"""

from __future__ import annotations

import copy
from typing import Any

from guild import guildfile
from guild.plugin import Plugin


class FlagCopies(Plugin):
    """Gives Guild's flags a way of being copied."""

    def __init__(self, ep: Any) -> None:
        super().__init__(ep)
        guildfile.FlagDef.__deepcopy__ = _copied


def _copied(flag: guildfile.FlagDef, memo: dict[int, Any]) -> guildfile.FlagDef:
    made = copy.copy(flag)
    memo[id(flag)] = made  # its choices refer to it
    for name, value in vars(flag).items():
        if name != "opdef":
            setattr(made, name, copy.deepcopy(value, memo))
    return made
