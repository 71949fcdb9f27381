"""The command that runs something again, with the flags that differ from what is declared."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from runcatalog.analysis import searches
from runcatalog.model import values
from runcatalog.model.project import Operation
from runcatalog.model.run_record import RunRecord
from runcatalog.text import markdown

_UNIT = re.compile(r"\[(?![-\d.,:;… ]+\])([^\[\]]{1,30})\]")  # not "[1]" or "[0, 1]"


@dataclass(frozen=True)
class Options:
    """What a script's Config declares.

    Attributes:
        defaults: Default by flag.
        units: Unit by flag, where the text says one: "[episodes]".
        choices: Allowed values by flag, of those that are restricted to some.
        complete: Whether every flag is known, so that another one is none of the script's.
    """

    defaults: dict[str, values.Scalar] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    choices: dict[str, list[values.Scalar]] = field(default_factory=dict)
    complete: bool = False

    def allows(self, flag: str, value: Any) -> bool:
        """Whether a value, or each of a list, is one of the flag's choices; any is, where there are none."""
        if flag not in self.choices:
            return True
        wanted = value if isinstance(value, list) else [value]
        return all(any(same_value(each, one) for each in self.choices[flag]) for one in wanted)


@dataclass(frozen=True)
class Rerun:
    """How to run something again.

    Attributes:
        command: To be pasted into a shell; "" if there is no single command.
        note: Why not, or what is different now.
    """

    command: str = ""
    note: str = ""

    def markdown(self) -> str:
        """Returns it as a cell."""
        shown = markdown.code(self.command) if self.command else ""
        return "; ".join(part for part in (shown, markdown.escape(self.note, 300)) if part)


def rerun(
    root: Path, declared: Mapping[str, Operation], head: RunRecord, trials: Sequence[RunRecord]
) -> Rerun:
    """Returns how to run a single run or a batch again.

    Args:
        root: The project's folder, where the scripts are.
        declared: Operations by name.
        head: The run, or the batch (a trial of it, if it has no record of its own).
        trials: The batch's trials; none for a single run.
    """
    batch = None if head.batch and trials else head
    if (batch or head).reported_by:
        return Rerun(note="imported")
    operation = declared.get(head.operation)
    if operation is None:
        return Rerun(note="not declared here")
    options = options_of(root, operation.main)
    if not trials:
        flags: dict[str, Any] = dict(head.flags)
    elif batch is not None and batch.operation != trials[0].operation:
        flags = dict(batch.flags)  # `ppo:opt@gp`: the search's own
    elif searches.is_search(batch, trials):
        return Rerun(note="a search with --optimizer, whose space no record holds")
    else:
        grid = _grid(trials)
        if grid is None:
            return Rerun(note="trials that are no grid; `catalog row RUN` gives each one's command")
        flags = grid
    own = defaults(root, operation)
    known = {**flags} if not options.complete else {n: v for n, v in flags.items() if n in own}
    refused = {n: v for n, v in known.items() if not options.allows(n, v)}
    known = {n: v for n, v in known.items() if n not in refused}
    parts = [
        f"{name}={_shell(value)}"
        for name, value in sorted(known.items(), key=lambda item: (item[0] == "seed", item[0]))
        if name not in own or not same_value(own[name], value)
    ]
    parents = dict.fromkeys(p for each in (trials or [head]) for p in each.parents)
    # A script names what it began from in the order in which its operation requires it.
    if len(operation.requires) == len(parents):
        parts += [f"{n}={p[:8]}" for n, p in zip(operation.requires, parents, strict=True)]
    gone = {n: v for n, v in flags.items() if n not in known and n not in refused}
    notes = [
        f"no {what} any more: {', '.join(f'{n}={values.flag_text(v)}' for n, v in sorted(of.items()))}"
        for what, of in (("flag", gone), ("choice", refused))
        if of
    ]
    command = " ".join(["guild run", quoted(head.operation), *parts, "-y"])
    return Rerun(command, "; ".join(notes))


def defaults(root: Path, operation: Operation) -> dict[str, Any]:
    """What an operation's flags are where none is typed, by flag, as far as it can be read."""
    return {**options_of(root, operation.main).defaults, **operation.canonical_flags}


def _grid(trials: Sequence[RunRecord]) -> dict[str, Any] | None:
    """The flags whose product the trials are, a list where they differ; None if they are none."""
    names = sorted({name for trial in trials for name in trial.flags})
    columns: dict[str, list[values.Scalar]] = {}
    for name in names:
        told = {values.flag_text(t.flags[name]): t.flags[name] for t in trials if name in t.flags}
        columns[name] = [told[key] for key in sorted(told, key=lambda k: values.sort_key(told[k]))]
    count = 1
    for column in columns.values():
        count *= len(column)
    points = {tuple(values.flag_text(t.flags.get(n)) for n in names) for t in trials}
    if len(points) != count:
        return None
    return {name: column if len(column) > 1 else column[0] for name, column in columns.items()}


def same_value(default: Any, value: Any) -> bool:
    """Whether a flag's value is a default, however the two are written."""
    if isinstance(default, list) and isinstance(value, list):
        return {values.flag_text(v) for v in default} == {values.flag_text(v) for v in value}
    if isinstance(default, list) or isinstance(value, list):
        return False
    if isinstance(default, bool) or isinstance(value, bool):
        return _WORDS.get(str(default), default) == _WORDS.get(str(value), value)
    return default == value


_WORDS = {"True": "yes", "False": "no"}  # an option may take the word, which YAML reads as a bool


def _shell(value: Any) -> str:
    """A flag's value as Guild reads it, quoted for the shell."""
    if isinstance(value, list):
        return quoted("[" + ",".join(_typed(each) for each in value) + "]")
    return quoted(_typed(value))


def _typed(value: values.Scalar) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "null" if value is None else values.flag_text(value)


def quoted(value: str) -> str:
    """Returns a word for a POSIX shell; what no table could show is written in bash's $'…'."""
    if value.isprintable() and "`" not in value and "\\|" not in value:
        return shlex.quote(value)
    return "$'" + "".join(_escaped(c) for c in value) + "'"


def _escaped(char: str) -> str:
    if char in "\\'`|" or not char.isprintable():
        return "".join(f"\\x{byte:02x}" for byte in char.encode())
    return char


def options_of(root: Path, main: str) -> Options:
    """Returns the options that an operation's script declares, read from its source.

    The script's `Config` and the classes that it is based on are looked up, no code is run. What is
    not found, such as a Config of another kind, is left out.

    Args:
        root: The project's folder.
        main: As in guild.yml: `src/door.train_hnppo`.
    """
    words = main.split()
    folder, _, module = words[0].rpartition("/") if words else ("", "", "")
    return _class_options(root / folder, module, "Config", 8) if module else Options()


@lru_cache(maxsize=256)
def _class_options(folder: Path, module: str, name: str, depth: int) -> Options:
    tree = _tree(folder, module)
    if tree is None or not depth:
        return Options()
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    if not found:
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return _class_options(folder, node.module, alias.name, depth - 1)
        return Options()
    defaults: dict[str, values.Scalar] = {}
    units: dict[str, str] = {}
    choices: dict[str, list[values.Scalar]] = {}
    complete = True
    for base in found[-1].bases:
        where, _, last = ast.unparse(base).rpartition(".")
        inherited = _class_options(folder, _module(tree, where) or module, last, depth - 1)
        complete = complete and inherited.complete
        defaults |= inherited.defaults
        units |= inherited.units
        choices |= inherited.choices
    for node in found[-1].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            flag = node.target.id.replace("_", "-")
            default, unit = _declared(node.value, folder, tree)
            defaults.pop(flag, None)
            choices.pop(flag, None)
            if default is not _UNKNOWN:
                defaults[flag] = values.parse_flag(default)
            else:
                complete = False
            if unit:
                units[flag] = unit
            if allowed := _choices(node.value, folder, tree):
                choices[flag] = [values.parse_flag(each) for each in allowed]
    return Options(defaults, units, choices, complete)


def _module(tree: ast.Module, name: str) -> str:
    """Full name of a module that a script imports as `from PACKAGE import name`."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return f"{node.module}.{alias.name}"
    return name


_UNKNOWN = object()


def _declared(value: ast.expr | None, folder: Path, tree: ast.Module) -> tuple[Any, str]:
    """Default and unit of `option(default, "text [unit]", …)`, or of a plain value."""
    unit = ""
    if isinstance(value, ast.Call):
        name = ast.unparse(value.func)
        if not name.endswith("option") or not value.args:
            return _UNKNOWN, ""
        if len(value.args) > 1 and isinstance(value.args[1], ast.Constant):
            match = _UNIT.search(str(value.args[1].value))
            unit = match[1] if match else ""
        value = value.args[0]
    if isinstance(value, ast.Name):
        value = _constant(value.id, folder, tree, 8)
    try:
        return (_UNKNOWN if value is None else ast.literal_eval(value)), unit
    except ValueError:
        return _UNKNOWN, unit


def _choices(value: ast.expr | None, folder: Path, tree: ast.Module) -> Sequence[Any]:
    """The choices of `option(…, choices=…)`; none, where they are neither written there nor a constant."""
    for keyword in value.keywords if isinstance(value, ast.Call) else ():
        if keyword.arg == "choices":
            given: ast.expr | None = keyword.value
            if isinstance(given, ast.Name):
                given = _constant(given.id, folder, tree, 8)
            try:
                return ast.literal_eval(given) if given else ()
            except ValueError:
                return ()
    return ()


def _constant(name: str, folder: Path, tree: ast.Module, depth: int) -> ast.expr | None:
    """The value of a module's constant, which may be another module's."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            return node.value
        if isinstance(node, ast.ImportFrom) and node.module and depth:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    other = _tree(folder, node.module)
                    return other and _constant(alias.name, folder, other, depth - 1)
    return None


def _tree(folder: Path, module: str) -> ast.Module | None:
    base = folder.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        try:
            return ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):
            continue
    return None
