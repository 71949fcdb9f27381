"""`catalog site`: a static site of all runs that opens from disk."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from runcatalog.cli.common import Commands, committed_records
from runcatalog.model.errors import CatalogError
from runcatalog.model.project import Project

if TYPE_CHECKING:
    from collections.abc import Callable

    from runcatalog.site.write import Site

FOLDER = "site"
ONE_FILE = "site.html"
INTERVAL = 5.0  # s between two looks for new runs


def site(options: argparse.Namespace) -> int:
    """catalog site"""
    project = Project.find()
    with_local = options.local or options.watch
    watched = INTERVAL if options.watch else 0

    def current() -> Site:
        return _site(project, options.tracking_uri if with_local else None, with_local, watched)

    if options.one_file:
        if options.watch:
            raise CatalogError("--one-file writes the page once: it has no --watch")
        return _write_one_file(current(), Path(options.to or ONE_FILE))
    folder = Path(options.to or project.root / FOLDER)
    _write_folder(current(), folder)
    if options.watch:
        _watch(current, folder)
    return 0


def _site(project: Project, uri: str | None, with_local: bool, watched: float) -> Site:
    """Return the site of the committed records and, with `with_local`, of this machine's other runs."""
    from runcatalog.model.marks import with_marks
    from runcatalog.site.write import Site

    records = committed_records(project)
    if not with_local:
        return Site(project, records, watched=watched)
    from runcatalog.pages.local_page import not_exported
    from runcatalog.store.sqlite_reader import reader

    committed = {record.run: record for record in records}
    runs = not_exported(project, reader(uri), records)
    local = {r.run: with_marks(r, committed.get(r.run)) for r in runs}
    shown = [*(r for r in records if r.run not in local), *local.values()]
    return Site(project, shown, local, watched)


def _write_folder(site: Site, folder: Path) -> None:
    changed = site.write(folder)
    page = os.path.relpath(folder / "index.html")
    files = "1 file" if changed == 1 else f"{changed} files"
    print(f"{page} of {len(site.records)} runs and batches: {files} written" if changed else f"{page} is up to date")


def _write_one_file(site: Site, path: Path) -> int:
    if path.is_dir():
        raise CatalogError(f"{path} is a folder: with --one-file, -o names a file")
    site.one_file(path)
    print(f"{os.path.relpath(path)} of {len(site.records)} runs and batches: {path.stat().st_size / 1e6:.1f} MB")
    return 0


def _watch(current: Callable[[], Site], folder: Path) -> None:
    """Write the site again while runs go on, until Ctrl-C."""
    print(f"an open page follows the runs, every {INTERVAL:g} s; Ctrl-C ends this", flush=True)
    while True:
        time.sleep(INTERVAL)
        site = current()
        if site.write(folder):
            running = sum(record.status == "RUNNING" for record in site.records)
            print(f"{time.strftime('%H:%M:%S')} {len(site.records)} runs and batches, {running} running", flush=True)


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
    sub.add_argument("-o", dest="to", metavar="PATH", help=f"folder, by default {FOLDER}/; with --one-file a file")
    sub.add_argument("--one-file", action="store_true", help=f"write a single page, by default {ONE_FILE}")
    sub.add_argument("--local", action="store_true", help="add the runs of this machine that are not exported, marked local")
    sub.add_argument("--watch", action="store_true", help="with --local, write again while runs go on")
