"""Take pictures of the catalog's pages, in GitHub's style, with headless Chromium.

    python tools/catalog_picture.py [--page FILE] [--section HEADING] [--dark] [--whole] [--width PIXELS] [--to FILE]
    python tools/catalog_picture.py --front

By default README's picture of a section; --front takes those of the front page, docs/front-WIDTH-THEME.webp.

Chromium is taken from the path, or from $CHROMIUM.
"""

from __future__ import annotations

import argparse
import io
import itertools
import sys
import tempfile
from pathlib import Path

from screenshots import chromium

ROOT = Path(__file__).parents[1]
SECTION = "lr Optimization (hnppo)"
WIDTH = 1076  # of a page with GitHub's 1,012 pixels of text
FRONT = {1280: 1600, 390: 1600}  # width and height of a laptop's and of a phone's picture [pixels]
# The parts of GitHub's style that affect tables: sizes, widths, borders.
STYLE = """
:root { color-scheme: light; --ink: #1f2328; --page: #fff; --line: #d1d9e0; --band: #f6f8fa; --code: #818b981f;
        --link: #0969da }
:root.dark { color-scheme: dark; --ink: #f0f6fc; --page: #0d1117; --line: #3d444d; --band: #151b23; --code: #656c7633;
        --link: #4493f8 }
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


def page(markdown: str, folder: Path, *, dark: bool) -> str:
    """Return Markdown of a folder as a page in GitHub's looks."""
    import cmarkgfm
    from cmarkgfm.cmark import Options

    body = cmarkgfm.github_flavored_markdown_to_html(markdown, Options.CMARK_OPT_UNSAFE)
    base = f'<base href="{folder.as_uri()}/">'
    start = f'<!doctype html><html class="{"dark" if dark else ""}"><meta charset="utf-8">{base}'
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


def take(
    html: str, path: Path, executable: str, *, dark: bool, width: int, height: int = 0
) -> None:
    """Write a screenshot of a page, as WebP if the file is named so.

    Args:
        html: The page.
        path: The file.
        executable: The browser.
        dark: Whether the reader prefers dark pages.
        width: Width of the page [pixels].
        height: Height of the picture [pixels]; 0 for the whole page.
    """
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "page.html"
        source.write_text(html, encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=executable)
        view = browser.new_page(
            viewport={"width": width, "height": height or 600},
            color_scheme="dark" if dark else "light",
        )
        view.goto(source.as_uri())
        taken = view.screenshot(full_page=not height)
        browser.close()
    if path.suffix == ".webp":
        Image.open(io.BytesIO(taken)).save(path, quality=70, method=6)
    else:
        path.write_bytes(taken)
    print(f"{path}: {path.stat().st_size // 1024} kB")


def main() -> None:
    """Take the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", default="catalog/door.md", metavar="FILE", help="the page")
    parser.add_argument("--section", default=SECTION, help="heading of the section")
    parser.add_argument("--whole", action="store_true", help="the whole file")
    parser.add_argument("--dark", action="store_true", help="as on a dark page")
    parser.add_argument("--width", type=int, default=WIDTH, help="width of the page [pixels]")
    parser.add_argument("--front", action="store_true", help="the pictures of the front page")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "catalog.png", metavar="FILE")
    options = parser.parse_args()
    executable = chromium()
    if executable is None:
        sys.exit(
            "no Chromium found; on Debian or Ubuntu: apt-get install chromium fonts-liberation"
        )
    if options.front:
        markdown = (ROOT / "runs_catalog.md").read_text(encoding="utf-8")
        for (width, height), dark in itertools.product(FRONT.items(), (False, True)):
            path = ROOT / "docs" / f"front-{width}-{'dark' if dark else 'light'}.webp"
            html = page(markdown, ROOT, dark=dark)
            take(html, path, executable, dark=dark, width=width, height=height)
        return
    markdown = (ROOT / options.page).read_text(encoding="utf-8")
    shown = markdown if options.whole else section(markdown, options.section)
    html = page(shown, (ROOT / options.page).parent, dark=options.dark)
    take(html, options.to, executable, dark=options.dark, width=options.width)


if __name__ == "__main__":
    main()
