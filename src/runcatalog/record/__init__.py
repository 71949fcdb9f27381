"""Recording: what a script calls to start, log, checkpoint, resume and finish a run.

    with record.start(config, study="door") as run:
        run.log({"return": 1.0}, step=1)
        return run.finish({"objective": {"name": "return", "value": 1.0, "kind": "mean"}})

Importing it is cheap: torch and MLflow are loaded when they are needed, MLflow in a process of its own.
"""

from runcatalog.record.checkpoint import Checkpoint, load_checkpoint
from runcatalog.record.config import Config, option, parse, run_script
from runcatalog.record.errors import NumericalError, RunFailed, UserError, check_finite
from runcatalog.record.optional import optional
from runcatalog.record.run import Run, start
from runcatalog.record.seeds import Seeds

__all__ = [
    "Checkpoint",
    "Config",
    "NumericalError",
    "Run",
    "RunFailed",
    "Seeds",
    "UserError",
    "check_finite",
    "load_checkpoint",
    "option",
    "optional",
    "parse",
    "run_script",
    "start",
]
