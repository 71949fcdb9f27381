"""`catalog workers`: the machines that runs may go to."""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runcatalog.cli.common import Commands
from runcatalog.model.errors import CatalogError
from runcatalog.model.project import Project

if TYPE_CHECKING:
    from runcatalog.cluster.engines import Settings

_COLUMNS = ("name", "hardware", "free", "slots", "health", "runs")
ACTIONS = ("start", "stop", "drain", "certificate")


def workers(options: argparse.Namespace) -> int:
    """catalog workers"""
    from runcatalog.cluster import certificates, engines
    from runcatalog.cluster.engine import EngineError

    project = Project.find()
    settings = engines.read(project.root, options.engine or "")
    if options.action is None:
        return _show(settings, options.json)
    if not options.name:
        raise CatalogError(f"catalog workers {options.action} NAME: the name is missing")
    if options.action == "certificate":
        print(f"{certificates.issue(settings.tls, options.name)} and its key beside it")
        return 0
    from runcatalog.cluster import workers as processes
    from runcatalog.cluster.serve import Limits

    try:
        if options.action == "start":
            print(
                processes.start(
                    project.root, settings, options.name, options.slots,
                    foreground=options.foreground, as_root=options.as_root,
                    certificate=options.certificate or "", scratch=options.scratch,
                    limits=Limits(options.death_timeout, options.idle_timeout),
                )
            )  # fmt: skip
        elif options.action == "stop":
            print(processes.stop(settings, options.name))
        else:
            print(processes.drain(settings, options.name, options.why))
    except EngineError as error:
        raise CatalogError(str(error)) from None
    return 0


def _show(settings: Settings, as_json: bool) -> int:
    from runcatalog.cluster import workers as processes

    found = processes.inventory(settings)
    if as_json:
        print(json.dumps(found, indent=1, sort_keys=True))
        return 0
    print(
        "\n".join(table(found, time.time())) or "no worker; `catalog workers start NAME` starts one"
    )
    return 0


def table(found: list[dict[str, Any]], now: float) -> list[str]:
    """Return the lines of the inventory: a head and a line for each worker.

    Args:
        found: See `runcatalog.cluster.engine.Engine.workers`.
        now: Seconds since the epoch.
    """
    from runcatalog.text import terminal

    rows = []
    for worker in found:
        gpus = ", ".join(worker["gpus"])
        hardware = f"{gpus}, " if gpus else ""
        hardware += f"{worker['cores']} cores, {worker['memory']:.0f} GB"
        running = [
            f"{run['run'][:8]} {run['operation']} for {_duration(now - run['since'])}"
            for run in worker["running"]
        ]
        health = f"drained: {worker['drained']}" if worker["drained"] else "ok"
        if worker["gpu_problem"] and not worker["drained"]:
            health = worker["gpu_problem"]
        free = f"{worker['free_memory']:.0f} GB, disk {worker['free_disk']:.0f} GB"
        slots = f"{len(running)} of {worker['slots']}"
        rows.append([worker["name"], hardware, free, slots, health, "; ".join(running) or "-"])
    return terminal.table(_COLUMNS, rows) if rows else []


def _duration(seconds: float) -> str:
    minutes = max(0, int(seconds)) // 60
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"


def add(commands: Commands) -> None:
    """Declare the command."""
    sub = commands.add(
        "workers",
        workers,
        "the machines that runs may go to: hardware, health, what runs where",
        "The entry of experiments/engines.yml is the one that $ENGINE names, else the only one. start and stop act on "
        "the scheduler or a worker of this machine; stop and drain also reach workers of other machines.",
        "catalog workers certificate gpu7     a certificate of the lab's own authority\n"
        "catalog workers start scheduler      the process that knows the workers\n"
        "catalog workers start gpu7           a worker on this machine\n"
        "catalog workers drain gpu7           it takes no more runs\n"
        "catalog workers --json\n"
        "ENGINE=lab guild run ppo:train -y    a run on one of them",
    )
    sub.add_argument("action", nargs="?", choices=ACTIONS, help="without one: show the inventory")
    sub.add_argument("name", nargs="?", metavar="NAME", help="the machine, or scheduler")
    sub.add_argument("--engine", metavar="NAME", help="entry of experiments/engines.yml")
    sub.add_argument("--json", action="store_true", help="the inventory as JSON")
    sub.add_argument("--slots", type=int, default=1, help="runs that a worker takes at once")
    sub.add_argument("--why", default="by hand", help="reason of a drain")
    sub.add_argument("--foreground", action="store_true", help="start in the foreground")
    sub.add_argument("--as-root", action="store_true", help="start a worker as root")
    sub.add_argument(
        "--certificate", metavar="NAME", help="of the process; by default its own name"
    )
    sub.add_argument(
        "--scratch",
        type=Path,
        metavar="DIR",
        help="for a worker's runs, in place of the entry's; removed at its end",
    )
    sub.add_argument(
        "--death-timeout",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="a worker ends after so long without a scheduler",
    )
    sub.add_argument(
        "--idle-timeout",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="a worker ends after so long without a run",
    )
