"""Keeps `guild` quick in a project of many operations; Guild loads it by its entry point.

Guild 0.9 copies each flag that it imports from a script together with what the flag refers to: its
operation, and through it the whole Guild file with all flags copied so far. With n operations of m
flags each that takes time as (n m)^2; a copy that shares the operation, which Guild replaces right
after, takes it as n m.

It also reads what it knows of a script's flags for each operation of the script anew; once is enough.
And it reads YAML, of which each run has a dozen small files, with the slow one of PyYAML's two
parsers. What it does not know it asks the script for in a new
Python, which takes half a second each, and nearly nothing of that is the script's; a copy of
Guild's own process is there at once.

It takes secrets out of the label and the output that Guild keeps of a run, too: the shell that runs it
knows them, and the one from which it is published later may not.
"""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import yaml
from guild import guildfile
from guild.plugin import Plugin

if TYPE_CHECKING:
    from guild.plugins.python_script import PythonScriptPlugin

    from runcatalog.record.provenance.redact import Redactor

ASKS = "guild.plugins.import_argparse_flags_main"  # what Guild runs in a new Python


class FlagCopies(Plugin):
    """Gives Guild's flags a way of being copied, and of being read once, and Guild a faster reader of YAML."""

    def __init__(self, ep: Any) -> None:
        # Not before Guild does it: it moves what its modules and ours are found by.
        from guild.plugins import python_script

        super().__init__(ep)
        _hide_secrets()
        guildfile.FlagDef.__deepcopy__ = _copied
        guildfile.FlagChoice.__deepcopy__ = _chosen
        yaml.safe_load = _load
        python_script.PythonScriptPlugin._cached_data = _cached_data
        if hasattr(os, "fork"):
            python_script.subprocess = SimpleNamespace(
                **(vars(subprocess) | {"check_output": _answer})
            )


def _hide_secrets() -> None:
    """Lets Guild write labels and keep output without the values of this shell's secrets."""
    from guild.op_util import RunOutput
    from guild.run import Run

    write, close = Run.write_attr, RunOutput._close
    if hasattr(write, "of_guild"):
        return  # by an earlier instance of the plugin

    def write_attr(self: Any, name: str, val: Any, raw: bool = False) -> None:
        write(self, name, _without_secrets(name, val), raw)

    def close_output(self: Any) -> None:
        close(self)
        own = Path(self._run.dir)
        # Trials are run by a process that loads no plugins.
        for directory in [own, *(each for each in own.iterdir() if each.is_symlink())]:
            _hide_in(directory)

    write_attr.of_guild = write  # type: ignore[attr-defined]
    Run.write_attr, RunOutput._close = write_attr, close_output


_LABELS = {"op": "label-template", "run_params": "label"}  # what a restarted run's is made of


def _without_secrets(attribute: str, value: Any) -> Any:
    """The value of a run's attribute, without secrets where it is or makes its label."""
    if attribute == "label" and isinstance(value, str):
        return _redactor().text(value)
    made = _LABELS.get(attribute)
    if made and isinstance(value, dict) and isinstance(value.get(made), str):
        return value | {made: _redactor().text(value[made])}
    return value


def _hide_in(directory: Path) -> None:
    """Takes secrets out of the label and the output that Guild keeps of a run."""
    from runcatalog.record.delivery.outcome import hide_label

    hide_label(directory, _redactor().text)
    path = directory / ".guild" / "output"
    with suppress(OSError):
        if (clean := _redactor().file(path, known=True)) is not None:
            path.write_text(clean, encoding="utf-8", newline="")


@lru_cache
def _redactor() -> Redactor:
    from runcatalog.record.provenance.redact import Redactor  # 0.1 s, and few commands need it

    return Redactor([os.environ])


def _copied(flag: guildfile.FlagDef, memo: dict[int, Any]) -> guildfile.FlagDef:
    made = copy.copy(flag)
    memo[id(flag)] = made  # its choices refer to it
    for name, value in vars(flag).items():
        if value and isinstance(value, list | dict):
            setattr(made, name, copy.deepcopy(value, memo))
    return made


def _chosen(choice: guildfile.FlagChoice, memo: dict[int, Any]) -> guildfile.FlagChoice:
    made = copy.copy(choice)
    made.flagdef = memo.get(id(choice.flagdef), choice.flagdef)
    made.flags = copy.deepcopy(choice.flags, memo)
    return made


def _load(stream: Any) -> Any:
    """As `yaml.safe_load`, with the parser that is compiled, where there is one: in an eighth of the time."""
    return yaml.load(stream, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _cached_data(self: PythonScriptPlugin, path: str, base_args: list[str]) -> tuple[Any, str]:
    """What Guild keeps of a script's flags, None if it is not of the script as it is; and where."""
    kept = self._cached_data_path(path, base_args)
    # A script's flags may come from a module beside it, which Guild does not look at.
    if not self._cache_valid(kept, path) or os.path.getmtime(kept) < _changed(path):
        return None, kept
    return pickle.loads(_read(kept, os.stat(kept).st_mtime_ns)), kept  # its reader changes it


def _changed(path: str) -> float:
    """When a module in a script's folder changed last, s since the epoch."""
    with os.scandir(os.path.dirname(path) or ".") as entries:
        return max(
            (each.stat().st_mtime for each in entries if each.name.endswith(".py")), default=0
        )


@lru_cache
def _read(path: str, changed: int) -> bytes:
    with open(path, encoding="utf-8") as file:
        return pickle.dumps(_load(file))


def _answer(command: list[str], *, stderr: int, env: dict[str, str]) -> bytes:
    """As `subprocess.check_output`, in a copy of this process if it is a script that is asked.

    What goes wrong there is told by a new Python.
    """
    if command[1:3] == ["-m", ASKS]:
        # The studies' packages register environments: of what scripts load, by far the slowest.
        with suppress(ImportError):
            import_module("gymnasium")
        with tempfile.TemporaryFile() as output:
            child = os.fork()
            if not child:
                _ask(command[2:], env, output.fileno())
            _, status = os.waitpid(child, 0)
            output.seek(0)
            if status == 0:
                return output.read()
    return subprocess.check_output(command, stderr=stderr, env=env)


def _ask(arguments: list[str], env: dict[str, str], output: int) -> NoReturn:
    """Makes this process, a copy, what a new Python would be, asks the script, and ends it."""
    code = 1
    try:
        for each in (1, 2):
            os.dup2(output, each)
        sys.stdout, sys.stderr = (os.fdopen(each, "w", closefd=False) for each in (1, 2))
        os.environ.clear()
        os.environ.update(env)
        sys.argv = arguments
        sys.path[:] = ["", *env["PYTHONPATH"].split(os.pathsep)]
        sys.dont_write_bytecode = True
        # Guild looks for its own files wherever there is a `guild.yml`, and would find no module.
        sys.path_hooks[:] = [each for each in sys.path_hooks if not _is_guilds(each)]
        sys.path_importer_cache.clear()
        _forget_projects()
        import_module(ASKS).main()
        code = 0
    except SystemExit as end:
        code = 0 if end.code in (0, None) else 1
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _is_guilds(hook: Any) -> bool:
    return getattr(hook, "__module__", "").startswith("guild.")


def _forget_projects() -> None:
    """Has what belongs to no installation imported anew: the script's project may have its own."""
    installed = tuple({sys.prefix, sys.base_prefix})
    for name, module in list(sys.modules.items()):
        if not (getattr(module, "__file__", None) or sys.prefix).startswith(installed):
            del sys.modules[name]
