"""`catalog server`: MLflow for a group, on PostgreSQL and with passwords."""

from __future__ import annotations

import argparse
from pathlib import Path

from runcatalog.cli.common import Commands


def server(options: argparse.Namespace) -> int:
    """catalog server"""
    from runcatalog.server import processes
    from runcatalog.server.folder import Folder, default_folder
    from dataclasses import replace

    folder = Folder(options.folder or default_folder())
    if options.action == "start":
        given = {"port": options.port, "workers": options.workers, "host": options.host_name}
        settings = replace(folder.settings(), **{k: v for k, v in given.items() if v is not None})
        print(processes.start(folder, settings))
    elif options.action == "stop":
        print("stopped" if processes.stop(folder) else "did not run")
    return 0


def add(commands: Commands) -> None:
    """Declare the command."""
    sub = commands.add("server", server, "MLflow for a group")
    sub.add_argument("action", choices=["start", "stop"])
    sub.add_argument("--folder", type=Path)
    sub.add_argument("--port", type=int)
    sub.add_argument("--workers", type=int)
    sub.add_argument("--host-name")
