"""Runs on other machines: with $ENGINE set, Guild starts `runcatalog.cluster.proxy` in place of a run's process.

Guild loads no plugins for `guild run --restart`, nor in the process that runs the trials of a batch. So
`runcatalog_engine.pth` imports this module where Python starts, and it waits for Guild's modules.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "ENGINE"
_PROXY = "runcatalog.cluster.proxy"
_RUN_MODULE = "guild.op_main"  # its first argument is the operation's script
# A script that imports these starts other runs, or looks for them in the Guild home: it stays, they go.
_STAYS = ("runcatalog.guild.child_runs", "runcatalog.guild.child_environment", "runcatalog.search.driver")
_POLL_SECONDS = 0.1


class _Changes:
    """An import hook that changes modules of Guild when they have been loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the module's spec, with a loader that changes it; None for other modules."""
        change = _CHANGES.get(name)
        if change is None:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_change(module: ModuleType) -> None:
                execute(module)
                change(module)

            spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Wait for Guild's modules; at once for those that are loaded."""
    if any(isinstance(finder, _Changes) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Changes())  # type: ignore[arg-type]
    for name, change in _CHANGES.items():
        if name in sys.modules:
            change(sys.modules[name])


def places() -> int:
    """Return how many runs the engine runs at once.

    Raises:
        SystemExit: It cannot be reached.
    """
    from runcatalog.cluster import dask_engine
    from runcatalog.cluster.engine import EngineError
    from runcatalog.record.errors import UserError

    try:
        return dask_engine.places(_settings())
    except (EngineError, UserError) as error:
        raise SystemExit(f"engine: {error}") from None


def _settings() -> Any:
    from runcatalog.cluster import engines
    from runcatalog.record.provenance.environment import project_root

    return engines.read(project_root())


def _change_op(op: ModuleType) -> None:
    start = op._op_start_proc

    def start_elsewhere(operation: Any, run: Any, quiet: bool, extra_env: Any) -> Any:
        if os.environ.get(VARIABLE) and not stays(operation.cmd_args, Path(run.dir), run.batch_proto):
            _refuse_bad_settings(operation)
            names = ",".join(operation.cmd_env)
            operation.cmd_env = {**operation.cmd_env, "ENGINE_VARIABLES": names}
            operation.cmd_args = [sys.executable, "-P", "-um", _PROXY, *operation.cmd_args]
        return start(operation, run, quiet, extra_env)

    op._op_start_proc = start_elsewhere


def _refuse_bad_settings(operation: Any) -> None:
    """End with a line where `engines.yml` is wrong."""
    from runcatalog.cluster import engines
    from runcatalog.record.errors import UserError

    project = operation.cmd_env.get("PROJECT_DIR") or os.environ.get("PROJECT_DIR") or os.getcwd()
    try:
        engines.read(Path(project))
    except UserError as error:
        raise SystemExit(str(error)) from None


def stays(command: Sequence[str], directory: Path, proto: Any = None) -> bool:
    """Return whether a run's process stays here: a batch, steps, or a script that starts or looks for other runs.

    Args:
        command: The run's command.
        directory: Its directory, with its copy of the code.
        proto: The prototype of the trials, for a batch.
    """
    if proto is not None or _RUN_MODULE not in command:
        return proto is not None or any(word.startswith("guild.") for word in command)
    main = command[list(command).index(_RUN_MODULE) + 1]
    if main.startswith("guild."):
        return True
    folder, _, module = main.rpartition("/")
    return _reaches(module, [directory / folder, directory], set())


def _reaches(module: str, folders: Sequence[Path], seen: set[str]) -> bool:
    """Return whether a module imports one of `_STAYS`, directly or through modules of the project."""
    if module in _STAYS:
        return True
    if module in seen:
        return False
    seen.add(module)
    parts = module.split(".")
    candidates = [
        folder.joinpath(*parts[:-1], last)
        for folder in folders
        for last in (f"{parts[-1]}.py", f"{parts[-1]}/__init__.py")
    ]
    if module.startswith("runcatalog.search."):
        found = importlib.util.find_spec(module)
        candidates += [Path(found.origin)] if found and found.origin else []
    elif parts[0] == "runcatalog":
        return False  # the library's own modules start no runs
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        return False
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return False  # the run will say so
    names: list[str] = []
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Import):
            names += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            names.append(statement.module)
            names += [f"{statement.module}.{alias.name}" for alias in statement.names]
    return any(_reaches(name, folders, seen) for name in names)


def _change_batches(batch_util: ModuleType) -> None:
    def run_trials(batch_run: Any, trials: Any) -> None:
        runs = batch_util._init_trial_runs(batch_run, trials)
        fails = batch_util.fail_on_trial_error(batch_run)
        run_side_by_side([run.id for run in runs if run.status == "pending"], places(), fails)

    if os.environ.get(VARIABLE):
        batch_util._run_trials = run_trials


def run_side_by_side(runs: Sequence[str], count: int, stop_on_failure: bool) -> None:
    """Restart runs with Guild, several at once; SIGTERM stops all.

    Args:
        runs: Their ids.
        count: How many at once.
        stop_on_failure: Whether none is started after one that failed.

    Raises:
        SystemExit: One failed and `stop_on_failure` is set.
    """
    from runcatalog.guild import child_environment, child_runs
    from runcatalog.guild.compat import COMMAND

    waiting, stopped, failed = list(runs), list[int](), 0
    running: list[subprocess.Popen[bytes]] = []
    folder = os.environ.get("PROJECT_DIR") or os.environ.get("CMD_DIR")
    variables = child_environment.environment()
    before = signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    try:
        while running or (waiting and not stopped):
            while waiting and len(running) < count and not stopped and not (failed and stop_on_failure):
                command = [sys.executable, "-P", "-m", COMMAND, "run", "--yes", "--restart", waiting.pop(0)]
                running.append(subprocess.Popen(command, cwd=folder, env=variables))
            if not running:
                break
            time.sleep(_POLL_SECONDS)
            if stopped:
                for process in running:
                    child_runs.stop(process)
            failed = next((p.returncode for p in running if p.poll()), failed)
            running = [process for process in running if process.returncode is None]
    except KeyboardInterrupt:  # which the runs have got too
        for process in running:
            process.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    if stopped:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    if failed and stop_on_failure:
        raise SystemExit(failed)


_CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "guild.op": _change_op,
    "guild.batch_util": _change_batches,
}

install()
