"""A reader's questions, answered on the catalog's front page or one click from it, in a real browser."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from browser import BROWSER, TOOL
from runcatalog.model import marks, record_files
from runcatalog.model.project import Project
from runcatalog.model.run_record import FAILED, KILLED, RunRecord

ROOT = Path(__file__).parents[2]
FRONT, ADDRESS = "runs_catalog.md", "http://catalog.test"


pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on the path (tools/setup-browser)"),
    pytest.mark.timeout(600),
]


def html(markdown: str) -> str:
    """A page as GitHub shows it: headings have anchors."""
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown)

    def heading(match: re.Match[str]) -> str:
        words = re.sub(r"<[^>]*>|&\w+;|[^\w\- ]", "", match[2]).lower().replace(" ", "-")
        return f'<h{match[1]} id="{words}">{match[2]}</h{match[1]}>'

    body = re.sub(r"<h(\d)>(.*?)</h\1>", heading, body)
    return f'<!doctype html><meta charset="utf-8"><body>{body}'


@pytest.fixture(scope="module")
def front() -> Iterator:
    """A page of a browser that reads the committed pages; `home` opens the front page."""
    pytest.importorskip("playwright", reason="playwright is not installed")

    def answer(route) -> None:
        path = ROOT / urlsplit(route.request.url).path.lstrip("/")
        if path.suffix == ".md":
            route.fulfill(body=html(path.read_text()), content_type="text/html")
        else:
            route.abort()  # figures

    with TOOL.browser_page(BROWSER, ADDRESS) as page:
        page.route(f"{ADDRESS}/**", answer)
        page.home = lambda: page.goto(f"{ADDRESS}/{FRONT}")
        yield page


@pytest.fixture(scope="module")
def records() -> list[RunRecord]:
    return record_files.read_all(ROOT / "experiments/records")


def rows(page, heading: str) -> list[list[str]]:
    """Cells of the tables between a heading and the next."""
    return page.evaluate(
        """heading => {
            const rows = [];
            let at = document.getElementById(heading).nextElementSibling;
            for (; at && at.tagName !== 'H2'; at = at.nextElementSibling)
                if (at.tagName === 'TABLE')
                    for (const row of at.tBodies[0].rows)
                        rows.push([...row.cells].map(cell => cell.innerText.trim()));
            return rows;
        }""",
        heading,
    )


def is_in_view(page, selector: str) -> bool:
    return page.locator(selector).first.evaluate(
        "e => { const b = e.getBoundingClientRect(); return b.bottom > 0 && b.top < innerHeight }"
    )


def test_the_headline_of_every_study(front):
    front.home()
    listed = rows(front, "results")
    titles = [row[0] for row in listed if not any(row[1:])]
    assert len(titles) == len(Project(ROOT).studies())
    for title in titles:
        first = listed[[row[0] for row in listed].index(title) + 1]
        assert re.search(r"\d.*\[.+, .+\]", first[1]), first
        assert first[2], first
        front.home()
        front.get_by_role("link", name=title, exact=True).first.click()
        assert front.locator("h1").inner_text().startswith(title)


def test_the_best_learning_rate_for_lever(front):
    front.home()
    (row,) = [row for row in rows(front, "results") if re.search("learning rate .* lever", row[0])]
    assert re.match(r"(best|undetermined:) lr \d", row[1])
    front.get_by_role("link", name="lr Optimization (hnppo)").first.click()
    assert is_in_view(front, "#lr-optimization-hnppo")
    (lever,) = [row for row in rows(front, "lr-optimization-hnppo") if row[0] == "lever"]
    assert sum("[" in cell for cell in lever) >= 4


def test_what_failed(front, records):
    front.home()
    front.get_by_role("link", name="Failures").click()
    assert is_in_view(front, "#failures")
    failed = {record.id8 for record in marks.current(records) if record.status in (FAILED, KILLED)}
    shown = {cell for row in rows(front, "failures") for cell in row}
    more = re.search(
        r"(\d+) more; catalog search 'status=FAILED", front.locator("body").inner_text()
    )
    assert len(failed & shown) >= 4
    assert len(failed & shown) + (int(more[1]) if more else 0) == len(failed)
    missed = {row[0] for row in rows(front, "results") if "not replicated" in "".join(row[1:2])}
    assert missed
    assert missed <= {row[0] for row in rows(front, "failures")}


def test_what_never_ran(front, records):
    front.home()
    front.get_by_role("link", name="Never run").click()
    assert is_in_view(front, "#never-run")
    project = Project(ROOT)
    declared = project.operations()
    reasons, ran = project.pending(declared), {record.operation for record in records}
    counts = Counter(reasons.get(name, "no reason given") for name in declared if name not in ran)
    shown = rows(front, "never-run")
    assert {row[0]: int(row[1]) for row in shown}.items() <= counts.items()
    most = sorted(counts.values(), reverse=True)
    assert [int(row[1]) for row in shown] == most[: len(shown)]
    assert len(shown) == len(most) or front.get_by_text(f"{len(most) - len(shown)} more.").count()


def test_which_run_is_newest(front, records):
    front.home()
    counted = marks.current(records)
    batches = {record.run for record in counted}
    heads = [record for record in counted if record.batch not in batches]
    newest = max(heads, key=lambda record: record.started or 0)
    assert rows(front, "newest")[0][1] == newest.id8
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", rows(front, "newest")[0][0])


def test_how_to_run_a_row_again(front):
    for heading in ("newest", "failures", "results"):
        front.home()
        ids = [
            cell.partition(" ")[0]
            for row in rows(front, heading)
            for cell in row
            if re.fullmatch(r"[0-9a-f]{8}( \+\d+)?", cell)
        ]
        front.get_by_role("link", name=ids[0], exact=True).first.click()
        assert is_in_view(front, f'[id="{ids[0]}"]'), ids[0]
        row = front.locator("tr", has=front.locator(f'[id="{ids[0]}"]'))
        assert "guild run " in row.inner_text()
