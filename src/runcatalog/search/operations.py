"""Guild plugin with this library's searches (`--optimizer gp` and `random`, FLAG=[LOW:HIGH]) and reports of batches.

Guild asks its plugins for operations that no Guild file declares, so a project needs no `include:`. An operation of the
same name in the project's Guild file takes precedence. Guild's own `gp` and `random` do not run with numpy 2.
"""

from __future__ import annotations

from typing import Any

from guild.plugin import Plugin

from runcatalog.guild.compat import BATCH, model, model_proxy

MODEL = "search"
_MODULES = {"gp": "gp", "random": "random_search"}
_DESCRIPTIONS = {
    "gp": "Gaussian-process search: Matern 5/2, expected improvement",
    "random": "Random search, to compare gp with",
}
_NAMES = {spec: name for name in _MODULES for spec in (name, f"{MODEL}:{name}")}
_NAMES |= {"bayesian": "gp", "gaussian": "gp"}  # Guild's other names for it


class SearchOperations(Plugin):
    """Resolver of the searches' names; Guild loads it by its entry point."""

    def __init__(self, ep: Any) -> None:
        super().__init__(ep)
        model_proxy.DefaultBatchModelProxy = _Batches

    resolve_model_op_priority = 50  # before Guild's own plugins, which have 100

    def resolve_model_op(self, opspec: str) -> tuple[_Searches, str] | None:
        """Return the model and operation of a search's name, None for any other name."""
        name = _NAMES.get(opspec)
        return (_Searches(), name) if name else None


class _Searches:
    """A model for Guild: its name, reference and definition."""

    def __init__(self) -> None:
        from importlib import metadata  # slow, and few commands name a search

        self.name = MODEL
        self.reference = model.ModelRef(
            "builtin", "runcatalog", metadata.version("runcatalog"), MODEL
        )
        operations = {name: _operation(name) for name in _MODULES}
        self.modeldef = model_proxy.modeldef(MODEL, {"operations": operations}, "<runcatalog>")


class _Batches(model_proxy.DefaultBatchModelProxy):
    """Guild's model of batches, whose trials are reported."""

    def __init__(self) -> None:
        super().__init__()
        (operation,) = self.modeldef.operations
        operation.exec_ = operation.exec_.replace(f"-um {BATCH}", "-uPm runcatalog.search.grid")


def _operation(name: str) -> dict[str, Any]:
    """Return the definition of an operation, as in a Guild file."""
    return {
        "description": _DESCRIPTIONS[name],
        # -P: a file in the run's directory must not stand in for a module of the same name.
        "exec": f"${{guild_python_exe}} -uPm runcatalog.search.{_MODULES[name]} ${{flag_args}}",
        "default-max-trials": 20,
        "output-scalars": False,
        "pip-freeze": False,
        "env": {"NO_OP_INTERRUPTED_MSG": "1"},
        "flags": _flags(name),
    }


def _flags(name: str) -> dict[str, Any]:
    """Return the options of the search's script as flags."""
    import argparse

    from runcatalog.search import options

    parser = argparse.ArgumentParser()
    options.add(parser, name)
    flags = {}
    for action in parser._actions:
        if action.dest == "help":
            continue
        flag: dict[str, Any] = {"description": action.help, "default": action.default}
        if action.choices:
            flag["choices"] = list(action.choices)
        if isinstance(action.type, type):
            flag["type"] = action.type.__name__
        flags[action.option_strings[0].removeprefix("--")] = flag
    return flags
