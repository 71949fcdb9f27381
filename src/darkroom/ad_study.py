"""Algorithm Distillation over several splits and seeds: histories, trainings, evaluations, and their means."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from darkroom import ad_options
from darkroom.evaluate_ad import MOST
from runcatalog import record
from runcatalog.guild import child_runs
from runcatalog.guild.child_runs import PlannedRun
from runcatalog.record import option

if TYPE_CHECKING:
    import numpy as np

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
            if not 2 <= int(word) <= MOST:
                raise record.UserError(f"--play: {word} is no side from 2 to {MOST}")
        for name in ("histories_flags", "train_flags", "evaluate_flags"):
            for word in getattr(self, name).split():
                if "=" not in word:
                    flag = record.config.flag_name(name)
                    raise record.UserError(f"--{flag}: {word!r} is no name=value")


def main(config: Config) -> dict[str, Any]:
    """Runs what is missing and returns what the record says."""
    if not os.environ.get("GUILD_HOME") or not os.environ.get("RUN_DIR"):
        raise record.UserError("a study runs under Guild: `guild run ad:study`")
    from darkroom import ad_summary

    with record.start(config, study="darkroom") as run:
        links = child_runs.plan(run.directory / "study.json", runs_of(config))
        for link in links.values():
            run.add_parent(link.run)
        child_runs.run_all(
            links, config.jobs, run.event, lambda done: run.progress(done, len(links), "run")
        )
        played = [link for link in links.values() if link.operation == "ad:evaluate"]
        return run.finish(ad_summary.summarise(run, config, played, trained(links)))


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
    import numpy as np

    return np.array(
        [
            link.result_json["wall_seconds"]
            for name, link in links.items()
            if name.startswith("train ")
        ]
    )


def _flags(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split())


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
