"""Compute metrics of continual learning of a series of door tasks, from the policies that its runs saved.

The last policies of every step are evaluated on the 100 test worlds of every task: the matrix. Earlier policies are
evaluated on the first validation worlds, since the test worlds are for reported results only.
The formulas are in `door.continual.formulas`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from door.continual import formulas
from runcatalog import record
from runcatalog.record import option
from runcatalog.record.evaluation import declared
from runcatalog.record.journal.files import read_json

if TYPE_CHECKING:
    from door.continual.steps import Step


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `door:metrics`; `seed` is that of the series."""

    every: int = option(
        5,
        "every k-th saved policy of a step, counted from the last, is a point of the curves",
        low=1,
    )
    worlds: int = option(50, "validation worlds for a point of the curves", low=1, high=100)
    threads: int = option(2, "simulator threads; no effect on results", low=1, resumable=True)
    series_steps: str = option("steps", "folder with links to the runs of the series")
    reference_steps: str = option(
        "reference", "folder with links to runs that learned the tasks from scratch, same seed"
    )


def main(config: Config) -> dict[str, Any]:
    """Evaluate the policies, continuing an interrupted run; return the content of `result.json`."""
    from door.continual import steps
    from door.continual.evaluations import Evaluations

    series = steps.read(steps.folders(Path(config.series_steps)))
    reference = _references(series, steps.read(steps.folders(Path(config.reference_steps))))
    _check_seed(config, series)
    with record.start(config, study="door") as run:
        evaluations = Evaluations(
            run,
            series,
            reference,
            every=config.every,
            curve_worlds=config.worlds,
            threads=config.threads,
        )
        success = evaluations.matrix()
        transfer = evaluations.transfer()
        times, curves = evaluations.curves()
        _draw(run, series, success, times, curves)
        result = _result(series, success, transfer)
        run.log(result["metrics"], int(times[-1]))
        for folder in (config.series_steps, config.reference_steps):
            run.add_parent(steps.run_of(Path(folder)))
        run.declare_evaluation("test", "test worlds of all tasks", contents=_test_sets(series))
        return run.finish(result)


def _test_sets(series: Sequence[Step]) -> list[str]:
    """Return the digest of every task's test worlds, as the series declares them; of an older run the task's name."""
    results = [read_json(step.directory / "result.json") or {} for step in series]
    sets = [declared(written.get("result")) for written in results]
    return [
        worlds.digest if worlds and worlds.digest else step.task
        for step, worlds in zip(series, sets, strict=True)
    ]


def _references(series: Sequence[Step], fresh: Sequence[Step]) -> list[Step]:
    """Return for every step of the series the run that learned its task from scratch.

    Raises:
        record.UserError: The two do not fit together.
    """
    if len(series) < 2:
        raise record.UserError(f"{series[0].directory}: a series has two tasks or more")
    by_task = {step.task: step for step in fresh}
    for step in series:
        if step.task not in by_task:
            names = ", ".join(by_task)
            raise record.UserError(f"reference: no run learned {step.task}; the runs are {names}")
    chosen = [by_task[step.task] for step in series]
    for step, own in zip(chosen, series, strict=True):
        if step.pretrained:
            raise record.UserError(
                f"reference: {step.directory} learned {step.task} after another task; choose a run "
                "of series6:all or series7:all, reference=RUN"
            )
        for name in ("seed", "robot", "start", "kind"):
            theirs, ours = getattr(step, name), getattr(own, name)
            if theirs != ours:
                raise record.UserError(
                    f"reference: {name} {theirs}, but the series has {ours}; choose another run, "
                    "reference=RUN"
                )
    for step in (*series, *chosen):
        if not step.validation:
            raise record.UserError(
                f"{step.directory}: no validations, which the learning curve of {step.task} "
                "needs; train with another eval-interval than 0"
            )
    return chosen


def _check_seed(config: Config, series: Sequence[Step]) -> None:
    if config.seed != series[0].seed:
        raise record.UserError(
            f"--seed: {config.seed}, but the series has {series[0].seed}; add "
            f"seed={series[0].seed}, or choose another with series=RUN"
        )


def _result(series: Sequence[Step], success: np.ndarray, transfer: np.ndarray) -> dict[str, Any]:
    lost, last = formulas.forgetting(success), success[-1]
    known = transfer[np.isfinite(transfer)]
    metrics = {
        "accuracy": formulas.accuracy(success),
        "forward_transfer": formulas.forward_transfer(success),
        "backward_transfer": formulas.backward_transfer(success),
        "positive_backward_transfer": formulas.positive_backward_transfer(success),
        "remembering": formulas.remembering(success),
        "after_training": float(np.diagonal(success).mean()),
        "final_performance": float(formulas.average_performance([last])[0]),
        "forgetting": float(lost.mean()),
    }
    if len(known):
        metrics["forward_transfer_auc"] = float(known.mean())
    for i, step in enumerate(series):
        own = {
            "after_training": success[i, i],
            "final_performance": last[i],
            "forgetting": lost[i],
            "forward_transfer_auc": transfer[i],
        }
        metrics |= {
            f"{name}/{i}_{step.task}": float(v) for name, v in own.items() if np.isfinite(v)
        }
    also = ("remembering", "final_performance", "forward_transfer", "forward_transfer_auc")
    return {
        "objective": {
            "name": "accuracy",
            "value": metrics["accuracy"],
            "kind": "rate",
            "goal": "max",
            "at": sum(step.updates for step in series),
            "axis": "update",
            "also": [
                {"name": n, "value": metrics[n], "kind": "mean" if n.endswith("auc") else "rate"}
                for n in also
                if n in metrics
            ],
        },
        "metrics": metrics,
        "variant": {"method": series[-1].method},
        "table": _table(series, success, lost, transfer),
    }


def _table(
    series: Sequence[Step], success: np.ndarray, lost: np.ndarray, transfer: np.ndarray
) -> dict[str, Any]:
    """Return the matrix, with rows for forgetting and forward transfer below."""

    def cells(values: np.ndarray, form: str, scale: float = 1.0) -> list[str]:
        known = values[np.isfinite(values)]
        mean = known.mean() if len(known) else np.nan
        return ["" if np.isnan(v) else form.format(scale * v) for v in (*values, mean)]

    rows = [
        [f"{i} {step.task}", *cells(rates, "{:z.0f} %", 100)]
        for i, (step, rates) in enumerate(zip(series, success, strict=True))
    ]
    rows.append(["forgetting", *cells(lost, "{:z.0f} %", 100)])
    rows.append(["forward transfer (AUC)", *cells(transfer, "{:z.2f}")])
    columns = ["success after", *(f"{i} {step.task}" for i, step in enumerate(series)), "mean"]
    return {"columns": columns, "rows": rows}


def _draw(
    run: record.Run, series: Sequence[Step], success: np.ndarray, times: np.ndarray, curves: np.ndarray
) -> None:  # fmt: skip
    with record.optional(run, "figure"):
        from door.continual import figures

        tasks, ends = [step.task for step in series], np.cumsum([step.updates for step in series])
        seed = figures.SeriesCurves(ends, [(times, rates) for rates in curves.T])
        figures.matrix(run.artifact("matrix.svg"), tasks, success)
        figures.success_curves(run.artifact("success.svg"), tasks, [seed])


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
