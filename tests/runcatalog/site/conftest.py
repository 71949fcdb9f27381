"""A headless Chromium, and sites that it opens from disk."""

import re
from pathlib import Path

import pytest

from browser import BROWSER
from runcatalog.model.record_files import write_all
from runcatalog.site.write import Site


class Browser:
    """A browser without a network.

    Attributes:
        asked: Addresses that pages requested and that are not on this disk.
        errors: Errors of the pages' scripts.
    """

    def __init__(self, chromium) -> None:
        self._chromium = chromium
        self.asked: list[str] = []
        self.errors: list[str] = []

    def open(
        self,
        file: Path,
        route: str = "#/",
        width: int = 1280,
        height: int = 900,
        theme: str = "light",
    ):
        """Open a page of a site and wait until it is shown."""
        context = self._chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme
        )
        context.set_default_timeout(240_000)
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


@pytest.fixture(scope="session")
def records(make):
    """A sweep of two learning rates with three seeds, a failure, a superseded run, single runs."""
    batch = "ba7c" * 8
    sweep = []
    for n in range(6):
        lr, seed = (1e-3, 5e-3)[n // 3], n % 3 + 1
        run = make(
            n + 1,
            value=0.8 + n / 50,
            lr=lr,
            seed=seed,
            batch=batch,
            operation="toy:sweep",
            label=f"lr={lr} seed={seed}",
        )
        curve = [(step, min(1.0, step * lr * 10 + seed / 100)) for step in range(1, 40)]
        sweep.append(
            run.with_points({"opening_rate": curve, "loss": [(s, 1 / s) for s in range(1, 40)]})
        )
    return [
        *sweep,
        make(9, run=batch, operation="toy:sweep", result={"batch": True, "method": "grid"}),
        make(10, value=0.3, lr=1e-2, task="pull", commit="0123456789abcdef", wall_seconds=75.0),
        make(11, status="FAILED", reason="gradient explosion at update 12: log_std"),
        make(12, value=0.1, superseded_by="0000000a" * 4, superseded_why="a wrong reward"),
    ]


@pytest.fixture(scope="session")
def page_file(shell_in, tmp_path_factory, records):
    """The site that `catalog site` writes of these records; tests only read it."""
    shell = shell_in(tmp_path_factory.mktemp("site"))
    write_all(records, shell.root / "experiments/records")
    printed = shell.catalog("site")
    assert re.fullmatch(
        rf"site/index.html of {len(records)} runs and batches: \d+ files written\n", printed
    )
    assert "up to date" in shell.catalog("site")
    return shell.root / "site/index.html"
