"""Names of the tags that only programs read; MLflow's pages show no tag whose name begins with `mlflow.`.

They hold JSON, digests of all bits, times since the epoch. In older databases they have their plain names, which are
still read. A text that is too long for a tag goes on in such tags: `parents` in `mlflow.catalog.parents.1`, ….
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_PREFIX = "mlflow.catalog."
_NAMES = (
    "catalog.figures",
    "catalog.stamp", "catalog.written", "changed_flags", "digest", "digest_metrics", "digest_weights", "environment",
    "failed_at", "reproduced", "result", "search", "started", "versions",
)  # fmt: skip
_STORED = {name: _PREFIX + name.removeprefix("catalog.") for name in _NAMES}
_PART = re.compile(r".+\.[0-9]+")
LENGTH = 7900  # characters of a tag; MLflow truncates tags at 8000


def stored_name(name: str) -> str:
    """Return the name of a tag in MLflow."""
    return _STORED.get(name, name)


def stored_names(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags by their names in MLflow, in parts that are not too long."""
    stored = {}
    for name, value in tags.items():
        stored[stored_name(name)] = value[:LENGTH]
        for number, at in enumerate(range(LENGTH, len(value), LENGTH), 1):
            stored[_PREFIX + _part(name, number)] = value[at : at + LENGTH]
    return stored


def plain_names(tags: Mapping[str, str]) -> dict[str, str]:
    """Return MLflow's tags, those that only programs read by their plain names too, and all texts as a whole."""
    found = {**tags}
    for stored, value in tags.items():
        if stored.startswith(_PREFIX):
            name = stored.removeprefix(_PREFIX)
            is_known = name in _STORED or _PART.fullmatch(name)
            found[name if is_known else f"catalog.{name}"] = value
    for name in [name for name, value in found.items() if len(value) == LENGTH]:
        number = 1
        # Parts of an earlier, longer text may have been left.
        while len(found[name]) == LENGTH * number and _part(name, number) in found:
            found[name] += found[_part(name, number)]
            number += 1
    return found


def _part(name: str, number: int) -> str:
    return f"{name.removeprefix('catalog.')}.{number}"
