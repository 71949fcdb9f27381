"""`catalog ui`: MLflow's pages arranged, and their addresses."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from contextlib import suppress

from runcatalog.cli.common import Commands
from runcatalog.model.errors import CatalogError
from runcatalog.model.project import Project

_HOST = "127.0.0.1"


def ui(options: argparse.Namespace) -> int:
    """catalog ui"""
    from runcatalog.mlflow_ui.arrange import address, arrange
    from runcatalog.store.client import Store
    from runcatalog.sync.sync import project_lock

    if options.serve is not None:
        _check_free(options.serve)  # before the pages, which take seconds
    project = Project.find()
    with project_lock(project):
        store = Store(options.tracking_uri)
        pages = arrange(project, store)
    if not pages:
        print("no runs in MLflow; `catalog sync` or `catalog import` adds them")
        return 0 if options.serve is None else 1
    if options.serve is not None:
        _serve(options.serve, store.uri, {p.name: p.path for p in pages if not p.batch})
    base = (options.at or address(store.uri)).rstrip("/")
    for page in pages:
        indent = "  " if page.batch else ""
        print(f"{indent}{page.name}\n{indent}  {base}/{page.path}")
    return 0


def _check_free(port: int) -> None:
    """Raise CatalogError if there is no such port, or another program uses it."""
    if not 1 <= port <= 65535:
        raise CatalogError(f"--serve must be between 1 and 65535, not {port}")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_HOST, port))
        except OSError as error:
            with suppress(OSError):
                listener.bind((_HOST, 0))
                free = listener.getsockname()[1]
                raise CatalogError(
                    f"port {port}: {error.strerror}; `catalog ui --serve {free}` "
                    f"(or `make ui PORT={free}`) uses another one"
                ) from None
            raise CatalogError(f"port {port}: {error.strerror}") from None


def _serve(port: int, uri: str, paths: dict[str, str]) -> None:
    """Print the studies' pages and turn this process into MLflow's server."""
    print(f"MLflow's pages of {len(paths)} studies (Ctrl-C ends the server):")
    width = max(map(len, paths))
    for name, path in paths.items():
        print(f"  {name:{width}}  http://{_HOST}:{port}/{path}")
    sys.stdout.flush()
    # Without the jobs of language models, which start several processes more.
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    environment |= {"PYTHONWARNINGS": "ignore"}  # of MLflow's own imports
    words = [
        "ui",
        "--backend-store-uri",
        uri,
        "--registry-store-uri",
        uri,
        "--host",
        _HOST,
        "--port",
        str(port),
    ]
    words += ["--workers", "1", "--uvicorn-opts", "--log-level warning"]
    os.execve(sys.executable, [sys.executable, "-m", "mlflow", *words], environment)


def add(commands: Commands) -> None:
    """Declare the command."""
    sub = commands.add(
        "ui",
        ui,
        "arrange MLflow's pages, print their addresses, and serve them",
        "Every study gets a description, every batch a summary and a saved view with its main columns and "
        "charts; every single run gets its result and its command; `sync` and `import` write them too. Your own "
        "changes to these pages are kept.",
        "catalog ui --serve 5000                      what `make ui` does\n"
        "catalog ui --at http://mlflow.lab:8080       addresses for a server that is running",
        uses_mlflow=True,
    )
    sub.add_argument("--at", default="", metavar="URL", help="where the UI is served")
    sub.add_argument(
        "--serve", type=int, metavar="PORT", help=f"start MLflow's server on {_HOST}:PORT"
    )
