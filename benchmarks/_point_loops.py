"""One training loop's points, logged by this project or by a peer; prints the seconds that logging took.

    PYTHON _point_loops.py WHAT FOLDER STEPS

It needs nothing but the package that WHAT names, so that a peer may live in an environment of its own.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

METRICS = ("return", "loss", "entropy", "kl", "success")


def points(step: int) -> dict[str, float]:
    """The values of a step."""
    return {name: math.sin(step * (i + 1)) for i, name in enumerate(METRICS)}


def timed(steps: int, log: Callable[[int, dict[str, float]], None]) -> float:
    """Seconds in the calls that log."""
    spent = 0.0
    for step in range(1, steps + 1):
        told = points(step)
        begin = time.perf_counter()
        log(step, told)
        spent += time.perf_counter() - begin
    return spent


def ours(folder: Path, steps: int) -> float:
    """The project's recording, its sender at work beside it."""
    os.environ |= {"PROJECT_DIR": str(folder), "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/ours.db"}
    sys.path[0] = str(Path(__file__).resolve().parent.parent / "src")
    from runcatalog import record

    with record.start(record.Config(), study="bench") as run:
        spent = timed(steps, lambda step, told: run.log(told, step))
        run.finish({})
    return spent


def mlflow(folder: Path, steps: int) -> float:
    """MLflow as its documentation shows it: `log_metric` for each point, in the loop, into SQLite."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder}/plain.db")

    def log(step: int, told: dict[str, float]) -> None:
        for name, value in told.items():
            mlflow.log_metric(name, value, step=step)

    with mlflow.start_run():
        return timed(steps, log)


def wandb(folder: Path, steps: int) -> float:
    """Weights & Biases without a server: one `log` for each step."""
    import wandb

    settings = wandb.Settings(console="off", silent=True)
    with wandb.init(mode="offline", dir=folder, project="bench", settings=settings) as run:
        return timed(steps, lambda step, told: run.log(told, step=step))


def aim(folder: Path, steps: int) -> float:
    """Aim with its own storage: one `track` for each step."""
    import aim

    run = aim.Run(repo=str(folder), system_tracking_interval=None, log_system_params=False)
    spent = timed(steps, lambda step, told: run.track(told, step=step))
    run.close()
    return spent


LOOPS = {"ours": ours, "mlflow": mlflow, "wandb": wandb, "aim": aim}

if __name__ == "__main__":
    what, where, count = sys.argv[1:]
    sys.path.pop(0)  # this folder, which holds a catalog.py
    sys.path.insert(0, "")
    print(json.dumps({"seconds": LOOPS[what](Path(where), int(count))}))
