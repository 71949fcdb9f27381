"""Files of committed records: experiments/records/STUDY/RUN8.json, a file per run."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from runcatalog.model import values
from runcatalog.model.errors import CatalogError
from runcatalog.model.run_record import RunRecord, from_json, to_json

MAX_BYTES = 32 * 1024 * 1024  # records with 100 points per curve are far smaller


def dumps(record: RunRecord) -> str:
    """Return a record as JSON with sorted keys, a line per field and per metric."""
    content = to_json(record)
    metrics = content.pop("metrics")
    lines = {name: _line(value) for name, value in content.items()}
    inner = ",\n".join(f"  {_line(name)}: {_metric(metrics[name])}" for name in sorted(metrics))
    lines["metrics"] = f"{{\n{inner}\n }}" if inner else "{}"
    body = ",\n".join(f" {_line(name)}: {lines[name]}" for name in sorted(lines))
    return f"{{\n{body}\n}}\n"


def _metric(content: Mapping[str, Any]) -> str:
    """Return the line of a metric, in half the time that the standard library takes."""
    curve = orjson.dumps(content["curve"]).decode()
    # Small and large numbers have another form than in the standard library's JSON.
    if "e" in curve or "0.0000" in curve:
        return _line(content)
    parts = {name: _line(value) for name, value in content.items() if name != "curve"}
    parts["curve"] = curve.replace(",", ", ")
    return f"{{{', '.join(f'{_line(name)}: {parts[name]}' for name in sorted(parts))}}}"


def read(path: Path) -> RunRecord:
    """Read the record in a file.

    Raises:
        CatalogError: The file is not a record, is larger than MAX_BYTES, or nested too deeply.
    """
    from runcatalog.record.untrusted import MAX_DEPTH, is_nested_deeply

    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise CatalogError(f"{path}: not a regular file")
        if status.st_size > MAX_BYTES:
            raise CatalogError(f"{path}: {status.st_size} bytes; a record has at most {MAX_BYTES}")
        content = values.parse_json(path.read_bytes())
    except OSError as error:
        raise CatalogError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise CatalogError(f"{path}: not JSON ({error})") from None
    # Curves are left out, which are large, and in which only numbers are accepted.
    if isinstance(content, dict) and is_nested_deeply({**content, "metrics": None}):
        raise CatalogError(f"{path}: nested more than {MAX_DEPTH} deep")
    return from_json(content, str(path))


def read_all(folder: Path) -> list[RunRecord]:
    """Read the records below a folder, in the order of their paths.

    Raises:
        CatalogError: A record is broken, its file has the name of another run, or two are of the same run.
    """
    path_of_run: dict[str, Path] = {}
    records = []
    for path in sorted(folder.glob("*/*.json")):
        record = read(path)
        if record.run in path_of_run:
            raise CatalogError(f"{path}: run {record.id8} is in {path_of_run[record.run]} too")
        if path.stem not in (record.id8, record.run[:16]):
            raise CatalogError(f"{path}: has run {record.id8}; its name would be {record.id8}.json")
        path_of_run[record.run] = path
        records.append(record)
    return records


def by_digits(folder: Path) -> dict[str, list[Path]]:
    """Return the files of records by the first 8 digits of their names, in the order of their paths."""
    paths: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*/*.json")):
        paths.setdefault(path.name[:8], []).append(path)
    return paths


def committed(run: str, paths: Mapping[str, Sequence[Path]]) -> RunRecord | None:
    """Return the record of a run; None without one.

    Args:
        run: The run's id; that of a run which only a CSV names has the first 8 digits alone.
        paths: Result of :func:`by_digits`.

    Raises:
        CatalogError: The record is broken.
    """
    for path in paths.get(run[:8], ()):
        record = read(path)
        if run.startswith(record.run) or record.run.startswith(run):
            return record
    return None


def write_all(records: Iterable[RunRecord], folder: Path) -> tuple[int, int]:
    """Write the records; files with the same content are not touched.

    An older file of the same run in another study's folder is removed, since the study has been renamed.

    Returns:
        (number of records, number of files written).
    """
    count = written = 0
    used: dict[Path, str] = {}
    existing = by_digits(folder)
    for record in sorted(records, key=lambda r: r.run):
        path = folder / record.study / f"{record.id8}.json"
        if path in used or _is_of_another(path, record):  # another run with the same 8 digits
            path = path.with_name(f"{record.run[:16]}.json")
        used[path] = record.run
        count += 1
        written += write_text(path, dumps(record))
        for other in existing.get(record.id8, ()):
            if other.parent != path.parent and other.is_file() and read(other).run == record.run:
                other.unlink()
    return count, written


def _is_of_another(path: Path, record: RunRecord) -> bool:
    """Whether a file has the record of another run; the run of a CSV has 8 digits only."""
    if not path.is_file():
        return False
    content = path.read_bytes()
    names = (record.run, record.id8)
    # Parsing takes much longer, and is only needed for a file that something else has written.
    as_written = any(f'\n "run": {_line(name)}'.encode() in content for name in names)
    return not as_written and read(path).run not in names


def write_text(path: Path, text: str) -> bool:
    """Write a file atomically unless its content is the same; return whether it was written.

    Raises:
        CatalogError: The file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.is_file() and path.read_bytes() == text.encode():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(text.encode())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise CatalogError(f"cannot write {path}: {error.strerror}") from None
    return True


# A single encoder: json.dumps would create an encoder per line.
_line = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False).encode
