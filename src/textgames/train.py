"""Trains a language model by reinforcement in conversations with a game (RAGEN, Wang et al. 2025, arXiv 2504.20073)."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.record import option
from textgames.learning import collapse
from textgames.learning.options import PlayConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from textgames.learning.ppo import Learner, Settings
    from textgames.models.loading import Loaded

ESTIMATORS = ("brpo", "grpo", "arpo", "states", "gae")
POINTS = 200  # of a curve


@dataclass(frozen=True)
class Config(PlayConfig):
    """Flags of `ragen:train`; the defaults are the source's."""

    train_size: int = option(10_000, "games to learn from", low=1)
    updates: int = option(200, "batches of games that are learned from", low=1)
    train_batch_size: int = option(8, "games of an update", low=1)
    n_rollout: int = option(16, "times that each of them is played", low=1)
    own_luck: bool = option(
        False, "slips and rewards differ when a game is played again; no: they are its seed's, as in the source"
    )  # fmt: skip
    ppo_batch_size: int = option(
        128, "trajectories a step of the optimiser; 0: all of an update", low=0
    )
    micro_batch_size: int = option(1, "trajectories that are computed together", low=1)
    ppo_epochs: int = option(1, "times that a trajectory is learned from", low=1)
    adv_estimator: str = option(
        "grpo", "what a trajectory is compared with: brpo the batch, grpo its own game, arpo nothing; states: a turn "
        "with others in its state; gae: a critic",
        choices=ESTIMATORS,
    )  # fmt: skip
    credit: str = option(
        "outcome", "of gae: all rewards come at the end, or each with its turn", choices=("outcome", "turn")
    )  # fmt: skip
    gamma: float = option(
        1.0, "discount, of gae from token to token, of states from turn to turn", low=0, high=1
    )
    gae_lambda: float = option(1.0, "decay from token to token, of gae", low=0, high=1)
    filter: float = option(
        1.0, "share of the games that are learned from, those whose outcomes differ most (StarPO-S: 0.25)",
        low=0, low_open=True, high=1,
    )  # fmt: skip
    actor_lr: float = option(1e-6, "AdamW's step size [1]", low=0, low_open=True, high=1)
    lr_decay: float = option(
        0.0, "share of the updates, the last ones, in which actor-lr falls in a line to 0", low=0, high=1
    )  # fmt: skip
    critic_lr: float = option(1e-5, "the critic's [1]", low=0, low_open=True, high=1)
    warm_up: int = option(0, "updates of the critic alone before the model learns, of gae", low=0)
    clip_low: float = option(
        0.2, "how far a probability ratio may fall", low=0, low_open=True, high=1
    )
    clip_high: float = option(0.2, "how far it may rise (StarPO-S: 0.28)", low=0, low_open=True)
    entropy_coef: float = option(0.001, "of the entropy bonus", low=0)
    kl_coef: float = option(
        0.001, "of the divergence from the first model, which is made small", low=0
    )
    loss_tokens: str = option(
        "model", "which are learned from: the model's, or all (the source's first version: the game's messages too)",
        choices=("model", "all"),
    )  # fmt: skip
    grad_clip: float = option(1.0, "largest norm of the gradient", low=0, low_open=True)
    alarm: str = option("mark", "what a sign of collapse does to the run", choices=collapse.CHOICES)
    processes: int = option(
        1, "that share weights and games, each on a GPU of its own (fully sharded)", low=1, high=64,
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
                f"--train-batch-size: {self.train_batch_size} games of an update, but train-size is {self.train_size}"
            )
        if self.filter < 1 and self.n_rollout == 1:
            raise record.UserError(
                "--filter: games that are played once (n-rollout=1) do not differ in outcome"
            )
        if self.adv_estimator == "states" and self.n_rollout == 1:
            raise record.UserError(
                "--adv-estimator: a game that is played once (n-rollout=1) is in no state twice; give n-rollout=16"
            )
        if self.loss_tokens == "all" and self.context != "whole":
            raise record.UserError(
                "--loss-tokens: only a whole conversation has the game's messages in it"
            )
        if self.processes > min(batch, self.val_data_num):
            raise record.UserError(
                f"--processes: {self.processes} share {min(batch, self.val_data_num)} games; each needs one"
            )
        if self.processes > 1 and self.quantise != "none":
            raise record.UserError(
                "--processes: 4-bit weights are not spread over several; take quantise=none or one process"
            )
        if self.adv_estimator == "gae" and self.quantise != "none":
            raise record.UserError(
                "--adv-estimator: the critic of gae is a copy of the model that is trained as a whole, which 4-bit "
                "weights cannot be; take quantise=none, or brpo, grpo or arpo"
            )
        if self.warm_up and self.adv_estimator != "gae":
            raise record.UserError("--warm-up: of a critic, which adv-estimator=gae alone has")


def main(config: Config) -> dict[str, Any]:
    """Trains and returns what the record says."""
    from textgames.games import example_texts, levels
    from textgames.learning import options
    from textgames.models import distributed, loading

    options.check(config)
    with (
        distributed.join(config.processes, config.device) as among,
        record.start(config, study="textgames") as run,
    ):
        options.one_thread(config)
        loaded = loading.load(config, run, lambda: example_texts.texts(config), among=among)
        run.add_parent(loaded.run_id)
        kept_out = levels.validation(config, config.val_data_num)
        seeds = levels.training(
            config, config.train_size, kept_out=max(levels.VALIDATION, len(kept_out))
        )
        trained = Course(config, run, loaded, seeds, kept_out).run()
        loading.save(loaded, run.artifact("model/config.json").parent, writes=among.first)
        return run.finish(trained)


class Course:
    """A model's way through the updates.

    Args:
        config: The flags.
        run: The record.
        loaded: The model.
        seeds: Of the games to learn from.
        kept_out: Of the games it is judged by.
    """

    def __init__(
        self,
        config: Config,
        run: record.Run,
        loaded: Loaded,
        seeds: NDArray[np.int64],
        kept_out: NDArray[np.int64],
    ) -> None:
        from textgames.learning.ppo import Learner
        from textgames.models import loading
        from textgames.models.scoring import Critic

        self.config, self.record, self.loaded, self.ranks = config, run, loaded, loaded.ranks
        self.seeds, self.kept_out = seeds, kept_out
        self.update, self.turns, self.tokens = 0, 0, 0
        self.alarms = collapse.Alarms()
        self._seen: list[dict[str, float]] = []
        self.critic = None
        if config.adv_estimator == "gae":
            self.critic = Critic(loaded.model).to(loaded.device)
        self.learner: Learner = Learner(
            loaded.model, settings(config), config.actor_lr,
            loading.reference(loaded) if config.kl_coef else None, self.critic, config.critic_lr,
            loaded.autocast, loaded.ranks, bf16=config.precision == "bf16",
        )  # fmt: skip

    def run(self) -> dict[str, Any]:
        """Trains from the run's newest checkpoint on; returns what the record says."""

        run, config = self.record, self.config
        checkpoint = run.restore()
        if (path := self.ranks.same(checkpoint and checkpoint.path)) is not None:
            self._restore(checkpoint or record.load_checkpoint(path))
            run.event(f"continued after update {self.update}")
        else:
            self._validate()
        every = max(1, config.updates // POINTS)
        while self.update < config.updates and not self._ended:
            found = self._learn()
            self.update += 1
            record.check_finite(self.update, found)
            self._seen.append(found)
            if self.update % every == 0 or self.update == config.updates:
                seen, self._seen = self._seen, []
                run.log(_means(seen), self.update)
            run.progress(self.update, config.updates, "update")
            if self.update > config.warm_up:  # until then the model stays as it is
                self._watch(found)
            if self._ended:
                break
            if self.update % config.test_freq == 0 and self.update < config.updates:
                self._validate()
            if self.update % config.save_freq == 0:
                self._save()
        self._save()
        return self._result()

    def _learn(self) -> dict[str, float]:
        """An update: games are played and learned from."""
        import numpy as np

        from rl.schedule import hold_and_fall
        from textgames.games.config import make_game
        from textgames.learning import advantages
        from textgames.learning.rollout import play, speech
        from textgames.results import validation

        config, run = self.config, self.record
        drawn = self.ranks.share(np.repeat(self._drawn(), config.n_rollout))
        luck = np.tile(np.arange(config.n_rollout), config.train_batch_size) * config.own_luck
        how = speech(config, run.seeds.torch(self.ranks.stream("play"), self.update))
        read: list[int] = []
        with self.learner.playing(), self.loaded.autocast():
            played = play(
                self.loaded.model, self.loaded.tokenizer, make_game(config), config, drawn, how,
                read.append, self.ranks.share(luck),
            )  # fmt: skip
        played = self.ranks.gather(played)
        self.tokens += sum(self.ranks.gather(read))
        groups = np.repeat(np.arange(config.train_batch_size), config.n_rollout)
        scores = np.array([each.score for each in played])
        found = validation.statistics(played)
        self.turns += sum(len(each.turns) for each in played)
        found["group_spread"] = float(advantages.spreads(scores, groups).mean())
        replies = [turn.reply for each in played for turn in each.turns]
        found["commonest"] = collapse.commonest(replies)
        kept = np.ones(len(played), bool)
        if config.filter < 1:
            kept = advantages.most_varied(scores, groups, config.filter)
        learned = [each for each, of in zip(played, kept, strict=True) if of]
        order = run.seeds.generator("order", self.update)
        found |= self.learner.update(
            learned, groups[kept], order, critic_alone=self.update < config.warm_up,
            step=hold_and_fall(self.update, config.updates, config.lr_decay),
        )  # fmt: skip
        return {name.replace("score/", "score_"): value for name, value in found.items()}

    def _drawn(self) -> NDArray[np.int64]:
        """The games of an update: all of them once in random order, then all again."""
        a_round = len(self.seeds) // self.config.train_batch_size
        epoch, at = divmod(self.update, a_round)
        order = self.record.seeds.generator("games", epoch).permutation(len(self.seeds))
        return self.seeds[
            order[at * self.config.train_batch_size :][: self.config.train_batch_size]
        ]

    def _watch(self, found: dict[str, float]) -> None:
        """Looks for signs of collapse."""
        watched = ("success", "group_spread", "entropy", "grad_norm", "commonest")
        seen = {name: found[name] for name in watched}
        seen["games"] = float(self.config.train_batch_size * self.config.n_rollout)
        new = self.alarms.look(self.update, seen)
        if self.config.alarm != "off" and new:
            self.record.event(f"update {self.update}: sign of collapse: {', '.join(new)}")

    @property
    def _ended(self) -> bool:
        """Whether a sign of collapse has ended the run; as a checkpoint knows the signs, it knows this."""
        return self.config.alarm == "end" and bool(self.alarms.raised)

    def _validate(self) -> None:
        from textgames.results import validation

        with self.learner.playing():
            played = validation.validate(self.loaded, self.config, self.kept_out)
        found = validation.statistics(played)
        self.record.log(
            {f"validation/{name.replace('/', '_')}": value for name, value in found.items()},
            self.update,
        )
        self.record.event(
            f"update {self.update} of {self.config.updates}: success {100 * found['success']:.1f} % of "
            f"{len(self.kept_out)} games kept out, score {found['score']:.2f}"
        )

    def _save(self) -> None:
        from textgames.models import loading
        from textgames.models.distributed import full

        tensors = dict(loading.tensors(self.loaded))
        if self.critic is not None:
            tensors |= {
                f"critic.{name}": full(each.detach())
                for name, each in self.critic.named_parameters()
            }
        state = {
            "update": self.update, "turns": self.turns, "tokens": self.tokens,
            "learner": self.learner.state(), "alarms": self.alarms.state(),
            "seen": self._seen,
        }  # fmt: skip
        self.record.checkpoint(self.update, tensors, state)

    def _restore(self, checkpoint: record.Checkpoint) -> None:
        import torch

        from textgames.models import loading
        from textgames.models.distributed import put

        loading.restore(self.loaded, checkpoint.tensors)
        if self.critic is not None:
            with torch.no_grad():
                for name, weight in self.critic.named_parameters():
                    put(weight, checkpoint.tensors[f"critic.{name}"])
        state = checkpoint.state
        self.update, self.turns, self.tokens = state["update"], state["turns"], state["tokens"]
        self.learner.restore(state["learner"])
        self.alarms.restore(state["alarms"])
        self._seen = list(state.get("seen", []))  # older checkpoints have none

    def _result(self) -> dict[str, Any]:
        """Success in the validation games, beside chance and the best that can be."""
        from textgames.models import loading
        from textgames.results import summary

        self.record.digest_weights(loading.tensors(self.loaded))
        with self.learner.playing():
            told = summary.tested(self.loaded, self.config, self.record)
        told["objective"] |= {"at": self.update, "axis": "update"}
        raised = ", ".join(f"{name} at {update}" for name, update in self.alarms.raised.items())
        if raised:
            told["variant"]["signs of collapse"] = raised
        told["metrics"]["tokens"] = float(self.tokens)
        return told | {"env_steps": self.turns}


def _means(seen: list[dict[str, float]]) -> dict[str, float]:
    """Means of what updates told; while a critic warms up there is less to tell."""
    names = dict.fromkeys(name for each in seen for name in each)
    values = {name: [each[name] for each in seen if name in each] for name in names}
    return {name: sum(each) / len(each) for name, each in values.items()}


def settings(config: Config) -> Settings:
    """What an update needs to know, from the flags."""
    from textgames.learning.ppo import Settings

    return Settings(
        estimator=config.adv_estimator, credit=config.credit, gamma=config.gamma, gae_lambda=config.gae_lambda,
        clip_low=config.clip_low, clip_high=config.clip_high, entropy_coef=config.entropy_coef,
        kl_coef=config.kl_coef, minibatch=config.ppo_batch_size, micro=config.micro_batch_size,
        epochs=config.ppo_epochs, all_tokens=config.loss_tokens == "all", temperature=config.temperature,
        grad_clip=config.grad_clip,
    )  # fmt: skip


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
