"""TensorBoard event files with a run's scalars, for TensorBoard and ``guild compare``.

The tensorboard package is not used: its import takes longer than the first update of some runs. The
format is TFRecord (length, masked CRC-32C, data, masked CRC-32C) around ``tensorflow.Event`` protocol
buffers, of which scalars need five fields (tensorflow/core/util/event.proto, framework/summary.proto).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import groupby
from pathlib import Path

from runcatalog.record.journal.metrics import Point

_CASTAGNOLI = 0x82F63B78  # reflected polynomial of CRC-32C
_FLUSH_BYTES = 1 << 16


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (_CASTAGNOLI if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


class EventFile:
    """An event file in a run's directory, with float32 values; the journal has float64.

    Args:
        directory: The run's directory; older event files in it are replaced.
        points: Points already in the journal.
    """

    def __init__(self, directory: Path, points: Iterable[Point] = ()) -> None:
        old = sorted(directory.glob("events.out.tfevents.*"))
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._buffer = bytearray()
        # Readers ignore the temporary name until the old points are written.
        temporary = directory / f".{name}".replace("tfevents", "writing")
        self._file = temporary.open("wb", buffering=0)
        version = _field(3, b"brain.Event:2")
        self._add(_double(1, time.time()) + version)
        try:
            # What was logged in one call is one event again.
            for (at, step), logged in groupby(points, key=lambda point: point[:2]):
                self.append(at, step, {point.name: point.value for point in logged})
            self.flush()
            os.rename(temporary, directory / name)
        except BaseException:
            self._file.close()
            temporary.unlink(missing_ok=True)
            raise
        for path in old:
            path.unlink(missing_ok=True)

    def append(self, time_ms: int, step: int, metrics: Mapping[str, float]) -> None:
        """Add scalars of one step."""
        values = b"".join(
            _field(1, _field(1, name.encode()) + struct.pack("<Bf", 0x15, _float32(value)))
            for name, value in metrics.items()
        )
        self._add(_double(1, time_ms / 1000) + _varint_field(2, step) + _field(5, values))
        if len(self._buffer) > _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffer; on a full disk these points are lost, and the run continues."""
        data, self._buffer = bytes(self._buffer), bytearray()
        with contextlib.suppress(OSError):
            self._file.write(data)

    def close(self) -> None:
        """Write the buffer and close the file."""
        self.flush()
        self._file.close()

    def _add(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self._buffer += length + _masked_crc(length) + event + _masked_crc(event)


def _masked_crc(data: bytes) -> bytes:
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    rotated = ((crc >> 15) | (crc << 17)) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)


def _float32(value: float) -> float:
    return value if abs(value) <= 3.4028234663852886e38 or value != value else value * float("inf")


@lru_cache
def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _double(number: int, value: float) -> bytes:
    return struct.pack("<Bd", number << 3 | 1, value)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data
