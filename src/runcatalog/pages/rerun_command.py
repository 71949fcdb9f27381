"""Commands that repeat recorded runs, printed from the flags of their records.

A command contains every flag of its record, so it does not depend on the script's present defaults. It belongs to the
record's commit: a script of another commit may have other flags.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from runcatalog.analysis import searches
from runcatalog.model import values
from runcatalog.model.project import Operation
from runcatalog.model.run_record import RunRecord


@dataclass(frozen=True)
class Rerun:
    """How to repeat a run or a batch.

    Attributes:
        operation: Its operation; "" if there is no single command.
        flags: Value as a word for the shell, by flag.
        parents: Required runs as typed, for example "expert=1a2b3c4d".
        note: Why there is no command.
    """

    operation: str = ""
    flags: Mapping[str, str] = field(default_factory=dict)
    parents: tuple[str, ...] = ()
    note: str = ""

    @property
    def command(self) -> str:
        """The complete command for a shell; "" if there is none."""
        return self.without("", {})

    def without(self, variable: str, shared: Mapping[str, str]) -> str:
        """Return the command with its shared flags replaced by a shell array.

        Args:
            variable: Name of the array; "" for the complete command.
            shared: Flags of the array. If a flag is given twice, Guild uses the last value.
        """
        if not self.operation:
            return ""
        names = sorted(self.flags, key=lambda name: (name == "seed", name))
        own = [assignment(n, self.flags[n]) for n in names if shared.get(n) != self.flags[n]]
        # With ":?" the shell stops if the array is not set, instead of running with the script's defaults.
        array = [f'"${{{variable}[@]:?}}"'] if variable else []
        return " ".join(["guild run", quoted(self.operation), *array, *own, *self.parents, "-y"])


def rerun(declared: Mapping[str, Operation], head: RunRecord, trials: Sequence[RunRecord]) -> Rerun:
    """Return how to repeat a single run or a batch.

    Args:
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
    if any(values.is_cut(v) for run in (head, *trials) for v in run.flags.values()):
        return Rerun(note="a flag is too long for the record")
    flags: Mapping[str, Any] | None
    if not trials:
        flags = head.flags
    elif batch is not None and batch.operation != trials[0].operation:
        flags = batch.flags  # `ppo:opt@gp`: the search's own
    elif searches.is_search(batch, trials):
        return Rerun(note="a search with --optimizer; the record lacks its space")
    else:
        flags = _grid(trials)
    if flags is None:
        return Rerun(
            note="trials do not form a grid; `catalog row RUN` prints the command of a trial"
        )
    parents = dict.fromkeys(p for run in (trials or [head]) for p in run.parents)
    required = tuple(f"{n}={p[:8]}" for n, p in operation.required(list(parents)).items())
    # A run that was never started has no value for a required run.
    kept = {n: v for n, v in flags.items() if v is not None or n not in operation.requires}
    words = {name: _shell(value) for name, value in kept.items()}
    return Rerun(head.operation, words, required)


def shortened(reruns: Sequence[Rerun]) -> tuple[list[str], list[str]]:
    """Return commands with their common flags in shell arrays, and the lines that set the arrays.

    Commands with the same flag names share an array of the first one's values, so that a later run changes no earlier
    line. The array's name is a digest of its content and so unique on a page. The seed stays in the command.

    Args:
        reruns: Runs to repeat; the command of one without an operation is "".
    """
    by_names: dict[frozenset[str], list[Rerun]] = {}
    for again in reruns:
        if again.flags:
            by_names.setdefault(frozenset(again.flags), []).append(again)
    arrays: dict[frozenset[str], tuple[str, dict[str, str]]] = {}
    lines = []
    for names, members in by_names.items():
        shared = {name: members[0].flags[name] for name in sorted(names - {"seed"})}
        if shared and len(members) > 1:
            content = " ".join(assignment(name, value) for name, value in shared.items())
            variable = f"f{hashlib.sha256(content.encode()).hexdigest()[:8]}"
            arrays[names] = variable, shared
            lines.append(f"{variable}=({content})")
    commands = [again.without(*arrays.get(frozenset(again.flags), ("", {}))) for again in reruns]
    return commands, lines


def assignment(name: str, value: str) -> str:
    """Return `name=value` for the shell; the value is already quoted."""
    return f"{quoted(name)}={value}"


def _grid(trials: Sequence[RunRecord]) -> dict[str, Any] | None:
    """Return the flags of a grid, as a list where they differ; None if the trials are not a full grid."""
    names = sorted({name for trial in trials for name in trial.flags})
    columns: dict[str, list[values.Scalar]] = {}
    for name in names:
        distinct = {
            values.flag_text(t.flags[name]): t.flags[name] for t in trials if name in t.flags
        }
        columns[name] = sorted(distinct.values(), key=values.sort_key)
    count = 1
    for column in columns.values():
        count *= len(column)
    points = {tuple(values.flag_text(t.flags.get(n)) for n in names) for t in trials}
    if len(points) != count:
        return None
    return {name: column if len(column) > 1 else column[0] for name, column in columns.items()}


def _shell(value: Any) -> str:
    """Return a flag's value as Guild reads it, quoted for the shell."""
    if isinstance(value, list):
        return quoted("[" + ",".join(map(_listed, value)) + "]")
    return quoted(typed(value))


def _listed(value: values.Scalar) -> str:
    """Return a flag's value as it is typed in a list, where Guild reads commas and brackets."""
    import yaml

    word = typed(value)
    with contextlib.suppress(yaml.YAMLError, ValueError):
        if not isinstance(value, str) or yaml.safe_load(f"[{word},]") == [value]:
            return word
    return json.dumps(value, ensure_ascii=False)


def typed(value: values.Scalar) -> str:
    """Return a flag's value as it is typed for Guild, without quotes for the shell."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "null"
    text = values.flag_text(value)
    if isinstance(value, str) and not _is_read_as_text(text):
        return json.dumps(text, ensure_ascii=False)
    return text


@lru_cache(10_000)
def _is_read_as_text(text: str) -> bool:
    """Return whether Guild reads a word as this text, not as YAML or a number as `off`, `2026-11-22`, `nan`."""
    import yaml

    with contextlib.suppress(ValueError):
        float(text)
        return False
    try:
        return not text or yaml.safe_load(text) == text
    except (yaml.YAMLError, ValueError):  # ValueError: such as the date 2026-99-99
        return True


def quoted(value: str) -> str:
    """Return a word for a POSIX shell; characters that a table cannot show are escaped in bash's $'…'."""
    if value.isprintable() and "`" not in value and "\\|" not in value:
        return shlex.quote(value)
    return "$'" + "".join(_escaped(c) for c in value) + "'"


def _escaped(char: str) -> str:
    if char in "\\'`|" or not char.isprintable():
        return "".join(f"\\x{byte:02x}" for byte in char.encode())
    return char
