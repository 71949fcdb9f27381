"""Python imports this first in every process of the arena: it kills the process at a call that is named.

Where there is a spawner (`spawner.py`), the process is not this one but a fork of the spawner, which has the
packages loaded; this one waits for its end.

The file ``$FAULTS/<role>`` names one call: ``{"call": "os.replace", "when": "before", "word": "result.json"}``.
The process of that role that makes the call next (with ``word`` in its arguments) takes the file away and
dies by SIGKILL: ``before`` the call, ``after`` it, or ``half`` way through a write. Nothing else is changed,
but that a sender does not wait: it sends every second, not every minute.
"""

import functools
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ.get("FAULTS", "/nonexistent"))
HURRY = 1.0  # s
ROLES = {  # by what is on the command line
    "sender": "runcatalog.record.delivery.sender",
    "server": "uvicorn",
    "command": "-m mlflow server",
    "sync": "runcatalog.cli.main",
    "training": "walk.py",
}
CLIENT = ("create_experiment", "create_run", "log_batch", "log_artifact", "set_terminated")
STORE = ("create_experiment", "create_run", "log_batch", "_log_metrics", "update_run_info")
IN_THE_STORE = {
    "mlflow.store.tracking.sqlalchemy_store": ("SqlAlchemyStore", STORE),
    "mlflow.store.artifact.local_artifact_repo": ("LocalArtifactRepository", ("log_artifact",)),
}
METHODS = {  # module: class and methods to watch, by role
    "sender": {"mlflow.tracking.client": ("MlflowClient", CLIENT)} | IN_THE_STORE,
    "sync": {"mlflow.tracking.client": ("MlflowClient", (*CLIENT, "set_tag"))} | IN_THE_STORE,
    "server": IN_THE_STORE,
    "training": {},
    "command": {},
}


def role():
    """Return the role of this process, None outside of the arena."""
    line = " ".join(sys.orig_argv)
    return next((name for name, word in ROLES.items() if word in line), None)


def strike(me, call, when, arguments):
    """Kill this process if this is the call that the file names."""
    path = FOLDER / me
    try:
        fault = json.loads(path.read_text())
    except (OSError, ValueError):
        return
    if (fault["call"], fault["when"]) != (call, when) or fault["word"] not in arguments:
        return
    try:
        path.rename(path.with_name(f"{me}.done"))  # only one process is hit
    except OSError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def words(arguments):
    """Return the arguments as text; an open file by its path."""
    shown = []
    for argument in arguments:
        if isinstance(argument, int):
            try:
                shown.append(os.readlink(f"/proc/self/fd/{argument}"))
            except OSError:
                continue
        elif isinstance(argument, str | os.PathLike):
            shown.append(os.fspath(argument))
    return " ".join(shown)


def watch(owner, name, me, call):
    """Replace a function by one that does the same and may kill the process before or after the call."""
    real = getattr(owner, name)

    @functools.wraps(real)
    def watched(*args, **kwargs):
        shown = words(args)
        strike(me, call, "before", shown)
        result = real(*args, **kwargs)
        strike(me, call, "after", shown)
        return result

    setattr(owner, name, watched)


def tear_writes(me):
    """Let ``os.write`` write the half of a line before the process dies."""
    real = os.write

    def write(file, data):
        armed = (FOLDER / me).exists()
        if armed and len(data) > 1 and '"half"' in (FOLDER / me).read_text():
            half = real(file, data[: len(data) // 2])
            strike(me, "os.write", "half", words([file]))
            return half
        return real(file, data)

    os.write = write


def watch_methods(me, module, owner, methods):
    """Watch methods of a class."""
    for method in methods:
        watch(getattr(module, owner), method, me, f"{owner}.{method}")


class Hook:
    """Watches the methods of a class as soon as its module has been imported."""

    def __init__(self, me):
        self.me = me
        self.waiting = dict(METHODS[me])

    def find_spec(self, name, path=None, target=None):
        if name not in self.waiting:
            return None
        watched = self.waiting.pop(name)
        spec = importlib.util.find_spec(name)
        real = spec.loader.exec_module

        def exec_module(module):
            real(module)
            watch_methods(self.me, module, *watched)

        spec.loader.exec_module = exec_module
        return spec


def hurry():
    """Let a sender send often on a busy machine."""
    real_select, real_sleep = select.select, time.sleep
    select.select = lambda r, w, x, t=None: real_select(
        r, w, x, HURRY if t is None else min(t, HURRY)
    )
    time.sleep = lambda seconds: real_sleep(min(seconds, HURRY))
    os.sched_setscheduler = lambda *arguments: None


def prepare(me):
    """Watch the calls of a role at which it may be killed."""
    if me in ("training", "sender", "sync"):
        watch(os, "replace", me, "os.replace")
        watch(os, "fsync", me, "os.fsync")
    if me == "training":
        watch(os, "rename", me, "os.rename")
        watch(shutil, "rmtree", me, "shutil.rmtree")
        tear_writes(me)
    if me == "sender":
        hurry()
    for name, watched in METHODS[me].items():
        if name in sys.modules:
            watch_methods(me, sys.modules[name], *watched)
    sys.meta_path.insert(0, Hook(me))


def hand_over(me, path):
    """Let the spawner fork this process's program; exit with its exit code."""
    request = {"role": me, "argv": sys.orig_argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as spawner:
        spawner.connect(str(path))
        socket.send_fds(spawner, [f"{len(json.dumps(request)):08d}".encode()], [0, 1, 2])
        spawner.sendall(json.dumps(request).encode())
        code = spawner.recv(16)
    os._exit(int(code or b"137"))


def main():
    me = role()
    if me is None or not FOLDER.is_dir():
        return
    if (FOLDER / "spawner").exists():
        hand_over(me, FOLDER / "spawner")
    prepare(me)


main()
