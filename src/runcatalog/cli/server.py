"""`catalog server`: MLflow for a group, on PostgreSQL and with passwords."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runcatalog.cli.common import Commands, Help
from runcatalog.model.errors import CatalogError

if TYPE_CHECKING:
    from runcatalog.server.folder import Folder


def server(options: argparse.Namespace) -> int:
    """catalog server"""
    try:
        import cachetools  # noqa: F401
        import flask_wtf  # noqa: F401
        import psycopg  # noqa: F401
    except ImportError as error:
        raise CatalogError(
            f"{error}: install runcatalog with its extra `server` (docs/server.md)"
        ) from None
    from runcatalog.server.folder import Folder, default_folder

    options.act(Folder(options.folder or default_folder()), options)
    return 0


def _start(folder: Folder, options: argparse.Namespace) -> None:
    from runcatalog.server import processes

    given = {"port": options.port, "workers": options.workers, "host": options.host_name}
    settings = replace(folder.settings(), **{k: v for k, v in given.items() if v is not None})
    if options.foreground:
        processes.run(folder, settings)
    else:
        print(processes.start(folder, settings))


def _stop(folder: Folder, options: argparse.Namespace) -> None:
    from runcatalog.server import processes

    print("stopped" if processes.stop(folder) else "did not run")


def _status(folder: Folder, options: argparse.Namespace) -> None:
    from runcatalog.server import processes

    print("\n".join(processes.status(folder)))


def _user(folder: Folder, options: argparse.Namespace) -> None:
    from runcatalog.server.users import Server
    from runcatalog.text import terminal

    running = Server(folder)
    if options.user_action == "list":
        rows = [[name, ", ".join(experiments) or "-"] for name, experiments in running.users()]
        print("\n".join(terminal.table(("user", "may write to"), rows)))
    elif options.user_action == "add":
        print("\n".join(running.add(options.name, options.experiments, options.credentials)))
    elif options.user_action == "password":
        print(running.password(options.name, options.credentials))
    else:
        print(running.remove(options.name))


def _backup(folder: Folder, options: argparse.Namespace) -> None:
    from runcatalog.server import backup

    print(getattr(backup, options.action)(folder, options.file))


def add(commands: Commands) -> None:
    """Declare the command."""
    sub = commands.add(
        "server",
        server,
        "MLflow for a group: on PostgreSQL, with users and backups",
        "It listens on this machine alone; docs/server.md puts it behind TLS.",
        "catalog server start                       what `make server` does\n"
        "catalog server user add ada door           a user who may write to the experiment door\n"
        "catalog server backup monday.tar\n"
        "catalog server stop",
    )
    actions = sub.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(
        name: str, act: object, text: str, among: argparse._SubParsersAction = actions
    ) -> argparse.ArgumentParser:
        made = among.add_parser(name, help=text, description=text, formatter_class=Help)
        made.set_defaults(act=act, parser=made)
        default = "~/.local/share/runcatalog-server; as root /var/lib/runcatalog-server"
        made.add_argument(
            "--folder",
            type=Path,
            metavar="DIR",
            default=argparse.SUPPRESS,  # one that stands before the action stays
            help=f"the server's files ({default})",
        )
        return made

    sub.set_defaults(folder=None)
    start = action("start", _start, "start it; options stay for the next start")
    start.add_argument("--port", type=int, help="on 127.0.0.1 (default: 5000)")
    start.add_argument("--workers", type=int, metavar="N", help="processes that answer requests")
    start.add_argument("--host-name", metavar="NAME", help="its name at the reverse proxy")
    start.add_argument("--foreground", action="store_true", help="stay until it ends, for systemd")
    action("stop", _stop, "stop MLflow and its database")
    action("status", _status, "does it run, and where?")
    user = action("user", _user, "add, list or remove users, or give one a new password")
    users = user.add_subparsers(dest="user_action", metavar="ACTION", required=True)
    new = action("add", _user, "add a user, or let one write to more experiments", users)
    action("list", _user, "users, and what each may write to", users)
    password = action("password", _user, "a new password; the old one ends", users)
    remove = action("remove", _user, "remove a user; the runs stay", users)
    for each in (new, password, remove):
        each.add_argument("name", metavar="NAME")
    new.add_argument(
        "experiments", nargs="*", default=[], metavar="EXPERIMENT", help="that NAME may write to"
    )
    for each in (new, password):
        each.add_argument(
            "--credentials",
            type=Path,
            metavar="FILE",
            help="for the password (default: NAME.credentials)",
        )
    action("backup", _backup, "write runs, users and artifacts to a file, while it runs")
    action("restore", _backup, "replace runs, users and artifacts by those of a file")
    action("upgrade", _backup, "bring the tables to the installed MLflow, after a backup")
    for name in ("backup", "restore", "upgrade"):
        actions.choices[name].add_argument("file", type=Path, metavar="FILE")
