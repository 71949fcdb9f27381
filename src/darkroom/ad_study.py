"""Run Algorithm Distillation over several splits and seeds: histories, trainings, evaluations, and their means."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from darkroom.distillation import ad_options, figures, scores
from runcatalog import record
from runcatalog.guild import child_runs, finished_runs
from runcatalog.guild.child_runs import PlannedRun
from runcatalog.record import option
from runcatalog.record.journal.metrics import read_points

SOURCE_SIZE = "9"  # side of the source's rooms
# Sides with an operation for their histories and a place in ad:train_mixed.
SIZES = ("5", "7", SOURCE_SIZE, "11")
# Ends of the names of an evaluation's curves.
CURVES = ("/in_context", "/source", "/steps", "/explorer", "/explorer_steps")

Curves = Mapping[str, tuple[np.ndarray, np.ndarray]]  # steps and values by name


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `ad:study`."""

    splits: str = option(
        "1 2 3",
        "seeds of the splits, separated by spaces; settings were chosen on the test tasks of 1 2 3, the reported "
        "results are of 4 5 6",
    )
    seeds: str = option("1 2 3", "seeds of the trainings with each split")
    sizes: str = option("9", "sides of the rooms of the trainings, of 5 7 9 11")
    play: str = option("9 5 7 11 13", "sides of the rooms of the evaluations")
    histories: str = option("a2c:histories_return", "operation that records histories of 9 x 9")
    histories_flags: str = option("", 'its flags, as "env-steps=200000"')
    train_flags: str = option("", 'flags of ad:train, as "updates=4000 shift=2"')
    evaluate_flags: str = option("copies=3", 'flags of ad:evaluate, as "copies=5"')
    jobs: int = option(1, "runs at a time, one core per run", low=1, high=64, resumable=True)
    reuse: bool = option(True, "reuse finished runs of the same flags")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("splits", "seeds", "sizes", "play"):
            words = getattr(self, name).split()
            if not words or not all(word.isdecimal() for word in words):
                raise record.UserError(f'--{name}: whole numbers, as "1 2 3"')
            if len(set(map(int, words))) < len(words):
                raise record.UserError(f"--{name}: {getattr(self, name)!r} has a number twice")
        for word in self.sizes.split():
            if word not in SIZES:
                raise record.UserError(
                    f"--sizes: no operation records histories of side {word}; choose from {' '.join(SIZES)}"
                )
        for word in self.play.split():
            if not 2 <= int(word) <= ad_options.LARGEST_SIDE:
                raise record.UserError(
                    f"--play: {word} is no side from 2 to {ad_options.LARGEST_SIDE}"
                )
        for name, own in (
            ("histories_flags", ()),
            ("train_flags", ("split", "seed", "sizes", "histories")),
            ("evaluate_flags", ("seed", "sizes", "model")),
        ):
            flag = record.config.flag_name(name)
            record.assignments(flag, getattr(self, name), taken=own, by="the study")


def main(config: Config) -> dict[str, Any]:
    """Run what is missing and return the means."""
    child_runs.require_guild("a study", "guild run ad:study")
    with record.start(config, study="darkroom") as run:
        runs = child_runs.run_plan(run, "study.json", planned_runs(config), config.jobs)
        evaluations = [child for child in runs.values() if child.operation == "ad:evaluate"]
        trainings = [child for child in runs.values() if child.operation.startswith("ad:train")]
        seconds = np.array([child.result_json["wall_seconds"] for child in trainings])
        child_runs.declare_evaluation(run, evaluations, "tasks of all evaluations")
        return run.finish(summarise(run, config, evaluations, seconds))


def splits_of(config: Config) -> np.ndarray:
    """Return the number of the split of every evaluation, int [evaluations]."""
    splits, seeds = len(config.splits.split()), len(config.seeds.split())
    return np.repeat(np.arange(splits), seeds)


def planned_runs(config: Config) -> list[PlannedRun]:
    """Return the study's runs: histories of every size, and a training and an evaluation per split and seed."""
    runs: list[PlannedRun] = []

    def add(operation: str, name: str, flags: dict[str, str], after: dict[str, str]) -> str:
        """Plan a run, or reuse a finished one of the same flags and required runs."""
        run_ids = {run.name: run.run for run in runs}
        required = {flag: run_ids[other] for flag, other in after.items()}
        compared = {flag: value for flag, value in flags.items() if flag != "video"} | required
        reusable = config.reuse and all(required.values())
        run_id = next(_finished_runs(operation, compared), "") if reusable else ""
        runs.append(PlannedRun(operation, run_id, name=name, flags=flags, after=after))
        return name

    sizes, histories = config.sizes.split(), {}
    for size in sizes:
        operation = config.histories if size == SOURCE_SIZE else f"a2c:histories_{size}"
        flags = {"seed": str(config.seed), "video": "none"}
        flags |= record.assignments("histories-flags", config.histories_flags)
        histories[f"histories_{size}"] = add(operation, f"histories {size}", flags, {})
    # Histories of other sizes that ad:train_mixed requires by default are left out.
    mixed = {f"histories_{size}": "none" for size in SIZES if size not in sizes}
    mixed["histories"] = ",".join(histories)
    for split in config.splits.split():
        for seed in config.seeds.split():
            name = f"split {split} seed {seed}"
            flags = {"split": split, "seed": seed, "sizes": config.sizes}
            operation, after = "ad:train", {"histories": runs[0].name}
            if sizes != [SOURCE_SIZE]:
                operation, after, flags = "ad:train_mixed", histories, flags | mixed
            flags |= record.assignments("train-flags", config.train_flags)
            after = {"trained": add(operation, f"train {name}", flags, after)}
            flags = {"seed": seed, "sizes": config.play}
            flags |= record.assignments("evaluate-flags", config.evaluate_flags)
            add("ad:evaluate", f"evaluate {name}", flags, after)
    return runs


def _finished_runs(operation: str, flags: dict[str, str]) -> Iterator[str]:
    """Yield finished runs that these flags would repeat today."""
    for run_id in finished_runs.equivalent_runs(operation, flags):
        child = child_runs.ChildRun(operation, run_id)
        if operation.startswith("ad:train"):
            # A preset may have had other settings then.
            settings = record.config.of_run(child.directory, ad_options.Config).settings()
            if child.result_json["result"].get("settings") != vars(settings):
                continue
        yield run_id


def summarise(
    run: record.Run, config: Config, evaluations: Sequence[PlannedRun], seconds: np.ndarray
) -> dict[str, Any]:
    """Log and draw the mean curves, and return the result: means of the evaluations' metrics.

    Args:
        run: The study.
        config: Its flags.
        evaluations: The evaluations.
        seconds: Duration of every training, float [trainings].
    """
    curves = [read_curves(evaluation) for evaluation in evaluations]
    splits = splits_of(config)
    _log_curves(run, curves, splits)
    _draw_curves(run, curves, splits)
    results = [evaluation.result_json["result"] for evaluation in evaluations]
    per_run = [
        result["metrics"] | extra_steps(of) for result, of in zip(results, curves, strict=True)
    ]
    metrics, table = means_of(per_run, splits)
    metrics["training_minutes"] = float(seconds.mean() / 60)
    metrics["time/training_minutes_most"] = float(seconds.max() / 60)
    name = results[0]["objective"]["name"]
    if name not in metrics:  # some split has no test task in the smallest rooms
        name = next(metric for metric in metrics if metric.endswith(f"/{name.split('/')[1]}"))
    values = np.array([result["metrics"][name] for result in results])
    part, block = name.split("/")
    last = block.removeprefix("episodes_").replace("_", "–")
    return {
        "objective": {
            "name": name, "value": float(values.mean()), "kind": "mean", "goal": "max",
            "at": results[0]["objective"]["at"], "axis": "episode",
            "also": [
                {"name": metric, "value": metrics[metric], "kind": "mean"}
                for metric in metrics
                if metric.startswith(f"{part}/") and metric != name
            ],
        },
        "summary": (
            f"{with_interval(values, *scores.interval_over_splits(values, splits))} of the best return in "
            f"episodes {last}, {scores.label_of(part)}, {len(values)} trainings; worst task of any "
            f"{metrics[f'{part}/worst_of_all']:.2f}"
        ),
        "metrics": metrics,
        "table": table,
        "env_steps": sum(result.get("env_steps") or 0 for result in results),
        "variant": {"splits": config.splits, "seeds": config.seeds, "sizes": config.sizes},
    }  # fmt: skip


def extra_steps(curves: Curves) -> dict[str, float]:
    """Return by how many steps agents in their last episodes take longer to the goal than explorers, who know the way.

    Args:
        curves: Curves of an evaluation.

    Returns:
        The mean by name, for parts with explorers in rooms where the goal ends an episode.
    """
    extra = {}
    for name, (episodes, steps) in curves.items():
        part, _, kind = name.rpartition("/")
        if kind == "explorer_steps" and len(steps) > scores.BLOCK:
            block = scores.last_block(len(episodes)).removeprefix("episodes_")
            lengths = np.diff(np.stack([curves[f"{part}/steps"][1], steps]))
            if np.ptp(lengths):  # else all episodes have their full length
                agents, explorers = lengths[:, -scores.BLOCK :].mean(axis=1)
                extra[f"{part}/extra_steps_{block}"] = float(agents - explorers)
    return extra


def means_of(
    metrics: Sequence[dict[str, float]], splits: np.ndarray
) -> tuple[dict[str, float], dict[str, list[Any]]]:
    """Return means over runs with their intervals, and the same as a table.

    Args:
        metrics: Metrics of every evaluation, by names such as `held_out_9/episodes_76_80`.
        splits: Split of every evaluation, int [evaluations].
    """
    by_part: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for name in metrics[0]:
        part, key = name.split("/", 1)
        values = np.array([run_metrics[name] for run_metrics in metrics if name in run_metrics])
        if not name.endswith(("_low", "_high")) and len(values) == len(metrics):
            by_part[part][key] = values
    means, rows = {}, []
    first = next(iter(by_part.values()))
    blocks = [key for key in first if key.startswith(("episode", "extra_steps"))]
    for part, values in by_part.items():
        row = [part.replace("_", " ")]
        for key, per_run in values.items():
            means[f"{part}/{key}"] = float(per_run.mean())
        for key in blocks:
            if key not in values:  # of other parts than the first
                row.append("")
                continue
            low, high = scores.interval_over_splits(values[key], splits)
            if len(splits) > 1:
                means |= {f"{part}/{key}_low": float(low), f"{part}/{key}_high": float(high)}
            row.append(with_interval(values[key], low, high))
        means[f"{part}/worst_of_all"] = float(values["worst"].min())
        row += [f"{values['worst'].min():.2f}", f"{100 * values['solved'].mean():.1f} %"]
        rows.append(row)
    columns = ["tasks", *(key.replace("_", " ") for key in blocks)]
    columns += ["worst task of any run", f"tasks at {scores.SOLVED}"]
    return means, {"columns": columns, "rows": rows}


def with_interval(values: np.ndarray, low: float, high: float) -> str:
    """Return a mean over trainings as "0.978 [0.973, 0.983]"; a single training has no interval."""
    interval = f" [{low:.3f}, {high:.3f}]" if len(values) > 1 else ""
    return f"{values.mean():.3f}{interval}"


def read_curves(evaluation: PlannedRun) -> Curves:
    """Return the curves of an evaluation."""
    points: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for point in read_points(evaluation.directory / "journal" / "metrics.jsonl"):
        if point.name.endswith(CURVES):
            points[point.name].append((point.step, point.value))
    return {
        name: (np.array([step for step, _ in curve]), np.array([value for _, value in curve]))
        for name, curve in points.items()
    }


def _stacked(curves: Sequence[Curves], name: str) -> np.ndarray:
    """Return the values of a curve of every evaluation, float [evaluations, points]."""
    return np.stack([of_run[name][1] for of_run in curves])


def _log_curves(run: record.Run, curves: Sequence[Curves], splits: np.ndarray) -> None:
    """Log the mean curves, in-context learning with its interval over evaluations."""
    for name in sorted(set.intersection(*map(set, curves))):
        values = _stacked(curves, name)
        logged = {"": values.mean(axis=0)}
        if name.endswith("/in_context") and len(splits) > 1:
            logged["_low"], logged["_high"] = scores.interval_over_splits(values, splits)
        for index, step in enumerate(curves[0][name][0]):
            run.log({f"{name}{end}": float(v[index]) for end, v in logged.items()}, int(step))


def _draw_curves(run: record.Run, curves: Sequence[Curves], splits: np.ndarray) -> None:
    """Draw the mean curves with their intervals as `in_context.svg`."""
    with record.optional(run, "figure"):
        common = [name for name in curves[0] if all(name in of_run for of_run in curves)]
        drawn, mean_source, explorer = [], None, None
        for name in common:
            part, kind = name.rsplit("/", 1)
            values = _stacked(curves, name)
            mean = values.mean(axis=0)
            if kind == "in_context":
                label, steps = scores.label_of(part), _stacked(curves, f"{part}/steps").mean(axis=0)
                drawn.append(
                    scores.LearningCurve(
                        label, steps, mean, *scores.interval_over_splits(values, splits)
                    )
                )
            elif kind == "source" and mean_source is None:
                mean_source = curves[0][name][0], mean
            elif kind == "explorer":
                label = scores.label_of(f"explorer_{part.rpartition('_')[2]}")
                steps = _stacked(curves, f"{name}_steps").mean(axis=0)
                explorer = scores.LearningCurve(label, steps, mean, mean, mean)
        path = run.artifact("in_context.svg")
        figures.in_context(path, drawn, mean_source, explorer, over="trainings")


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
