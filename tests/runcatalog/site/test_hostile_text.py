"""Text of records is shown as text on every page, and cannot end the script that carries it."""

from urllib.parse import quote

import pytest

HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>\u2028&amp;"


@pytest.fixture
def records(make):
    curves = {
        f"metric {HOSTILE}": [(0, 1.0), (1, 2.0)],
        f"single {HOSTILE}": [(0, 1.0)],
        "rate": [(0, 0.1), (3, 0.4)],
    }
    objective = {
        "name": f"objective {HOSTILE}",
        "value": 0.5,
        "kind": "rate",
        "count": 10,
        "at": 3,
        "axis": HOSTILE,
    }
    text = dict.fromkeys(("label", "machine", "host_cpu", "gpu", "reported_by", "study"), HOSTILE)
    batch = "ab" * 16
    runs = [
        make(
            n, operation=f"toy:{HOSTILE}", batch=batch, seed=n,
            result={"objective": objective, "note": HOSTILE, "variant": {HOSTILE: HOSTILE}},
            versions={HOSTILE: HOSTILE}, environment={HOSTILE: HOSTILE}, digest={"weights": HOSTILE},
            flags={f"flag {HOSTILE}": f"{HOSTILE} {n % 2}", "lr": n}, parents=(HOSTILE,), **text,
        ).with_points(curves)
        for n in (1, 2, 3)
    ]  # fmt: skip
    failed = make(4, operation=HOSTILE, status="FAILED", reason=HOSTILE)
    marked = make(5, superseded_by=runs[0].run, superseded_why=HOSTILE)
    retracted = make(6, retracted=HOSTILE)
    head = make(
        7, run=batch, result={"batch": True, "summary": HOSTILE}, operation=f"toy:{HOSTILE}"
    )
    return [*runs, failed, marked, retracted, head]


def test_on_every_page(browser, site_of, records):
    page = browser.open(site_of(records))
    ids = [record.run for record in records]
    routes = ["#/", "#/runs", "#/failures", "#/never", "#/superseded", f"#/{HOSTILE}"]
    routes += [f"#/run/{run}" for run in [*ids, HOSTILE]]
    routes += [f"#/compare/{','.join(ids[:3])}", f"#/runs?'flag {HOSTILE}'~x"]
    for route in routes:
        browser.go(page, route)
        assert page.evaluate("() => window.hacked") is None, route
        assert page.locator("main img, main script").count() == 0, route
    browser.go(page, "#/runs")
    assert "<script>window.hacked" in page.locator(".tabulator-row").first.inner_text()
    query = f'"flag {HOSTILE}"'
    browser.go(page, f"#/runs?{quote(query)}")  # the flag's name is the title of a column
    assert page.locator("#note").inner_text().startswith("3 of")
    titles = page.locator(".tabulator-col-title").all_inner_texts()
    assert any(title.startswith("flag <script>window.hacked") for title in titles)
    assert page.evaluate("() => window.hacked") is None


def test_in_the_single_file(browser, project, records, tmp_path):
    from runcatalog.site.write import Site

    path = tmp_path / "one.html"
    Site(project, records).one_file(path)
    page = browser.open(path, f"#/run/{records[0].run}")
    assert page.evaluate("() => window.hacked") is None
    assert "<script>window.hacked" in page.locator("h1").inner_text()
    assert page.locator("figure.chart").count() == 2
