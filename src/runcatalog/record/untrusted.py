"""Validation of run directories, which may be from untrusted sources."""

from __future__ import annotations

import contextlib
import re
import time
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runcatalog.numbers import is_int64
from runcatalog.record.errors import UserError
from runcatalog.record.journal.files import MAX_BYTES, read_json

_TEXTS = ("study", "operation", "command", "commit", "dirty", "machine", "host", "gpu", "host_cpu")
_MAX_TEXT = 4000  # characters of such a text
_ATTRIBUTE_BYTES = 1 << 20
_BEING_WRITTEN = 5.0  # s
MAX_DEPTH = 64  # levels of nesting; real files have fewer than ten
_MAX_NODES = 200_000  # of a YAML text; real files have a few thousand


def checked_facts(directory: Path) -> dict[str, Any]:
    """Return the facts of a run, `journal/run.json`.

    Raises:
        UserError: The file is missing, or its content is not valid.
    """
    path = directory / "journal" / "run.json"
    if not inside(directory, path):
        raise UserError(f"{path}: leads out of the run's directory: refused")
    try:
        size = path.stat().st_size
    except OSError:
        raise UserError(f"{directory}: no run (journal/run.json cannot be read)") from None
    if size > MAX_BYTES:
        raise UserError(f"{path}: {size} bytes; at most {MAX_BYTES} are read")
    facts = read_json(path)
    if facts is None:
        raise UserError(f"{directory}: no run (journal/run.json cannot be read)")
    wrong = _wrong_field(facts)
    if wrong:
        raise UserError(f"{path}: {wrong!r} is missing or invalid: refused")
    return facts


def guild_attribute(directory: Path, name: str) -> Any:
    """Return an attribute of a Guild run; None if it is missing or not valid YAML (see :func:`load_yaml`)."""
    path = directory / ".guild" / "attrs" / name
    try:
        with path.open("rb") as file:
            raw = file.read(_ATTRIBUTE_BYTES + 1)
    except OSError:
        return None
    text = raw.decode("utf-8", "replace").strip()
    if not text or len(raw) > _ATTRIBUTE_BYTES:
        return None
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    import yaml

    with contextlib.suppress(yaml.YAMLError, ValueError):
        return load_yaml(text)
    return None


def is_damaged_attribute(directory: Path, name: str) -> bool:
    """Return whether an attribute of a Guild run has a file whose content is nothing, or not valid YAML.

    Guild creates the file before it writes the value, so a file of the last seconds is not called damaged.
    """
    path = directory / ".guild" / "attrs" / name
    with contextlib.suppress(OSError):
        if (
            time.time() - path.stat().st_mtime > _BEING_WRITTEN
            and guild_attribute(directory, name) is None
        ):
            return path.read_text(errors="replace").strip() not in ("null", "~")
    return False


def load_yaml(text: str) -> Any:
    """Return the value of a YAML text of limited size, also after its aliases are replaced by what they stand for.

    A few nested lines with aliases would expand to gigabytes.

    Raises:
        ValueError: It is nested too deeply, unfolds to too much, or contains a value that does not fit its tag.
        yaml.YAMLError: It is not YAML.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    # Before PyYAML's recursive functions, which can crash Python
    _check_size(yaml.parse(text, loader))
    try:
        return yaml.load(text, loader)
    except (ArithmeticError, AttributeError, LookupError, TypeError):  # PyYAML checks no tags
        raise ValueError("a value does not fit its tag") from None


def _check_size(events: Iterable[Any]) -> None:
    """Raise ValueError if a YAML document is nested or unfolds beyond the limits.

    Args:
        events: Events of PyYAML's parser.
    """
    import yaml

    anchors: dict[str, tuple[int, int] | None] = {}  # (size, height); None while it is open
    around: list[tuple[str, int, int]] = []  # (anchor, size, height) of the open collections
    for event in events:
        anchor, size, height = getattr(event, "anchor", None) or "", 1, 0
        if isinstance(event, yaml.CollectionStartEvent):
            around.append((anchor, 1, 0))
            anchors[anchor] = None
        elif isinstance(event, yaml.ScalarEvent):
            size += len(event.value) // 100
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size, height = around.pop()
        elif isinstance(event, yaml.AliasEvent):
            measured = anchors.get(anchor, (0, 0))
            if measured is None:
                raise ValueError(f"*{anchor}: an alias inside of what it stands for")
            anchor, (size, height) = "", measured
        else:
            continue
        if len(around) + height > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        if isinstance(event, yaml.CollectionStartEvent):
            continue
        anchors[anchor] = size, height
        if around:
            outer, total, highest = around.pop()
            around.append((outer, total + size, max(highest, height + 1)))
            if total + size > _MAX_NODES:
                raise ValueError(f"its aliases unfold to more than {_MAX_NODES} values")


def check_unfolded(value: Any) -> None:
    """Raise ValueError if a value read from YAML is nested or unfolds beyond the limits of :func:`load_yaml`."""
    # (size, height) of a collection, to which several aliases may refer
    measured: dict[int, tuple[int, int]] = {}

    def measure(value: Any, depth: int) -> tuple[int, int]:
        if not isinstance(value, dict | list):
            return 1 + (len(value) // 100 if isinstance(value, str) else 0), 0
        size, height = measured.get(id(value), (0, 0))
        if not size:
            size = 1
            for item in value.values() if isinstance(value, dict) else value:
                if depth >= MAX_DEPTH:
                    raise ValueError(f"nested more than {MAX_DEPTH} deep")
                more, below = measure(item, depth + 1)
                size, height = size + more, max(height, below + 1)
            measured[id(value)] = size, height
        if depth + height > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        if size > _MAX_NODES:
            raise ValueError(f"its aliases unfold to more than {_MAX_NODES} values")
        return size, height

    measure(value, 0)


def is_nested_deeply(value: Any) -> bool:
    """Return whether a JSON value is nested more than MAX_DEPTH deep: functions that recurse into it would fail."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return False
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, (dict, list))
        ]
    return bool(level)


def printable(text: str) -> str:
    """Return a text without characters that could command a terminal; newlines and tabs are kept."""
    if text.isprintable():  # so it has no character of the categories below
        return text
    return "".join(
        c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co")
    )


def inside(directory: Path, path: Path) -> bool:
    """Return whether a path, with links resolved, is inside the run's directory."""
    return path.resolve().is_relative_to(directory.resolve())


def _wrong_field(facts: dict[str, Any]) -> str:
    if not isinstance(facts.get("id"), str) or not re.fullmatch("[0-9a-f]{8,32}", facts["id"]):
        return "id"
    for name in _TEXTS:
        value = facts.get(name, None if name in ("study", "operation") else "")
        # A command may have a long text as a flag.
        if not isinstance(value, str) or (len(value) > _MAX_TEXT and name != "command"):
            return name
    if not facts["study"].strip() or "/" in facts["study"] or "\0" in facts["study"]:
        return "study"
    for name in ("flags", "versions", "environment"):
        if not isinstance(facts.get(name, None if name == "flags" else {}), dict):
            return name
    for name in ("started", "seed"):
        if not is_int64(facts.get(name)):
            return name
    return ""
