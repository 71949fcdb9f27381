"""`catalog ui`: MLflow's pages arranged, and their addresses."""

from __future__ import annotations

import argparse

from runcatalog.cli.common import Commands, reaches_mlflow, store_of
from runcatalog.model.project import Project


def ui(options: argparse.Namespace) -> int:
    """catalog ui"""
    from runcatalog.mlflow_ui.arrange import address, arrange
    from runcatalog.sync.sync import alone

    project = Project.find()
    with alone(project):
        store = store_of(options)
        pages = arrange(project, store)
    if not pages:
        print("MLflow holds no runs; `catalog sync` or `catalog import` brings them in")
        return 0
    base = (options.at or address(store.uri)).rstrip("/")
    for page in pages:
        indent = "  " if page.batch else ""
        print(f"{indent}{page.name}\n{indent}  {base}/{page.path}")
    return 0


def add(commands: Commands) -> None:
    """Declares the command."""
    sub = commands.add(
        "ui",
        ui,
        "arrange MLflow's pages and print their addresses",
        "Each study gets a description, each batch a summary and a saved view with the columns and "
        "charts that matter; `sync` and `import` do so too. What you change there stays as you made "
        "it. `make ui` starts the server beside a database.",
        "catalog ui\ncatalog ui --at http://mlflow.lab:8080    addresses for another server",
    )
    reaches_mlflow(sub)
    sub.add_argument("--at", default="", metavar="URL", help="where the UI is served")
