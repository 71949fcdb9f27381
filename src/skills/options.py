"""The flags of all that learns here. Light to import: Guild reads flags by importing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from runcatalog import record
from runcatalog.record import option
from runcatalog.record.config import checkpoint_folder
from skills.schedule import COURSES, ELSEWHERE, EPOCH_STEPS, LR, LR_END, Course

if TYPE_CHECKING:
    from rl.ppo import PPOSettings
    from skills.network import Shape

SPECIALISTS = ("gtg", "gto", "pkp", "tgl")  # verbs of which each has an agent
ALL_VERBS = tuple(
    stage for stage in COURSES if stage.startswith("all")
)  # stages with levels of each


@dataclass(frozen=True)
class Common(record.Config):
    """Flags of all that learns in the engine. The source tells stages, epochs and step sizes, and no more."""

    stage: str = option("gtg0", "what it is trained on", choices=tuple(COURSES))
    epochs: int = option(0, "of epoch-steps; 0: those of the stage in the source's table", low=0)
    epoch_steps: int = option(
        1_000_000, "environment steps of an epoch; the source does not tell its own", low=1
    )
    lr: float = option(
        0.0, "Adam's first step size [1]; 0: the source's for the stage", low=0, high=1
    )
    lr_end: float = option(0.0, "the last one; 0: the source's for the stage", low=0, high=1)
    lr_schedule: str = option(
        "linear", "from first to last; the source does not tell", choices=("linear", "cosine")
    )
    envs: int = option(128, "environments that step together", low=1, high=65536)
    workers: int = option(
        2,
        "shares of them, a thread can work on each; another number gives other numbers",
        low=1,
        high=64,
    )
    threads: int = option(2, "no result depends on it", low=1, high=64, resumable=True)
    rollout: int = option(
        32, "steps of each environment between two updates, and of a sequence", low=1, high=1024
    )
    passes: int = option(3, "over a rollout", low=1, high=50)
    minibatches: int = option(4, "of a pass, each of whole sequences", low=1, high=1024)
    value_coef: float = option(0.5, "weight of the value loss", low=0)
    max_grad_norm: float = option(2.0, "limit of the gradient's norm", low=0, low_open=True)
    recurrent: bool = option(True, "a GRU; no: no memory")
    channels: int = option(16, "of the embedding of a cell", low=1, high=256)
    hidden: int = option(128, "width of the layer over all cells", low=1, high=4096)
    memory: int = option(128, "width of the GRU", low=1, high=4096)
    keep_locks: bool = option(
        True, "the memory also holds the colours of the locked doors that the episode has shown, so that their keys "
        "look like it while the door is out of sight; without effect if not recurrent",
    )  # fmt: skip
    stop_at: float = option(
        0.99,
        "ends once three validations in a row reach this success rate on average; 0: never",
        low=0,
        high=1,
    )
    eval_episodes: int = option(
        500, "of a validation, sampled and greedy each", low=1, high=100_000
    )
    eval_interval: int = option(
        61, "updates between validations, about half an epoch; 0: none", low=0
    )
    save_interval: int = option(122, "updates between checkpoints", low=1, resumable=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.envs % (self.workers * self.minibatches):
            raise record.UserError(
                f"--envs: {self.envs} cannot be divided among {self.workers} workers and {self.minibatches} minibatches"
            )
        if self.updates < 1:
            raise record.UserError(
                f"--epoch-steps: {self.epoch_steps} x {self.course.epochs} is less than an update "
                f"({self.envs * self.rollout})"
            )

    @property
    def task(self) -> str:
        """What it is trained on."""
        return self.stage

    @property
    def known(self) -> Course:
        """What the source or this project trains it with."""
        return COURSES[self.stage]

    @property
    def course(self) -> Course:
        """The stage's in the source's table, with what the flags change."""
        known = self.known
        return Course(
            self.epochs or known.epochs,
            self.lr or known.lr,
            self.lr_end or known.lr_end,
            known.after,
        )

    @property
    def updates(self) -> int:
        """Budget in updates."""
        return self.course.epochs * self.epoch_steps // (self.envs * self.rollout)

    def shape(self) -> Shape:
        """Of the network."""
        from skills.network import Shape

        keep_locks = self.keep_locks and self.recurrent
        return Shape(self.channels, self.hidden, self.memory, self.recurrent, keep_locks=keep_locks)


@dataclass(frozen=True)
class PPO(Common):
    """Flags of all that learns by PPO."""

    gamma: float = option(0.98, "discount a step", low=0, high=1)
    gae_lambda: float = option(0.95, "trace decay a step", low=0, high=1)
    clip_coef: float = option(
        0.2, "half-width of the range of the ratio", low=0, low_open=True, high=1
    )
    entropy_coef: float = option(0.01, "weight of the entropy bonus", low=0)
    time_limit: str = option(
        "bootstrap", "at the step limit: the value of the last view counts, or nothing is learned from that step",
        choices=("bootstrap", "cut"),
    )  # fmt: skip
    shaping: float = option(
        0.5, "weight of the potential of keys and locks (Ng et al. 1999); 0: none", low=0
    )

    def settings(self) -> PPOSettings:
        """Of an update."""
        from rl.ppo import PPOSettings

        return PPOSettings(
            clip_coef=self.clip_coef,
            epochs=self.passes,
            minibatch_size=self.envs // self.workers // self.minibatches,
            value_coef=self.value_coef,
            entropy_coef=self.entropy_coef,
            value_loss="max",
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            time_limit=self.time_limit,
            normalise_advantages=True,
            target_kl=0.0,
        )


@dataclass(frozen=True)
class Config(PPO):
    """Flags of `skill:train`."""

    env: str = option("", "an environment of BabyAI instead of the stage, as BabyAI-GoToLocal-v0")
    epoch_steps: int = option(
        EPOCH_STEPS, "environment steps of an epoch; the source does not tell its own", low=1
    )
    lr: float = option(
        LR, "Adam's first step size [1]; 0: the source's for the stage", low=0, high=1
    )
    lr_end: float = option(LR_END, "the last one; 0: the source's for the stage", low=0, high=1)
    passes: int = option(1, "over a rollout", low=1, high=50)
    eval_interval: int = option(244, "updates between validations, a million steps; 0: none", low=0)
    bank: int = option(20_000, "levels of env that are made to learn on", low=1, high=10_000_000)
    frozen: str = option(
        "nothing",
        "weights that do not learn: nothing; eyes: those of the image; trunk: all but the mission's and the heads",
        choices=("nothing", "eyes", "trunk"),
    )
    pretrained: str = option("", "run or checkpoint of another stage to start from")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frozen != "nothing" and not self.pretrained:
            raise record.UserError("--frozen: weights that learn nothing have to be pretrained")
        self.pretrained_path()

    @property
    def task(self) -> str:
        """See `Common`."""
        return self.env or self.stage

    @property
    def known(self) -> Course:
        """See `Common`."""
        return ELSEWHERE if self.env else super().known

    def pretrained_path(self) -> Path | None:
        """Where the checkpoint to start from lies."""
        return checkpoint_folder("pretrained", self.pretrained) if self.pretrained else None


@dataclass(frozen=True)
class Specialists(record.Config):
    """Flags that name the agents of single verbs."""

    gtg: str = option("gtg", "run or checkpoint of the agent that goes to goals")
    gto: str = option("gto", "of the one that goes to objects")
    pkp: str = option("pkp", "of the one that picks up")
    tgl: str = option("tgl", "of the one that opens")
    episodes: int = option(
        1000, "of the result, on each verb and on all, sampled and greedy each", low=1, high=1000
    )

    def specialists(self) -> dict[str, Path]:
        """Where they lie, by verb."""
        return {verb: checkpoint_folder(verb, getattr(self, verb)) for verb in SPECIALISTS}


@dataclass(frozen=True)
class DistillationConfig(Common, Specialists):
    """Flags of `skill:distill`. The source reports the results of distillation alone."""

    stage: str = option("all6", "whose levels of each verb are played", choices=ALL_VERBS)
    epochs: int = option(8, "of epoch-steps; the source does not tell", low=1)
    lr: float = option(1e-3, "Adam's first step size [1]", low=0, high=1)
    lr_end: float = option(3e-5, "the last one", low=0, high=1)
    workers: int = option(
        4, "shares of the environments, each with one teacher: a multiple of 4", low=4, high=64
    )
    minibatches: int = option(8, "of a pass, each of whole sequences", low=1, high=1024)
    teacher_share: float = option(
        0.25, "of the environments in which teachers act, at first; falls to 0 in a line (DAgger's beta)",
        low=0, high=1,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers % len(SPECIALISTS):
            raise record.UserError(
                f"--workers: {self.workers} is no multiple of {len(SPECIALISTS)}"
            )
        self.specialists()

    def settings(self) -> PPOSettings:
        """Of an update, as far as it is one of supervised learning."""
        from rl.ppo import PPOSettings

        return PPOSettings(
            epochs=self.passes,
            minibatch_size=self.envs // self.workers // self.minibatches,
            value_coef=self.value_coef,
            # distillation has no policy gradient: the remaining settings are not used
            clip_coef=0.2,
            entropy_coef=0.0,
            value_loss="max",
            gamma=0.99,
            gae_lambda=0.95,
            time_limit="cut",
            normalise_advantages=True,
            target_kl=0.0,
        )


@dataclass(frozen=True)
class MixtureConfig(PPO, Specialists):
    """Flags of `skill:moe`. The source reports the results of its mixture alone."""

    stage: str = option("all6", "whose levels are played", choices=ALL_VERBS)
    epochs: int = option(4, "of epoch-steps; the source does not tell", low=1)
    lr: float = option(1e-3, "Adam's first step size [1]", low=0, high=1)
    lr_end: float = option(3e-5, "the last one", low=0, high=1)
    channels: int = option(8, "of the gate's embedding of a cell", low=1, high=256)
    hidden: int = option(64, "width of the gate's layer over all cells", low=1, high=4096)
    memory: int = option(64, "width of the gate's GRU", low=1, high=4096)
    more: str = option(
        "", "further experts: stages, whose newest finished run is taken, or folders; separated by spaces"
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        self.specialists()
        words = self.more.split()
        if repeated := {word for word in words if words.count(word) > 1}:
            raise record.UserError(f"--more: {min(repeated)} is named twice; name each expert once")

    def shape(self) -> Shape:
        """Of the gate's network."""
        experts = len(self.specialists()) + len(self.more.split())
        return replace(super().shape(), choices=experts)

    def others(self, run: record.Run) -> dict[str, Path]:
        """Where the further experts lie, by name."""
        from skills import finding

        return finding.located("more", self.more, run)
