"""The generated pages, as one text."""

from pathlib import Path

from runcatalog.pages.render import Catalog


def joined(catalog: Catalog) -> str:
    """All pages, one after the other."""
    return "\n".join(catalog.pages.values())


def committed(root: Path) -> str:
    """The pages of a project's committed runs, as they were written."""
    return _text(root / "runs_catalog.md", root / "catalog")


def local(root: Path) -> str:
    """The pages of a project's runs that are not exported, as they were written."""
    return _text(root / "runs_local.md", root / "runs_local")


def _text(front: Path, folder: Path) -> str:
    return "\n".join(path.read_text() for path in (*sorted(folder.glob("**/*.md")), front))
