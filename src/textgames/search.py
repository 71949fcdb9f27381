"""The source's hyperparameter search: four groups of runs, each with the best of the groups before it.

What was best is read from the finished searches that Guild knows, not from a file that a person keeps.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
from dataclasses import dataclass
from typing import Any

from runcatalog import record
from runcatalog.guild import child_runs
from runcatalog.guild.child_runs import PlannedRun
from runcatalog.record import option
from textgames.games.config import GAMES

OPERATION, SEARCH = "ragen:train", "ragen:search"
GROUPS: dict[int, dict[str, tuple[Any, ...]]] = {
    1: {"train-batch-size": (4, 8, 16), "n-rollout": (4, 8, 16)},
    2: {"actor-lr": (5e-7, 1e-6, 5e-6, 1e-5)},
    3: {"kl-coef": (0.001, 0.005, 0.01, 0.04, 0.1, 0.5)},
    4: {"max-turns": (2, 5, 8), "temperature": (0.1, 0.5, 1.0)},
}
# Of what a later group searches, until it did.
DEFAULTS = {
    "train-batch-size": 8, "n-rollout": 16, "actor-lr": 1e-6, "kl-coef": 0.04, "max-turns": 5, "temperature": 1.0,
}  # fmt: skip
# What a group takes over from an earlier one's search alone if both have it.
_SHARED = ("env", "model", "lr-scale", "train-size", "val-data-num", "train-flags", "seed")
FREE = 0.5  # share of a GPU's memory that is free, for a run to be put there


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `ragen:search`. Those that the groups search are 0: the best of the group before, or its default."""

    group: int = option(1, "which is searched", choices=tuple(GROUPS))
    env: str = option("bandit", "game", choices=GAMES)
    model: str = option("Qwen/Qwen2.5-3B-Instruct", "see ragen:train")
    train_batch_size: int = option(0, "in place of the best of group 1", low=0)
    n_rollout: int = option(0, "in place of the best of group 1", low=0)
    actor_lr: float = option(0.0, "in place of the best of group 2", low=0)
    kl_coef: float = option(0.0, "in place of the best of group 3", low=0)
    lr_scale: float = option(
        1.0, "of the step sizes that are searched; 300 suits a tiny model", low=0, low_open=True
    )  # fmt: skip
    train_size: int = option(500, "games to learn from, each once", low=1)
    val_data_num: int = option(50, "games that training never saw", low=1)
    train_flags: str = option("micro-batch-size=2", 'of every run, as "prompt=grid lora-rank=8"')
    parallel: bool = option(False, "a run on each free GPU at a time, not one after the other")
    dry_run: bool = option(False, "say what would be run")
    reuse: bool = option(True, "take finished runs of the same flags")

    def __post_init__(self) -> None:
        super().__post_init__()
        for word in self.train_flags.split():
            name, _, value = word.partition("=")
            if not name or not value or name in ("seed", "ppo-batch-size", *_of_itself(self)):
                raise record.UserError(
                    f"--train-flags: {word!r} is no name=value of {OPERATION} that a search leaves open"
                )


def _of_itself(config: Config) -> set[str]:
    return {"env", "model", "train-size", "val-data-num", *GROUPS[config.group], *_before(config)}


def searched(config: Config) -> dict[str, tuple[Any, ...]]:
    """Values of what the group searches."""
    return {
        name: tuple(_scaled(config, name, value) for value in values)
        for name, values in GROUPS[config.group].items()
    }


def _scaled(config: Config, name: str, value: Any) -> Any:
    return float(f"{value * config.lr_scale:.9g}") if name == "actor-lr" else value


def _before(config: Config) -> list[str]:
    """What earlier groups search."""
    return [name for group in range(1, config.group) for name in GROUPS[group]]


def main(config: Config) -> dict[str, Any]:
    """Runs what is missing and returns what the record says."""
    if not os.environ.get("GUILD_HOME") or not os.environ.get("RUN_DIR"):
        raise record.UserError(f"a search runs under Guild: `guild run {SEARCH}`")
    fixed = settled(config)
    places = free_gpus() if config.parallel else [{}]
    with record.start(config, study="textgames") as run:
        links = links_of(config, fixed)
        if config.dry_run:
            for link in links:
                flags = " ".join(f"{name}={value}" for name, value in link.flags.items())
                run.event(f"guild run {link.operation} {flags} -y")
            return run.finish({"summary": f"{len(links)} runs, none of them started"})
        planned = child_runs.plan(run.directory / "search.json", links)
        for link in planned.values():
            run.add_parent(link.run)
        failed: dict[str, int] = {}
        child_runs.run_all(
            planned, places, run.event, lambda done: run.progress(done, len(planned), "run"),
            lambda link, code: failed.update({link.name: code}),
        )  # fmt: skip
        return run.finish(result(config, planned, failed))


def settled(config: Config) -> dict[str, Any]:
    """Values of what this group does not search: given, the best of earlier groups, or a default.

    Raises:
        UserError: An earlier group was not searched.
    """
    found = {
        name: _scaled(config, name, value)
        for name, value in DEFAULTS.items()
        if name not in GROUPS[config.group]
    }
    for group in range(1, config.group):
        given = {name: getattr(config, name.replace("-", "_"), 0) for name in GROUPS[group]}
        if all(given.values()):
            found |= given
            continue
        best = best_of(config, group)
        if best is None:
            missing = " ".join(f"{name}=…" for name, value in given.items() if not value)
            typed = [f"{name}={value}" for name, value in _shared(config).items()]
            raise record.UserError(
                f"--group: no finished search of group {group} with the same games and model; "
                f"`{shlex.join(['guild', 'run', SEARCH, f'group={group}', *typed])}` first, or give {missing}"
            )
        found |= best | {name: value for name, value in given.items() if value}
    return found


def best_of(config: Config, group: int) -> dict[str, Any] | None:
    """The best point of the newest finished search of a group, for the same games and model; None without one."""
    found = child_runs.newest_finished(SEARCH, {**_shared(config), "group": group, "dry-run": "no"})
    return child_runs.ChildRun(SEARCH, found).result_json["result"]["best"] if found else None


def _shared(config: Config) -> dict[str, Any]:
    flags = record.config.flags_of(config)
    return {name: flags[name] for name in _SHARED}


def links_of(config: Config, fixed: dict[str, Any]) -> list[PlannedRun]:
    """The group's runs."""
    over, links = searched(config), []
    for values in itertools.product(*over.values()):
        point = dict(zip(over, values, strict=True))
        both = fixed | point
        flags: dict[str, Any] = {
            "env": config.env, "model": config.model, "seed": config.seed, "adv-estimator": "grpo",
            "train-size": config.train_size, "val-data-num": config.val_data_num,
            "updates": max(1, config.train_size // both["train-batch-size"]), "ppo-batch-size": 0,
        }  # fmt: skip
        flags |= both
        flags |= dict(word.split("=", 1) for word in config.train_flags.split())
        typed = {name: str(value) for name, value in flags.items()}
        known = next(child_runs.equivalent_runs(OPERATION, typed), None) if config.reuse else None
        name = " ".join(f"{name}={value}" for name, value in point.items())
        links.append(PlannedRun(OPERATION, known or "", name=name, flags=typed))
    return links


def free_gpus() -> list[dict[str, str]]:
    """For each GPU that is free, the environment of a run there.

    Raises:
        UserError: There is none.
    """
    import torch

    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        if free > FREE * total:
            found.append({"CUDA_VISIBLE_DEVICES": str(index)})
    if not found:
        raise record.UserError(
            "--parallel: no GPU of this machine is free; without it the runs come one after the other"
        )
    return found


def result(config: Config, links: dict[str, PlannedRun], failed: dict[str, int]) -> dict[str, Any]:
    """The best point, and a row for each run, those that failed too."""
    rows, scores = [], {}
    for name, link in links.items():
        if name in failed:
            rows.append([name, "failed", "", link.run[:8]])
            continue
        metrics = link.result_json["result"]["metrics"]
        scores[name] = metrics["greedy/score"]
        rows.append(
            [name, f"{scores[name]:.3f}", f"{100 * metrics['greedy/success']:.1f}", link.run[:8]]
        )
    if not scores:
        raise record.RunFailed(
            f"all {len(links)} runs failed; the first: {links[next(iter(links))].run[:8]}"
        )
    best = max(scores, key=scores.__getitem__)
    point = {
        name: type(GROUPS[config.group][name][0])(links[best].flags[name])
        for name in GROUPS[config.group]
    }
    return {
        "objective": {
            "name": "score", "value": scores[best], "kind": "mean", "goal": "max", "at": len(links), "axis": "run",
        },
        "summary": f"best {best}" + (f"; {len(failed)} of {len(links)} failed" if failed else ""),
        "metrics": {"best_score": scores[best], "failed": float(len(failed)), "runs": float(len(links))},
        "best": point,
        "table": {"columns": ["point", "score", "success [%]", "run"], "rows": rows},
        "task": config.env,
    }  # fmt: skip


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
