"""Opening rates of the policies that the runs of a series saved: matrix, curves, and starts of training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from door.continual import formulas
from door.continual.steps import Step, policies, read
from door.training.evaluation import TEST, VALIDATION, WORLDS, HeldOutWorlds
from runcatalog import record
from runcatalog.record.journal.metrics import read_points


def final_matrix(
    directories: Sequence[Path], *, threads: int = 2, reported: bool = False
) -> np.ndarray:
    """Return the success [N, N] on the N tasks of a series after every step, on the 100 test worlds.

    Args:
        directories: Of the runs, in the order of learning.
        threads: Simulator threads; no effect on the result.
        reported: Take the values that the runs reported, for their own task and previous ones; evaluate the others.

    Raises:
        record.UserError: See `door.continual.steps.read`.
    """
    series = read(directories)
    with _worlds(series[0], TEST, threads) as worlds:

        def rate(i: int, j: int) -> float:
            known = series[i].earlier | {i: series[i].opening_rate} if reported else {}
            return known[j] if j in known else _final_rate(series, i, j, worlds)

        return _matrix(len(series), rate)


class Evaluations:
    """All opening rates that the metrics need. They are logged in the run's journal and computed once."""

    def __init__(
        self,
        run: record.Run,
        series: Sequence[Step],
        reference: Sequence[Step],
        *,
        every: int,
        curve_worlds: int,
        threads: int,
    ) -> None:
        """Prepare the evaluations; those in the run's journal are taken from there.

        Args:
            run: The recorded run.
            series: In the order of learning.
            reference: Per step of the series the run that learned its task from scratch.
            every: Every k-th policy of a step is a point of the curves.
            curve_worlds: Number of validation worlds for a point of the curves.
            threads: Simulator threads.
        """
        self._run, self._series, self._reference = run, series, reference
        self._curve_worlds, self._threads = curve_worlds, threads
        points = read_points(run.directory / "journal" / "metrics.jsonl")
        self._known = {(point.name, point.step): point.value for point in points}
        self._ends = np.cumsum([step.updates for step in series]).tolist()
        self._points = [
            (update, place)
            for place, step in enumerate(series)
            for update in curve_updates(step, every, first=place == 0)
        ]
        starts = sum(0 not in step.validation for step in (*series, *reference))
        self._done, self._total = 0, len(series) * (len(series) + len(self._points)) + starts

    def matrix(self) -> np.ndarray:
        """Return the success [N, N] after every step, on the test worlds; logged as `matrix/<id>_<task>`."""
        series = self._series
        with _worlds(series[0], TEST, self._threads) as worlds:
            success = _matrix(
                len(series),
                lambda i, j: self._rate(
                    self._name("matrix", j),
                    self._ends[i],
                    lambda: _final_rate(series, i, j, worlds),
                ),
            )
        for i, (step, rates) in enumerate(zip(series, success, strict=True)):
            percents = (
                f"{task.task} {100 * rate:.0f} %" for task, rate in zip(series, rates, strict=True)
            )
            self._run.event(f"after {step.task}: {', '.join(percents)}")
            if success[i, i] != step.opening_rate:
                self._run.event(
                    f"{step.task}: {100 * success[i, i]:g} % here, but its own run reported "
                    f"{100 * step.opening_rate:g} %; another version or another kind of machine?"
                )
        return success

    def transfer(self) -> np.ndarray:
        """Return the forward transfer by area of every task, [N]; NaN where it is undefined."""
        return np.array(
            [
                formulas.curve_transfer(
                    *self._training_curve(self._name("start", i), step),
                    *self._training_curve(self._name("fresh", i), fresh),
                )
                for i, (step, fresh) in enumerate(zip(self._series, self._reference, strict=True))
            ]
        )

    def curves(self) -> tuple[np.ndarray, np.ndarray]:
        """Return updates [T] of the whole series, and the success [T, N] there on the first validation worlds.

        They are logged as `success/<id>_<task>`, their mean as `average_performance`.
        """
        series, times, rows = self._series, [], []
        with _worlds(series[0], VALIDATION, self._threads, self._curve_worlds) as worlds:
            for update, place in self._points:
                time = self._ends[place] - series[place].updates + update
                rate = snapshot_rate(series, place, dict(series[place].snapshots)[update], worlds)
                row = [
                    self._rate(self._name("success", j), time, lambda j=j, rate=rate: rate(j))
                    for j in range(len(series))
                ]
                times.append(time)
                rows.append(row)
                mean = formulas.average_performance([row])[0]
                self._run.log({"average_performance": mean}, time)
        return np.array(times), np.array(rows)

    def _training_curve(self, name: str, step: Step) -> tuple[list[float], list[float]]:
        """Return decisions and opening rates on the validation worlds during the training of a step.

        The run logged them itself, except for the start of a run from scratch, which is evaluated here. The decisions
        for the choice of a start come first, with success 0 at the first of them; `formulas.area` joins the points by
        straight lines.

        Args:
            name: Metric of the evaluation of the start.
            step: The training run.
        """
        curve = dict(step.validation)
        if 0 not in curve:

            def rate() -> float:
                from door.training import snapshots

                policy = snapshots.load(step.snapshots[0][1])[-1][1]
                with _worlds(step, VALIDATION, self._threads) as worlds:
                    return worlds.opening_rate(policy, step.task)

            curve[0] = self._rate(name, 0, rate)
        updates = sorted(curve)
        before = step.decisions_before
        decisions = [before + update * step.decisions_per_update for update in updates]
        rates = [curve[update] for update in updates]
        return ([0, *decisions], [0.0, *rates]) if before else (decisions, rates)

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


def curve_updates(step: Step, every: int, *, first: bool) -> list[int]:
    """Return the updates of the snapshots to evaluate, counted back from the last one.

    The start of a task is the end of the previous one, so update 0 is a point in the first task only.
    """
    trained = [update for update, _ in step.snapshots if update > 0]
    return [0] * first + trained[::-1][::every][::-1]


def _worlds(step: Step, index: int, threads: int, count: int = 0) -> HeldOutWorlds:
    import torch

    torch.set_num_threads(1)  # as in training, for the same bits
    return HeldOutWorlds(
        step.robot,
        seeds=record.Seeds(step.seed),
        worlds=count or WORLDS,
        start=step.start,
        threads=threads,
        index=index,
    )


def _matrix(count: int, rate: Callable[[int, int], float]) -> np.ndarray:
    """Return [N, N] of `rate(i, j)`: after learning task i, on task j."""
    return np.array([[rate(i, j) for j in range(count)] for i in range(count)])


def _final_rate(series: Sequence[Step], i: int, j: int, worlds: HeldOutWorlds) -> float:
    return snapshot_rate(series, i, series[i].snapshots[-1][1], worlds)(j)


def snapshot_rate(
    series: Sequence[Step], place: int, path: Path, worlds: HeldOutWorlds
) -> Callable[[int], float]:
    """Return the opening rate on task j, as a function, with the policies of a snapshot; read at the first call.

    As in the source, task j is evaluated with the embedding of task min(i, j) after training task i.
    """
    loaded: list = []

    def rate(j: int) -> float:
        if not loaded:
            tasks = [step.task for step in series[: place + 1]]
            loaded.extend(policies(series[place], path, tasks))
        return worlds.opening_rate(loaded[min(j, len(loaded) - 1)], series[j].task)

    return rate
