"""Train a language model by reinforcement learning in conversations with a game.

After RAGEN (Wang et al. 2025, arXiv 2504.20073). An update collects trajectories with the current policy, estimates
the advantages of their tokens (`learning/advantages.py`) and optimises PPO's clipped objective (`learning/ppo.py`).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.record import option
from textgames.learning import advantages, collapse
from textgames.learning.options import PlayConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from textgames.learning.advantages import AdvantageSettings
    from textgames.learning.ppo import Learner
    from textgames.learning.rollout import Rollout
    from textgames.models.loading import Loaded
    from textgames.models.trajectories import Trajectory

POINTS = 200  # of a curve


@dataclass(frozen=True)
class Config(PlayConfig):
    """Flags of `ragen:train`; the defaults are RAGEN's."""

    train_size: int = option(10_000, "training games", low=1)
    updates: int = option(200, "updates: a batch of games is played and learned from", low=1)
    train_batch_size: int = option(8, "games per update", low=1)
    n_rollout: int = option(16, "trajectories per game", low=1)
    own_luck: bool = option(
        False, "the trajectories of a game have different slips and rewards; no: those of its seed, as in RAGEN"
    )  # fmt: skip
    ppo_batch_size: int = option(128, "trajectories per optimizer step; 0: all of an update", low=0)
    micro_batch_size: int = option(1, "trajectories that are computed together", low=1)
    ppo_epochs: int = option(1, "passes over the trajectories of an update", low=1)
    adv_estimator: str = option(
        "grpo", "outcomes compared with: brpo the batch, grpo the same game, arpo nothing; states: turns in equal "
        "states; gae: a critic",
        choices=advantages.ESTIMATORS,
    )  # fmt: skip
    credit: str = option(
        "outcome", "gae: all rewards come with the last token, or with the last token of their turn",
        choices=advantages.CREDITS, unless={"adv_estimator": advantages.WITHOUT_CRITIC},
    )  # fmt: skip
    gamma: float = option(
        1.0, "discount from token to token (gae) or from turn to turn (states)", low=0, high=1,
        unless={"adv_estimator": advantages.OF_OUTCOMES},
    )  # fmt: skip
    gae_lambda: float = option(
        1.0, "gae: decay from token to token", low=0, high=1,
        unless={"adv_estimator": advantages.WITHOUT_CRITIC},
    )  # fmt: skip
    filter: float = option(
        1.0, "share of games that are learned from, those with the most varied outcomes (StarPO-S: 0.25)",
        low=0, low_open=True, high=1,
    )  # fmt: skip
    actor_lr: float = option(
        1e-6, "AdamW's learning rate of the policy", low=0, low_open=True, high=1
    )
    lr_decay: float = option(
        0.0, "share of the updates, at the end, in which actor-lr falls linearly to 0", low=0, high=1
    )  # fmt: skip
    critic_lr: float = option(
        1e-5, "AdamW's learning rate of the critic", low=0, low_open=True, high=1,
        unless={"adv_estimator": advantages.WITHOUT_CRITIC},
    )  # fmt: skip
    warm_up: int = option(0, "gae: first updates, which train the critic alone", low=0)
    clip_low: float = option(
        0.2, "how far the probability ratio may fall below 1", low=0, low_open=True, high=1
    )
    clip_high: float = option(
        0.2, "how far the probability ratio may rise above 1 (StarPO-S: 0.28)", low=0, low_open=True
    )
    entropy_coef: float = option(0.001, "coefficient of the entropy bonus", low=0)
    kl_coef: float = option(0.001, "coefficient of the divergence from the first model", low=0)
    loss_tokens: str = option(
        "model", "tokens that are trained on: the model's, or all (RAGEN's first version: the game's messages too)",
        choices=("model", "all"),
    )  # fmt: skip
    grad_clip: float = option(1.0, "largest norm of the gradient", low=0, low_open=True)
    alarm: str = option(
        "mark",
        "on a sign of collapse: mark it or end the run; off: look for none",
        choices=collapse.CHOICES,
    )
    processes: int = option(
        1, "processes that share weights and games, with a GPU each (fully sharded)", low=1, high=64,
        resumable=True,
    )  # fmt: skip
    test_freq: int = option(20, "updates between validations", low=1)
    save_freq: int = option(50, "updates between checkpoints", low=1, resumable=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        batch = self.train_batch_size * self.n_rollout
        if not self.ppo_batch_size:
            object.__setattr__(self, "ppo_batch_size", batch)
        if self.filter == 1 and batch % self.ppo_batch_size:
            raise record.UserError(
                f"--ppo-batch-size: {self.ppo_batch_size} does not divide train-batch-size x n-rollout = {batch}"
            )
        if self.ppo_batch_size % self.micro_batch_size:
            raise record.UserError(
                f"--micro-batch-size: {self.micro_batch_size} does not divide ppo-batch-size ({self.ppo_batch_size})"
            )
        if self.train_batch_size > self.train_size:
            raise record.UserError(
                f"--train-batch-size: {self.train_batch_size} games per update, but train-size is {self.train_size}"
            )
        if self.filter < 1 and self.n_rollout == 1:
            raise record.UserError(
                "--filter: the outcomes of a game that is played once (n-rollout=1) do not vary"
            )
        if self.adv_estimator == "states" and self.n_rollout == 1:
            raise record.UserError(
                "--adv-estimator: a game that is played once (n-rollout=1) repeats no state; give n-rollout=16"
            )
        if self.loss_tokens == "all" and self.context != "whole":
            raise record.UserError(
                "--loss-tokens: only whole conversations (context=whole) contain the game's messages"
            )
        if self.processes > (games := min(batch, self.val_data_num)):
            raise record.UserError(
                f"--processes: {self.processes} processes for {games} games; every process needs a game"
            )
        if self.processes > 1 and self.quantise != "none":
            raise record.UserError(
                "--processes: 4-bit weights cannot be sharded; use quantise=none or one process"
            )
        if self.adv_estimator == "gae" and self.quantise != "none":
            raise record.UserError(
                "--adv-estimator: the critic of gae is a copy of the model with all weights trained, which 4-bit "
                "weights cannot be; use quantise=none, or brpo, grpo or arpo"
            )
        if self.warm_up and self.adv_estimator != "gae":
            raise record.UserError("--warm-up: only adv-estimator=gae has a critic")
        if self.warm_up >= self.updates:
            raise record.UserError(
                f"--warm-up: in none of the {self.updates} updates would the policy learn; give "
                f"{self.updates - 1} or fewer"
            )


@dataclass
class Progress:
    """Counters of a run, part of its checkpoints.

    Attributes:
        update: Number of updates so far.
        turns: Number of turns played.
        tokens: Number of tokens that the model computed in rollouts.
        unlogged: Metrics of the updates since the last point of the curves.
    """

    update: int = 0
    turns: int = 0
    tokens: int = 0
    unlogged: list[dict[str, float]] = field(default_factory=list)


def main(config: Config) -> dict[str, Any]:
    """Train a model, save it and return the result."""
    from textgames.games import example_texts, levels
    from textgames.learning import options
    from textgames.models import distributed, loading, memory

    options.check(config)
    memory.check(
        config, reference=config.kl_coef > 0, critic=config.adv_estimator == "gae", processes=config.processes
    )  # fmt: skip
    with (
        distributed.join(config.processes, config.device) as ranks,
        record.start(config, study="textgames") as run,
    ):
        options.limit_threads(config)
        loaded = loading.load(config, run, lambda: example_texts.texts(config), ranks=ranks)
        run.add_parent(loaded.run_id)
        validation_seeds = levels.validation(config, config.val_data_num)
        excluded = max(levels.VALIDATION, len(validation_seeds))
        train_seeds = levels.training(config, config.train_size, excluded=excluded)
        result = train(config, run, loaded, train_seeds, validation_seeds)
        loading.save(loaded, run.artifact("model/config.json").parent, writes=ranks.first)
        return run.finish(result)


def train(
    config: Config,
    run: record.Run,
    loaded: Loaded,
    train_seeds: NDArray[np.int64],
    validation_seeds: NDArray[np.int64],
) -> dict[str, Any]:
    """Train from the run's newest checkpoint on, and return the result.

    Args:
        config: The flags.
        run: The record.
        loaded: The model.
        train_seeds: Seeds of the training games, int64 [train_size].
        validation_seeds: Seeds of the validation games, int64 [n].
    """
    import numpy as np

    from rl.schedule import hold_and_fall

    progress, detector = Progress(), collapse.CollapseDetector()
    learner = make_learner(config, loaded)
    networks, estimator = learner.networks, advantage_settings(config)
    if restore(run, loaded, learner, progress, detector):
        run.event(f"continued after update {progress.update}")
    else:
        validate(config, run, loaded, learner, validation_seeds, update=0)
    groups = np.repeat(np.arange(config.train_batch_size), config.n_rollout)
    interval = record.log_interval(config.updates, POINTS)
    stopped = config.alarm == "end" and bool(detector.signs)
    while progress.update < config.updates and not stopped:
        seeds = batch_seeds(config, run, train_seeds, progress.update)
        # Collect: the current policy plays every game n_rollout times.
        trajectories, tokens = collect(config, run, loaded, learner, seeds, progress.update)
        metrics = rollout_metrics(trajectories, groups)
        progress.tokens += tokens
        progress.turns += sum(len(trajectory.turns) for trajectory in trajectories)
        # Filter (StarPO-S): only the games with the most varied outcomes are learned from.
        scores = np.array([trajectory.score for trajectory in trajectories])
        kept = np.flatnonzero(advantages.most_varied(scores, groups, config.filter))
        learned = [trajectories[i] for i in kept]
        # Advantages of the tokens.
        values = None
        if networks.critic is not None:
            texts = [trajectory.texts for trajectory in learned]
            values = [value.cpu().numpy() for value in networks.values(texts)]
        estimates = advantages.estimate(learned, groups[kept], values, estimator)
        # Update: PPO.
        metrics |= learner.update(
            learned, estimates, groups[kept], run.seeds.generator("order", progress.update),
            critic_only=progress.update < config.warm_up,
            lr_scale=hold_and_fall(progress.update, config.updates, config.lr_decay),
        )  # fmt: skip
        progress.update += 1
        record.check_finite(progress.update, metrics)
        # Detect collapse; during the critic's warm-up the policy does not change.
        if config.alarm != "off" and progress.update > config.warm_up:
            check_collapse(config, run, detector, metrics, progress.update)
        stopped = config.alarm == "end" and bool(detector.signs)
        last = stopped or progress.update == config.updates
        # Log.
        progress.unlogged.append(metrics)
        if last or record.is_due(progress.update, interval):
            run.log(record.mean_metrics(progress.unlogged), progress.update)
            progress.unlogged = []
        run.progress(progress.update, config.updates, "update")
        # Validate and save a checkpoint.
        if not last and record.is_due(progress.update, config.test_freq):
            validate(config, run, loaded, learner, validation_seeds, progress.update)
        # All processes gather the weights, but only rank 0 knows of a signal that asks for a checkpoint.
        due = loaded.ranks.broadcast(run.checkpoint_due(progress.update, config.save_freq))
        if last or due:
            save(run, loaded, learner, progress, detector)
    return result(config, run, loaded, learner, progress, detector)


def make_learner(config: Config, loaded: Loaded) -> Learner:
    """Return the policy with its reference and critic, and their optimizers."""
    from textgames.learning.networks import Networks
    from textgames.learning.ppo import Learner, PPOSettings
    from textgames.models import loading
    from textgames.models.scoring import Critic

    critic = None
    if config.adv_estimator == "gae":
        critic = Critic(loaded.model).to(loaded.device)
    networks = Networks(
        loaded.model, reference=loading.reference(loaded) if config.kl_coef else None, critic=critic,
        micro_batch_size=config.micro_batch_size, all_tokens=config.loss_tokens == "all",
        temperature=config.temperature, autocast=loaded.autocast, ranks=loaded.ranks,
        bf16=config.precision == "bf16",
    )  # fmt: skip
    settings = PPOSettings(
        clip_low=config.clip_low, clip_high=config.clip_high, entropy_coef=config.entropy_coef,
        kl_coef=config.kl_coef, minibatch_size=config.ppo_batch_size, epochs=config.ppo_epochs,
        grad_clip=config.grad_clip, actor_lr=config.actor_lr, critic_lr=config.critic_lr,
    )  # fmt: skip
    return Learner(networks, settings)


def advantage_settings(config: Config) -> AdvantageSettings:
    """Return the settings of `advantages.estimate` according to the flags."""
    from textgames.learning.advantages import AdvantageSettings

    return AdvantageSettings(
        estimator=config.adv_estimator, credit=config.credit, gamma=config.gamma, gae_lambda=config.gae_lambda,
        all_tokens=config.loss_tokens == "all",
    )  # fmt: skip


def batch_seeds(
    config: Config, run: record.Run, train_seeds: NDArray[np.int64], update: int
) -> NDArray[np.int64]:
    """Return the seeds of an update's games: all games in random order, then all games in another order.

    An order ends before its last incomplete batch.
    """
    size = config.train_batch_size
    epoch, position = divmod(update, len(train_seeds) // size)
    order = run.seeds.generator("games", epoch).permutation(len(train_seeds))
    return train_seeds[order[position * size :][:size]]


def collect(
    config: Config,
    run: record.Run,
    loaded: Loaded,
    learner: Learner,
    seeds: NDArray[np.int64],
    update: int,
) -> Rollout:
    """Play every game `n_rollout` times with the current policy, divided over the processes.

    Returns:
        The trajectories of all processes, those of a game after one another, and the number of computed tokens.
    """
    import numpy as np

    from textgames.games.config import make_game
    from textgames.learning import rollout

    ranks = loaded.ranks
    own_seeds = ranks.share(np.repeat(seeds, config.n_rollout))
    replays = np.tile(np.arange(config.n_rollout), len(seeds)) * config.own_luck
    generator = run.seeds.torch(ranks.stream_name("play"), update)
    with learner.networks.generating(), loaded.autocast():
        played = rollout.play(
            loaded.model, loaded.tokenizer, make_game(config), config, own_seeds,
            rollout.generation(config, generator), ranks.share(replays),
        )  # fmt: skip
    trajectories = ranks.gather(played.trajectories)
    return rollout.Rollout(trajectories, sum(ranks.gather([played.computed_tokens])))


def rollout_metrics(trajectories: list[Trajectory], groups: NDArray[np.int64]) -> dict[str, float]:
    """Return metrics of an update's trajectories."""
    import numpy as np

    from textgames.results import validation

    scores = np.array([trajectory.score for trajectory in trajectories])
    replies = [turn.reply for trajectory in trajectories for turn in trajectory.turns]
    statistics = validation.statistics(trajectories)
    return statistics | {
        "group_spread": float(advantages.group_std(scores, groups).mean()),
        "commonest": collapse.most_common_share(replies),
    }


def check_collapse(
    config: Config,
    run: record.Run,
    detector: collapse.CollapseDetector,
    metrics: dict[str, float],
    update: int,
) -> None:
    """Pass an update's metrics to the detector of collapse, and note new signs."""
    names = ("success", "group_spread", "entropy", "grad_norm", "commonest")
    watched = {name: metrics[name] for name in names}
    watched["games"] = float(config.train_batch_size * config.n_rollout)
    new = detector.check(update, watched)
    if new:
        run.event(f"update {update}: sign of collapse: {', '.join(new)}")


def validate(
    config: Config,
    run: record.Run,
    loaded: Loaded,
    learner: Learner,
    seeds: NDArray[np.int64],
    update: int,
) -> None:
    """Play the validation games with the most likely tokens, and log the averages."""
    from textgames.results import validation

    with learner.networks.generating():
        trajectories = validation.validate(loaded, config, seeds)
    statistics = validation.statistics(trajectories)
    run.log(
        {f"validation/{name}": value for name, value in statistics.items()},
        update,
    )
    run.event(
        f"update {update} of {config.updates}: success {100 * statistics['success']:.1f} % of "
        f"{len(seeds)} validation games, score {statistics['score']:.2f}"
    )


def save(
    run: record.Run,
    loaded: Loaded,
    learner: Learner,
    progress: Progress,
    detector: collapse.CollapseDetector,
) -> None:
    """Save a checkpoint."""
    from textgames.models import loading
    from textgames.models.distributed import full_tensor

    tensors = dict(loading.tensors(loaded))
    if (critic := learner.networks.critic) is not None:
        tensors |= {
            f"critic.{name}": full_tensor(weight.detach())
            for name, weight in critic.named_parameters()
        }
    state = {
        "update": progress.update, "turns": progress.turns, "tokens": progress.tokens,
        "learner": learner.state(), "alarms": detector.state(), "seen": progress.unlogged,
    }  # fmt: skip
    run.checkpoint(progress.update, tensors, state)


def restore(
    run: record.Run,
    loaded: Loaded,
    learner: Learner,
    progress: Progress,
    detector: collapse.CollapseDetector,
) -> bool:
    """Restore everything from the run's newest checkpoint; return whether there is one."""
    import torch

    from textgames.models import loading
    from textgames.models.distributed import copy_into

    checkpoint = run.restore()
    path = loaded.ranks.broadcast(checkpoint and checkpoint.path)
    if path is None:
        return False
    checkpoint = checkpoint or record.load_checkpoint(path)
    loading.restore(loaded, checkpoint.tensors)
    if (critic := learner.networks.critic) is not None:
        with torch.no_grad():
            for name, weight in critic.named_parameters():
                copy_into(weight, checkpoint.tensors[f"critic.{name}"])
    state = checkpoint.state
    progress.update, progress.turns = state["update"], state["turns"]
    progress.tokens = state["tokens"]
    progress.unlogged = list(state.get("seen", []))  # missing in older checkpoints
    learner.restore(state["learner"])
    detector.restore(state["alarms"])
    return True


def result(
    config: Config,
    run: record.Run,
    loaded: Loaded,
    learner: Learner,
    progress: Progress,
    detector: collapse.CollapseDetector,
) -> dict[str, Any]:
    """Return the success rates in the validation games, beside random actions and the best possible player."""
    from textgames.models import loading
    from textgames.results import summary

    run.digest_weights(loading.tensors(loaded))
    with learner.networks.generating():
        final = summary.final_result(loaded, config, run)
    final["objective"] |= {"at": progress.update, "axis": "update"}
    if signs := ", ".join(f"{name} at {update}" for name, update in detector.signs.items()):
        final["variant"]["signs of collapse"] = signs
    if detector.collapsed:
        final["variant"]["success halved"] = f"at {detector.collapsed}"
        final["metrics"]["collapsed"] = float(detector.collapsed)
        if detector.lead is not None:
            final["metrics"]["lead"] = float(detector.lead)
    final["metrics"]["tokens"] = float(progress.tokens)
    return final | {"env_steps": progress.turns}


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
