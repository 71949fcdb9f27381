"""Declaration of a script's flags as a frozen dataclass.

Guild reads flags by running the script with ``argparse`` patched, so a script creates its own
``argparse.ArgumentParser`` and hands it to :func:`run_script`, which does nothing heavy before parsing.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from runcatalog.record.errors import Killed, RunFailed, UserError
from runcatalog.record.journal import HIDDEN
from runcatalog.record.journal.files import read_json
from runcatalog.record.journal.sessions import session_flags
from runcatalog.record.untrusted import guild_attribute

C = TypeVar("C", bound="Config")

_TYPES: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool}
_TRUE = {"true", "yes", "1", "on"}
LOOK_UP = "RECORD_LOOK_UP"  # variable under which a script looks up what its flags name, and ends
REFUSED = "refused"  # attribute of a Guild run whose flags the script refused: it is no run
RUN_ID = re.compile(r"[0-9a-f]{8,32}")
_FALSE = {"false", "no", "0", "off", ""}  # Guild passes False as an empty string


def option(
    default: Any,
    text: str,
    *,
    choices: Sequence[Any] | None = None,
    low: float | None = None,
    high: float | None = None,
    low_open: bool = False,
    high_open: bool = False,
    resumable: bool = False,
    older: Any = None,
    unless: Mapping[str, Any] | None = None,
) -> Any:
    """Declare a field of a :class:`Config`.

    Args:
        default: Value without a flag.
        text: Meaning, unit, range and source; the help text of the flag.
        choices: Allowed values.
        low: Smallest value; not allowed itself with ``low_open``.
        high: Largest value; not allowed itself with ``high_open``.
        resumable: Whether a run may be continued with another value (for example of threads).
        older: What runs from before the flag did; None: as the default.
        unless: Values of other fields, one or a tuple each, with any of which the flag has no effect.
    """
    limits = {"low": low, "high": high, "low_open": low_open, "high_open": high_open}
    meta = {
        "text": text,
        "choices": tuple(choices) if choices else None,
        "resumable": resumable,
        "older": default if older is None else older,
        "unless": {
            name: values if isinstance(values, tuple) else (values,)
            for name, values in (unless or {}).items()
        },
    }
    return dataclasses.field(default=default, metadata=meta | limits)


@dataclasses.dataclass(frozen=True)
class Config:
    """Flags that every script has. Subclasses are frozen dataclasses that add their own.

    Raises:
        UserError: A value has the wrong type, is not an allowed choice or is out of its range.
    """

    seed: int = option(1, "seed of every random number of the run", low=0, high=2**63 - 1)
    resume: str = option("", "run directory to continue (empty: a new run)", resumable=True)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = _checked(field, getattr(self, field.name))
            object.__setattr__(self, field.name, value)

    def look_up(self, directory: Path) -> Any:
        """Link what flags name otherwise than by a run's id into the run's directory.

        Called before a run is shipped to another machine, where the Guild home and the folders of this one are not.
        Where the run is not shipped, the script links by itself.
        """

    @property
    def given(self) -> frozenset[str]:
        """Names of the flags that were typed, possibly with their default value; empty unless parsed."""
        return getattr(self, "_given", frozenset())


def without_effect(config: Config) -> list[str]:
    """Return a line per typed flag that has no effect: "--critic-lr has no effect with freshcritic=no"."""
    lines = []
    for field in dataclasses.fields(config):
        flag = flag_name(field.name)
        for name, values in field.metadata.get("unless", {}).items():
            value = getattr(config, name)
            if flag in config.given and value in values:
                shown = ("no", "yes")[value] if isinstance(value, bool) else value
                where = (
                    f"with {flag_name(name)}={shown}"
                    if shown != ""
                    else f"without {flag_name(name)}"
                )
                lines.append(f"--{flag} has no effect {where}")
    return lines


def flag_name(field_name: str) -> str:
    """Return the flag of a field: ``te_dim`` is ``te-dim``."""
    return field_name.replace("_", "-")


def find_folder(named: str) -> Path | None:
    """Return the folder that a flag names; None if it does not exist.

    The value may be a path, relative to the working directory or to the project; or, under Guild, a run's id or at
    least its first eight digits.
    """
    if found := next(filter(Path.is_dir, _paths(named)), None):
        return found.resolve()
    if RUN_ID.fullmatch(named) and (home := os.environ.get("GUILD_HOME")):
        matches = list(Path(home, "runs").glob(f"{named}*"))
        if len(matches) == 1 and matches[0].is_dir():
            return matches[0].resolve()
    return None


def find_file(named: str) -> Path | None:
    """Return the file that a flag names, relative to the working directory or to the project; None without one."""
    return next(filter(Path.is_file, _paths(named)), None)


def _paths(named: str) -> tuple[Path, Path]:
    return Path(named), Path(os.environ.get("PROJECT_DIR", "."), named)


def checkpoint_folder(flag: str, named: str) -> Path:
    """Return the folder of the run or checkpoint that a flag names, see :func:`find_folder`.

    Raises:
        UserError: The folder does not exist.
    """
    if (folder := find_folder(named)) is None:
        raise UserError(
            f"--{flag}: {named} is neither a directory nor the id of a run; give a run or a checkpoint"
        )
    return folder


def assignments(
    flag: str, text: str, *, taken: Collection[str] = (), by: str = "this run"
) -> dict[str, str]:
    """Parse a flag that contains flags of other runs: ``name=value`` pairs, separated by spaces.

    Args:
        flag: Name of the flag, for the error.
        text: Its value.
        taken: Names of flags that are set in another way and must not be given.
        by: What sets them, for the error.

    Returns:
        Values by name, as typed.

    Raises:
        UserError: A word is not of the form ``name=value``, or a name is given twice or taken.
    """
    values: dict[str, str] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise UserError(f"--{flag}: {word!r} is not of the form name=value")
        if name in values:
            raise UserError(f"--{flag}: {name} is given twice")
        values[name] = value
    for name in values:
        if name in taken:
            raise UserError(f"--{flag}: {by} sets {name}")
    return values


def flags_of(config: Any) -> dict[str, Any]:
    """Return all effective flags by name, without ``resume``, which is not a property of the run."""
    values = dataclasses.asdict(config)
    return {flag_name(name): value for name, value in values.items() if name != "resume"}


def field_type(field: dataclasses.Field[Any]) -> type:
    """Return the field's type: int, float, str or bool (annotations may be strings)."""
    name = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", "")
    if name not in _TYPES:
        raise TypeError(f"{field.name}: a flag is an int, float, str or bool, not {field.type}")
    return _TYPES[name]


def parse(
    config_class: type[C],
    argv: Sequence[str] | None = None,
    parser: argparse.ArgumentParser | None = None,
) -> C:
    """Read flags into a configuration; an invalid flag ends the process with a one-line message and exit code 2.

    With ``--resume DIR``, flags that are not given are taken from the run in DIR.
    """
    parser = parser or argparse.ArgumentParser(description=config_class.__doc__)
    parser.formatter_class = _HelpFormatter
    parser.error = lambda message: _refuse(parser.prog, message)  # type: ignore[method-assign]
    parser.allow_abbrev = False
    _add_options(parser, config_class)
    values = vars(parser.parse_args(argv))
    try:
        if values.get("resume"):
            parser.set_defaults(**_flags_of_run(values["resume"], config_class))
            values = vars(parser.parse_args(argv))
        names = {field.name for field in dataclasses.fields(config_class)}
        config = config_class.__new__(config_class)
        object.__setattr__(config, "_given", _typed_flags(argv))  # which __post_init__ may need
        config.__init__(**{name: value for name, value in values.items() if name in names})  # type: ignore[misc]
        return config
    except UserError as error:
        _refuse(parser.prog, str(error))


def _typed_flags(argv: Sequence[str] | None) -> frozenset[str]:
    """Return the names of the flags on the command line; under Guild, which passes all flags, on its command line."""
    directory = os.environ.get("RUN_DIR", "")
    typed = guild_attribute(Path(directory), "user_flags") if directory else None
    if isinstance(typed, dict):
        return frozenset(map(str, typed))
    words = sys.argv[1:] if argv is None else argv
    return frozenset(word[2:].partition("=")[0] for word in words if word.startswith("--"))


def run_script(
    main: Callable[[C], Any],
    config_class: type[C],
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None = None,
) -> None:
    """Parse the flags, run ``main(config)`` and print expected errors as one line.

    Exit codes: 2 for a UserError, 1 for a RunFailed or lack of memory. After SIGTERM, SIGHUP or Ctrl-C the process
    ends by the same signal, so that Guild and the shell see it.
    """
    parser.usage = parser.usage or "%(prog)s [--flag value ...]"
    config = parse(config_class, argv, parser)
    only_look_up = os.environ.get(LOOK_UP)

    try:
        if only_look_up:
            config.look_up(Path(os.environ["RUN_DIR"]))
        else:
            main(config)
    except UserError as error:
        _refuse(parser.prog, str(error))
    except RunFailed as error:
        _fail(parser.prog, str(error), 1)
    except MemoryError:
        _fail(parser.prog, "out of memory", 1)
    except (Killed, KeyboardInterrupt) as killed:
        number = getattr(killed, "number", signal.SIGINT)
        sys.stdout.flush()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def check_same_flags(config: Config, stored: dict[str, Any]) -> None:
    """Raise UserError if a run would be resumed with other values of flags that change it.

    Args:
        config: Configuration of the process that continues the run.
        stored: Flags of the run, by flag name.
    """
    for field in dataclasses.fields(config):
        flag = flag_name(field.name)
        if field.metadata.get("resumable"):
            continue
        before, now = _stored_value(field, stored), getattr(config, field.name)
        if before != now:
            raise UserError(
                f"--{flag}: the run to continue was started with {before!r}, not {now!r}; "
                f"use {before!r}, or start a new run"
            )


def changed_flags(config: Config, stored: dict[str, Any]) -> dict[str, Any]:
    """Return the flags whose values differ from those of a run, by flag name.

    Args:
        config: Configuration of the process that continues the run.
        stored: Flags of the run, by flag name.
    """
    before = {flag_name(f.name): _stored_value(f, stored) for f in dataclasses.fields(config)}
    return {flag: now for flag, now in flags_of(config).items() if now != before[flag]}


def _stored_value(field: dataclasses.Field[Any], stored: dict[str, Any]) -> Any:
    return stored.get(flag_name(field.name), field.metadata.get("older", field.default))


class _HelpFormatter(argparse.HelpFormatter):
    """Help with defaults, in which a per cent sign needs no escape."""

    def _expand_help(self, action: argparse.Action) -> str:
        if action.default in (None, argparse.SUPPRESS) or not action.option_strings:
            return action.help or ""
        return f"{action.help} (default: {action.default})"


class _BoolChoices(list):
    """Choices true and false that accept every usual spelling."""

    def __contains__(self, value: object) -> bool:
        return str(value).lower() in _TRUE | _FALSE


def _add_options(parser: argparse.ArgumentParser, config_class: type[Config]) -> None:
    for field in dataclasses.fields(config_class):
        kind, meta = field_type(field), field.metadata
        extra: dict[str, Any] = {}
        if kind is bool:
            extra = {"choices": _BoolChoices([True, False]), "metavar": "{yes,no}"}
        else:
            extra = {"type": kind, "choices": meta.get("choices"), "metavar": kind.__name__.upper()}
            if meta.get("choices"):
                extra["choices"], extra["metavar"] = list(meta["choices"]), None
        parser.add_argument(
            f"--{flag_name(field.name)}",
            dest=field.name,
            default=field.default,
            help=meta.get("text", field.name),
            **extra,
        )


def _checked(field: dataclasses.Field[Any], value: Any) -> Any:
    flag, kind, meta = f"--{flag_name(field.name)}", field_type(field), field.metadata
    value = _converted(flag, kind, value)
    choices = meta.get("choices")
    if choices and value not in choices:
        raise UserError(f"{flag}: {value!r} is not one of {', '.join(map(str, choices))}")
    if kind in (int, float):
        low, high = meta.get("low"), meta.get("high")
        below = low is not None and (value < low or (value == low and meta["low_open"]))
        above = high is not None and (value > high or (value == high and meta["high_open"]))
        if below or above or not math.isfinite(value):
            raise UserError(f"{flag}: {value} is not {_range_text(meta)}")
    return value


def _converted(flag: str, kind: type, value: Any) -> Any:
    if kind is bool:
        if str(value).lower() not in _TRUE | _FALSE:
            raise UserError(f"{flag}: {value!r} is neither yes nor no")
        return str(value).lower() in _TRUE
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"{flag}: {value!r} is not of type {kind.__name__}")
    return value


def _range_text(meta: Any) -> str:
    if meta.get("low") is None and meta.get("high") is None:
        return "a finite number"
    left = "(" if meta["low_open"] or meta["low"] is None else "["
    right = ")" if meta["high_open"] or meta["high"] is None else "]"
    low = "-inf" if meta["low"] is None else f"{meta['low']:g}"
    high = "inf" if meta["high"] is None else f"{meta['high']:g}"
    return f"in {left}{low}, {high}{right}"


def _flags_of_run(directory: str, config_class: type[Config]) -> dict[str, Any]:
    path = Path(directory) / "journal" / "run.json"
    flags = (read_json(path) or {}).get("flags")
    if not isinstance(flags, dict):
        raise UserError(f"--resume {directory}: no run ({path} cannot be read)")
    flags |= session_flags(Path(directory))
    values = {
        field.name: _stored_value(field, flags)
        for field in dataclasses.fields(config_class)
        if field.name != "resume"
    }
    # Secrets are hidden in the recorded flags, so they have to be given again.
    return {n: v for n, v in values.items() if not (isinstance(v, str) and HIDDEN in v)}


def of_run(directory: str | os.PathLike[str], config_class: type[C]) -> C:
    """Return the flags of the run in a directory, as of its newest start.

    Raises:
        UserError: There is no run, or a value is no longer allowed.
    """
    return config_class(**_flags_of_run(os.fspath(directory), config_class))


def _refuse(prog: str, message: str) -> NoReturn:
    """End the process with a line; a run of Guild that has not begun is marked, since it is none."""
    directory = Path(os.environ.get("RUN_DIR", ""))
    if os.environ.get("RUN_DIR") and not (directory / "journal").exists():
        note_refusal(directory)
    _fail(prog, message, 2)


def note_refusal(directory: Path) -> None:
    """Mark a run of Guild as one whose flags were refused before it began."""
    attributes = directory / ".guild" / "attrs"
    with contextlib.suppress(OSError):
        if attributes.is_dir():
            (attributes / REFUSED).write_text("true\n")


def _fail(prog: str, message: str, code: int) -> NoReturn:
    sys.stdout.flush()
    print(f"{prog}: {message}", file=sys.stderr)
    raise SystemExit(code)
