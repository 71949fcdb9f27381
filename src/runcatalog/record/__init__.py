"""Recording: interface for scripts to start, log, checkpoint, resume and finish a run.

    with record.start(config, study="door") as run:
        run.log({"return": 1.0}, step=1)
        return run.finish({"objective": {"name": "return", "value": 1.0, "kind": "mean"}})

Importing it is fast: torch and MLflow are loaded on use, MLflow in a separate process.
"""

from runcatalog.record.config import Config, assignments, option, parse, run_script
from runcatalog.record.errors import NumericalError, RunFailed, UserError, check_finite
from runcatalog.record.optional import optional
from runcatalog.record.run import Run, start
from runcatalog.record.training.checkpoint import Checkpoint, load_checkpoint
from runcatalog.record.training.loop import is_due, log_interval, mean_metrics, reached_target
from runcatalog.record.training.seeds import Seeds

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
