"""Metrics of continual learning of a series of door tasks, from the policies that its runs kept.

Each step's last policies are tried on the 100 test worlds of every task: the matrix. Earlier policies are
tried on the first of the validation worlds: the test worlds are for what is reported of a finished run.
The formulas are in `door.continual`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from door import continual
from runcatalog import record
from runcatalog.record import journal, option

if TYPE_CHECKING:
    from door.held_out import HeldOutWorlds
    from door.steps import Step

Rate = Callable[[int, int], float]  # after learning task i, on task j


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `door:metrics`; `seed` is that of the series."""

    every: int = option(
        5,
        "of the policies that a step kept, each k-th is a point of the curves; the last always",
        low=1,
    )
    worlds: int = option(50, "validation worlds of a point of the curves", low=1, high=100)
    threads: int = option(2, "simulator threads; no result depends on it", low=1, resumable=True)
    series_steps: str = option("steps", "folder with a link to each step of the series")
    reference_steps: str = option(
        "reference", "the same of networks that learned each task from nothing, with the same seed"
    )


def main(config: Config) -> dict[str, Any]:
    """Evaluates what was not yet, and returns what the record says."""
    from door import steps

    series = steps.read(steps.folders(Path(config.series_steps)))
    reference = _references(series, steps.read(steps.folders(Path(config.reference_steps))))
    _check_seed(config, series)
    with record.start(config, study="door") as run:
        evaluations = Evaluations(run, config, series, reference)
        success = evaluations.matrix()
        transfer = evaluations.transfer()
        times, curves = evaluations.curves()
        _draw(run, series, success, times, curves)
        result = _result(series, success, transfer)
        run.log(result["metrics"], int(times[-1]))
        for folder in (config.series_steps, config.reference_steps):
            run.add_parent(steps.run_of(Path(folder)))
        return run.finish(result)


def final_matrix(steps: Sequence[Path], *, threads: int = 2, reported: bool = False) -> np.ndarray:
    """Success [N, N] on each of N tasks after each step of a series, on the 100 test worlds.

    Args:
        steps: run directories in the order of learning.
        threads: simulator threads; the result does not depend on them.
        reported: take what the runs reported themselves, of their own task and of those before it,
            and try the others alone.

    Raises:
        record.UserError: see `door.steps.read`.
    """
    from door.steps import read
    from door.training import TEST

    series = read(steps)
    with _worlds(series[0], TEST, threads) as worlds:
        tried = _final_rate(series, worlds)

        def rate(i: int, j: int) -> float:
            told = series[i].earlier | {i: series[i].opening_rate} if reported else {}
            return told[j] if j in told else tried(i, j)

        return _matrix(len(series), rate)


class Evaluations:
    """All opening rates that the metrics need; each is kept in the run's journal and computed once.

    Args:
        run: whose journal keeps them.
        config: how many points, how many worlds.
        series: in the order of learning.
        reference: for each step the run that learned its task from nothing.
    """

    def __init__(
        self,
        run: record.Run,
        config: Config,
        series: Sequence[Step],
        reference: Sequence[Step],
    ) -> None:
        self._run, self._config = run, config
        self._series, self._reference = series, reference
        points = journal.read_points(run.directory / "journal" / "metrics.jsonl")
        self._known = {(point.name, point.step): point.value for point in points}
        self._ends = np.cumsum([step.updates for step in series]).tolist()
        self._points = [
            (update, place)
            for place, step in enumerate(series)
            for update in _chosen(step, config.every, first=place == 0)
        ]
        starts = sum(0 not in step.validation for step in (*series, *reference))
        self._done, self._total = 0, len(series) * (len(series) + len(self._points)) + starts

    def matrix(self) -> np.ndarray:
        """Success [N, N] after each step, on the test worlds: `matrix/<id>_<task>` at the step's end."""
        from door.training import TEST

        with _worlds(self._series[0], TEST, self._config.threads) as worlds:
            rate = _final_rate(self._series, worlds)
            success = _matrix(
                len(self._series),
                lambda i, j: self._rate(self._name("matrix", j), self._ends[i], lambda: rate(i, j)),
            )
        for step, rates in zip(self._series, success, strict=True):
            shown = (
                f"{each.task} {100 * r:.0f} %" for each, r in zip(self._series, rates, strict=True)
            )
            self._run.event(f"after {step.task}: {', '.join(shown)}")
        for i, step in enumerate(self._series):
            if success[i, i] != step.opening_rate:
                self._run.event(
                    f"{step.task}: {100 * success[i, i]:g} % here, but its own run saw "
                    f"{100 * step.opening_rate:g} %; another version or another kind of machine?"
                )
        return success

    def transfer(self) -> np.ndarray:
        """How much faster each task was learned than by a fresh network, [N]; NaN where that is unknown."""
        return np.array(
            [
                continual.curve_transfer(
                    *self._own_curve(self._name("start", i), step),
                    *self._own_curve(self._name("fresh", i), fresh),
                )
                for i, (step, fresh) in enumerate(zip(self._series, self._reference, strict=True))
            ]
        )

    def curves(self) -> tuple[np.ndarray, np.ndarray]:
        """Updates [T] of the whole series, and success [T, N] there on the first validation worlds.

        They are logged as `success/<id>_<task>`, their mean as `average_performance`.
        """
        from door.training import VALIDATION

        config, times, rows = self._config, [], []
        with _worlds(self._series[0], VALIDATION, config.threads, config.worlds) as worlds:
            for update, place in self._points:
                step = self._series[place]
                time = self._ends[place] - step.updates + update
                rate = _snapshot_rate(self._series, place, dict(step.snapshots)[update], worlds)
                row = [
                    self._rate(self._name("success", j), time, lambda j=j, rate=rate: rate(j))
                    for j in range(len(self._series))
                ]
                times.append(time)
                rows.append(row)
                self._run.log(
                    {"average_performance": continual.average_performance([row])[0]}, time
                )
        return np.array(times), np.array(rows)

    def _own_curve(self, name: str, step: Step) -> tuple[list[float], list[float]]:
        """Decisions and opening rates on the validation worlds while a step learned its task.

        The run saw these itself, but for the start of a run from nothing.

        Args:
            name: under which the evaluation of the start is kept.
            step: whose training it is.
        """
        from door.training import VALIDATION

        curve = dict(step.validation)
        if 0 not in curve:

            def rate() -> float:
                with _worlds(step, VALIDATION, self._config.threads) as worlds:
                    from door import snapshots

                    policy = snapshots.load(step.snapshots[0][1])[-1][1]
                    return worlds.evaluate(policy, step.task).opening_rate

            curve[0] = self._rate(name, 0, rate)
        updates = sorted(curve)
        return [update * step.unit for update in updates], [curve[update] for update in updates]

    def _name(self, what: str, task: int) -> str:
        return f"{what}/{task}_{self._series[task].task}"

    def _rate(self, name: str, step: int, compute: Callable[[], float]) -> float:
        rate = self._known.get((name, step))
        if rate is None:
            rate = self._known[name, step] = compute()
            self._run.log({name: rate}, step)
        self._done += 1
        self._run.progress(self._done, self._total, "evaluation")
        return rate


def _chosen(step: Step, every: int, *, first: bool) -> list[int]:
    """Updates of the snapshots to evaluate, counted back from the last.

    Where a task begins the one before has just ended: only the first task's start is a point.
    """
    trained = [update for update, _ in step.snapshots if update > 0]
    return [0] * first + trained[::-1][::every][::-1]


def _worlds(step: Step, index: int, threads: int, count: int = 0) -> HeldOutWorlds:
    import torch

    from door.evaluate import WORLDS
    from door.held_out import HeldOutWorlds

    torch.set_num_threads(1)  # as in training: the same bits
    return HeldOutWorlds(
        step.robot,
        seeds=record.Seeds(step.seed),
        worlds=count or WORLDS,
        start=step.start,
        threads=threads,
        index=index,
    )


def _matrix(count: int, rate: Rate) -> np.ndarray:
    return np.array([[rate(i, j) for j in range(count)] for i in range(count)])


def _final_rate(series: Sequence[Step], worlds: HeldOutWorlds) -> Rate:
    def rate(i: int, j: int) -> float:
        return _snapshot_rate(series, i, series[i].snapshots[-1][1], worlds)(j)

    return rate


def _snapshot_rate(
    series: Sequence[Step], place: int, path: Path, worlds: HeldOutWorlds
) -> Callable[[int], float]:
    """The opening rate on task j with the policies of a file; it is read when first needed.

    As in the source, task j is tried with task embedding min(i, j) after training task i.
    """
    kept: list[Any] = []

    def rate(j: int) -> float:
        from door import steps

        if not kept:
            tasks = [step.task for step in series[: place + 1]]
            kept.extend(steps.policies(series[place], path, tasks))
        return worlds.evaluate(kept[min(j, len(kept) - 1)], series[j].task).opening_rate

    return rate


def _references(series: Sequence[Step], fresh: Sequence[Step]) -> list[Step]:
    """For each step of the series the run that learned the same task from nothing.

    Raises:
        record.UserError: the two do not go together.
    """
    if len(series) < 2:
        raise record.UserError(f"{series[0].directory}: one task alone is no series")
    by_task = {step.task: step for step in fresh}
    for step in series:
        if step.task not in by_task:
            there = ", ".join(by_task)
            raise record.UserError(f"reference: no step learned {step.task}; there are {there}")
    chosen = [by_task[step.task] for step in series]
    for step, own in zip(chosen, series, strict=True):
        if step.pretrained:
            raise record.UserError(
                f"reference: {step.directory} learned {step.task} on from another task; choose a run "
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
                f"{step.directory}: no validations, so that nothing is known of how fast "
                f"{step.task} was learned; train with another eval-interval than 0"
            )
    return chosen


def _check_seed(config: Config, series: Sequence[Step]) -> None:
    if config.seed != series[0].seed:
        raise record.UserError(
            f"--seed: {config.seed}, but the series has {series[0].seed}; add "
            f"seed={series[0].seed}, or choose another with series=RUN"
        )


def _result(series: Sequence[Step], success: np.ndarray, transfer: np.ndarray) -> dict[str, Any]:
    lost, last = continual.forgetting(success), success[-1]
    known = transfer[np.isfinite(transfer)]
    metrics = {
        "accuracy": continual.accuracy(success),
        "forward_transfer": continual.forward_transfer(success),
        "backward_transfer": continual.backward_transfer(success),
        "positive_backward_transfer": continual.positive_backward_transfer(success),
        "remembering": continual.remembering(success),
        "after_training": float(np.diagonal(success).mean()),
        "final_performance": float(continual.average_performance([last])[0]),
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
    """The matrix, and below each task what it lost and how much faster it was learned."""

    def shown(of: np.ndarray, form: str, scale: float = 1.0) -> list[str]:
        mean = of[np.isfinite(of)].mean() if np.isfinite(of).any() else np.nan
        return ["" if np.isnan(v) else form.format(scale * v + 0.0) for v in (*of, mean)]

    rows = [
        [f"{i} {step.task}", *shown(rates, "{:.0f} %", 100)]
        for i, (step, rates) in enumerate(zip(series, success, strict=True))
    ]
    rows.append(["forgetting", *shown(lost, "{:.0f} %", 100)])
    rows.append(["forward transfer (AUC)", *shown(transfer, "{:.2f}")])
    columns = ["success after", *(f"{i} {step.task}" for i, step in enumerate(series)), "mean"]
    return {"columns": columns, "rows": rows}


def _draw(
    run: record.Run, series: Sequence[Step], success: np.ndarray, times: np.ndarray, curves: np.ndarray
) -> None:  # fmt: skip
    with record.optional(run, "figure"):
        from door import series_figures

        tasks, ends = [step.task for step in series], np.cumsum([step.updates for step in series])
        course = series_figures.Course(ends, [(times, rates) for rates in curves.T])
        series_figures.matrix(run.artifact("matrix.svg"), tasks, success)
        series_figures.over_series(run.artifact("success.svg"), tasks, [course])


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
