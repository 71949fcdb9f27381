"""`catalog site`: a static site of all runs that opens from disk."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from runcatalog.cli.common import Commands, committed_records, reader_of
from runcatalog.model.errors import CatalogError
from runcatalog.model.project import Project

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runcatalog.model.run_record import RunRecord
    from runcatalog.site.media import Media
    from runcatalog.site.write import Site

FOLDER = "site"
ONE_FILE = "site.html"
INTERVAL = 5.0  # s between two looks for new runs


def site(options: argparse.Namespace) -> int:
    """catalog site"""
    from runcatalog.site import media, write

    project = Project.find()
    if options.one_file and options.watch:
        raise CatalogError("--one-file writes the page once: it has no --watch")
    target = Path(options.to or project.root / (ONE_FILE if options.one_file else FOLDER))
    (write.check_file if options.one_file else write.check_folder)(target)
    # Drawn by `catalog render` from the committed records alone, so they stay the same while runs go on.
    figures = {} if options.one_file else media.figures(project, committed_records(project))

    def current() -> Site:
        return _site(project, options, figures)

    if options.one_file:
        return _write_one_file(current(), target)
    _write_folder(current(), target)
    if options.watch:
        _watch(current, target, options.watch)
    return 0


def _site(project: Project, options: argparse.Namespace, figures: Media) -> Site:
    """Return the site of the committed records and, with --local, of this machine's other runs."""
    from runcatalog.site import media
    from runcatalog.site.write import Site

    records = committed_records(project)
    local = _local(project, options, records) if options.local or options.watch else {}
    shown = [*(r for r in records if r.run not in local), *local.values()]
    recorded = {}
    if options.media:
        from runcatalog.guild.runs import guild_home

        recorded = media.recorded(guild_home(), shown)
    return Site(project, shown, local, options.watch or 0, figures, recorded, options.title)


def _local(
    project: Project, options: argparse.Namespace, records: Sequence[RunRecord]
) -> dict[str, RunRecord]:
    """Return the runs of this machine without an up-to-date record, by id."""
    from runcatalog.model.marks import with_marks
    from runcatalog.pages.local_page import not_exported

    committed = {record.run: record for record in records}
    runs = not_exported(project, reader_of(options), records)
    return {r.run: with_marks(r, committed.get(r.run)) for r in runs}


def _write_folder(site: Site, folder: Path) -> None:
    changed = site.write(folder)
    page = os.path.relpath(folder / "index.html")
    files = "1 file" if changed == 1 else f"{changed} files"
    print(
        f"{page} of {len(site.records)} runs and batches: {files} written"
        if changed
        else f"{page} is up to date"
    )


def _write_one_file(site: Site, path: Path) -> int:
    site.one_file(path)
    print(
        f"{os.path.relpath(path)} of {len(site.records)} runs and batches: {path.stat().st_size / 1e6:.1f} MB"
    )
    return 0


def _watch(current: Callable[[], Site], folder: Path, interval: float) -> None:
    """Write the site again while runs go on, until Ctrl-C."""
    print(f"an open page follows the runs, every {interval:g} s; Ctrl-C ends this", flush=True)
    while True:
        time.sleep(interval)
        site = current()
        if site.write(folder):
            running = sum(record.status == "RUNNING" for record in site.records)
            print(
                f"{time.strftime('%H:%M:%S')} {len(site.records)} runs and batches, {running} running",
                flush=True,
            )


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.1 <= (seconds := float(text)) <= 86400:
            return seconds
    raise argparse.ArgumentTypeError(f"0.1 to 86400 seconds are expected, not {text}")


def add(commands: Commands) -> None:
    """Declare the command."""
    sub = commands.add(
        "site",
        site,
        "write a site of all runs that opens from disk",
        "Table with search, a page a run with its curves, comparison of runs. No server and no network are needed: "
        "open site/index.html in a browser.",
        "catalog site                     site/index.html, from the committed records\n"
        "catalog site --watch             with this machine's runs, as they go on\n"
        "catalog site --one-file          site.html, a single page to mail",
        uses_mlflow=True,
    )
    add = sub.add_argument
    add("-o", dest="to", metavar="PATH", help=f"by default {FOLDER}/, with --one-file {ONE_FILE}")
    add("--one-file", action="store_true", help="write a single page")
    add(
        "--local", action="store_true", help="add the runs in MLflow without a record, marked local"
    )
    add("--title", default="", metavar="TEXT", help="heading, by default with the project's name")
    add("--media", action="store_true", help="copy videos and pictures of this machine's runs")
    add(
        "--watch", nargs="?", type=_seconds, const=INTERVAL, metavar="SECONDS",
        help=f"with --local, write again while runs go on, by default every {INTERVAL:g} s",
    )  # fmt: skip
