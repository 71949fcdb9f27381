"""Runs on other machines: with $ENGINE set, Guild starts `runcatalog.cluster.proxy` in place of a run's process.

`runcatalog.guild.import_hook` makes the change.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

VARIABLE = "ENGINE"
_PROXY = "runcatalog.cluster.proxy"
_RUN_MODULE = "guild.op_main"  # its first argument is the operation's script
# A script that imports these starts other runs: it stays, they go.
_STAYS = {"runcatalog.guild.child_runs", "runcatalog.search.driver"}
_LOOKS_UP = "runcatalog.guild.finished_runs"
_RECORDS = re.compile(rb"""["'/]records["'/]""")  # a path, or a part of one


def require() -> None:
    """End with a line if $ENGINE is set, but Python has not loaded the import hook where it started.

    Without that, restarted runs and trials would silently run here.
    """
    name = "runcatalog_engine.pth"
    folders = {Path(path) for path in sys.path if path}
    if os.environ.get(VARIABLE) and not any((folder / name).is_file() for folder in folders):
        raise SystemExit(
            f"{VARIABLE} is set, but {name} is not installed beside the packages: `make setup` puts it there, "
            "or `pip install` of this library without -e"
        )


class Places:
    """How many runs an engine runs at once, asked for again while they run: workers come and go.

    Args:
        free: Leave out places that other runs occupy.

    Raises:
        SystemExit: The engine cannot be reached.
    """

    def __init__(self, free: bool = False) -> None:
        from runcatalog.cluster.engine import EngineError
        from runcatalog.record.errors import UserError

        self._free, self._own = free, set[str]()
        try:
            self._known = self._ask()
        except (EngineError, UserError) as error:
            raise SystemExit(f"engine: {error}") from None

    def __call__(self, running: Iterable[str] = ()) -> int:
        """Return the number, at least 1; the last known one while the engine does not answer.

        Args:
            running: Ids of runs that occupy places for the caller.
        """
        from runcatalog.cluster.engine import EngineError
        from runcatalog.record.errors import UserError

        self._own |= set(running)
        with contextlib.suppress(EngineError, UserError):  # engines.yml is being edited
            self._known = self._ask()
        return self._known

    def _ask(self) -> int:
        from runcatalog.cluster import dask_engine

        return dask_engine.places(_settings(), self._own if self._free else None)


def _settings() -> Any:
    from runcatalog.cluster import engines
    from runcatalog.record.provenance.environment import project_root

    # Guild's own batches have no project, but a folder in which they were typed.
    folder = os.environ.get("PROJECT_DIR") or os.environ.get("CMD_DIR")
    return engines.read(Path(folder) if folder else project_root())


def change_op(op: Any) -> None:
    """Let Guild start a proxy in place of a run's process, where $ENGINE is set."""
    init, start = op.init_run, op._op_start_proc

    @functools.wraps(init)
    def init_run(operation: Any, run_dir: str | None = None) -> Any:
        if os.environ.get(VARIABLE):  # before Guild makes or changes the run
            _refuse_bad_settings(operation)
        return init(operation, run_dir)

    def start_elsewhere(operation: Any, run: Any, quiet: bool, extra_env: Any) -> Any:
        if not os.environ.get(VARIABLE):
            return start(operation, run, quiet, extra_env)
        command, directory = operation.cmd_args, Path(run.dir)
        if not stays(command, directory, run.batch_proto):
            added = {"ENGINE_VARIABLES": ",".join(operation.cmd_env)}
            if reads_records(command, directory):
                added["ENGINE_RECORDS"] = "1"
            if looks_up_runs(command, directory):
                added["ENGINE_LOOK_UP"] = "1"
            operation.cmd_env = {**operation.cmd_env, **added}
            # The installed library: the run's own copy may be older.
            operation.cmd_args = [sys.executable, "-I", "-um", _PROXY, *command]
        return start(operation, run, quiet, extra_env)

    op.init_run, op._op_start_proc = init_run, start_elsewhere


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
    """Return whether a run's process stays here: a batch, steps, or a script that starts other runs.

    Args:
        command: The run's command.
        directory: Its directory, with its copy of the code.
        proto: The prototype of the trials, for a batch.
    """
    if proto is not None or _RUN_MODULE not in command:
        return proto is not None or any(word.startswith("guild.") for word in command)
    return not _STAYS.isdisjoint(_imports(command, directory))


def reads_records(command: Sequence[str], directory: Path) -> bool:
    """Return whether a run's script, or a module of the project that it imports, names the folder of records."""
    found = _imports(command, directory).values() if _RUN_MODULE in command else ()
    return any(path is not None and _RECORDS.search(path.read_bytes()) for path in found)


def looks_up_runs(command: Sequence[str], directory: Path) -> bool:
    """Return whether a run's script may look for finished runs in the Guild home."""
    return _RUN_MODULE in command and _LOOKS_UP in _imports(command, directory)


def _imports(command: Sequence[str], directory: Path) -> dict[str, Path | None]:
    """Return the modules that a run's script imports, directly or through modules of the project.

    Returns:
        Their files by name; None for modules of other packages.
    """
    main = command[list(command).index(_RUN_MODULE) + 1]
    folder, _, module = main.rpartition("/")
    folders, found, waiting = (directory / folder, directory), dict[str, Path | None](), [module]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = path = _file_of(name, folders)
        if path is not None:
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            waiting += _imported_by(path, package)
    return found


def _file_of(module: str, folders: Sequence[Path]) -> Path | None:
    if module.startswith("runcatalog."):
        # The library's own modules start no runs, but for searches.
        if not module.startswith("runcatalog.search."):
            return None
        with contextlib.suppress(ModuleNotFoundError):  # a name in a module
            known = importlib.util.find_spec(module)
            return Path(known.origin) if known and known.origin else None
        return None
    path = Path(*module.split("."))
    candidates = [
        folder / each
        for folder in folders
        for each in (path.with_suffix(".py"), path / "__init__.py")
    ]
    return next((each for each in candidates if each.is_file()), None)


def _imported_by(path: Path, package: str) -> list[str]:
    """Return the modules, and names in modules, that a file in a package imports."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return []  # the run will say so
    names: list[str] = []
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Import):
            names += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            relative = "." * statement.level + (statement.module or "")
            with contextlib.suppress(ImportError):  # above the package: the run will say so
                module = importlib.util.resolve_name(relative, package)
                names += [module, *(f"{module}.{alias.name}" for alias in statement.names)]
    return names
