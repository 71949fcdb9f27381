"""What several trainings say together: means over splits and seeds, with intervals over runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from darkroom import ad_figures, ad_scores
from runcatalog import record
from runcatalog.record import journal

if TYPE_CHECKING:
    from darkroom.ad_study import Config
    from runcatalog.guild.child_runs import PlannedRun


def summarise(
    run: record.Run, config: Config, played: Sequence[PlannedRun], seconds: np.ndarray
) -> dict[str, Any]:
    """Means of the evaluations' metrics; journals and draws their curves.

    Args:
        run: The study's.
        config: Flags.
        played: The evaluations.
        seconds: Of each training.
    """
    curves = [read_curves(link) for link in played]
    for name in sorted(set.intersection(*(set(each) for each in curves))):
        together = np.stack([each[name][1] for each in curves])
        point = {"": together.mean(axis=0)}
        if name.endswith("/in_context"):
            point["_low"], point["_high"] = ad_scores.interval(together)
        for place, step in enumerate(curves[0][name][0]):
            run.log({f"{name}{key}": float(v[place]) for key, v in point.items()}, int(step))
    results = [link.result_json["result"] for link in played]
    metrics, table = together_of([result["metrics"] for result in results])
    metrics["training_minutes"] = float(seconds.mean() / 60)
    metrics["time/training_minutes_most"] = float(seconds.max() / 60)
    _draw(run, curves)
    name = results[0]["objective"]["name"]
    if name not in metrics:  # a split may keep out no goal of the smallest rooms
        name = next(each for each in metrics if each.endswith(f"/{name.split('/')[1]}"))
    values = np.array([result["metrics"][name] for result in results])
    low, high = ad_scores.interval(values)
    part, block = name.split("/")
    last = block.removeprefix("episodes_").replace("_", "–")
    return {
        "objective": {
            "name": name, "value": float(values.mean()), "kind": "mean", "goal": "max",
            "at": results[0]["objective"]["at"], "axis": "episode",
            "also": [
                {"name": each, "value": metrics[each], "kind": "mean"}
                for each in metrics
                if each.startswith(part) and each != name
            ],
        },
        "summary": (
            f"{values.mean():.3f} [{low:.3f}, {high:.3f}] of the best return in episodes {last}, "
            f"{ad_scores.label_of(part)}, {len(values)} trainings; worst task of any "
            f"{metrics[f'{part}/worst_of_all']:.2f}"
        ),
        "metrics": metrics,
        "table": table,
        "env_steps": sum(link_result.get("env_steps") or 0 for link_result in results),
        "variant": {"splits": config.splits, "seeds": config.seeds, "sizes": config.sizes},
    }  # fmt: skip


def together_of(metrics: Sequence[dict[str, float]]) -> tuple[dict[str, float], dict[str, list]]:
    """Means over runs with their intervals, and the same as a table.

    Args:
        metrics: Of each evaluation, by names such as `held_out_9/episodes_76_80`.
    """
    by_part: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for name in metrics[0]:
        part, what = name.split("/", 1)
        values = np.array([each[name] for each in metrics if name in each])
        if not name.endswith(("_low", "_high")) and len(values) == len(metrics):
            by_part[part][what] = values
    found, rows = {}, []
    blocks = [what for what in next(iter(by_part.values())) if what.startswith("episode")]
    for part, values in by_part.items():
        row = [part.replace("_", " ")]
        for what, each in values.items():
            found[f"{part}/{what}"] = float(each.mean())
        for what in blocks:
            low, high = ad_scores.interval(values[what])
            found |= {f"{part}/{what}_low": float(low), f"{part}/{what}_high": float(high)}
            row.append(f"{values[what].mean():.3f} [{low:.3f}, {high:.3f}]")
        found[f"{part}/worst_of_all"] = float(values["worst"].min())
        row += [f"{values['worst'].min():.2f}", f"{100 * values['solved'].mean():.1f} %"]
        rows.append(row)
    columns = ["tasks", *(what.replace("_", " ") for what in blocks)]
    columns += ["worst task of any run", f"tasks at {ad_scores.SOLVED}"]
    return found, {"columns": columns, "rows": rows}


def read_curves(link: PlannedRun) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Steps and values of an evaluation's curves, by name."""
    points: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for point in journal.read_points(link.directory / "journal" / "metrics.jsonl"):
        if point.name.endswith(("/in_context", "/source", "/steps")):
            points[point.name].append((point.step, point.value))
    return {
        name: (np.array([p[0] for p in each]), np.array([p[1] for p in each]))
        for name, each in points.items()
    }


def _draw(run: record.Run, curves: Sequence[dict[str, tuple[np.ndarray, np.ndarray]]]) -> None:
    """The mean curves with intervals over runs, as one figure."""
    try:
        means = {
            name: (at, np.mean([each[name][1] for each in curves], axis=0))
            for name, (at, _) in curves[0].items()
            if all(name in each for each in curves)
        }
        lines = []
        for name in means:
            part, what = name.rsplit("/", 1)
            if what == "in_context":
                together = np.stack([each[name][1] for each in curves])
                low, high = ad_scores.interval(together)
                steps = means[f"{part}/steps"][1]
                label = ad_scores.label_of(part)
                lines.append(ad_scores.Line(label, steps, means[name][1], low, high))
        source = next((means[name] for name in means if name.endswith("/source")), None)
        ad_figures.in_context(run.artifact("in_context.svg"), lines, source)
    except Exception as error:  # whatever matplotlib finds: the run has its result without it
        run.event(f"no figure: {type(error).__name__}: {error}")
