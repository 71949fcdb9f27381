"""Colours and dashes by name, the same in all figures of a project.

A project lists them in `experiments/palette.yml`: {colours: {blue: [NAME, …], …}, dashes: {solid: [NAME, …], …}}.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runcatalog.model.declarations import load_yaml
from runcatalog.model.errors import CatalogError
from runcatalog.plots.style import DASHES, NAMED_COLOURS

FILE = "palette.yml"  # in the project's folder of experiments


@dataclass(frozen=True)
class Palette:
    """Colours and dashes of a project; names that are not listed get those that are free in a figure.

    Attributes:
        colours: Name of a colour in `NAMED_COLOURS`, by what it stands for.
        dashes: Name of a dash in `DASHES`, by what it stands for.
    """

    colours: Mapping[str, str] = field(default_factory=dict)
    dashes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, experiments: Path) -> Palette:
        """Return the palette of a folder of experiments, an empty one without a file.

        Raises:
            CatalogError: The file is invalid.
        """
        path = experiments / FILE
        content = (load_yaml(path) or {}) if path.is_file() else {}
        if not isinstance(content, dict) or content.keys() - {"colours", "dashes"}:
            raise CatalogError(f"{path}: colours and dashes are expected")
        return cls(
            _by_name(path, content.get("colours"), NAMED_COLOURS),
            _by_name(path, content.get("dashes"), DASHES),
        )

    def colours_of(self, names: Iterable[str]) -> dict[str, str]:
        """Return the colour of each name, as #RRGGBB."""
        assigned = _assigned(names, self.colours, NAMED_COLOURS)
        return {name: NAMED_COLOURS[colour] for name, colour in assigned.items()}

    def dashes_of(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the dash of each name, as matplotlib takes it."""
        return {name: DASHES[d] for name, d in _assigned(names, self.dashes, DASHES).items()}


def _by_name(path: Path, lists: Any, known: Mapping[str, Any]) -> dict[str, str]:
    by_name: dict[str, str] = {}
    if not isinstance(lists, dict | None):
        raise CatalogError(f"{path}: lists of names below {', '.join(known)} are expected")
    for key, names in (lists or {}).items():
        if key not in known or not isinstance(names, list):
            raise CatalogError(f"{path}: {key}: a list below one of {', '.join(known)} is expected")
        for name in map(str, names):
            if name in by_name:
                raise CatalogError(f"{path}: {name} is listed twice")
            by_name[name] = key
    return by_name


def _assigned(
    names: Iterable[str], listed: Mapping[str, str], known: Mapping[str, Any]
) -> dict[str, str]:
    """Return the listed value of each name; the others take the free ones in turn, then all again."""
    names = list(dict.fromkeys(names))
    taken = {listed[name] for name in names if name in listed}
    free = [value for value in known if value not in taken]
    turn = free + [value for value in known if value in taken]
    others = (name for name in names if name not in listed)
    drawn = {name: turn[i % len(turn)] for i, name in enumerate(others)}
    return {name: listed.get(name) or drawn[name] for name in names}
