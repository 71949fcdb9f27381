"""Trains a gate over frozen specialists by PPO: a mixture of experts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from runcatalog import record
from skills.options import MixtureConfig as Config

if TYPE_CHECKING:
    from skills.gating import Gating, Looks
    from skills.playing import Played

POINTS = 100  # of a curve that a record keeps


def main(config: Config) -> dict[str, Any]:
    """Trains, plays 1,000 episodes that were kept out on each verb and on all, and returns what the record says."""
    from skills.gating import Gating
    from skills.training import trained

    with trained(Gating, config) as training:
        found, looks = training.compared()
        training.run.digest_weights(training.tensors())
        return training.run.finish(result(config, training, found, looks))


def result(
    config: Config,
    training: Gating,
    found: dict[str, dict[str, dict[str, Played]]],
    looks: Looks,
) -> dict[str, Any]:
    """Success over all verbs; for each verb how the gate decides, and what its own expert alone reaches."""
    from skills.train import objective_of

    run = training.run
    objective, metrics = objective_of(found["all"]["moe"], training.update)
    metrics |= looks.metrics()
    metrics |= {
        f"{'success' if who == 'moe' else who}/{verb}/{kind}": played.rate
        for verb, each in found.items()
        for who, both in each.items()
        for kind, played in both.items()
    }
    run.log(metrics, training.update)
    episodes(training, found)
    return {
        "objective": objective,
        "metrics": metrics,
        "env_steps": training.steps,
        "task": config.stage,
        "variant": {"recurrent": config.recurrent, "experts": [each.stage for each in training.experts.values()]},
        "table": table(list(training.experts), metrics, found),
    }  # fmt: skip


def table(
    experts: list[str],
    metrics: dict[str, float],
    found: dict[str, dict[str, dict[str, Played]]],
) -> dict[str, Any]:
    """A line for each verb: mean weight of each expert and entropy of the gate; success with and without a gate."""
    from skills.benchmark import share

    rows = []
    for verb, each in found.items():
        told = [""] * (len(experts) + 1)
        if verb != "all":
            names = [*(f"gate/{verb}/{expert}" for expert in experts), f"gate_entropy/{verb}"]
            # Few episodes may leave a verb out.
            told = [f"{metrics[name]:.3f}" if name in metrics else "" for name in names]
        rows.append([
            verb.upper(), *told, *(share(each[who][kind]) for who in each for kind in ("sampled", "greedy")),
        ])  # fmt: skip
    columns = [
        "verb", *(f"gate to {expert}" for expert in experts), "gate's entropy [nats]", "sampled [%]", "greedy [%]",
        "verb's expert alone, sampled [%]", "greedy, alone [%]",
    ]  # fmt: skip
    return {"columns": columns, "rows": rows}


def episodes(training: Gating, found: dict[str, dict[str, dict[str, Played]]]) -> None:
    """Keeps the gate's weights over one episode of each verb, the first that succeeds, and draws them."""
    from skills import agents, drawing
    from skills.gating import episode
    from skills.levels import levels_of

    mixture, run, shown = training.learner.agent, training.run, {}
    for verb, stage in levels_of(training.config.stage).items():
        succeeds = found[verb]["moe"]["greedy"].success
        weights = episode(mixture, stage, agents.TEST[int(succeeds.argmax())])
        shown[verb] = weights[:POINTS]
        for t, row in enumerate(shown[verb], 1):
            named = zip(mixture.experts, row, strict=True)
            run.log({f"episode/{verb}/{name}": float(weight) for name, weight in named}, t)
    drawing.gate(run.artifact("gate.svg"), list(mixture.experts), shown)


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
