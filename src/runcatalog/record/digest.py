"""Digests of weights, metrics and files, to compare them bit for bit."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

CLOCK_PREFIX = "time/"  # prefix of wall-clock metrics, which differ between equal runs


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def shortened(text: str, length: int) -> str:
    """Return a text of at most `length` characters: of a longer one its beginning and a digest of all of it."""
    if len(text) <= length:
        return text
    end = f"… (sha256 {hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:12]})"
    return text[: length - len(end)] + end


def weights_digest(tensors: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) of named tensors: names, dtypes, shapes and bytes.

    Args:
        tensors: Torch tensors or numpy arrays, of any shape and device.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        array = tensor.detach().cpu().contiguous() if hasattr(tensor, "detach") else tensor
        dtype = str(array.dtype).removeprefix("torch.")
        digest.update(f"{name}\0{dtype}\0{tuple(array.shape)}\0".encode())
        digest.update(_raw_bytes(array))
    return digest.hexdigest()


def metrics_digest(points: Iterable[tuple[str, int, float]]) -> str:
    """Return the SHA-256 (hex) of the metrics, without wall-clock metrics.

    Args:
        points: (name, step, value); values with all 64 bits, all NaNs as equal.
    """
    digest = hashlib.sha256()
    for name, step, value in sorted(points, key=lambda point: point[:2]):
        if not name.startswith(CLOCK_PREFIX):
            digest.update(f"{name}\0{step}\0".encode())
            digest.update(struct.pack("<d", value if value == value else float("nan")))
    return digest.hexdigest()


def _raw_bytes(array: Any) -> bytes:
    if hasattr(array, "tobytes"):
        return array.tobytes()
    import torch

    return array.reshape(-1).view(torch.uint8).numpy().tobytes()
