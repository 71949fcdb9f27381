"""Log the metrics of one training loop with this project or a peer, and print the seconds spent in logging.

    PYTHON _point_loops.py WHAT FOLDER STEPS

It needs no package but the one named by WHAT, so that a peer can be in an environment of its own.
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
    """Return the metrics of a step."""
    return {name: math.sin(step * (i + 1)) for i, name in enumerate(METRICS)}


def timed(steps: int, log: Callable[[int, dict[str, float]], None]) -> float:
    """Return the seconds spent in calls of `log`."""
    spent = 0.0
    for step in range(1, steps + 1):
        metrics = points(step)
        begin = time.perf_counter()
        log(step, metrics)
        spent += time.perf_counter() - begin
    return spent


def ours(folder: Path, steps: int) -> float:
    """The project's recording, with its sender process."""
    os.environ |= {"PROJECT_DIR": str(folder), "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/ours.db"}
    sys.path[0] = str(Path(__file__).resolve().parent.parent / "src")
    from runcatalog import record

    with record.start(record.Config(), study="bench") as run:
        spent = timed(steps, lambda step, metrics: run.log(metrics, step))
        run.finish({})
    return spent


def mlflow(folder: Path, steps: int) -> float:
    """MLflow as its documentation shows it: one `log_metric` per value, in the loop, into SQLite."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder}/plain.db")

    def log(step: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            mlflow.log_metric(name, value, step=step)

    with mlflow.start_run():
        return timed(steps, log)


def wandb(folder: Path, steps: int) -> float:
    """Weights & Biases without a server: one `log` per step."""
    import wandb

    settings = wandb.Settings(console="off", silent=True)
    with wandb.init(mode="offline", dir=folder, project="bench", settings=settings) as run:
        return timed(steps, lambda step, metrics: run.log(metrics, step=step))


def aim(folder: Path, steps: int) -> float:
    """Aim with its own storage: one `track` per step."""
    import aim

    run = aim.Run(repo=str(folder), system_tracking_interval=None, log_system_params=False)
    spent = timed(steps, lambda step, metrics: run.track(metrics, step=step))
    run.close()
    return spent


LOOPS = {"ours": ours, "mlflow": mlflow, "wandb": wandb, "aim": aim}

if __name__ == "__main__":
    what, where, count = sys.argv[1:]
    sys.path.pop(0)  # this folder, which holds a catalog.py
    sys.path.insert(0, "")
    print(json.dumps({"seconds": LOOPS[what](Path(where), int(count))}))
