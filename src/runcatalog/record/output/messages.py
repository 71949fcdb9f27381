"""What a run prints about itself at its start and at its end."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runcatalog.numbers import duration
from runcatalog.record.lifecycle import signals
from runcatalog.record.output import outcome
from runcatalog.record.output.progress import done_text
from runcatalog.record.provenance import environment, patch
from runcatalog.record.training.checkpoint import checkpoints_in

_SHOWN = 6  # names of files


def started(run_id: str, operation: str, uri: str) -> str:
    """Return the lines at the start of a run.

    Args:
        run_id: The run's id.
        operation: Operation or script.
        uri: MLflow that the run is sent to; "" if it is sent to none.
    """
    sent = f"sent to MLflow at {uri}" if uri else "not sent to MLflow"
    return f"run {run_id[:8]} of {operation}, {sent}\n  to follow it: catalog watch"


def finished(run_id: str, written: Mapping[str, Any], directory: Path) -> str:
    """Return the lines at the end of a finished run: its result as in the catalog, its files, how to show it.

    Args:
        run_id: The run's id.
        written: Content of result.json.
        directory: The run's directory.
    """
    lines = [
        f"run {run_id[:8]} finished after {duration(written['wall_seconds'])}: {outcome.sentence(written['result'])}"
    ]
    paths = (directory / "artifacts").glob("*")
    files = sorted(path.name for path in paths if path.is_file() and path.name != patch.NAME)
    if files:
        more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
        lines.append(f"  files: {', '.join(files[:_SHOWN])}{more} in {directory / 'artifacts'}")
    lines.append(f"  to show it: catalog row {run_id[:8]}")
    return "\n".join(lines)


def interrupted(run_id: str, end: signals.End, progress: Mapping[str, Any], directory: Path) -> str:
    """Return the lines at the end of a run that failed or was killed: how far it came, and how to go on.

    Args:
        run_id: The run's id.
        end: How the run ended.
        progress: ``done``, ``total`` and ``unit`` as reported last; empty before the first report.
        directory: The run's directory.
    """
    far = ""
    if progress:
        far = f" after {done_text(progress['done'], progress['total'], progress['unit'])}"
    if end.status == signals.FAILED:
        return f"run {run_id[:8]} failed{far}\n  to show it: catalog row {run_id[:8]}"
    stopped = f"run {run_id[:8]} stopped ({end.reason}){far}"
    if environment.is_submitted():  # its submitter knows whether it goes on elsewhere
        return stopped
    return f"{stopped}\n{how_to_continue(run_id, directory)}"


def how_to_continue(run_id: str, directory: Path) -> str:
    """Return the line that says how to continue a run that was stopped.

    Args:
        run_id: The run's id.
        directory: The run's directory.
    """
    checkpoints = checkpoints_in(directory / "checkpoints")
    begin = (
        f"from the checkpoint at {int(checkpoints[0].name)}"
        if checkpoints
        else "from its beginning"
    )
    return f"  to continue it {begin}: {_continuing(run_id, directory)}"


def restart(run_id: str) -> str:
    """Return the command that continues a run of Guild, where its environment sends runs."""
    engine = os.environ.get("ENGINE")
    return f"{f'ENGINE={engine} ' if engine else ''}guild run --restart {run_id[:8]} -y"


def _continuing(run_id: str, directory: Path) -> str:
    if os.environ.get("GUILD_OP"):
        return restart(run_id)
    name = Path(sys.executable).name
    python = name if shutil.which(name) == sys.executable else sys.executable
    return shlex.join([python, sys.argv[0], "--resume", str(directory)])


def not_sent(problem: str) -> str:
    """Return the line about an MLflow that could not be used."""
    return f"  not sent yet: {problem}; nothing is lost, `catalog sync` sends the run later"
