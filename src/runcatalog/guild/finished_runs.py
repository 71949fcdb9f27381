"""Finished runs in the Guild home by operation and flags.

With $ENGINE a script that imports this module may run on another machine, where there is no Guild home: before it is
shipped, its :meth:`runcatalog.record.Config.look_up` links the runs that it needs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from runcatalog.guild.dependencies import name_of
from runcatalog.model.run_record import NEUTRAL_FLAGS


def newest_finished(operation: str, flags: Mapping[str, Any]) -> str | None:
    """Return the id of the newest finished run of an operation with these flags; other flags may differ.

    Args:
        operation: Name of the Guild operation.
        flags: Values by name, as on the command line.

    Returns:
        32 hex digits; None without such a run.
    """
    return next(_finished_runs(operation, _decoded(flags)), None)


def equivalent_runs(operation: str, flags: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ids of finished runs that `guild run OPERATION FLAGS` would repeat, newest first.

    A flag that is not given must have the operation's default, unless it is one of `NEUTRAL_FLAGS`. A flag that an
    older run lacks counts as its default. Required runs are flags too: their ids must match, and a run with
    a dependency does not match if none is given.

    Args:
        operation: Name of a Guild operation of the current project.
        flags: Values by name, as on the command line; run ids with all 32 hex digits.
    """
    from runcatalog.guild.compat import guildfile, op_util

    model, _, name = operation.rpartition(":")
    model_definition = guildfile.for_dir(os.environ.get("PROJECT_DIR", ".")).models.get(model)
    definition = model_definition.get_operation(name) if model_definition else None
    if definition is None:
        return
    typed = _decoded(flags)
    flag_values = op_util.flag_vals_for_opdef(definition, typed, force=True)
    compared = {n: v for n, v in flag_values.items() if n in typed or n not in NEUTRAL_FLAGS}
    defaults = op_util.flag_vals_for_opdef(definition, {}, force=True)
    yield from _finished_runs(operation, compared, defaults)


def _finished_runs(
    operation: str, flags: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """Yield the ids of finished runs with these flags; `defaults` supplies flags that a run lacks."""
    from runcatalog.guild.compat import var

    for run in var.runs(sort=["-timestamp"]):
        if run.get("exit_status") == 0 and name_of(run.opref) == operation:
            run_flags = {**(defaults or {}), **(run.get("flags") or {})}
            if all(run_flags.get(name) == value for name, value in flags.items()):
                yield run.id


def _decoded(flags: Mapping[str, Any]) -> dict[str, Any]:
    from runcatalog.guild.compat import flag_util

    return {name: flag_util.decode_flag_val(str(value)) for name, value in flags.items()}
