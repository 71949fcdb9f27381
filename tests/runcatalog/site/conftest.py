"""A headless Chromium, and sites that it opens from disk."""

from pathlib import Path

import pytest

from browser import BROWSER
from runcatalog.site.write import Site


class Browser:
    """A browser without a network.

    Attributes:
        asked: Addresses that pages asked for and that are not on this disk.
        errors: Errors of the pages' scripts.
    """

    def __init__(self, chromium) -> None:
        self._chromium = chromium
        self.asked: list[str] = []
        self.errors: list[str] = []

    def open(self, file: Path, route: str = "#/", width: int = 1280, theme: str = "light"):
        """Open a page of a site and wait until it is shown."""
        context = self._chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme
        )
        context.set_default_timeout(30_000)
        page = context.new_page()
        page.on("request", lambda request: self._note(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(f"{file.as_uri()}{route}")
        page.wait_for_selector("main[data-ready]")
        return page

    @staticmethod
    def go(page, route: str) -> None:
        """Go to another page of the open site, and wait until it is shown."""
        page.evaluate(
            """route => {
              delete document.getElementById('main').dataset.ready;
              if (location.hash === route) site.show();
              else location.hash = route;
            }""",
            route,
        )
        page.wait_for_selector("main[data-ready]")

    def _note(self, address: str) -> None:
        if not address.startswith(("file:", "data:", "blob:")):
            self.asked.append(address)


@pytest.fixture(scope="module")  # while it runs, no other test of the process can use asyncio
def _chromium():
    if BROWSER is None:
        pytest.skip("no Chromium on the path (tools/setup-browser)")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=BROWSER)
        yield chromium
        chromium.close()


@pytest.fixture
def browser(_chromium):
    """A browser; the pages must not ask for anything beyond the disk, and their scripts must not fail."""
    browser = Browser(_chromium)
    yield browser
    assert browser.asked == []
    assert browser.errors == []
    for context in _chromium.contexts:
        context.close()


@pytest.fixture
def site_of(project, tmp_path):
    """Return a function that writes the site of some records and returns its first page."""

    def write(records, **more) -> Path:
        folder = tmp_path / "site"
        Site(project, records, **more).write(folder)
        return folder / "index.html"

    return write
