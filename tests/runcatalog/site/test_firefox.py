"""Pages from disk in Firefox show what they show in Chromium."""

import pytest

import firefox
from runcatalog.model.record_files import write_all

ROUTES = {  # of a page, and a number on it
    "front": ("#/", "8 runs 1 failed"),
    "runs": ("#/runs?lr>2e-3 and opening_rate>0.5", "00000006"),
    "run": ("#/run/0000000a", "30 % opening rate 95 % interval [22, 40]"),
    "compare": ("#/compare/ba7cba7c", "lr=5e-3 88 %"),
}
# Every word on the page, every curve's first and last value, whether all curves are drawn.
SHOWN = """(() => {
  const main = document.getElementById('main');
  const plots = [...main.querySelectorAll('.plot')];
  return {
    words: main.innerText.split(/\\s+/),
    curves: plots.map((plot) => plot.getAttribute('aria-label')),
    drawn: plots.every((plot) => plot.querySelector('canvas')),
  };
})()"""
READY = """new Promise((resolve) => {
  const look = () => {
    const main = document.querySelector('main[data-ready=NAME]');
    const drawn = [...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('canvas'));
    if (main && drawn) resolve(true);
    else setTimeout(look, 50);
  };
  look();
})"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    if firefox.FIREFOX is None:
        pytest.skip("no Firefox on the path (tools/setup-browser)")
    with firefox.started(tmp_path_factory.mktemp("profile")) as page:
        page.size(1280, 2400)  # every curve is in sight, so it is drawn
        yield page


@pytest.mark.parametrize("name", ROUTES)
def test_the_same_in_both_browsers(page, browser, page_file, name):
    route, number = ROUTES[name]
    chromium = browser.open(page_file, route, height=2400)
    page.goto(f"{page_file.as_uri()}{route}")
    ready = READY.replace("NAME", name)
    assert chromium.evaluate(ready)
    assert page.evaluate(ready)
    expected = chromium.evaluate(SHOWN)
    assert number in " ".join(expected["words"])
    assert page.evaluate(SHOWN) == expected
    assert page.errors == []


def test_the_single_file(page, shell, records):
    write_all(records, shell.root / "experiments/records")
    shell.catalog("site --one-file")
    page.goto(f"{(shell.root / 'site.html').as_uri()}{ROUTES['compare'][0]}")
    assert page.evaluate(READY.replace("NAME", "compare"))
    assert len(page.evaluate(SHOWN)["curves"]) == 2
    assert page.errors == []
