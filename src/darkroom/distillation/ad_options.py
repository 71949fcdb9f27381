"""Flags of `ad:train`, and the settings that its presets stand for.

A run records the name of this module; another name could not continue runs that were interrupted.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from darkroom.distillation.shape import (
    LAYOUTS,
    MIN_REACH,
    POSITIONS,
    STATES,
    WHEN_FULL,
    Architecture,
    Shape,
)
from darkroom.distillation.windows import KINDS, Sampling
from runcatalog import record
from runcatalog.record import option

LARGEST_SIDE = 23  # of the rooms of an evaluation, which a figure can show [cells]
OPTIMIZERS = ("adamw", "muon")
# A flag with this value is left to the preset: words, and numbers.
PRESET_WORD, PRESET_NUMBER = "preset", -1
# Where flags have no effect.
CONSECUTIVE, TABLE = {"windows": "consecutive"}, {"states": "table"}
# Settings that are at least 1.
COUNTS = (
    "window", "width", "layers", "heads", "feed_forward", "batch_size", "updates", "candidates",
)  # fmt: skip


@dataclass(frozen=True)
class Settings(Architecture):
    """Settings of a training: a preset's, overridden by the flags that are given.

    Attributes:
        windows: One of `darkroom.distillation.windows.KINDS`.
        searching: Share of the windows that begin with exploration.
        candidates: Number of episodes from which the next one of an exploration is chosen.
        history_steps: First steps of a task that are used; 0: all.
        shift: Largest random shift of a window's room [cells].
        stretch: Largest share of a window's rows and columns that are two cells apart.
        batch_size: Windows of an update.
        updates: Updates of the training.
        optimizer: One of OPTIMIZERS.
        lr: Highest learning rate of AdamW.
        muon_lr: Highest learning rate of Muon.
        lr_min: Learning rate at the end of the cosine, on AdamW's scale.
        warmup: Updates in which the learning rate rises.
        beta2: AdamW's second decay rate.
        weight_decay: Of matrices and tables.
    """

    windows: str
    searching: float
    candidates: int
    history_steps: int
    shift: int
    stretch: float
    batch_size: int
    updates: int
    optimizer: str
    lr: float
    muon_lr: float
    lr_min: float
    warmup: int
    beta2: float
    weight_decay: float


DEFAULT = Settings(
    layout="one", states="row_column", positions="learned", window=256, width=64, layers=4, heads=4,
    feed_forward=256, embedding_dropout=0.0, attention_dropout=0.0, residual_dropout=0.0,
    label_smoothing=0.0, windows="subsampled", searching=0.5, candidates=32, history_steps=0,
    shift=3, stretch=0.0, batch_size=16, updates=2500, optimizer="muon", lr=3e-3, muon_lr=0.01,
    lr_min=0.0, warmup=100, beta2=0.99, weight_decay=0.01,
)  # fmt: skip
PRESETS = {
    "default": DEFAULT,
    # The source's README; its optimizer is Adam, which is AdamW without weight decay.
    "seed": replace(
        DEFAULT, layout="three", states="table", positions="time", feed_forward=2048,
        attention_dropout=0.5, residual_dropout=0.1, windows="consecutive", searching=0.0,
        history_steps=800_000, shift=0, batch_size=32, updates=22_000, optimizer="adamw", lr=3e-4,
        lr_min=2e-6, warmup=0, weight_decay=0.0,
    ),
}  # fmt: skip


def word_option(text: str, choices: tuple[str, ...]) -> str:
    """Return the option of a flag that takes one of some words, by default the preset's."""
    return option(PRESET_WORD, text, choices=(PRESET_WORD, *choices))


def number_option(text: str, high: float | None = None, **more: Any) -> float:
    """Return the option of a flag that takes a fraction from 0 to `high`, by default the preset's."""
    text = f"{text}; -1: the preset's"
    return option(float(PRESET_NUMBER), text, low=PRESET_NUMBER, high=high, **more)


def count_option(text: str, high: int | None = None, **more: Any) -> int:
    """Return the option of a flag that takes a whole number from 0 to `high`, by default the preset's."""
    return option(PRESET_NUMBER, f"{text}; -1: the preset's", low=PRESET_NUMBER, high=high, **more)


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `ad:train`."""

    histories: str = option(
        "histories", "runs of a2c:histories_return or their histories, separated by commas"
    )
    sizes: str = option("9", "sides of the rooms of these histories, in the same order [cells]")
    preset: str = option(
        "default", "default: what works here; seed: the source's settings", choices=tuple(PRESETS)
    )
    split: int = option(1, "seed of the split into training and test tasks", low=0)
    test_share: float = option(
        0.2875, "share of test tasks [1]; source: 23 of 80", low=0, high=1, high_open=True
    )
    train_tasks: str = option(
        "", "file of training tasks (row column, after the key's if there is one); empty: the split"
    )
    test_tasks: str = option("", "file of test tasks; empty: the split")
    validation_share: float = option(
        0.0,
        "share of the training tasks kept as validation tasks, to choose variants by; the test tasks are then not "
        "played [1]",
        low=0, high=1, high_open=True,
    )  # fmt: skip
    layout: str = word_option(
        "tokens of a step: one, three, or three streams with cross-attention", LAYOUTS
    )
    states: str = word_option(
        "embedding of a cell: row and column, their sines and cosines, or a table", STATES
    )
    positions: str = word_option(
        "position of a token: learned, or the time in its episode", POSITIONS
    )
    window: int = count_option("context length [steps]", 4096)
    width: int = count_option("width of a token", 4096)
    layers: int = count_option("number of blocks", 64)
    heads: int = count_option("attention heads of a block", 64)
    feed_forward: int = count_option("width of a block's hidden layer", 65536)
    embedding_dropout: float = number_option("dropout of the tokens [1]", 0.99)
    attention_dropout: float = number_option("dropout of the attention weights [1]", 0.99)
    residual_dropout: float = number_option("dropout of what a layer adds [1]", 0.99)
    windows: str = word_option(
        "every k-th episode of a history, consecutive steps, every k-th episode in a random order, or episodes of "
        "trained agents (with searching=0 only these)",
        KINDS,
    )
    stride: float = option(
        0.3, "k of the windows, as a share of the episodes until a task is learned [1]", low=0,
        unless=CONSECUTIVE,
    )  # fmt: skip
    jitter: float = option(
        0.7, "half width of the uniform noise of log k [1]", low=0, high=5, unless=CONSECUTIVE
    )
    learned_weight: float = option(
        1.0,
        "weight in the loss of the actions of a source agent that has learned, relative to those of one that has not "
        "begun to, and in between by its reward [1]; 1: equal",
        low=0,
        low_open=True,
    )
    fresh: float = option(
        0.5, "share of the windows that begin at the first step of a history [1]", low=0, high=1,
        unless=CONSECUTIVE,
    )  # fmt: skip
    searching: float = number_option(
        "share of the windows that begin with exploration, episodes before the first reward [1]", 1,
        unless=CONSECUTIVE,
    )  # fmt: skip
    candidates: int = count_option(
        "episodes from which the one with most new cells is explored next; 1: a random one", 1000,
        unless=CONSECUTIVE | {"searching": 0.0},
    )  # fmt: skip
    history_steps: int = count_option("first steps of a task that are used; 0: all")
    shift: int = count_option("largest random shift of a window's room [cells]", 20, unless=TABLE)
    stretch: float = number_option(
        "largest share of a window's rows and columns that are two cells apart [1]", 1, unless=TABLE
    )
    batch_size: int = count_option("windows of an update", 65536)
    updates: int = count_option("updates of the training")
    optimizer: str = word_option(
        "AdamW for all weights, or Muon for those between hidden layers", OPTIMIZERS
    )
    lr: float = number_option("highest learning rate of AdamW [1]", 1)
    muon_lr: float = number_option(
        "highest learning rate of Muon [1]", 1, unless={"optimizer": "adamw"}
    )
    lr_min: float = number_option("learning rate at the end of the cosine [1]", 1)
    warmup: int = count_option("updates in which the learning rate rises")
    weight_decay: float = number_option("weight decay of matrices and tables [1]", 1)
    label_smoothing: float = number_option(
        "share of a target that is spread over all actions, and removed from the policy [1]", 0.99
    )
    max_grad_norm: float = option(
        1.0, "largest norm of the gradient; source: 1", low=0, low_open=True
    )
    evaluations: int = option(
        10, "rollouts during the training; source: one every 64 updates", low=1
    )
    episodes: int = option(40, "episodes of an agent in these rollouts", low=5, high=10_000)
    copies: int = option(3, "agents per task in these rollouts", low=1, high=1000)
    when_full: str = option(
        "halve", "what an agent does when its window is full", choices=WHEN_FULL
    )
    device: str = option(
        "cpu",
        "device of the training; only a CPU repeats bit for bit",
        choices=("cpu", "cuda"),
        resumable=True,
    )
    precision: str = option(
        "fp32",
        "of matrix products; bf16: for a GPU, or a CPU with bf16 units",
        choices=("fp32", "bf16"),
        resumable=True,
    )
    save_interval: int = option(250, "updates between checkpoints", low=1, resumable=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        settings = self.settings()
        for name, value in vars(settings).items():
            if not isinstance(value, str) and value < 0:
                raise record.UserError(f"--{record.config.flag_name(name)}: {value:g} is below 0")
        for name in COUNTS:
            if getattr(settings, name) < 1:
                raise record.UserError(f"--{record.config.flag_name(name)}: at least 1")
        if settings.window < 2:
            raise record.UserError("--window: at least 2, half of which a full window keeps")
        if settings.lr == 0:
            raise record.UserError("--lr: above 0")
        if settings.lr_min > settings.lr:
            raise record.UserError(f"--lr-min: {settings.lr_min:g} is above lr, {settings.lr:g}")
        if settings.warmup > settings.updates:
            raise record.UserError(
                f"--warmup: {settings.warmup} updates are more than the training has, {settings.updates}"
            )
        if settings.width % settings.heads:
            raise record.UserError(
                f"--width: {settings.width} is not divisible by {settings.heads} heads"
            )
        if self.when_full == "ring" and settings.positions != "time":
            raise record.UserError("--when-full: a ring needs --positions time")
        if len(self.sides) > 1 and settings.states == "table":
            raise record.UserError("--states: a table has the cells of one size; use row_column")

    @property
    def sides(self) -> list[int]:
        """Sides of the rooms, in the order of the histories."""
        words = self.sizes.split()
        if not words or not all(word.isdecimal() and 2 <= int(word) <= 40 for word in words):
            raise record.UserError(f'--sizes: {self.sizes!r} are no sides of rooms; say "7 9"')
        sides = list(map(int, words))
        if len(set(sides)) < len(sides):
            raise record.UserError(f"--sizes: {self.sizes!r} has a side twice; one history of each")
        return sides

    def settings(self) -> Settings:
        """Return the preset's settings, overridden by the flags that are given."""
        names = {field.name for field in fields(Settings)} & {field.name for field in fields(self)}
        values = {name: getattr(self, name) for name in names}
        given = {n: v for n, v in values.items() if v not in (PRESET_WORD, PRESET_NUMBER)}
        return replace(PRESETS[self.preset], **given)

    def shape(self, size: int, limit: int) -> Shape:
        """Return the transformer's shape.

        Args:
            size: Side of the rooms, the largest if they differ [cells].
            limit: Steps of an episode.
        """
        settings = self.settings()
        architecture = {field.name: getattr(settings, field.name) for field in fields(Architecture)}
        reach = max(MIN_REACH, self.trained_reach(size))
        return Shape(**architecture, size=size, limit=limit, reach=reach)

    def trained_reach(self, size: int) -> int:
        """Return the farthest row or column from the centre that windows of rooms up to this side can show [cells]."""
        settings = self.settings()
        return size // 2 * (2 if settings.stretch else 1) + settings.shift

    def sampling(self) -> Sampling:
        """Return how windows are drawn."""
        settings = self.settings()
        return Sampling(
            kind=settings.windows,
            length=settings.window,
            stride=self.stride,
            jitter=self.jitter,
            fresh=self.fresh,
            exploring=settings.searching,
            candidates=settings.candidates,
            learned_weight=self.learned_weight,
        )
