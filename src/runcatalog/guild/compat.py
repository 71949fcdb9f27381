"""The modules of Guild 0.9.0 without a documented interface that this project uses.

All other code imports them from here, so that a new version of Guild is checked in one place
(`tests/runcatalog/guild/test_compat.py`). A module is loaded at its first use: Guild takes half a second.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from runcatalog.guild import import_hook

# Modules that Guild and this project start with `python -m`.
BATCH = "guild.batch_main"
COMMAND = "guild.main_bootstrap"
FLAG_READER = "guild.plugins.import_argparse_flags_main"
REFRESHING = "Refreshing flags..."  # what Guild prints while it reads flags

MODULES = {
    "api": "guild._api",
    "batch_util": "guild.batch_util",
    "exit_code": "guild.exit_code",
    "flag_util": "guild.flag_util",
    "guildfile": "guild.guildfile",
    "index": "guild.index",
    "main": "guild.main",
    "model": "guild.model",
    "model_proxy": "guild.model_proxy",
    "op": "guild.op",
    "op_cmd": "guild.op_cmd",
    "op_util": "guild.op_util",
    "python_script": "guild.plugins.python_script",
    "query": "guild.query",
    "resolver": "guild.resolver",
    "run": "guild.run",
    "run_util": "guild.run_util",
    "var": "guild.var",
    "yaml_util": "guild.yaml_util",
}


def __getattr__(name: str) -> Any:
    """Return a module of Guild, loaded at its first use.

    Raises:
        AttributeError: The module is not in MODULES.
    """
    if name not in MODULES:
        raise AttributeError(f"{name!r} is not a module of Guild that this project uses")
    import_hook.install()
    return import_module(MODULES[name])
