"""Required runs: Guild takes one that can be used, names the command where there is none, and notes the reason.

`runcatalog.guild.import_hook` makes the changes.
"""

from __future__ import annotations

import re
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

UNMET = "unmet"  # attribute of a run whose last launch did not start its script: what it needs


def change_op(op: Any) -> None:
    """Let Guild note in a run that it lacks what it requires, until its next launch."""
    resolve = op._resolve_deps

    @wraps(resolve)
    def resolve_and_note(operation: Any, run: Any, *arguments: Any, **options: Any) -> None:
        path = Path(run.guild_path("attrs", UNMET))
        path.unlink(missing_ok=True)
        try:
            resolve(operation, run, *arguments, **options)
        except op.op_dep.OpDependencyError as error:
            run.write_attr(UNMET, _need(error))
            raise

    op._resolve_deps = resolve_and_note


def change_resolver(resolver: ModuleType) -> None:
    """Let Guild take the newest usable run of the required operations."""

    def usable_run(self: Any, run_id_prefix: str | None, include_staged: bool, choose: Any) -> Any:
        return _usable_run(resolver, self.source, run_id_prefix, include_staged, choose)

    resolver.OperationResolver._resolve_op_run = usable_run


def _need(error: Exception) -> str:
    """Return what a run needs, from the message of Guild's error; the message for another error."""
    need = re.search(r"needs a run of .*?(?=; to make one)", str(error))
    return need[0] if need else str(error)


def _usable_run(
    resolver: ModuleType, source: Any, run_id_prefix: str | None, include_staged: bool, choose: Any
) -> Any:
    """Return the newest usable run of the required operations, a marked one first; replaces Guild's method.

    A run is usable if it has the files that the operation selects: one that was stopped before its first checkpoint
    is not.

    Raises:
        ResolutionError: There is none.
    """
    wanted = resolver.oprefs_for_source(source)
    status = resolver._matching_run_status(include_staged)
    runs: list[Any] = []
    if run_id_prefix or choose is not resolver.marked_or_latest_run:  # of another machine
        if run := choose(wanted, run_id_prefix, status):
            return run
    else:
        runs = resolver.matching_runs(wanted, None, status)
        for run in sorted(runs, key=lambda run: not run.get("marked")):
            if run.status == "staged" or _has_files(resolver, source, run):
                return run
    names = " or ".join(name_of(ref) for ref in wanted)
    need = f"needs a run of {names}"
    if run_id_prefix:
        need += f" with the id {run_id_prefix}"
    elif runs:
        need += f" with {_selected(source)} in its folder; run {runs[0].id[:8]} has none"
    raise resolver.ResolutionError(f"{need}; to make one: guild run {name_of(wanted[0])} -y")


def _has_files(resolver: ModuleType, source: Any, run: Any) -> bool:
    unpacked = resolver._unpack_dir(run.dir, None)
    return any(
        path.is_file() or any(map(_is_content, path.rglob("*")))
        for path in map(Path, resolver._resolve_run_files(run, source, unpacked))
    )


def _selected(source: Any) -> str:
    """Return the files that an operation selects of a required run, such as "policies or result.json"."""
    # Guild takes them for regular expressions: `result\.json`.
    names = [re.sub(r"\\(.)", r"\1", each.pattern) for each in source.select]
    return " or ".join(filter(None, (", ".join(names[:-1]), *names[-1:]))) or "files"


def _is_content(entry: Path) -> bool:
    """Return whether an entry of a folder is a file or a link to a folder, which `rglob` does not follow."""
    return entry.is_file() or (entry.is_symlink() and entry.is_dir())


def name_of(ref: Any) -> str:
    """Return an operation of Guild as typed after `guild run`: one may have no model."""
    return f"{ref.model_name}:{ref.op_name}" if ref.model_name else ref.op_name
