"""Environment and commands for a run that starts `guild` itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from runcatalog.guild.compat import COMMAND
from runcatalog.record.output import terminal_output

# Variables that Guild adds to the environment of a run.
_GUILD_VARIABLES = ("RUN_DIR", "RUN_ID", "GUILD_OP", "GUILD_SOURCECODE", "GUILD_PLUGINS", "CMD_DIR")


def environment() -> dict[str, str]:
    """Return the environment without Guild's variables of this run and its copy of the source code.

    Raises:
        KeyError: This process is not a Guild run.
    """
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in _GUILD_VARIABLES and not name.startswith("FLAG_")
    }
    run_directory = os.environ["RUN_DIR"]
    paths = variables.pop("PYTHONPATH", "").split(os.pathsep)
    paths_outside = [
        p for p in paths if p and p != "." and not os.path.abspath(p).startswith(run_directory)
    ]
    if paths_outside:
        variables["PYTHONPATH"] = os.pathsep.join(paths_outside)
    # The progress of this run is shown, not that of its parallel children.
    variables[terminal_output.VARIABLE] = terminal_output.OF_CHILD
    return variables


def command(arguments: Sequence[str]) -> list[str]:
    """Return the command that runs Guild with these arguments, in this Python."""
    return [sys.executable, "-P", "-m", COMMAND, *arguments]


def restart(run: str) -> list[str]:
    """Return the command that restarts a run."""
    return command(["run", "--yes", "--restart", run])


def start_again(run: str, **options: Any) -> subprocess.Popen[bytes]:
    """Restart a run in a Guild process of its own: Guild runs one at a time in a process.

    Args:
        run: Its id.
        options: Of `subprocess.Popen`.
    """
    folder = os.environ.get("PROJECT_DIR") or os.environ.get("CMD_DIR") or "."
    return subprocess.Popen(restart(run), cwd=folder, env=environment(), **options)
