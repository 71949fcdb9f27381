"""Reading the site: `catalog site`, open it from disk, filter, read a run, compare; keys alone; axe."""

import re
from dataclasses import replace

import pytest

from runcatalog.model.marks import marked
from runcatalog.model.record_files import write_all


def test_front_filter_run_comparison(browser, page_file):
    page = browser.open(page_file)
    cards = " ".join(page.locator(".cards").inner_text().split())
    assert cards.startswith("8 runs 1 failed or killed 2 declared, never run 1970-01-01 00:00")
    assert "gradient explosion" in page.get_by_role("region", name="Failures").inner_text()

    # Filter as one types: the table and the address follow.
    page.get_by_role("searchbox").fill("lr>2e-3 and opening_rate>0.5")
    page.keyboard.press("Enter")
    page.wait_for_function("document.getElementById('note')?.textContent.startsWith('3 of 10')")
    assert page.url.endswith("#/runs?lr%3E2e-3%20and%20opening_rate%3E0.5")
    heads = page.locator(".tabulator-col-title").all_inner_texts()
    assert {"lr", "opening_rate", "state", "result"} <= set(heads)
    page.get_by_role("searchbox").fill("lr>2e-3 and tusk=lever")
    page.wait_for_function(
        "document.getElementById('note').textContent.includes('did you mean task?')"
    )
    page.get_by_role("searchbox").fill("pull")  # words, where it is no query
    page.wait_for_function("document.getElementById('note').textContent.includes('“pull”')")

    # A run: its result, the command, the curves, flags.
    page.get_by_role("searchbox").fill("lr=1e-2")
    page.wait_for_function("document.getElementById('note').textContent.startsWith('1 of 10')")
    page.get_by_role("link", name="0000000a").click()
    page.wait_for_selector("main[data-ready=run]")
    main = page.locator("main").inner_text()
    assert "30 %" in main
    assert "95 % interval [22, 40], after 360 updates" in main
    assert "guild run toy:train lr=0.01 task=pull -y" in main
    assert "at commit 0123456789ab" in main

    # Two settings compared: means over three seeds, one curve per setting.
    browser.go(page, "#/runs?operation=toy:sweep and seed")
    for box in page.get_by_role("checkbox", name=re.compile("Compare")).all():
        box.check()
    page.get_by_role("button", name="Compare 6").click()
    page.wait_for_selector("main[data-ready=compare]")
    rows = (
        page.get_by_role("region", name="Settings, seeds together")
        .locator("tbody tr")
        .all_inner_texts()
    )
    assert [row.split("\t")[1:3] for row in rows] == [["lr=5e-3", "88 %"], ["lr=1e-3", "82 %"]]
    page.wait_for_selector("figure.chart canvas")
    assert page.locator("figure.chart").count() == 2
    page.get_by_role("radio", name="every run").check()
    page.wait_for_selector("figure.chart canvas")
    label = page.get_by_role("img", name=re.compile("opening rate")).get_attribute("aria-label")
    assert "lr=5e-3 seed 1: from 6 % to 100 %" in label
    assert "and 2 more lines" in label

    # Its batch shows the same; the link back works.
    page.get_by_role("link", name="00000004").click()
    page.get_by_role("link", name="ba7cba7c").click()
    page.wait_for_selector("main[data-ready=run]")
    assert "82 %" in page.get_by_role("region", name="Settings, seeds together").inner_text()
    page.go_back()
    page.go_back()
    page.wait_for_selector("main[data-ready=compare]")


def test_the_lists(browser, page_file):
    page = browser.open(page_file, "#/failures")
    assert "0000000b" in page.locator("main").inner_text()
    browser.go(page, "#/never")
    assert "toy:never" in page.locator("main").inner_text()
    browser.go(page, "#/superseded")
    assert "a wrong reward" in page.locator("main").inner_text()
    assert page.get_by_role("link", name="0000000a").count() == 1
    browser.go(page, "#/run/0000000c")
    assert "Superseded by 0000000a: a wrong reward" in page.locator(".warning").inner_text()
    browser.go(page, "#/runs")
    assert "1 superseded or retracted are hidden" in page.locator("#note").inner_text()
    page.get_by_label("superseded and retracted too").check()
    page.wait_for_function(
        "document.getElementById('note').textContent === '10 of 10 runs and batches'"
    )


def test_keys_alone(browser, page_file):
    page = browser.open(page_file)
    page.keyboard.press("/")
    page.keyboard.type("lr=1e-2")
    page.keyboard.press("Enter")
    page.wait_for_selector("main[data-ready=runs]")
    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.textContent || document.activeElement.ariaLabel")
        )
        if reached[-1] == "0000000a":
            break
    assert reached[-1] == "0000000a", reached
    page.keyboard.press("Enter")
    page.wait_for_selector("main[data-ready=run]")


def test_a_submitted_query_is_not_searched_again_when_typing_ends(browser, page_file):
    """A second search of the same text would draw the table anew, and take the focus from it."""
    page = browser.open(page_file)
    page.evaluate("""() => {
      const search = site.search;
      window.searches = 0;
      site.search = (text) => { window.searches += 1; return search(text); };
    }""")
    page.keyboard.press("/")
    page.keyboard.type("lr=1e-2")
    page.keyboard.press("Enter")
    page.wait_for_selector("main[data-ready=runs]")
    page.wait_for_timeout(400)  # longer than the pause after which typing has ended
    assert page.evaluate("window.searches") == 1


@pytest.mark.parametrize(
    ("width", "theme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
)
def test_axe_finds_nothing_serious_and_no_page_scrolls_sideways(browser, page_file, width, theme):
    from axe_playwright_python.sync_playwright import Axe

    page = browser.open(page_file, width=width, theme=theme)
    compared = "#/compare/00000001,00000002,00000004"
    lists = ["#/failures", "#/never", "#/superseded"]
    for route in ["#/", "#/runs?lr", "#/run/0000000a", "#/run/ba7c", compared, *lists]:
        browser.go(page, route)
        violations = Axe().run(page).response["violations"]
        violations = [
            violation for violation in violations if violation["impact"] in ("serious", "critical")
        ]
        serious = [
            f"{violation['id']}: {violation['nodes'][0]['html'][:200]}" for violation in violations
        ]
        assert not serious, (route, serious)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), route


def test_units_and_stated_intervals(browser, shell, make):
    """A unit is declared once for an operation's metrics; an interval that a table states is the run's."""
    guild_file = shell.root / "experiments/toy/guild.yml"
    train = "train: {main: src/toy.train, flags-import: all"
    text = guild_file.read_text()
    assert train in text
    units = "units: {opening_time: s, 'depth/*': mm}"
    guild_file.write_text(text.replace(train, f"{train}, {units}"))
    (shell.root / "experiments/toy/reported.yml").write_text(
        "interval: {'toy:train': 'all :: share'}\n"
    )
    table = {"columns": ["seeds", "share"], "rows": [["all", "50 % [20, 70]"]]}
    run = make(20, value=0.5)
    run = replace(run, result={**run.result, "table": table}).with_points(
        {"opening_time": [(0, 3.0), (1, 2.0)], "depth/all": [(0, 0.5)]}
    )
    write_all([run], shell.root / "experiments/records")
    shell.catalog("site")
    page = browser.open(shell.root / "site/index.html", f"#/run/{run.run}")
    main = page.locator("main").inner_text()
    assert "95 % interval [20, 70]" in main
    assert "opening time [s]" in page.locator("figure.chart figcaption").inner_text()
    assert "depth/all [mm]" in main
    browser.go(page, "#/runs?last:opening_time<3")
    assert "last:opening_time [s]" in page.locator(".tabulator-col-title").all_inner_texts()


def test_a_batch_is_one_click_from_its_trials(browser, page_file):
    page = browser.open(page_file, "#/runs?batch")
    page.locator(".tabulator-row").get_by_role("link", name="ba7cba7c").first.click()
    page.wait_for_selector("main[data-ready=run]")
    page.get_by_role("link", name="00000004").click()
    page.get_by_role("link", name="ba7cba7c").click()


def test_a_grid_of_two_flags_is_a_matrix(browser, site_of, make):
    batch = "ba7c" * 8
    cells = {
        (lr, task): 0.5 + lr + 0.1 * (task == "pull")
        for lr in (1, 2, 3)
        for task in ("pull", "push")
    }
    trials = [
        make(n + 1, value=value / 4, lr=lr, task=task, seed=seed, batch=batch)
        for n, ((lr, task), value, seed) in enumerate(
            (point, value, seed) for point, value in cells.items() for seed in (1, 2)
        )
    ]
    page = browser.open(site_of(trials), f"#/run/{batch}")  # the batch has no record
    table = page.get_by_role("region", name="lr × task: mean and 95 % interval")
    assert table.locator("thead").inner_text().split() == ["lr", "↓", "task", "→", "pull", "push"]
    rows = [row.split("\t") for row in table.locator("tbody tr").all_inner_texts()]
    assert [row[0] for row in rows] == ["1", "2", "3"]
    assert [[cell.split()[0] for cell in row[1:]] for row in rows] == [
        ["40", "38"],
        ["65", "63"],
        ["90", "88"],
    ]
    # With two seeds no value is distinguishable from the others, so none is shown as the best.
    assert table.locator("td strong").all_inner_texts() == ["1", "2", "3"]


def test_settings_with_other_objectives_are_named_with_their_values(browser, site_of, make):
    loss = {"objective": {"name": "loss", "value": 0.25, "goal": "min"}}
    runs = [make(1, value=0.5), make(2, result=loss, lr=1), make(3, result=loss)]
    page = browser.open(site_of(runs), "#/compare/00000001,00000002")
    table = page.get_by_role("region", name="Settings, seeds together")
    # Also of equal flags
    for route in (
        "#/compare/00000001,00000002",
        "#/compare/00000001,00000003",
    ):
        browser.go(page, route)
        assert table.locator("thead").inner_text().split("\t")[2] == "mean"
        rows = [row.split("\t")[2] for row in table.locator("tbody tr").all_inner_texts()]
        assert sorted(rows) == ["0.25 loss", "50 % opening rate"]


@pytest.mark.parametrize("route", ["#/run/", "#/compare/"])
def test_a_retracted_trial_counts_in_no_mean_of_its_batch(browser, site_of, make, route):
    batch = "ba7c" * 8
    trials = [make(n, value=v, lr=1, seed=n, batch=batch) for n, v in ((1, 0.9), (2, 0.8))]
    trials.append(make(3, value=0.1, lr=1, seed=3, batch=batch, retracted="wrong"))
    head = make(9, run=batch, result={"batch": True, "method": "grid"})
    for runs, mean in (([head, *trials], "85 %"), ([marked(head, "wrong"), *trials], "60 %")):
        page = browser.open(site_of(runs), route + batch)
        table = page.get_by_role("region", name="Settings, seeds together")
        assert mean in table.locator("tbody tr").inner_text()


def test_a_batch_of_many_runs_has_the_curves_of_its_best_settings(browser, site_of, make):
    batch = "ba7c" * 8
    curve = {"opening_rate": [(0, 0.0), (1, 0.5)]}

    def trials(settings, seeds):
        points = [(lr, seed) for lr in range(settings) for seed in range(seeds)]
        return [
            make(n, value=(10 - lr) / 20, lr=lr, seed=seed, batch=batch).with_points(curve)
            for n, (lr, seed) in enumerate(points, 1)
        ]

    route = f"#/run/{batch}"
    page = browser.open(site_of(trials(3, 150)), route)
    assert "Curves of the best 2 of 3 settings." in page.locator("main").inner_text()
    assert page.locator(".legend li").all_inner_texts() == [" lr=0", " lr=1"]
    page = browser.open(site_of(trials(2, 401)), route)
    assert (
        "No curves: the best setting has more than 400 runs." in page.locator("main").inner_text()
    )
    ids = ",".join(run.id8 for run in trials(1, 401))
    browser.go(page, f"#/compare/{ids}")
    assert "at most 20 settings and 400 runs are compared" in page.locator("main").inner_text()


def test_as_many_settings_can_be_ticked_as_are_compared(browser, site_of, make):
    runs = [make(n, value=0.5, lr=n % 2, seed=n) for n in range(1, 25)]
    page = browser.open(site_of(runs), "#/runs")
    tick_all = "() => { [...runs.ids.keys()].forEach((row) => runTable.selected.add(row)); runTable.onSelection(); }"
    page.evaluate(tick_all)
    button = page.get_by_role("button", name="Compare 24")
    assert button.is_enabled()
    button.click()
    page.wait_for_selector("main[data-ready=compare]")
    assert "24 runs compared" in page.locator("main").inner_text()
    page = browser.open(site_of([make(n, value=0.5, lr=n) for n in range(1, 22)]), "#/runs")
    page.evaluate(tick_all)
    button = page.get_by_role("button", name="Compare 21")
    assert button.is_disabled()
    assert "at most 20 settings" in button.get_attribute("title")


def test_flags_are_bold_where_their_value_is_not_the_declared_one(browser, site_of, project, make):
    """A script reads the 1 of a Guild file as 1.0."""
    guild_file = project.root / "experiments/toy/guild.yml"
    train = "train: {main: src/toy.train, flags-import: all"
    text = guild_file.read_text()
    assert train in text
    guild_file.write_text(
        text.replace(train, f"{train}, flags: {{gamma: 1, decay: 0, video: yes}}")
    )
    run = make(1, value=0.5, gamma=1.0, decay=0.5, video=True)
    page = browser.open(site_of([run]), f"#/run/{run.run}")
    bold = page.get_by_role("region", name="Flags").locator("strong").all_inner_texts()
    assert bold == ["decay", "0.5"]


def test_runs_without_the_value_that_a_table_is_sorted_by_are_at_its_end(browser, site_of, make):
    runs = [
        make(n, **({"lr": lr} if lr else {})) for n, lr in enumerate([0.5, None, 2, 10, None], 1)
    ]
    page = browser.open(site_of(runs), "#/runs?lr or not lr")
    order = """direction => {
      runTable.table.setSort("query0", direction);
      return runTable.table.getRows("active").map((row) => Number(row.getData().run[7]));
    }"""
    assert page.evaluate(order, "asc")[:3] == [1, 3, 4]
    assert page.evaluate(order, "desc")[:3] == [4, 3, 1]


def test_a_query_that_waits_for_the_metrics_does_not_replace_a_later_one(browser, page_file):
    page = browser.open(page_file, "#/runs")
    page.evaluate("() => Promise.all([site.search('opening_rate>0.5'), site.search('lr=1e-2')])")
    assert page.url.endswith("#/runs?lr%3D1e-2")
    assert page.locator("#note").inner_text() == "1 of 10 runs and batches"
    assert page.locator(".tabulator-row").count() == 1
