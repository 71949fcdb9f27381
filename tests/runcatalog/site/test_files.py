"""Files of the site: what is written, copied and removed, runs of this machine, the single file, watching."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib

import pytest

from runcatalog.model.marks import marked
from runcatalog.model.record_files import write_all
from runcatalog.site import columns, index, media
from runcatalog.site.write import HERE, SCRIPTS, STYLES, Site


@pytest.fixture
def records(make):
    return [
        make(n, value=n / 10, lr=n / 1000).with_points({"rate": [(0, 0.0), (n, 0.5)]})
        for n in (1, 2, 3)
    ]


def names(folder):
    return sorted(path.name for path in (folder / "data/runs").iterdir())


def test_only_what_changed_is_written_and_files_of_removed_runs_go(project, records, tmp_path):
    folder = tmp_path / "site"
    first = Site(project, records).write(folder)
    assert first == sum(path.is_file() for path in folder.rglob("*"))
    assert Site(project, records).write(folder) == 0
    kept = folder / "data/runs/notes.txt"
    kept.write_text("mine")
    # One run less: its file, the index, the metrics and the version.
    assert Site(project, records[:2]).write(folder) == 4
    assert names(folder) == [f"{records[0].run}.js", f"{records[1].run}.js", "notes.txt"]


def test_a_folder_with_other_files_is_left_alone(shell, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("x")
    printed = shell.catalog(f"site -o {tmp_path}/mine", code=1)
    assert (
        printed
        == f"catalog: {tmp_path}/mine holds other files: -o names a new folder, or one of a site\n"
    )
    assert "is another file" in shell.catalog(
        f"site --one-file -o {tmp_path}/mine/thesis.tex", code=1
    )
    assert [path.read_text() for path in (tmp_path / "mine").iterdir()] == ["x"]
    assert shell.catalog(f"site -o {tmp_path}/mine/thesis.tex", code=1).endswith(
        "a folder is expected\n"
    )
    assert "has no --watch" in shell.catalog("site --one-file --watch", code=1)
    assert "0.1 to 86400 seconds" in shell.catalog("site --watch soon", code=2)


def test_a_project_without_runs_has_a_site(browser, site_of):
    page = browser.open(site_of([]))
    assert "0\nruns" in page.locator(".cards").inner_text()
    for route in ("#/runs", "#/failures", "#/superseded", "#/compare/", "#/run/", "#/run/12345678"):
        browser.go(page, route)
    assert "There is no run 12345678" in page.locator("main").inner_text()


def test_an_integer_of_any_size_is_on_the_page_of_its_run(browser, site_of, make):
    """Such as the number of states of a puzzle, which JSON for a browser cannot hold as a number."""
    states = 3**64
    run = make(1, result={"states": states, "levels": 2**60 + 1, "solved": True})
    page = browser.open(site_of([run]), f"#/run/{run.run}")
    rows = page.get_by_role("region", name="Further results").locator("tbody tr").all_inner_texts()
    shown = {"levels": str(2**60 + 1), "solved": "true", "states": str(states)}
    assert dict(row.split("\t") for row in rows) == shown


def test_every_file_is_listed_licensed_and_in_the_wheel():
    listed = {*SCRIPTS, *STYLES, "assets/page.html"}
    files = [path for folder in ("assets", "vendor") for path in (HERE / folder).rglob("*")]
    packaged = {path.relative_to(HERE).as_posix() for path in files if path.is_file()}
    licences = {name for name in packaged if name.endswith("/LICENSE")}
    assert packaged - licences == listed
    vendors = {name.rpartition("/")[0] for name in listed if name.startswith("vendor")}
    assert {name.rpartition("/")[0] for name in licences} == vendors
    assert all("MIT License" in (HERE / name).read_text() for name in licences)
    settings = tomllib.loads((HERE.parents[2] / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["runcatalog.site"]
    packed = {path for pattern in patterns for path in HERE.glob(pattern) if path.is_file()}
    assert packed == {HERE / name for name in packaged}


def test_the_single_file_has_every_page(browser, shell, records):
    write_all(records, shell.root / "experiments/records")
    assert re.fullmatch(
        r"site.html of 3 runs and batches: 0\.\d MB\n", shell.catalog("site --one-file")
    )
    shell.inside("site --one-file")  # its own page is replaced
    page = browser.open(shell.root / "site.html", f"#/run/{records[1].run[:8]}")
    assert page.locator("figure.chart").count() == 1
    browser.go(page, "#/runs?rate>=0.5 and lr>1e-3")
    assert page.locator("#note").inner_text() == "2 of 3 runs and batches"


def test_figures_videos_and_pictures_of_a_run(browser, shell, make):
    curves = {"opening_rate": [(0, 0.0), (9, 0.5)]}
    sweep = [
        make(n, value=0.5, lr=n, operation="toy:sweep", batch="ba7c" * 8).with_points(curves)
        for n in (1, 2)
    ]
    batch = make(3, run="ba7c" * 8, operation="toy:sweep", result={"batch": True})
    write_all([*sweep, batch], shell.root / "experiments/records")
    shell.catalog("render")
    directory = shell.root.parent / "guild/runs" / sweep[0].run
    (directory / "videos").mkdir(parents=True)
    (directory / "videos/door.mp4").write_bytes(b"\0" * 9)
    (directory / "more").mkdir()
    (directory / "more/door.mp4").write_bytes(b"\1" * 9)
    (directory / "rooms.png").write_bytes(b"\0")
    (directory / "a b.png").write_bytes(b"\0")  # no plain name
    shell.catalog("site --media")
    page = browser.open(shell.root / "site/index.html", f"#/run/{sweep[0].run}")
    shown = page.locator(".media img, .media video").evaluate_all(
        "all => all.map((e) => e.getAttribute('src'))"
    )
    run = sweep[0].run
    assert shown == [
        "data/figures/toy/sweep.svg",
        f"data/media/{run}/rooms.png",
        f"data/media/{run}/more/door.mp4",
        f"data/media/{run}/videos/door.mp4",
    ]
    assert all((shell.root / "site" / path).is_file() for path in shown)
    browser.go(page, f"#/run/{sweep[1].run}")
    assert page.locator(".media img").count() == 1
    browser.go(page, "#/run/ba7c")
    assert page.locator(".media img").count() == 1
    shutil.rmtree(directory / "more")
    shell.catalog("site --media")
    assert not (shell.root / "site" / shown[2]).exists()
    assert (shell.root / "site" / shown[3]).exists()


def test_files_outside_of_a_run_are_not_published(tmp_path, make):
    record = make(1)
    directory, private = tmp_path / "runs" / record.run, tmp_path / "private"
    for path in (private / "passport.png", directory / "pics/own.png", directory / "first.png"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\0")
    (directory / "linked").symlink_to(private)
    (directory / "passport.png").symlink_to(private / "passport.png")
    (directory / "pics/passport.png").symlink_to(private / "passport.png")
    found = media.recorded(tmp_path, [record])
    assert found == {record.run: [directory / "first.png", directory / "pics/own.png"]}


def test_a_watched_page_shows_a_run_of_this_machine_as_it_ends(browser, shell, records, wait_until):
    write_all(records, shell.root / "experiments/records")
    shell.new_mlflow(shell.root / "mlflow.db")
    command = [sys.executable, "-m", "runcatalog.cli.main", "site", "--watch", "0.2"]
    log = shell.root.parent / "watching.log"
    with log.open("w") as output:
        watching = subprocess.Popen(
            command, cwd=shell.root, env=shell.env, stdout=output, stderr=subprocess.STDOUT,
            # Ctrl-C is ignored where the tests run in the background.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
    try:
        page_file = shell.root / "site/index.html"
        wait_until((page_file.parent / "data/version.js").exists)
        page = browser.open(page_file, "#/runs")
        assert page.locator("#note").inner_text().startswith("3 of 3")
        shell("guild run toy:train updates=3 seed=7 -y")
        shell.inside("sync -q")
        page.wait_for_function("document.getElementById('note')?.textContent.startsWith('4 of 4')")
        row = page.locator(".tabulator-row", has_text="local").filter(has_text="finished")
        row.wait_for()
        wait_until(lambda: "4 runs and batches, 0 running" in log.read_text())  # after the page
        os.kill(watching.pid, signal.SIGINT)
        watching.wait(240)
    finally:
        watching.kill()
        watching.wait()
    printed = log.read_text()
    assert "Ctrl-C ends this" in printed
    assert "Traceback" not in printed
    # Without --local, the site is of the committed records again.
    assert "of 3 runs" in shell.catalog("site")


def test_what_changes_before_the_first_look_is_shown(browser, site_of, records):
    page = browser.open(site_of(records[1:], watched=3), "#/runs")
    assert page.locator("#note").inner_text().startswith("2 of 2")
    site_of(records, watched=3)
    text = "document.getElementById('note')?.textContent"
    page.wait_for_function(f"{text}.startsWith('3 of 3')", timeout=60_000)


def test_a_selection_stays_with_its_runs_when_an_older_one_arrives(browser, site_of, records):
    page = browser.open(site_of(records[1:], watched=0.2), "#/runs")
    chosen = page.get_by_role("checkbox", name="Compare 00000002")
    chosen.check()
    site_of(records, watched=0.2)
    page.wait_for_function("document.getElementById('note').textContent.startsWith('3 of 3')")
    assert chosen.is_checked()
    assert not page.get_by_role("checkbox", name="Compare 00000001").is_checked()
    page.get_by_role("button", name="Compare 1").click()
    page.wait_for_selector("main[data-ready=compare]")
    assert "#/compare/00000002" in page.url


@pytest.mark.parametrize(
    "codes", [[], ["a"], ["a", None, "a", "b"], ["a"] * 5 + [None] * 3, list("abcabc")]
)
def test_columns_are_read_back(browser, site_of, codes):
    page = browser.open(site_of([]))
    read = """([column, n]) => {
      const read = columns.texts(column, n);
      return [...Array(n).keys()].map((row) => read.at(row) ?? null);
    }"""
    assert page.evaluate(read, [columns.texts(codes), len(codes)]) == codes
    rows = [i for i, code in enumerate(codes) if code]
    position = "([pairs, n]) => [...Array(n).keys()].map((row) => columns.position(pairs, row))"
    positions = page.evaluate(position, [columns.sparse(rows), len(codes)])
    assert positions == [rows.index(i) if i in rows else -1 for i in range(len(codes))]


def test_numbers_that_javascript_cannot_hold_are_text():
    numbers = [1, 2**53, 2**53 + 1, -(2**63), 0.5, 3.0, float("nan"), float("-inf"), None]
    written = [1, 2**53, str(2**53 + 1), str(-(2**63)), 0.5, 3, "NaN", "-Infinity", None]
    assert json.dumps(columns.numbers(numbers)) == json.dumps(written)


def test_a_marked_trial_counts_on_the_site_as_on_the_pages(project, make):
    """The site had the mean of a batch over its retracted trials too."""
    batch = make(9, run="b" * 32, result={"batch": True, "method": "grid"})
    trials = [make(1, value=0.9, seed=1, batch=batch.run)]
    trials.append(make(2, value=0.1, seed=2, batch=batch.run, retracted="wrong"))
    shown = index.index(project, [batch, *trials])["result"]["texts"]
    assert shown[0].startswith("90 % opening rate")
    gone = [marked(each, "wrong") for each in (batch, *trials)]
    assert index.index(project, gone)["result"]["texts"][0].startswith("50 % opening rate")


def test_a_title_may_have_bytes_that_are_no_text(project, tmp_path):
    Site(project, [], title="caf\udce9").write(tmp_path / "site")
    assert "caf?" in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
