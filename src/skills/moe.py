"""Train the gate of a mixture of the frozen specialists by PPO."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runcatalog import record
from skills.learning.options import MixtureConfig
from skills.learning.results import objective_and_metrics, success_with_interval

if TYPE_CHECKING:
    from skills.agents.evaluation import Episodes
    from skills.learning.mixture import GateStatistics, GateTrainer

EPISODE_POINTS = 100  # steps of an episode whose gate weights are recorded


@dataclass(frozen=True)
class Config(MixtureConfig):
    """Flags of `skill:moe`."""


def main(config: Config) -> dict[str, Any]:
    """Train, play the test episodes of all verbs together and of every verb, and return the record's result."""
    from skills.learning.mixture import GateTrainer

    with GateTrainer.start(config) as trainer:
        ppo = trainer.learner
        for update in trainer.updates():
            ppo.collect(update)  # the mixture acts
            ppo.compute_advantages()
            statistics = ppo.optimise(update, trainer.learning_rate())
            trainer.log(statistics)
            trainer.validate()  # every eval_interval updates; ends the loop at stop_at
            trainer.checkpoint()  # every save_interval updates
        episodes, gate = trainer.compare()
        trainer.run.digest_weights(trainer.tensors())
        return trainer.run.finish(result(config, trainer, episodes, gate))


def result(
    config: Config,
    trainer: GateTrainer,
    episodes: dict[str, dict[str, dict[str, Episodes]]],
    gate: GateStatistics,
) -> dict[str, Any]:
    """Return the record's result: success over all verbs, and by verb the gate's weights and the expert's success."""
    objective, metrics = objective_and_metrics(episodes["all"]["moe"], trainer.update)
    metrics |= gate.metrics()
    metrics |= {
        f"{'success' if who == 'moe' else who}/{verb}/{kind}": played.rate
        for verb, agents in episodes.items()
        for who, both in agents.items()
        for kind, played in both.items()
    }
    trainer.run.log(metrics, trainer.update)
    record_episodes(trainer, episodes)
    experts = trainer.experts
    return {
        "objective": objective,
        "metrics": metrics,
        "outcomes": trainer.outcomes,
        "env_steps": trainer.steps,
        "task": config.stage,
        "variant": {"recurrent": config.recurrent, "experts": [expert.stage for expert in experts.values()]},
        "table": table(list(experts), metrics, episodes),
    }  # fmt: skip


def table(
    experts: list[str],
    metrics: dict[str, float],
    episodes: dict[str, dict[str, dict[str, Episodes]]],
) -> dict[str, Any]:
    """Return a row per verb: the gate's mean weights and entropy, and success with and without the gate."""
    rows = []
    for verb, agents in episodes.items():
        cells = [""] * (len(experts) + 1)
        if verb != "all":
            names = [*(f"gate/{verb}/{expert}" for expert in experts), f"gate_entropy/{verb}"]
            # With few episodes a verb may have none.
            cells = [f"{metrics[name]:.3f}" if name in metrics else "" for name in names]
        success = [success_with_interval(both[kind]) for both in agents.values() for kind in both]
        rows.append([verb.upper(), *cells, *success])
    columns = [
        "verb", *(f"gate to {expert}" for expert in experts), "gate's entropy [nats]", "sampled [%]", "greedy [%]",
        "verb's expert alone, sampled [%]", "greedy, alone [%]",
    ]  # fmt: skip
    return {"columns": columns, "rows": rows}


def record_episodes(
    trainer: GateTrainer, episodes: dict[str, dict[str, dict[str, Episodes]]]
) -> None:
    """Log and draw the gate's weights in one episode of every verb: the first successful one, with greedy actions."""
    from skills.agents.evaluation import TEST_SEEDS
    from skills.figures import plots
    from skills.learning.mixture import episode_weights
    from skills.levels.stages import stages_by_verb

    mixture, run, weights = trainer.learner.agent, trainer.run, {}
    for verb, stage in stages_by_verb(trainer.config.stage).items():
        first_success = int(episodes[verb]["moe"]["greedy"].success.argmax())
        weights[verb] = episode_weights(mixture, stage, TEST_SEEDS[first_success])[:EPISODE_POINTS]
        for t, row in enumerate(weights[verb], 1):
            by_expert = zip(mixture.experts, row, strict=True)
            run.log({f"episode/{verb}/{name}": float(weight) for name, weight in by_expert}, t)
    plots.gate(run.artifact("gate.svg"), list(mixture.experts), weights)


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
