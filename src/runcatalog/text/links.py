"""Links between generated pages: paths from the project's folder, made relative to the page that holds them."""

from __future__ import annotations

import posixpath
import re

# Text from runs has no control characters, so that none of it can look like a link.
_LINK = re.compile("\0([^\0]*)\0")
_HEADING = re.compile(r"^(#{1,6}) +(.+?) *$", re.MULTILINE)


def to(path: str) -> str:
    """Return the target of a Markdown link as :func:`relative` expects it.

    Args:
        path: Path from the project's folder, with `#ANCHOR` for a place in the page.
    """
    return f"\0{path}\0"


def relative(content: str, page: str) -> str:
    """Return a page with all targets relative to it.

    Args:
        content: Its text.
        page: Its path from the project's folder.
    """
    folder = posixpath.dirname(page) or "."

    def address(match: re.Match[str]) -> str:
        path, hash_, anchor = match[1].partition("#")
        if path == page and anchor:
            return f"#{anchor}"
        return posixpath.relpath(path, folder) + hash_ + anchor

    return _LINK.sub(address, content)


def headings(content: str, level: int) -> list[str]:
    """Return the headings of a level of a Markdown page, in order."""
    return [match[2] for match in _HEADING.finditer(content) if len(match[1]) == level]


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.replace("<wbr>", "").strip().lower())
    return kept.replace(" ", "-")
