"""Flags of the training scripts. Light to import: Guild reads flags by importing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from runcatalog import record
from runcatalog.record import option
from runcatalog.record.config import checkpoint_folder
from skills.learning.schedule import (
    BABYAI_SCHEDULE,
    COMPOSITE,
    EPOCH_STEPS,
    LR,
    LR_END,
    SCHEDULES,
    Schedule,
)

if TYPE_CHECKING:
    from rl.ppo import PPOSettings
    from skills.agents.network import Shape
    from skills.learning.ppo import LearnerSettings

SPECIALISTS = ("gtg", "gto", "pkp", "tgl")  # verbs with an agent of their own
ALL_VERBS = tuple(stage for stage in SCHEDULES if stage.startswith("all"))


@dataclass(frozen=True)
class Common(record.Config):
    """Flags of every training script. The source gives stages, epochs and step sizes, and no more."""

    stage: str = option("gtg0", "stage to train on", choices=tuple(SCHEDULES))
    epochs: int = option(0, "epochs of epoch-steps; 0: the source's for the stage", low=0)
    epoch_steps: int = option(
        1_000_000, "environment steps of an epoch; the source does not define its own", low=1
    )
    lr: float = option(
        0.0, "Adam's first step size [1]; 0: the source's for the stage", low=0, high=1
    )
    lr_end: float = option(
        0.0, "Adam's last step size [1]; 0: the source's for the stage", low=0, high=1
    )
    lr_schedule: str = option(
        "linear", "from the first step size to the last; not in the source", choices=("linear", "cosine")
    )  # fmt: skip
    envs: int = option(128, "environments that step together", low=1, high=65536)
    workers: int = option(
        2, "equal parts of the environments, one per thread; another number gives other results", low=1, high=64,
    )  # fmt: skip
    threads: int = option(2, "threads; no result depends on it", low=1, high=64, resumable=True)
    rollout: int = option(
        32, "steps of every environment between two updates, and length of a training sequence", low=1, high=1024
    )  # fmt: skip
    passes: int = option(3, "passes over a rollout", low=1, high=50)
    minibatches: int = option(4, "minibatches of a pass, of whole sequences", low=1, high=1024)
    value_coef: float = option(0.5, "weight of the value loss", low=0)
    max_grad_norm: float = option(2.0, "limit of the gradient's norm", low=0, low_open=True)
    recurrent: bool = option(True, "a GRU; no: no memory")
    channels: int = option(16, "size of a cell's embedding", low=1, high=256)
    hidden: int = option(128, "width of the layer over all cells", low=1, high=4096)
    memory: int = option(
        128, "width of the GRU, or of the layer in its place with recurrent=no", low=1, high=4096
    )  # fmt: skip
    keep_locks: bool = option(
        True, "the memory also holds the colours of the locked doors that the episode has shown, so that their keys "
        "look like it while the door is out of sight", unless={"recurrent": False},
    )  # fmt: skip
    disjoint_levels: bool = option(
        True, "leave levels of the test sets, and validation levels, out of the training, turned and mirrored ones "
        "too; no: as runs before this flag", older=False,
    )  # fmt: skip
    stop_at: float = option(
        0.99, "early stopping: mean success rate of the last three validations; 0: never", low=0, high=1,
        unless={"eval_interval": 0},
    )  # fmt: skip
    eval_episodes: int = option(
        500, "episodes of a validation with sampled actions, and as many with greedy ones", low=1, high=100_000
    )  # fmt: skip
    eval_interval: int = option(
        61, "updates between validations, about a quarter of an epoch; 0: none", low=0
    )
    save_interval: int = option(122, "updates between checkpoints", low=1, resumable=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.envs % (self.workers * self.minibatches):
            raise record.UserError(
                f"--envs: {self.envs} cannot be divided among {self.workers} workers and {self.minibatches} minibatches"
            )
        if self.envs * self.rollout < 2:
            raise record.UserError(
                "--rollout: a single sample has no spread to normalise advantages by"
            )
        if (schedule := self.schedule).lr_end > schedule.lr:
            raise record.UserError(
                f"--lr-end: the last step size, {schedule.lr_end:g}, is above the first, {schedule.lr:g}; give a "
                "smaller one, or a larger lr"
            )
        if self.updates < 1:
            raise record.UserError(
                f"--epoch-steps: {self.epoch_steps} x {self.schedule.epochs} is less than an update "
                f"({self.envs * self.rollout})"
            )

    @property
    def task(self) -> str:
        """Stage or BabyAI environment of the training."""
        return self.stage

    @property
    def source_schedule(self) -> Schedule:
        """The schedule of the task before flags change it."""
        return SCHEDULES[self.stage]

    @property
    def schedule(self) -> Schedule:
        """The schedule of the task with the changes of the flags."""
        source = self.source_schedule
        return Schedule(
            self.epochs or source.epochs,
            self.lr or source.lr,
            self.lr_end or source.lr_end,
            source.after,
        )

    @property
    def updates(self) -> int:
        """Budget in updates."""
        return self.schedule.epochs * self.epoch_steps // (self.envs * self.rollout)

    @property
    def frozen_layers(self) -> str:
        """Name in `network.FROZEN`: the weights that do not train."""
        return "nothing"

    def shape(self) -> Shape:
        """Return the sizes of the network."""
        from skills.agents.network import Shape
        from skills.levels.codes import ACTIONS

        keep_locks = self.keep_locks and self.recurrent
        return Shape(self.channels, self.hidden, self.memory, self.recurrent, ACTIONS, keep_locks)

    def learner_settings(self) -> LearnerSettings:
        """Return the settings that do not depend on the loss."""
        from skills.learning.ppo import LearnerSettings

        return LearnerSettings(
            shape=self.shape(),
            envs=self.envs,
            workers=self.workers,
            rollout=self.rollout,
            passes=self.passes,
            minibatch_size=self.envs // self.workers // self.minibatches,
            max_grad_norm=self.max_grad_norm,
            frozen=self.frozen_layers,
        )


@dataclass(frozen=True)
class PPO(Common):
    """Flags of training by PPO."""

    gamma: float = option(0.98, "discount per step", low=0, high=1)
    gae_lambda: float = option(0.95, "trace decay per step", low=0, high=1)
    clip_coef: float = option(
        0.2, "half-width of the range of the ratio", low=0, low_open=True, high=1
    )
    entropy_coef: float = option(0.01, "weight of the entropy bonus", low=0)
    time_limit: str = option(
        "bootstrap", "advantage at the step limit: bootstrap: with the value of the last observation; cut: 0, before "
        "advantages are normalised", choices=("bootstrap", "cut"),
    )  # fmt: skip
    shaping: float = option(
        0.5, "weight of the potential of keys and locks (Ng et al. 1999); 0: none", low=0
    )

    def ppo_settings(self) -> PPOSettings:
        """Return the coefficients of the loss, discount and trace decay."""
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
            target_kl=0.0,
        )


@dataclass(frozen=True)
class Config(PPO):
    """Flags of `skill:train`."""

    env: str = option("", "a BabyAI environment instead of the stage, as BabyAI-GoToLocal-v0")
    epoch_steps: int = option(
        EPOCH_STEPS, "environment steps of an epoch; the source does not define its own", low=1
    )
    lr: float = option(
        LR, "Adam's first step size [1]; 0: the source's for the stage", low=0, high=1
    )
    lr_end: float = option(
        LR_END, "Adam's last step size [1]; 0: the source's for the stage", low=0, high=1
    )
    passes: int = option(1, "passes over a rollout", low=1, high=50)
    eval_interval: int = option(244, "updates between validations, a million steps; 0: none", low=0)
    bank: int = option(20_000, "training levels of env", low=1, high=10_000_000, unless={"env": ""})
    frozen: str = option(
        "nothing",
        "weights that do not train: nothing; eyes: image layers; trunk: all but those of the mission and the heads",
        choices=("nothing", "eyes", "trunk"),
    )
    pretrained: str = option("", "run or checkpoint of another stage to start from")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frozen != "nothing" and not self.pretrained:
            raise record.UserError("--frozen: frozen weights have to be pretrained")
        self.pretrained_path()

    @property
    def task(self) -> str:
        """See `Common`."""
        return self.env or self.stage

    @property
    def source_schedule(self) -> Schedule:
        """See `Common`."""
        return BABYAI_SCHEDULE if self.env else super().source_schedule

    @property
    def frozen_layers(self) -> str:
        """See `Common`."""
        return self.frozen

    def pretrained_path(self) -> Path | None:
        """Return the folder of the checkpoint to start from."""
        return checkpoint_folder("pretrained", self.pretrained) if self.pretrained else None


@dataclass(frozen=True)
class SubtaskConfig(Config):
    """Flags of `skill:subtasks`."""

    stage: str = option("nlm2", "stage of the composite task", choices=COMPOSITE)
    epochs: int = option(1, "epochs of epoch-steps", low=1)
    levels: int = option(
        1500, "levels of the composite task that the pretrained agent plays with the oracle's sub-tasks; the "
        "training's levels are the states in which these begin, about five each", low=10, high=1_000_000,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.env:
            raise record.UserError("--env: sub-tasks are those of a stage")
        if not self.pretrained:
            raise record.UserError("--pretrained: the agent to start from is missing")

    @property
    def task(self) -> str:
        """See `Common`."""
        return f"sub-tasks of {self.stage}"


@dataclass(frozen=True)
class FromSpecialists(Common):
    """Flags of agents made of the four specialists. The source reports their results alone."""

    stage: str = option("all6", "stage whose levels are played", choices=ALL_VERBS)
    lr: float = option(
        1e-3, "Adam's first step size [1]; 0: the source's for the stage", low=0, high=1
    )
    lr_end: float = option(
        3e-5, "Adam's last step size [1]; 0: the source's for the stage", low=0, high=1
    )
    gtg: str = option("gtg", "run or checkpoint of the specialist for going to the goal")
    gto: str = option("gto", "run or checkpoint of the specialist for going to objects")
    pkp: str = option("pkp", "run or checkpoint of the specialist for picking up")
    tgl: str = option("tgl", "run or checkpoint of the specialist for opening")
    episodes: int = option(
        1000, "test episodes per verb and of all verbs, sampled, and as many greedy", low=1, high=1000
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        self.specialists()

    def specialists(self) -> dict[str, Path]:
        """Return the folders of the specialists by verb."""
        return {verb: checkpoint_folder(verb, getattr(self, verb)) for verb in SPECIALISTS}


@dataclass(frozen=True)
class DistillationConfig(FromSpecialists):
    """Flags of `skill:distill`."""

    epochs: int = option(8, "epochs of epoch-steps; not in the source", low=1)
    workers: int = option(
        4, "equal parts of the environments, with one teacher each: a multiple of 4", low=4, high=64
    )
    minibatches: int = option(8, "minibatches of a pass, of whole sequences", low=1, high=1024)
    teacher_share: float = option(
        0.25, "share of the environments in which teachers act at first; falls linearly to 0 (DAgger's beta)",
        low=0, high=1,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers % len(SPECIALISTS):
            raise record.UserError(
                f"--workers: {self.workers} is no multiple of {len(SPECIALISTS)}"
            )


@dataclass(frozen=True)
class MixtureConfig(FromSpecialists, PPO):
    """Flags of `skill:moe`."""

    epochs: int = option(4, "epochs of epoch-steps; not in the source", low=1)
    channels: int = option(8, "size of a cell's embedding in the gate", low=1, high=256)
    hidden: int = option(64, "width of the gate's layer over all cells", low=1, high=4096)
    memory: int = option(64, "width of the gate's GRU", low=1, high=4096)
    more: str = option(
        "", "further experts: stages, whose newest finished run is taken, or folders; separated by spaces"
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        words = self.more.split()
        if repeated := {word for word in words if words.count(word) > 1}:
            raise record.UserError(f"--more: {min(repeated)} is named twice; name each expert once")

    def shape(self) -> Shape:
        """Return the sizes of the gate's network, with one choice per expert."""
        experts = len(self.specialists()) + len(self.more.split())
        return replace(super().shape(), choices=experts)

    def further_experts(self, directory: Path) -> dict[str, Path]:
        """Return the folders of the further experts by name, see `find_agents`."""
        from skills.learning.find import find_agents

        return find_agents("more", self.more, directory)

    look_up = further_experts
