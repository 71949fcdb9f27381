"""Recording: interface for scripts to start, log, checkpoint, resume and finish a run.

    with record.start(config, study="door") as run:
        run.log({"return": 1.0}, step=1)
        return run.finish({"objective": {"name": "return", "value": 1.0, "kind": "mean"}})

Importing it is fast: torch and MLflow are loaded on use, MLflow in a separate process.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from runcatalog.record.errors import NumericalError, RunFailed, UserError, check_finite
from runcatalog.record.optional import optional

if TYPE_CHECKING:
    from runcatalog.record.config import Config, assignments, option, parse, run_script
    from runcatalog.record.evaluation import level_outcomes
    from runcatalog.record.run import Run, start
    from runcatalog.record.training.checkpoint import Checkpoint, load_checkpoint
    from runcatalog.record.training.loop import is_due, log_interval, mean_metrics, reached_target
    from runcatalog.record.training.seeds import Seeds

# Loaded at their first use: most modules that import a part of this package need none of them, such as Guild's plugin.
_MODULES = {
    "Checkpoint": "training.checkpoint",
    "Config": "config",
    "Run": "run",
    "Seeds": "training.seeds",
    "assignments": "config",
    "is_due": "training.loop",
    "level_outcomes": "evaluation",
    "load_checkpoint": "training.checkpoint",
    "log_interval": "training.loop",
    "mean_metrics": "training.loop",
    "option": "config",
    "parse": "config",
    "reached_target": "training.loop",
    "run_script": "config",
    "start": "run",
}

__all__ = [
    "Checkpoint",
    "Config",
    "NumericalError",
    "Run",
    "RunFailed",
    "Seeds",
    "UserError",
    "assignments",
    "check_finite",
    "is_due",
    "level_outcomes",
    "load_checkpoint",
    "log_interval",
    "mean_metrics",
    "option",
    "optional",
    "parse",
    "reached_target",
    "run_script",
    "start",
]


def __getattr__(name: str) -> Any:
    """Return a name of the interface from its module, or the module `config`, whose functions scripts use too."""
    if name == "config":
        return import_module(f"{__name__}.config")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
