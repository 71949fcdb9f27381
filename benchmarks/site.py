"""The site of `catalog site` in headless Chromium, from disk: size of its files, time to a page, filter, memory.

The part "records" is of the committed records, the part "many" of 10,000 synthetic runs (see _synthetic_runs.py) that
were synced and exported. A page counts as shown at the first frame after its table and its first charts are in the
document; the time runs from the browser's start of the navigation, in a new profile each time. A filter's time runs
from the query to the first frame with the new rows. Memory is JavaScript's, after a collection.
"""

import contextlib
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# The project's root instead of this folder, whose scripts are called as the packages are.
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from benchmarks import _report, _synthetic_runs  # noqa: E402
from benchmarks.catalog import run_catalog  # noqa: E402

from runcatalog.model.record_files import read_all  # noqa: E402

PARTS = ("records", "many")
MANY = 10_000
LIMITS = {  # MB, MB, s, s
    "records": {"folder": 15.0, "one file": 6.0, "front": 1.0, "run": 1.0, "table": 1.0},
    "many": {"table": 2.0, "filter": 0.1, "heap": 50.0},  # s, s, MB
}
FILTERS = (
    "lr>1e-3 and task=lever",
    "status=FAILED or status=KILLED",
    "operation=bench:sweep and not seed=1",
    "return>0.5",
    "lever",
)
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")

# Note when the page is shown: its data are there, and a frame has been drawn.
_WATCH = """
const seen = new MutationObserver(() => {
  if (!document.querySelector('main[data-ready]')) return;
  seen.disconnect();
  requestAnimationFrame(() => requestAnimationFrame(() => { window.shownAfter = performance.now(); }));
});
seen.observe(document, { attributes: true, childList: true, subtree: true });
"""
_FILTER = """async text => {
  const begin = performance.now();
  await runsPage.filter(text);
  await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  return performance.now() - begin;
}"""


@contextlib.contextmanager
def opened(page_file: Path, route: str) -> Iterator[tuple[Any, float]]:
    """Open a page of a site in a new browser; yield it, and the seconds until it was shown."""
    from playwright.sync_api import sync_playwright

    executable = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM)), None)
    if executable is None:
        sys.exit("no Chromium: apt-get install chromium fonts-liberation, or $CHROMIUM=PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.add_init_script(_WATCH)
        page.goto(f"{page_file.as_uri()}{route}")
        page.wait_for_function("window.shownAfter", timeout=120_000)
        yield page, page.evaluate("window.shownAfter") / 1000
        browser.close()


def seconds_to(page_file: Path, route: str, repeats: int) -> list[float]:
    """Return the seconds until a page was shown, each in a new browser."""
    measured = []
    for _ in range(repeats):
        with opened(page_file, route) as (_, seconds):
            measured.append(seconds)
    return measured


def committed(folder: Path, repeats: int) -> list[dict[str, Any]]:
    """Return the rows of the committed records."""
    records = read_all(ROOT / "experiments" / "records")
    limits, of = LIMITS["records"], f"{len(records):,} records"
    page_file, single = folder / "site" / "index.html", folder / "site.html"
    run_catalog(folder, "site", "-o", str(page_file.parent), project=ROOT)
    run_catalog(folder, "site", "--one-file", "-o", str(single), project=ROOT)
    size = sum(path.stat().st_size for path in page_file.parent.rglob("*") if path.is_file())
    rows = [
        _limit(f"size of the folder, {of}", [size / 1e6], limits["folder"], "MB"),
        _limit(f"size of the single file, {of}", [single.stat().st_size / 1e6], limits["one file"], "MB"),
    ]  # fmt: skip
    run = f"#/run/{max(records, key=lambda record: len(record.metrics)).run}"
    for what, file, route, limit in (
        ("first page", page_file, "#/", "front"),
        ("table of all runs", page_file, "#/runs", "table"),
        ("page of the run with the most metrics", page_file, run, "run"),
        ("the same page in the single file", single, run, "run"),
    ):
        rows.append(_limit(f"{what}, {of}", seconds_to(file, route, repeats), limits[limit], "s"))
    return rows


def many(folder: Path, repeats: int, count: int = MANY) -> list[dict[str, Any]]:
    """Return the rows of many synthetic runs."""
    template = _synthetic_runs.make_project(folder)
    _synthetic_runs.add_runs(folder, template, 0, count)
    for words in (["sync", "-q"], ["export"], ["site", "-o", str(folder / "site")]):
        run_catalog(folder, *words)
    page_file, limits, of = folder / "site" / "index.html", LIMITS["many"], f"{count:,} runs"
    seconds = seconds_to(page_file, "#/runs", repeats)
    rows = [_limit(f"table of all runs, {of}", seconds, limits["table"], "s")]
    with opened(page_file, "#/runs") as (page, _):
        page.evaluate(_FILTER, FILTERS[-2])  # loads the metrics
        times = {q: [page.evaluate(_FILTER, q) / 1000 for _ in range(repeats)] for q in FILTERS}
        slowest = max(times, key=lambda q: statistics.median(times[q]))
        what = f"slowest of {len(FILTERS)} filters (`{slowest}`), {of}"
        rows.append(_limit(what, times[slowest], limits["filter"], "s"))
        session = page.context.new_cdp_session(page)
        session.send("HeapProfiler.collectGarbage")
        used = session.send("Runtime.getHeapUsage")["usedSize"] / 1e6
        rows.append(
            _limit(f"memory of the table after the filters, {of}", [used], limits["heap"], "MB")
        )
    return rows


def _limit(what: str, measured: list[float], limit: float, unit: str) -> dict[str, Any]:
    limits = [limit] * len(measured)
    options = {"peer_name": "the limit", "unit": unit, "target": 1.0, "target_is": "at most"}
    return _report.row(what, measured, limits, **options)


def main() -> None:
    """Measure, print the rows and write results/site.json."""
    parser = _report.parser(__doc__)
    number = _synthetic_runs.number_of_runs
    parser.add_argument("--count", type=number, default=MANY, help="synthetic runs")
    _report.add_parts(parser, PARTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="site-", ignore_cleanup_errors=True) as temporary:
        measures = {"records": committed, "many": lambda f, n: many(f, n, options.count)}
        for part in options.parts:
            folder = Path(temporary, part)
            folder.mkdir()
            rows = measures[part](folder, options.repeats)
            _report.report_part("site", part, PARTS, rows, dry_run=options.dry_run)


if __name__ == "__main__":
    main()
