"""Files of the page's figures; a figure that is there already is not drawn again."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from runcatalog.model.errors import CatalogError
from runcatalog.model.record_files import write_text

if TYPE_CHECKING:
    from runcatalog.plots.curves import Drawing

LIBRARY = Path(__file__).parents[1]


def write(path: Path, drawing: Drawing, notes: Path) -> bool:
    """Write a figure unless its file holds what the same code drew from the same data; return whether it changed.

    Args:
        path: File to write.
        drawing: The figure.
        notes: Folder of the digests of drawn figures. It may be removed at any time, and shared by copies of a project.

    Raises:
        CatalogError: The file cannot be written.
    """
    note = notes / hashlib.sha256(_code() + pickle.dumps(drawing)).hexdigest()
    if path.is_file() and note.is_file() and note.read_text() == _digest(path.read_bytes()):
        return False
    svg = drawing.svg()
    changed = write_text(path, svg)
    with contextlib.suppress(CatalogError):  # without the note it is drawn again next time
        write_text(note, _digest(svg.encode()))
    return changed


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@functools.cache
def _code() -> bytes:
    """Return the digest of all that draws: this library, matplotlib and the Python that runs them."""
    import matplotlib

    digest = hashlib.sha256(f"{matplotlib.__version__} {sys.version}".encode())
    for path in sorted(LIBRARY.rglob("*.py")):
        digest.update(path.relative_to(LIBRARY).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.digest()
