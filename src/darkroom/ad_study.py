"""Algorithm Distillation over several splits and seeds: histories, trainings, evaluations, and their means."""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from darkroom.distillation import figures as ad_figures
from darkroom.distillation import options as ad_options
from darkroom.distillation import scores as ad_scores
from darkroom.distillation.options import LARGEST_SIDE
from runcatalog import record
from runcatalog.guild import child_runs
from runcatalog.guild.child_runs import PlannedRun
from runcatalog.record import journal, option

SOURCE = "9"  # side of the source's rooms
# That have an operation for their histories, and a place in ad:train_mixed.
SIZES = ("5", "7", SOURCE, "11")


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `ad:study`."""

    splits: str = option("1 2 3", "seeds of the splits, separated by spaces")
    seeds: str = option("1 2 3", "seeds of the trainings with each split")
    sizes: str = option("9", "sides of the rooms that it is trained on, of 5 7 9 11")
    play: str = option("9 5 7 11 13", "sides of the rooms that it is evaluated in")
    histories: str = option("a2c:histories_return", "operation that records those of 9 x 9")
    histories_flags: str = option("", 'its flags, as "env-steps=200000"')
    train_flags: str = option("", 'flags of ad:train, as "updates=4000 shift=2"')
    evaluate_flags: str = option("copies=3", 'flags of ad:evaluate, as "copies=5"')
    jobs: int = option(1, "runs at a time, each on one core", low=1, high=64, resumable=True)
    reuse: bool = option(True, "take finished runs of the same flags")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("splits", "seeds", "sizes", "play"):
            words = getattr(self, name).split()
            if not words or not all(word.isdecimal() for word in words):
                raise record.UserError(f'--{name}: whole numbers, as "1 2 3"')
            if len(set(map(int, words))) < len(words):
                raise record.UserError(f"--{name}: {getattr(self, name)!r} has one twice")
        for word in self.sizes.split():
            if word not in SIZES:
                raise record.UserError(
                    f"--sizes: no operation records histories of side {word}; choose from {' '.join(SIZES)}"
                )
        for word in self.play.split():
            if not 2 <= int(word) <= LARGEST_SIDE:
                raise record.UserError(f"--play: {word} is no side from 2 to {LARGEST_SIDE}")
        for name in ("histories_flags", "train_flags", "evaluate_flags"):
            for word in getattr(self, name).split():
                if "=" not in word:
                    flag = record.config.flag_name(name)
                    raise record.UserError(f"--{flag}: {word!r} is no name=value")


def main(config: Config) -> dict[str, Any]:
    """Runs what is missing and returns what the record says."""
    if not os.environ.get("GUILD_HOME") or not os.environ.get("RUN_DIR"):
        raise record.UserError("a study runs under Guild: `guild run ad:study`")
    with record.start(config, study="darkroom") as run:
        links = child_runs.plan(run.directory / "study.json", runs_of(config))
        for link in links.values():
            run.add_parent(link.run)
        child_runs.run_all(
            links, config.jobs, run.event, lambda done: run.progress(done, len(links), "run")
        )
        played = [link for link in links.values() if link.operation == "ad:evaluate"]
        return run.finish(summarise(run, config, played, trained(links)))


def runs_of(config: Config) -> list[PlannedRun]:
    """The study's runs: histories of each size, and for each split and seed a training and an evaluation."""
    links: list[PlannedRun] = []

    def add(operation: str, name: str, flags: dict[str, str], after: dict[str, str]) -> str:
        runs = {link.name: link.run for link in links}
        used = {flag: runs[each] for flag, each in after.items()}
        same = {name: text for name, text in flags.items() if name != "video"}
        known = config.reuse and all(used.values())
        found = next(_finished(operation, same | used), "") if known else ""
        links.append(PlannedRun(operation, found, name=name, flags=flags, after=after))
        return name

    sizes, sources = config.sizes.split(), {}
    for size in sizes:
        operation = config.histories if size == SOURCE else f"a2c:histories_{size}"
        flags = {"seed": str(config.seed), "video": "none", **_flags(config.histories_flags)}
        sources[f"histories_{size}"] = add(operation, f"histories {size}", flags, {})
    # Of the others that ad:train_mixed could have, none is to be put beside them.
    mixed = {f"histories_{size}": "none" for size in SIZES if size not in sizes}
    mixed["histories"] = ",".join(sources)
    for split in config.splits.split():
        for seed in config.seeds.split():
            name = f"split {split} seed {seed}"
            flags = {"split": split, "seed": seed, "sizes": config.sizes}
            operation, after = "ad:train", {"histories": links[0].name}
            if sizes != [SOURCE]:
                operation, after, flags = "ad:train_mixed", sources, flags | mixed
            flags |= _flags(config.train_flags)
            after = {"trained": add(operation, f"train {name}", flags, after)}
            flags = {"seed": seed, "sizes": config.play, **_flags(config.evaluate_flags)}
            add("ad:evaluate", f"evaluate {name}", flags, after)
    return links


def _finished(operation: str, flags: dict[str, str]) -> Iterator[str]:
    """Runs that are what these flags start now."""
    for run in child_runs.equivalent_runs(operation, flags):
        child = child_runs.ChildRun(operation, run)
        if operation.startswith("ad:train"):
            # What a preset stands for may have changed since.
            settings = record.config.of_run(child.directory, ad_options.Config).settings()
            if child.result_json["result"].get("settings") != vars(settings):
                continue
        yield run


def trained(links: dict[str, PlannedRun]) -> np.ndarray:
    """Seconds of each training, float64."""
    return np.array(
        [
            link.result_json["wall_seconds"]
            for name, link in links.items()
            if name.startswith("train ")
        ]
    )


def _flags(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split())


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
    with record.optional(run, "figure"):
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


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
