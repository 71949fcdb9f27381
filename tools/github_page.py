"""Markdown as a page in GitHub's style, light or dark as the reader prefers, for `screenshots.py`."""

from __future__ import annotations

import sys
from pathlib import Path

# The parts of GitHub's style that affect tables: sizes, widths, borders.
STYLE = """
:root { color-scheme: light; --ink: #1f2328; --page: #fff; --line: #d1d9e0; --band: #f6f8fa; --code: #818b981f;
        --link: #0969da }
@media (prefers-color-scheme: dark) {
  :root { color-scheme: dark; --ink: #f0f6fc; --page: #0d1117; --line: #3d444d; --band: #151b23; --code: #656c7633;
          --link: #4493f8 }
}
body { margin: 0 auto; max-width: 1012px; padding: 24px max(16px, min(2.5vw, 32px));
       background: var(--page); color: var(--ink); font: 16px/1.5 "Liberation Sans", Arial, sans-serif }
h1, h2 { padding-bottom: .3em; border-bottom: 1px solid var(--line); line-height: 1.25; margin: 24px 0 16px }
h1 { font-size: 2em }
h2 { font-size: 1.5em }
p, table, details { margin: 0 0 16px }
img { max-width: 100% }
a { color: var(--link) }
table { display: block; width: max-content; max-width: 100%; overflow: auto; border-collapse: collapse }
th, td { padding: 6px 13px; border: 1px solid var(--line) }
tr:nth-child(2n) td { background: var(--band) }
code { padding: .2em .4em; font: 85% "Liberation Mono", monospace; background: var(--code); border-radius: 6px;
       white-space: break-spaces }
"""


def page(markdown: str, folder: Path) -> str:
    """Return Markdown of a folder as a page in GitHub's looks."""
    import cmarkgfm
    from cmarkgfm.cmark import Options

    body = cmarkgfm.github_flavored_markdown_to_html(markdown, Options.CMARK_OPT_UNSAFE)
    base = f'<base href="{folder.as_uri()}/">'
    start = f'<!doctype html><html lang="en"><meta charset="utf-8">{base}'
    return f"{start}<style>{STYLE}</style><body>{body}"


def section(markdown: str, heading: str) -> str:
    """Return a section of a file, with its heading."""
    lines = markdown.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("#")]
    matches = [i for i in starts if lines[i].lstrip("# ") == heading]
    if not matches:
        sys.exit(
            f"no section {heading!r}; sections: {', '.join(lines[i].lstrip('# ') for i in starts)}"
        )
    end = min((i for i in starts if i > matches[0]), default=len(lines))
    return "\n".join(lines[matches[0] : end])
