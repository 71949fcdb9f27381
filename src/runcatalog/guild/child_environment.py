"""What a run needs to start `guild` itself, as its user would."""

from __future__ import annotations

import os

# What Guild adds to the environment of a run.
_OWN = ("RUN_DIR", "RUN_ID", "GUILD_OP", "GUILD_SOURCECODE", "GUILD_PLUGINS", "CMD_DIR")


def environment() -> dict[str, str]:
    """The environment without what Guild added for this run; its copy of the code in particular.

    Raises:
        KeyError: this is no Guild run.
    """
    outer = {
        name: value
        for name, value in os.environ.items()
        if name not in _OWN and not name.startswith("FLAG_")
    }
    here = os.environ["RUN_DIR"]
    paths = outer.pop("PYTHONPATH", "").split(os.pathsep)
    kept = [p for p in paths if p and p != "." and not os.path.abspath(p).startswith(here)]
    if kept:
        outer["PYTHONPATH"] = os.pathsep.join(kept)
    return outer
