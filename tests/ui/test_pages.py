"""MLflow's pages of a sweep in a real browser: its runs and columns, its batch, two runs compared."""

from pathlib import Path

import pytest

from browser import BROWSER, TOOL
from runcatalog.mlflow_ui.arrange import arrange
from runcatalog.model.project import Project

METRIC = "validation_opening_rate"

NAMES = """() => [...document.querySelectorAll('.ag-pinned-left-cols-container .ag-row')]
    .sort((a, b) => a.getAttribute('row-index') - b.getAttribute('row-index'))
    .flatMap(row => [...row.querySelectorAll('a[href*="/runs/"]')])
    .map(link => link.innerText.trim())"""
# The shapes of the lines that are drawn; the edge of a band has no colour. MLflow may give two runs the same one.
SHAPES = """() => [...document.querySelectorAll('.scatterlayer .trace path.js-line')]
    .filter(path => path.getTotalLength() > 0)
    .filter(path => /^rgb[(]/.test(getComputedStyle(path).stroke))
    .map(path => path.getAttribute('d'))"""


def shown(page) -> list[str]:
    """Names of the runs in the list, from the top."""
    return page.evaluate(NAMES)


@pytest.mark.timeout(1800)  # MLflow's pages are megabytes of script; half a minute on an idle core
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on the path (tools/setup-browser)")
def test_a_sweep_in_a_browser(sweep, copied, tmp_path: Path):
    pytest.importorskip("playwright", reason="playwright is not installed")
    overview, batch = arrange(Project(sweep.root), copied)
    with (
        TOOL.served(copied.uri, tmp_path) as address,
        TOOL.browser_page(BROWSER, address, height=1200) as page,
    ):
        # The study's page: the batch, its trials folded under it.
        TOOL.open_view(page, address, overview.path)
        assert shown(page) == [f"lr_opt_pull {sweep.batch[:8]}"]
        page.locator(".ag-row button").first.click()
        for name in sweep.names:
            page.get_by_role("link", name=name, exact=True).wait_for()
        assert shown(page)[0] == f"lr_opt_pull {sweep.batch[:8]}"
        assert set(shown(page)[1:]) == sweep.names

        # The batch's own view, as the list of views opens it: the columns that matter.
        page.get_by_test_id("saved-views-trigger").click()
        page.get_by_role("menuitem", name=batch.name).click()
        page.locator(".ag-row", has_text="Group:").first.wait_for(state="attached")
        headers = {cell.inner_text().strip() for cell in page.locator(".ag-header-cell").all()}
        assert {"Run Name", "lr", "seed", "opening_rate", "validation_episode_return"} <= headers
        assert not {"approx_kl", "value_loss", "gamma", "task", "Description"} & headers
        assert sweep.names <= set(shown(page))

        # Two of its runs compared: one curve per run.
        two = [TOOL.newest(TOOL.OPERATION)[1][i] for i in (0, -1)]
        TOOL.compare(page, two)
        TOOL.open_curves(page, METRIC, len(two))
        for name in two:
            assert page.get_by_text(f"{name} ({METRIC})").count()  # in the legend
        assert len(set(page.evaluate(SHAPES))) == 2

        # Its charts: one line per point of the grid.
        page.goto(f"{address}/{batch.path}")
        TOOL.wait_for_lines(page, len({name.split(" seed")[0] for name in sweep.names}))
        page.screenshot(path=tmp_path / "sweep.png")
