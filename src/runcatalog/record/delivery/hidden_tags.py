"""Names of the tags that only programs read; MLflow's pages show no tag whose name begins with `mlflow.`.

They hold JSON, digests of all bits, times since the epoch. In older databases they have their plain names, which are
still read.
"""

from __future__ import annotations

from collections.abc import Mapping

_PREFIX = "mlflow.catalog."
_NAMES = (
    "catalog.figures",
    "catalog.stamp", "catalog.written", "changed_flags", "digest", "digest_metrics", "digest_weights", "environment",
    "failed_at", "reproduced", "result", "search", "started", "versions",
)  # fmt: skip
_STORED = {name: _PREFIX + name.removeprefix("catalog.") for name in _NAMES}
_PARTS = "result."  # and a number: the rest of a long result


def stored_name(name: str) -> str:
    """Return the name of a tag in MLflow."""
    return _PREFIX + name if name.startswith(_PARTS) else _STORED.get(name, name)


def stored_names(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags by their names in MLflow."""
    return {stored_name(name): value for name, value in tags.items()}


def plain_names(tags: Mapping[str, str]) -> dict[str, str]:
    """Return MLflow's tags, those that only programs read by their plain names too."""
    found = {**tags}
    for stored, value in tags.items():
        if stored.startswith(_PREFIX):
            name = stored.removeprefix(_PREFIX)
            found[name if name in _STORED or name.startswith(_PARTS) else f"catalog.{name}"] = value
    return found
