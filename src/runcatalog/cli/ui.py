"""`catalog ui`: MLflow's pages arranged, and their addresses."""

from __future__ import annotations

import argparse

from runcatalog.cli.common import Commands, store_of
from runcatalog.model.project import Project


def ui(options: argparse.Namespace) -> int:
    """catalog ui"""
    from runcatalog.mlflow_ui.arrange import address, arrange
    from runcatalog.sync.sync import project_lock

    project = Project.find()
    with project_lock(project):
        store = store_of(options)
        pages = arrange(project, store)
    if not pages:
        print("no runs in MLflow; `catalog sync` or `catalog import` adds them")
        return 0
    base = (options.at or address(store.uri)).rstrip("/")
    for page in pages:
        indent = "  " if page.batch else ""
        print(f"{indent}{page.name}\n{indent}  {base}/{page.path}")
    return 0


def add(commands: Commands) -> None:
    """Declare the command."""
    sub = commands.add(
        "ui",
        ui,
        "arrange MLflow's pages and print their addresses",
        "Every study gets a description, every batch a summary and a saved view with its main columns and "
        "charts; `sync` and `import` write them too. Your own changes to these pages are kept. "
        "`make ui` starts MLflow's server.",
        "catalog ui\ncatalog ui --at http://mlflow.lab:8080    addresses for another server",
        uses_mlflow=True,
    )
    sub.add_argument("--at", default="", metavar="URL", help="where the UI is served")
