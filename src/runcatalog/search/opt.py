"""Search over the flags of another operation, as a separate operation such as `ppo:opt@gp`.

The run itself becomes the batch: its trials are linked from its directory, so that the search has a single run and
id, and `guild run --restart RUN -y` continues it. Options that are not listed here are flags of the optimised
operation.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runcatalog.guild import child_environment
from runcatalog.guild.compat import COMMAND
from runcatalog.search import driver, options
from runcatalog.search.core import METHODS
from runcatalog.search.space import SearchError


def main() -> None:
    """Convert the current Guild run to a batch, unless it is one already, and run it."""
    parser = options.Parser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--operation", required=True, help="operation to optimise")
    parser.add_argument(
        "--space",
        required=True,
        help="search space: FLAG=uniform[LOW:HIGH], FLAG=loguniform[LOW:HIGH], FLAG=[A, B]; "
        "separated by ;",
    )
    parser.add_argument("--method", choices=METHODS, default="gp", help="gp or random")
    parser.add_argument(
        "--trials", type=int, default=driver.DEFAULT_TRIALS, help="number of trials"
    )
    options.add(parser, "gp")
    arguments, rest = parser.parse_known_args()
    run = _current_run()
    fixed = _flags(rest, run.get("flags") or {})
    # The seed of the search is also a flag of the trials.
    if arguments.seed is not None:
        fixed["seed"] = str(arguments.seed)
    if arguments.trials < 1:
        raise SearchError(f"trials must be at least 1, got {arguments.trials}")
    seed = driver.seed_of(run, arguments.seed)
    settings = options.settings(arguments, arguments.method, seed)
    if run.batch_proto is None:
        _become_batch(run, arguments, fixed)
    driver.run(driver.current_batch(), settings, arguments.prev_trials, arguments.parallel)


def _flags(arguments: Sequence[str], typed: Mapping[str, Any]) -> dict[str, str]:
    """Return `--name value` pairs by name, in the notation of `guild run`; raise SearchError for anything else.

    `typed` are the flags of this run. Guild passes False to a script as an empty text.
    """
    from runcatalog.guild.compat import flag_util

    names, values = arguments[::2], arguments[1::2]
    for position, name in enumerate(names):
        if not name.startswith("--") or position >= len(values):
            raise SearchError(f"expected --FLAG VALUE, got {' '.join(arguments)}")
    pairs = {n[2:]: v for n, v in zip(names, values, strict=True)}
    return {n: v or flag_util.encode_flag_val(typed.get(n, "")) for n, v in pairs.items()}


def _current_run() -> Any:
    from runcatalog.guild.compat import api as guild_api

    try:
        return guild_api.current_run()
    except guild_api.NoCurrentRun:
        raise SearchError(
            "this runs under Guild: declare it as an operation and start it with `guild run`"
        ) from None


def _become_batch(run: Any, arguments: argparse.Namespace, fixed: dict[str, str]) -> None:
    """Write the attributes of a batch to the run: prototype of the operation, objective, number of trials."""
    from runcatalog.guild.compat import run as guild_run

    with tempfile.TemporaryDirectory(dir=run.guild_path()) as folder:
        staged = Path(folder) / "staged"
        _stage(staged, arguments, fixed)
        batch = guild_run.for_dir(str(staged))
        run.write_attr("objective", batch.get("objective"))
        run.write_attr("max_trials", arguments.trials)
        # Last and atomically: Guild restarts a run with a prototype as a batch.
        shutil.move(staged / ".guild" / "proto", run.guild_path("proto"))


def _stage(directory: Path, arguments: argparse.Namespace, fixed: dict[str, str]) -> None:
    """Let Guild check the flags and stage the batch, as with `--optimizer`."""
    space = [part.strip() for part in arguments.space.split(";") if part.strip()]
    searched = {part.partition("=")[0] for part in space}
    flags = [f"{name}={value}" for name, value in fixed.items() if name not in searched]
    command = [sys.executable, "-P", "-m", COMMAND, "run", arguments.operation]
    command += [*space, *flags, "--optimizer", arguments.method]
    command += ["--stage", "--run-dir", str(directory), "--quiet", "--yes"]
    done = subprocess.run(
        command,
        cwd=os.environ.get("PROJECT_DIR", "."),
        env=child_environment.environment(),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0 or not (directory / ".guild" / "proto").is_dir():
        lines = (done.stderr or done.stdout).splitlines()
        text = " ".join(" ".join(line for line in lines if not line.startswith("WARNING")).split())
        text = text.removeprefix("guild: ")
        for advice in (" Run the command again", " Try 'guild"):
            text = text.partition(advice)[0]
        raise SearchError(f"{arguments.operation} cannot be searched: {text}")


if __name__ == "__main__":
    driver.main(main)
