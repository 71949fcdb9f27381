"""Take the pictures of pages in docs/ from the committed records, with headless Chromium.

    python tools/screenshots.py [catalog mlflow site] [--to docs/images/screenshots]

"catalog" takes the front page, the door study's page and README's section of it as GitHub shows them.
"mlflow" imports the records into a temporary MLflow, serves it, and opens the newest batch of learning rates.
"site" writes the site of `catalog site` and opens its pages from disk.
All are taken at two widths, light and dark, except README's section and MLflow's list of a sweep: these at one width.
Chromium is taken from the path, or from $CHROMIUM.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "experiments" / "records"
NAMES = ("chromium", "chromium-browser", "google-chrome")
OPERATION = "hnppo:lr_opt_pull"
METRIC = "validation_opening_rate"
PATIENCE = (
    600_000  # ms; MLflow's pages load megabytes of script, which takes minutes on a busy machine
)
UPPER = 680  # height of MLflow's comparison of two runs [pixels]
SETTLE = 4_000  # ms; duration of animations
WIDTHS = {1280: 900, 390: 844}  # width and height of a laptop's page and of a phone's [pixels]
LONG = {1280: 1300, 390: 1300}  # of a page that is read downwards
THEMES = ("light", "dark")
QUALITY = 70  # of WebP, in percent
MAX_BYTES = 150_000  # of a picture
SECTION = "lr Optimization (hnppo)"  # of the door study's page, in README
SECTION_WIDTH = 1076  # of a page with GitHub's 1,012 pixels of text
SITE_PAGES = {
    "front": "#/",
    "table": "#/runs?operation=hnppo:train and task=lever and opening_rate>0.9",
    "run": "#/run/7623993d",
    "compare": "#/compare/07ae805e,558f454c,a79a9a0b,ce37135d,7623993d,a1c1e6cd",
}
LOCAL_STORAGE = {
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
    "mlflow.assistant.panelOpen_v1": "false",
    "mlflow.workflowType_v1": '"machine_learning"',
}


def chromium() -> str | None:
    """Return the browser's path, None without one."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@contextlib.contextmanager
def served(uri: str, folder: Path) -> Iterator[str]:
    """Serve MLflow on a free port; yield its address.

    Args:
        uri: The database.
        folder: Folder of the server's log.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    quick = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | quick,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + PATIENCE / 1000
        while not _answers(address):
            if server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"MLflow does not come up:\n{log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield address
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)


def _answers(address: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=20):
        return True
    return False


@contextlib.contextmanager
def browser_page(executable: str, address: str, height: int = 900) -> Iterator[Page]:
    """Yield an empty page of a headless browser, without MLflow's dialogs for new users.

    Args:
        executable: The browser.
        address: The only server that it can reach.
        height: Height of the page [pixels].
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable)
        context = browser.new_context(viewport={"width": 1440, "height": height})
        context.route(
            lambda url: not url.startswith((address, "data:", "blob:")), lambda route: route.abort()
        )
        for key, value in LOCAL_STORAGE.items():
            context.add_init_script(f"localStorage.setItem({key!r}, {value!r})")
        context.set_default_timeout(PATIENCE)
        yield context.new_page()
        browser.close()


def open_view(page: Page, address: str, path: str) -> None:
    """Open a saved view and waits for its runs; hide MLflow's banner about saved views."""
    page.goto(f"{address}/{path}")
    page.locator(".ag-row").first.wait_for(state="attached")
    page.get_by_role("button", name="Hide banner").click()


def wait_for_lines(page: Page, count: int) -> None:
    """Wait until a chart has at least `count` lines."""
    page.wait_for_function(
        """count => [...document.querySelectorAll('.js-plotly-plot')]
                    .some(plot => plot.querySelectorAll('.scatterlayer .trace').length >= count)""",
        arg=count,
    )


def tick(page: Page, name: str) -> None:
    """Tick a run in the table."""
    link = page.get_by_role("link", name=name, exact=True)
    page.locator(".ag-row").filter(has=link).first.locator(".ag-checkbox-input").click()


def compare(page: Page, names: Sequence[str]) -> None:
    """Tick runs in a view's table and compare them."""
    for name in names:
        tick(page, name)
    page.get_by_test_id("runs-compare-button").click()
    page.get_by_text(f"Comparing {len(names)} Runs").first.wait_for()


def open_curves(page: Page, metric: str, count: int) -> None:
    """Open the curves of a metric from the page that compares some runs."""
    link = page.get_by_role("link", name=metric, exact=True).first
    for _ in range(PATIENCE // 500):
        if link.count():
            break
        # The table of metrics contains only visible rows, and this one is near the end.
        page.evaluate(
            """() => document.querySelectorAll('.ReactVirtualized__Grid')
                     .forEach(grid => { grid.scrollTop = grid.scrollHeight })"""
        )
        page.wait_for_timeout(500)
    link.click()
    wait_for_lines(page, count)


def newest(operation: str) -> tuple[str, list[str]]:
    """Return the newest batch of an operation in the committed records, and its trials, best first."""
    records = [json.loads(p.read_text()) for p in RECORDS.glob("*/*.json")]
    batch = max(
        (r for r in records if r["operation"] == operation and not r["batch"]),
        key=lambda r: r["started"],
    )
    trials = [r for r in records if r["batch"] == batch["run"]]
    trials.sort(key=lambda r: (-r["result"]["objective"]["value"], r["label"]))
    return batch["run"][:8], [trial["label"] for trial in trials]


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "what", nargs="*", metavar="WHAT", help=f"{', '.join(PICTURES)}; by default all"
    )
    parser.add_argument(
        "--to", type=Path, default=ROOT / "docs/images/screenshots", help="folder of the pictures"
    )
    options = parser.parse_args()
    if unknown := set(options.what) - set(PICTURES):
        parser.error(f"no pictures {', '.join(sorted(unknown))}: {', '.join(PICTURES)}")
    executable = chromium()
    if executable is None:
        sys.exit("no Chromium: apt-get install chromium fonts-liberation, or $CHROMIUM=PATH")
    options.to.mkdir(parents=True, exist_ok=True)
    for name in options.what or PICTURES:
        with tempfile.TemporaryDirectory() as folder:
            PICTURES[name](executable, Path(folder), options.to)


def _catalog(*words: str) -> None:
    command = [sys.executable, "-m", "runcatalog.cli.main", *words]
    subprocess.run(command, cwd=ROOT, check=True)


def mlflow_pictures(executable: str, folder: Path, to: Path) -> None:
    """Take the pictures of MLflow's pages.

    Args:
        executable: The browser.
        folder: An empty folder to work in.
        to: Folder of the pictures.
    """
    uri = f"sqlite:///{folder}/mlflow.db"
    _catalog("import", "-q", "--tracking-uri", uri)
    with served(uri, folder) as address, browser_page(executable, address) as page:
        _take(page, address, uri, to)


def site_pictures(executable: str, folder: Path, to: Path) -> None:
    """Take the pictures of the site's pages, site-PAGE-WIDTH-THEME.webp; see `mlflow_pictures`."""
    _catalog("site", "-o", str(folder / "site"), "--title", "Experiments")
    address = (folder / "site/index.html").as_uri()
    take_pages(
        executable,
        {f"site-{name}": address + route for name, route in SITE_PAGES.items()},
        to,
        "main[data-ready]",
    )


def catalog_pictures(executable: str, folder: Path, to: Path) -> None:
    """Take the pictures of generated pages as GitHub shows them; see `mlflow_pictures`."""
    import github_page
    from playwright.sync_api import sync_playwright

    addresses = {}
    for name, path in (("front", "runs_catalog.md"), ("door", "catalog/door.md")):
        markdown = (ROOT / path).read_text(encoding="utf-8")
        file = folder / f"{name}.html"
        file.write_text(github_page.page(markdown, (ROOT / path).parent), encoding="utf-8")
        addresses[f"catalog-{name}"] = file.as_uri()
    take_pages(executable, addresses, to, "h1", LONG)
    file.write_text(
        github_page.page(github_page.section(markdown, SECTION), ROOT / "catalog"), encoding="utf-8"
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable)
        page = browser.new_page(viewport={"width": SECTION_WIDTH, "height": 600})
        page.goto(file.as_uri())
        save(page.screenshot(full_page=True), to / "catalog-section.webp")
        browser.close()


def save(taken: bytes, path: Path) -> None:
    """Write a screenshot as WebP."""
    from PIL import Image

    Image.open(io.BytesIO(taken)).save(path, quality=QUALITY, method=6)
    if path.stat().st_size > MAX_BYTES:
        raise RuntimeError(f"{path}: {path.stat().st_size} bytes, at most {MAX_BYTES}")
    print(f"wrote {path}")


def take_pages(
    executable: str,
    addresses: Mapping[str, str],
    to: Path,
    ready: str,
    sizes: Mapping[int, int] = WIDTHS,
) -> None:
    """Take a picture of every page at every width and in every theme, as WebP.

    Args:
        executable: The browser.
        addresses: Address of a page by name of its picture.
        to: Folder of the pictures.
        ready: Selector of an element that is there once a page is shown.
        sizes: Heights by width [pixels].
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable)
        for (width, height), theme in itertools.product(sizes.items(), THEMES):
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
            page.set_default_timeout(PATIENCE)
            for name, address in addresses.items():
                page.goto("about:blank")
                page.goto(address)
                page.locator(ready).first.wait_for()
                page.wait_for_timeout(500)  # the charts in sight are drawn
                save(page.screenshot(), to / f"{name}-{width}-{theme}.webp")
            page.close()
        browser.close()


def _take(page: Page, address: str, uri: str, to: Path) -> None:
    from runcatalog.mlflow_ui.arrange import arrange
    from runcatalog.model.project import Project
    from runcatalog.store.client import Store

    batch, names = newest(OPERATION)
    pages = arrange(Project(ROOT), Store(uri))
    path = next(view.path for view in pages if view.batch.startswith(batch))
    open_view(page, address, path)
    wait_for_lines(page, 4)
    page.get_by_role("button", name="Toggle sidebar").click()
    page.wait_for_timeout(SETTLE)
    save(page.screenshot(), to / "mlflow-sweep.webp")
    page.locator("label").filter(has=page.locator("input[value=TABLE]")).click()
    compare(page, [names[0], names[len(names) // 2]])
    open_curves(page, METRIC, 2)
    address = page.url
    for (width, height), theme in itertools.product(WIDTHS.items(), THEMES):
        dark = json.dumps(theme == "dark")
        page.evaluate(
            "dark => localStorage.setItem('_mlflow_dark_mode_toggle_enabled', dark)", dark
        )
        page.set_viewport_size({"width": width, "height": height})
        page.goto("about:blank")
        page.goto(address)
        wait_for_lines(page, 2)
        page.wait_for_timeout(SETTLE)
        upper = {"x": 0, "y": 0, "width": width, "height": UPPER}
        save(page.screenshot(clip=upper), to / f"mlflow-compare-{width}-{theme}.webp")


PICTURES = {"catalog": catalog_pictures, "mlflow": mlflow_pictures, "site": site_pictures}

if __name__ == "__main__":
    main()
