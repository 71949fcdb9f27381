"""RAGEN's hyperparameter search: four groups of runs; a group uses the best values of the groups before it.

The best values are read from the finished searches that Guild knows.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
from dataclasses import dataclass
from typing import Any

from runcatalog import record
from runcatalog.guild import child_runs, finished_runs
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
# Values of parameters that a later group searches.
DEFAULTS = {
    "train-batch-size": 8, "n-rollout": 16, "actor-lr": 1e-6, "kl-coef": 0.04, "max-turns": 5, "temperature": 1.0,
}  # fmt: skip
# A group uses the best values of an earlier search only if these flags are equal.
_SHARED = ("env", "model", "lr-scale", "train-size", "val-data-num", "train-flags", "seed")
FREE = 0.5  # share of a GPU's memory that must be free for a run


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `ragen:search`; 0 in a searched parameter: the best value of its group, or its default."""

    group: int = option(1, "group to search", choices=tuple(GROUPS))
    env: str = option("bandit", "game", choices=GAMES)
    model: str = option("Qwen/Qwen2.5-3B-Instruct", "see ragen:train")
    train_batch_size: int = option(0, "replaces the best value of group 1", low=0)
    n_rollout: int = option(0, "replaces the best value of group 1", low=0)
    actor_lr: float = option(0.0, "replaces the best value of group 2", low=0)
    kl_coef: float = option(0.0, "replaces the best value of group 3", low=0)
    lr_scale: float = option(
        1.0, "factor of the searched learning rates; 300 for a tiny model", low=0, low_open=True
    )  # fmt: skip
    train_size: int = option(500, "training games, played in a single epoch", low=1)
    val_data_num: int = option(50, "validation games", low=1)
    train_flags: str = option(
        "micro-batch-size=2", 'flags of all runs, such as "prompt=grid lora-rank=8"'
    )
    parallel: bool = option(False, "start a run on every free GPU; no: a run at a time")
    dry_run: bool = option(False, "print the runs without starting them")
    reuse: bool = option(True, "reuse finished runs with the same flags")

    def __post_init__(self) -> None:
        super().__post_init__()
        own = {"seed", "ppo-batch-size", *_own_flags(self)}
        record.assignments("train-flags", self.train_flags, taken=own, by="the search")
        for group in range(self.group, max(GROUPS) + 1):
            for name in GROUPS[group]:
                if getattr(self, name.replace("-", "_"), 0):
                    why = "is searched" if group == self.group else "belongs into train-flags"
                    raise record.UserError(f"--{name}: in group {self.group} it {why}")


def _own_flags(config: Config) -> set[str]:
    """Return the flags of a run that the search itself sets."""
    earlier = {name for group in range(1, config.group) for name in GROUPS[group]}
    return {"env", "model", "train-size", "val-data-num", *GROUPS[config.group], *earlier}


def main(config: Config) -> dict[str, Any]:
    """Start the missing runs of a group and return the result."""
    child_runs.require_guild("a search", f"guild run {SEARCH}")
    fixed = fixed_values(config)
    places = free_gpus() if config.parallel and not child_runs.are_elsewhere() else 1
    with record.start(config, study="textgames") as run:
        planned = planned_runs(config, fixed)
        if config.dry_run:
            for child in planned:
                flags = " ".join(f"{name}={value}" for name, value in child.flags.items())
                run.event(f"guild run {child.operation} {flags} -y")
            return run.finish({"summary": f"{len(planned)} runs, none of them started"})
        failed: set[str] = set()
        children = child_runs.run_plan(
            run, "search.json", planned, places, lambda child, code: failed.add(child.name)
        )
        finished = [child for child in children.values() if child.name not in failed]
        child_runs.declare_evaluation(run, finished, "validation levels", chosen="best setting")
        return run.finish(result(config, children, failed))


def searched_values(config: Config) -> dict[str, tuple[Any, ...]]:
    """Return the values of the parameters that the group searches."""
    return {
        name: tuple(_scaled(config, name, value) for value in values)
        for name, values in GROUPS[config.group].items()
    }


def _scaled(config: Config, name: str, value: Any) -> Any:
    return float(f"{value * config.lr_scale:.9g}") if name == "actor-lr" else value


def fixed_values(config: Config) -> dict[str, Any]:
    """Return the values of parameters that the group does not search: given, best of an earlier group, or default.

    Raises:
        UserError: There is no finished search of an earlier group.
    """
    values = {
        name: _scaled(config, name, value)
        for name, value in DEFAULTS.items()
        if name not in GROUPS[config.group]
    }
    for group in range(1, config.group):
        given = {name: getattr(config, name.replace("-", "_"), 0) for name in GROUPS[group]}
        if all(given.values()):
            values |= given
            continue
        best = best_of(config, group)
        if best is None:
            missing = " ".join(f"{name}=…" for name, value in given.items() if not value)
            typed = [f"{name}={value}" for name, value in _shared(config).items()]
            raise record.UserError(
                f"--group: no finished search of group {group} with the same games and model; "
                f"`{shlex.join(['guild', 'run', SEARCH, f'group={group}', *typed])}` first, or give {missing}"
            )
        values |= best | {name: value for name, value in given.items() if value}
    return values


def best_of(config: Config, group: int) -> dict[str, Any] | None:
    """Return the best values of the newest finished search of a group with the same games and model."""
    flags = {**_shared(config), "group": group, "dry-run": "no"}
    run_id = finished_runs.newest_finished(SEARCH, flags)
    return child_runs.ChildRun(SEARCH, run_id).result_json["result"]["best"] if run_id else None


def _shared(config: Config) -> dict[str, Any]:
    flags = record.config.flags_of(config)
    return {name: flags[name] for name in _SHARED}


def planned_runs(config: Config, fixed: dict[str, Any]) -> list[PlannedRun]:
    """Return the group's runs."""
    searched, planned = searched_values(config), []
    for values in itertools.product(*searched.values()):
        point = dict(zip(searched, values, strict=True))
        parameters = fixed | point
        flags: dict[str, Any] = {
            "env": config.env, "model": config.model, "seed": config.seed, "adv-estimator": "grpo",
            "train-size": config.train_size, "val-data-num": config.val_data_num,
            "updates": max(1, config.train_size // parameters["train-batch-size"]), "ppo-batch-size": 0,
        }  # fmt: skip
        flags |= parameters | record.assignments("train-flags", config.train_flags)
        typed = {name: str(value) for name, value in flags.items()}
        known = (
            next(finished_runs.equivalent_runs(OPERATION, typed), None) if config.reuse else None
        )
        name = " ".join(f"{name}={value}" for name, value in point.items())
        planned.append(PlannedRun(OPERATION, known or "", name=name, flags=typed))
    return planned


def free_gpus() -> list[dict[str, str]]:
    """Return the environment variables of a run on every free GPU.

    Raises:
        UserError: No GPU is free.
    """
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    free = []
    for index in range(torch.cuda.device_count()):
        available, total = torch.cuda.mem_get_info(index)
        if available > FREE * total:
            # torch counts the visible GPUs; the child process counts those of the machine.
            name = visible[index].strip() if visible != [""] else str(index)
            free.append({"CUDA_VISIBLE_DEVICES": name})
    if not free:
        raise record.UserError(
            "--parallel: no GPU of this machine is free; without it a run starts after another"
        )
    return free


def result(config: Config, children: dict[str, PlannedRun], failed: set[str]) -> dict[str, Any]:
    """Return the best setting and a table with a row per run, failed runs included."""
    rows, scores = [], {}
    for name, child in children.items():
        if name in failed:
            rows.append([name, "failed", "", child.run[:8]])
            continue
        metrics = child.result_json["result"]["metrics"]
        scores[name] = metrics["greedy/score"]
        success = f"{100 * metrics['greedy/success']:.1f}"
        rows.append([name, f"{scores[name]:.3f}", success, child.run[:8]])
    if not scores:
        first = next(iter(children.values()))
        raise record.RunFailed(f"all {len(children)} runs failed; the first: {first.run[:8]}")
    best = max(scores, key=scores.__getitem__)
    point = {
        name: type(values[0])(children[best].flags[name])
        for name, values in GROUPS[config.group].items()
    }
    return {
        "objective": {
            "name": "score", "value": scores[best], "kind": "mean", "goal": "max", "at": len(children), "axis": "run",
        },
        "summary": f"best {best}" + (f"; {len(failed)} of {len(children)} failed" if failed else ""),
        "metrics": {
            "best_score": scores[best], "failed": float(len(failed)), "runs": float(len(children)),
        },
        "best": point,
        "table": {"columns": ["point", "score", "success [%]", "run"], "rows": rows},
        "task": config.env,
    }  # fmt: skip


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
