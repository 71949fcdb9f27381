"""Changes of Guild's modules in every process of Guild, made when a module has been loaded.

Guild loads no plugins for `guild runs` and `guild run --restart`, nor in the process that runs the trials of a batch.
So `runcatalog_engine.pth` installs the hook where Python starts, and it waits for Guild's modules.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

# Package type and name, version, model, operation, as Guild writes them; those with spaces are in quotes.
_OPERATION = re.compile(r"[^\s'\"]+:\S* \S+ \S+ \S+\s*")


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
    """Wait for Guild's modules; change those that are loaded at once."""
    if any(isinstance(finder, _Changes) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Changes())
    for name, change in _CHANGES.items():
        if name in sys.modules:
            change(sys.modules[name])


def _change_op(op: ModuleType) -> None:
    from runcatalog.guild import dependencies, elsewhere

    dependencies.change_op(op)
    elsewhere.change_op(op)
    _undo_restarts(op)


def _undo_restarts(op: Any) -> None:
    """Let a restart that fails before it begins a session of a recorded run leave its attributes as they were.

    Guild writes the flags before the script may refuse them, and the exit status after that: the next restart would
    fail, and a run that was killed would be one that has failed.
    """
    run = op.run

    def run_or_undo(operation: Any, *arguments: Any, **options: Any) -> Any:
        directory = Path(operation.run_dir or os.devnull)
        in_background = options.get("pidfile")  # this process does not wait for the end
        if in_background or not (directory / "journal" / "run.json").is_file():
            return run(operation, *arguments, **options)
        from runcatalog.record.lifecycle.status import last_session

        names = {"cmd", *operation.run_attrs}
        if op.runlib.for_dir(str(directory)).status != "running":  # otherwise the end is another's
            names |= {"started", "stopped", "exit_status"}
        paths = [directory / ".guild" / "attrs" / name for name in names]
        paths.append(directory / ".guild" / "opref")
        before = {path: path.read_bytes() if path.is_file() else None for path in paths}
        session, code = last_session(directory), None
        try:
            _, code = ended = run(operation, *arguments, **options)
            return ended
        finally:
            # Without an error, it has fetched what the run has done elsewhere.
            if code != 0 and last_session(directory) == session:
                with contextlib.suppress(OSError):  # a full disk, or a run that was deleted
                    _restore(before, directory / ".guild" / f"restored.{os.getpid()}")

    op.run = run_or_undo


def _restore(before: Mapping[Path, bytes | None], temporary: Path) -> None:
    """Give files the contents that they had; None: there was no file."""
    for path, content in before.items():
        if content is None:
            path.unlink(missing_ok=True)
        elif not path.is_file() or path.read_bytes() != content:
            try:
                temporary.write_bytes(content)
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)


def _change_resolver(resolver: ModuleType) -> None:
    from runcatalog.guild import dependencies

    dependencies.change_resolver(resolver)


def _change_runs(run: Any) -> None:
    """Let a run's operation be written in one step, and an attribute that is no YAML count as missing.

    Guild writes the operation again when a run is restarted, and a process that reads an empty one fails. One damaged
    attribute would end each command that lists or compares runs.
    """

    def write_encoded_opref(self: Any, encoded: str) -> None:
        path = self._opref_path()
        temporary = f"{path}.{os.getpid()}"
        with open(temporary, "w") as file:
            file.write(encoded)
        os.replace(temporary, path)
        self.reset_opref()

    read, said = run.Run.__getitem__, set()

    def get_attribute(self: Any, name: str) -> Any:
        try:
            return read(self, name)
        except (ValueError, run.yaml.YAMLError) as error:  # ValueError: bytes that are no text
            if (self.id, name) not in said:
                said.add((self.id, name))
                line = f"guild: run {self.short_id}: attribute {name} cannot be read"
                print(line, file=sys.stderr)
            raise KeyError(name) from error

    run.Run.write_encoded_opref = write_encoded_opref
    run.Run.__getitem__ = get_attribute


def _skip_damaged(var: Any) -> None:
    """Leave out runs whose operation cannot be read, as after a full disk: Guild would list none at all."""

    def opref_exists(directory: str) -> bool:
        path = os.path.join(directory, ".guild", "opref")
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            text = file.read()
            return bool(_OPERATION.fullmatch(text)) or len(shlex.split(text)) == 4
        return False

    var._opref_exists = opref_exists


def _label_trials(batch_util: Any) -> None:
    """Give a trial that waits the label that its operation declares, as when it runs.

    Guild looks for the declared label under another key than the one that it writes, and lists all flags instead.
    """

    @functools.wraps(batch_util._trial_label)
    def trial_label(proto_run: Any, flags: Mapping[str, Any]) -> str:
        template = (proto_run.get("op") or {}).get("label-template")
        return str(batch_util.op_util.run_label(template, flags))

    batch_util._trial_label = trial_label


# A number as Python prints it: 1e+20, +5, nan, -inf, 1.
_NUMBER = r"[-+]?(?i:nan\b|inf(?:inity)?\b|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?)"


def _read_all_numbers(summary: Any) -> None:
    """Let a printed scalar be any number: Guild passes over those with a plus sign, NaN and infinities."""
    summary.ALIASES = [
        (alias, _NUMBER.replace("\\", r"\\") if alias.pattern == r"\\value" else pattern)
        for alias, pattern in summary.ALIASES
    ]


_ID = re.compile("[0-9a-f]{8,32}")  # the beginning of a run's id


def _keep_ids(flag_util: Any) -> None:
    """Let the beginning of a run's id stay text: Guild reads 12e34567 as infinity, and 01234567 without its zero."""
    fix = flag_util._fix_surprising_number

    @functools.wraps(fix)
    def number_or_id(value: Any, text: str) -> Any:
        if type(value) in (int, float) and _ID.fullmatch(text) and str(value) != text:
            return text
        return fix(value, text)

    flag_util._fix_surprising_number = number_or_id


_CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "guild.batch_util": _label_trials,
    "guild.flag_util": _keep_ids,
    "guild.op": _change_op,
    "guild.resolver": _change_resolver,
    "guild.run": _change_runs,
    "guild.summary": _read_all_numbers,
    "guild.var": _skip_damaged,
}
