"""Guild plugin: fast loading of projects with many operations, and imports on Python 3.12 and later.

Guild loads it by its entry point, for every project of the environment. Only Guild's own modules are changed:

- Copies of flags. Guild 0.9 copies every imported flag together with the objects that it refers to: its operation, and
  through it the whole Guild file with all flags copied so far. For n operations of m flags that takes (n m)^2
  steps. A copy that shares the operation, which Guild replaces right after, takes n m.
- Flags at need. Guild reads and copies the flags of all operations for every command; with the plugin those of the
  operations whose flags a command asks for.
- Cache of a script's flags. Guild parses it again for every operation of the script; the plugin parses it once.
- YAML. Guild reads a dozen small files per run, and formats the flags of all operations for `guild ops`, with the
  slower of PyYAML's two parsers and emitters.
- Flags of a script. To read them, Guild starts a new Python, which takes half a second; a fork of Guild's process
  starts at once.
- Imports. Guild's path hook creates finders without `find_spec`, which Python 3.12 calls.
- Switches that turn something off. Guild loses, as it writes a run's flags, that an option such as argparse's
  `store_false` takes no value; every trial of a sweep and every restarted run then gets one.
- Limits. A Guild file whose aliases unfold to gigabytes is refused, before Guild unfolds them.
- Other machines. See `runcatalog.guild.elsewhere`.
- Progress. Guild passes a run's output on through a pipe, so a variable says whether a terminal shows it.
- Secrets. Their values are in the environment of the shell that starts a run, but perhaps not of the one that
  publishes it, so they are removed from the label and the output when Guild stores these.
"""

from __future__ import annotations

import copy
import os
import pickle
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import yaml
from guild.plugin import Plugin

import runcatalog
from runcatalog.guild import elsewhere
from runcatalog.guild.compat import FLAG_READER, REFRESHING
from runcatalog.record.journal.files import read_json, write_json
from runcatalog.record.output import terminal_output
from runcatalog.record.provenance.git import commit_facts
from runcatalog.record.untrusted import check_unfolded

if TYPE_CHECKING:
    from runcatalog.guild.compat import guildfile, python_script
    from runcatalog.record.provenance.redact import Redactor


class GuildPlugin(Plugin):
    """Installs the changes when Guild loads its plugins."""

    def __init__(self, ep: Any) -> None:
        # Imported here: these modules change sys.path_hooks, which has to happen after Guild has started.
        from runcatalog.guild.compat import guildfile, model, python_script, run, yaml_util

        super().__init__(ep)
        terminal_output.tell_children()
        _hide_secrets()
        _keep_switches()
        elsewhere.require()
        if not hasattr(model.ModelImporter, "find_spec"):
            model.ModelImporter.find_spec = _find_no_spec
        _read_flags_at_need()
        guildfile.FlagDef.__deepcopy__ = _copy_flag
        guildfile.FlagChoice.__deepcopy__ = _copy_choice
        for module in (guildfile, run, yaml_util):
            module.yaml = _compiled_yaml()
        python_script.PythonScriptPlugin._cached_data = _cached_data
        python_script.cli = SimpleNamespace(
            **(vars(python_script.cli) | {"note_once": _note_reading(python_script.cli.note_once)})
        )
        if hasattr(os, "fork"):
            python_script.subprocess = SimpleNamespace(
                **(vars(subprocess) | {"check_output": _read_flags})
            )

    def guildfile_data(self, data: Any, src: str) -> None:
        """Refuse a Guild file that unfolds to gigabytes; Guild calls it before it uses the content.

        Raises:
            GuildfileError: The file is nested too deeply or unfolds to too much.
        """
        from runcatalog.guild.compat import guildfile

        try:
            check_unfolded(data)
        except ValueError as error:
            raise guildfile.GuildfileError(src, str(error)) from None


def _find_no_spec(self: Any, name: str, target: Any = None) -> None:
    """Find no module, as the finder's `find_module` does: its folder contains models, not modules."""


def _read_flags_at_need() -> None:
    """Let Guild read and merge the flags of an operation's script when they are first asked for."""
    from runcatalog.guild.compat import guildfile, python_script

    read = python_script.PythonScriptPlugin._apply_script_flags
    if hasattr(read, "of_guild"):
        return  # by an earlier instance of the plugin

    def later(self: Any, opdef: Any, local_cache: dict[Any, Any]) -> None:
        vars(opdef)["read_flags"] = lambda: read(self, opdef, local_cache)

    later.of_guild = read  # type: ignore[attr-defined]
    python_script.PythonScriptPlugin._apply_script_flags = later
    for name in ("flags", "_flag_vals"):
        setattr(guildfile.OpDef, name, _with_flags_of_script(name))


def _with_flags_of_script(name: str) -> property:
    """Return an attribute of an operation that the flags of its script change when they are read."""

    def value(operation: Any) -> Any:
        if read_flags := vars(operation).pop("read_flags", None):
            read_flags()
        return vars(operation)[name]

    return property(value, lambda operation, changed: vars(operation).update({name: changed}))


def _hide_secrets() -> None:
    """Let Guild store labels and output without the values of this shell's secrets."""
    from runcatalog.guild.compat import op_util, run

    write, close = run.Run.write_attr, op_util.RunOutput._close
    if hasattr(write, "of_guild"):
        return  # by an earlier instance of the plugin

    def write_attr(self: Any, name: str, val: Any, raw: bool = False) -> None:
        write(self, name, _recorded(name, val), raw)

    def close_output(self: Any) -> None:
        close(self)
        own = Path(self._run.dir)
        with suppress(FileNotFoundError):  # deleted while it ran
            # The process that runs trials does not load plugins.
            for directory in [own, *(entry for entry in own.iterdir() if entry.is_symlink())]:
                _hide_in(directory)

    write_attr.of_guild = write  # type: ignore[attr-defined]
    run.Run.write_attr, op_util.RunOutput._close = write_attr, close_output


def _keep_switches() -> None:
    """Let Guild write that an option takes no value, also where it is given for a flag that is off."""
    from runcatalog.guild.compat import op_cmd

    as_data = op_cmd._cmd_flag_as_data
    if hasattr(as_data, "of_guild"):
        return  # by an earlier instance of the plugin

    def with_switch(cmd_flag: Any) -> Any:
        return as_data(cmd_flag) | ({"arg-switch": False} if cmd_flag.arg_switch is False else {})

    with_switch.of_guild = as_data  # type: ignore[attr-defined]
    op_cmd._cmd_flag_as_data = with_switch


_DECLARING = ".modules"  # end of the name of a file beside Guild's cache of a script's flags
_LABELS = {"op": "label-template", "run_params": "label"}  # sources of a restarted run's label


def _recorded(attribute: str, value: Any) -> Any:
    """Return the value of a run's attribute as it is stored.

    The label and its sources are without secrets. The commit is without Guild's star for changes where only text,
    figures and records have changed.
    """
    if attribute == "vcs_commit" and isinstance(value, str) and value.endswith("*"):
        return value if commit_facts(Path.cwd())["dirty"] else value.rstrip("*")
    if attribute == "label" and isinstance(value, str):
        return _redactor().text(value)
    key = _LABELS.get(attribute)
    if key and isinstance(value, dict) and isinstance(value.get(key), str):
        return value | {key: _redactor().text(value[key])}
    return value


def _hide_in(directory: Path) -> None:
    """Remove secrets from the label and the output that Guild stores for a run."""
    from runcatalog.record.output.outcome import hide_label

    hide_label(directory, _redactor().text)
    path = directory / ".guild" / "output"
    with suppress(OSError):
        if (clean := _redactor().file(path, known=True)) is not None:
            path.write_bytes(clean)


@lru_cache
def _redactor() -> Redactor:
    from runcatalog.record.provenance.redact import Redactor  # 0.1 s, and few commands need it

    return Redactor([os.environ])


def _copy_flag(flag: guildfile.FlagDef, memo: dict[int, Any]) -> guildfile.FlagDef:
    flag_copy = copy.copy(flag)
    memo[id(flag)] = flag_copy  # its choices refer to it
    for name, value in vars(flag).items():
        if value and isinstance(value, list | dict):
            setattr(flag_copy, name, copy.deepcopy(value, memo))
    return flag_copy


def _copy_choice(choice: guildfile.FlagChoice, memo: dict[int, Any]) -> guildfile.FlagChoice:
    choice_copy = copy.copy(choice)
    choice_copy.flagdef = memo.get(id(choice.flagdef), choice.flagdef)
    choice_copy.flags = copy.deepcopy(choice.flags, memo)
    return choice_copy


@lru_cache
def _compiled_yaml() -> ModuleType:
    """Return a copy of the module `yaml` that uses libyaml if available: an eighth of the time, a quarter to write."""
    module = ModuleType("yaml")
    module.__dict__.update(vars(yaml) | {"safe_load": _safe_load, "safe_dump": _safe_dump})
    return module


def _safe_load(stream: Any) -> Any:
    return yaml.load(stream, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _safe_dump(value: Any, stream: Any = None, **options: Any) -> Any:
    return yaml.dump(value, stream, getattr(yaml, "CSafeDumper", yaml.SafeDumper), **options)


def _cached_data(
    self: python_script.PythonScriptPlugin, path: str, base_args: list[str]
) -> tuple[Any, str]:
    """Return Guild's cached flags of a script, None if the script has changed since, and the cache's path."""
    cache = self._cached_data_path(path, base_args)
    # A script may import its flags from other modules, which Guild does not check.
    if not self._cache_valid(cache, path) or os.path.getmtime(cache) < _last_change(path, cache):
        return None, cache
    # The caller changes the data
    return pickle.loads(_read_cache(cache, os.stat(cache).st_mtime_ns)), cache


def _note_reading(note_once: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that says what is read in place of Guild's "Refreshing flags...", on stderr."""
    text = "Reading the flags of new or changed scripts ..."
    return lambda message: note_once(text if message == REFRESHING else message)


def _last_change(path: str, cache: str) -> float:
    """Return when a module in a script's folder, or one that declares its flags, changed last [s since the epoch]."""
    folder = Path(path).parent
    declaring = read_json(Path(cache + _DECLARING)) or {}
    modules = [*folder.glob("*.py"), *map(Path, declaring.get("modules", ()))]
    return max((module.stat().st_mtime for module in modules if module.is_file()), default=0)


@lru_cache
def _read_cache(path: str, changed: int) -> bytes:
    with open(path, encoding="utf-8") as file:
        return pickle.dumps(_safe_load(file))


def _read_flags(command: list[str], *, stderr: int, env: dict[str, str]) -> bytes:
    """Replace `subprocess.check_output`: read a script's flags in a fork of this process.

    If that fails, a new Python runs the command and reports the error.
    """
    from runcatalog.guild.compat import python_script

    if command[1:3] == ["-m", FLAG_READER]:
        # The slowest imports of most scripts; imported before the fork, they are loaded only once.
        for name in ("gymnasium", "runcatalog.record.run"):
            with suppress(ImportError):
                import_module(name)
        with tempfile.TemporaryFile() as output:
            script, _, base_arguments, _ = command[3:]
            cache = python_script.PythonScriptPlugin._cached_data_path(
                script, shlex.split(base_arguments)
            )
            child = os.fork()
            if not child:
                _run_flags_module(command[2:], env, output.fileno(), Path(cache + _DECLARING))
            _, status = os.waitpid(child, 0)
            output.seek(0)
            if status == 0:
                return output.read()
    return subprocess.check_output(command, stderr=stderr, env=env)


def _run_flags_module(
    arguments: list[str], env: dict[str, str], output: int, declaring: Path
) -> NoReturn:
    """Reset this forked process to the state of a new Python, run Guild's module, and exit.

    The modules that declare flags are noted in the file `declaring`, unless there are none.
    """
    code = 1
    try:
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        sys.stdout, sys.stderr = (os.fdopen(d, "w", closefd=False) for d in (1, 2))
        os.environ.clear()
        os.environ.update(env)
        sys.argv = arguments
        sys.path[:] = ["", *env["PYTHONPATH"].split(os.pathsep)]
        sys.dont_write_bytecode = True
        # Guild's hook takes a folder with a `guild.yml` for a folder of models, and does not find its modules.
        sys.path_hooks[:] = [hook for hook in sys.path_hooks if not _is_guild_hook(hook)]
        sys.path_importer_cache.clear()
        _unload_project_modules()
        import_module(FLAG_READER).main()
        code = 0
    except SystemExit as end:
        code = 0 if end.code in (0, None) else 1
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
            if modules := sorted(_declaring_modules()):
                declaring.parent.mkdir(parents=True, exist_ok=True)
                write_json(declaring, {"modules": modules})
        os._exit(code)


def _declaring_modules() -> set[str]:
    """Return the files of the modules of this process that declare the flags of recorded scripts."""
    from runcatalog.record.config import Config

    files, waiting = set[str](), [Config]
    while waiting:
        for declared in waiting.pop().__subclasses__():
            waiting.append(declared)
            files.add(getattr(sys.modules.get(declared.__module__), "__file__", None) or "")
    return files - {""}


def _is_guild_hook(hook: Any) -> bool:
    return getattr(hook, "__module__", "").startswith("guild.")


def _unload_project_modules() -> None:
    """Unload modules outside the installation: the script's project may have its own of the same name."""
    installed = tuple({sys.prefix, sys.base_prefix})
    same = PathFinder.find_spec("runcatalog")
    if same is not None and same.origin == runcatalog.__file__:
        installed += (os.path.join(os.path.dirname(runcatalog.__file__), ""),)
    for name, module in list(sys.modules.items()):
        if not (getattr(module, "__file__", None) or sys.prefix).startswith(installed):
            del sys.modules[name]
