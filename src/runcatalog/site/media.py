"""Figures, videos and pictures that belong to runs: the catalog's figures, and files in the runs' directories."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from runcatalog.model.project import Project
from runcatalog.model.run_record import RunRecord
from runcatalog.pages.render import Catalog
from runcatalog.record.untrusted import inside

MAX_BYTES = 8 << 20  # of a video or picture
VIDEOS = (".mp4", ".webm")
PICTURES = (".gif", ".png", ".jpg", ".jpeg", ".webp")
FIGURES, COPIES = "data/figures", "data/media"  # folders of the site
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")

Media = Mapping[str, Sequence[Path]]  # files by run


def figures(project: Project, records: Sequence[RunRecord]) -> dict[str, list[Path]]:
    """Return the figures of the catalog's pages by the runs that they show; none that is not drawn yet.

    Raises:
        CatalogError: A template of the pages is wrong.
    """
    catalog = Catalog(project, records)
    _ = catalog.pages  # rendering the templates names the figures
    by_run: dict[str, list[Path]] = {}
    for path, drawing in sorted(catalog.figures.items()):
        if path.is_file():
            for run in {id_ for record in drawing.runs for id_ in (record.run, record.batch)}:
                by_run.setdefault(run, []).append(path)
    return by_run


def recorded(home: Path | None, records: Sequence[RunRecord]) -> dict[str, list[Path]]:
    """Return the videos and pictures in the run directories of this machine, by run.

    Args:
        home: Guild's home; None without one.
        records: The runs.
    """
    by_run: dict[str, list[Path]] = {}
    if home is None:
        return by_run
    for record in records:
        directory = home / "runs" / record.run
        found = sorted(directory.glob("*")) + sorted(directory.glob("[!.]*/*"))
        files = [path for path in found if _is_shown(path) and inside(directory, path)]
        if files:
            by_run[record.run] = files
    return by_run


def _is_shown(path: Path) -> bool:
    return (
        path.suffix.lower() in (*VIDEOS, *PICTURES)
        and all(_NAME.fullmatch(name) for name in (path.name, path.parent.name))
        and path.is_file()
        and path.stat().st_size <= MAX_BYTES
    )


def place(path: Path, run: str = "") -> str:
    """Return where a file lies in the site: a figure by its study, a file of a run by the run and its folder there."""
    if not run:
        return f"{FIGURES}/{path.parent.parent.name}/{path.name}"
    folder = "" if path.parent.name == run else f"{path.parent.name}/"
    return f"{COPIES}/{run}/{folder}{path.name}"


def copy(path: Path, target: Path) -> bool:
    """Copy a file unless the target has the same size and is not older; return whether it was copied."""
    new = path.stat()
    if target.is_file():
        old = target.stat()
        if old.st_size == new.st_size and old.st_mtime >= new.st_mtime:
            return False
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, target)
    return True
