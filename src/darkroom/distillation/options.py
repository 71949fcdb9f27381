"""Flags of `ad:train`, and what a preset stands for."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from darkroom.distillation.shape import LAYOUTS, POSITIONS, STATES, WHEN_FULL, Architecture, Shape
from darkroom.distillation.windows import KINDS, Sampling
from runcatalog import record
from runcatalog.record import option

LARGEST_SIDE = 23  # of the rooms of an evaluation, which a figure can show [cells]
OPTIMIZERS = ("adamw", "muon")
OWN = "preset"  # of a flag with words; of one with a number: -1


@dataclass(frozen=True)
class Settings(Architecture):
    """What a training is made of, once preset and flags are put together; meanings: see :class:`Config`.

    Defaults are those of `preset=default`.
    """

    windows: str = "subsampled"
    searching: float = 0.5
    candidates: int = 32
    history_steps: int = 0
    shift: int = 3
    stretch: float = 0.0
    batch_size: int = 16
    updates: int = 2500
    optimizer: str = "muon"
    lr: float = 3e-3
    muon_lr: float = 0.01
    lr_min: float = 0.0
    warmup: int = 100
    beta2: float = 0.99
    weight_decay: float = 0.01


PRESETS = {
    "default": Settings(),
    # As the source tells them; its optimizer is Adam, which is AdamW without decay.
    "seed": Settings(
        layout="three", states="table", positions="time", feed_forward=2048, attention_dropout=0.5,
        residual_dropout=0.1, windows="consecutive", searching=0.0, history_steps=800_000,
        shift=0, batch_size=32, updates=22_000, optimizer="adamw", lr=3e-4, lr_min=2e-6, warmup=0,
        weight_decay=0.0,
    ),
}  # fmt: skip


# The catalog reads a flag's default from the first argument of what is called …option.
def word_option(own: str, text: str, choices: tuple[str, ...]) -> str:
    """A word of `choices`, or the preset's."""
    return option(own, text, choices=(own, *choices))


def preset_option(own: float, text: str, high: float | None = None) -> float:
    """A number from 0 to `high`, or the preset's."""
    return option(own, f"{text}; -1: the preset's", low=-1, high=high)


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `ad:train`."""

    histories: str = option(
        "histories", "runs of a2c:histories_return or their histories, separated by commas"
    )
    sizes: str = option("9", "sides of the rooms that the histories have to be of, in their order")
    preset: str = option(
        "default", "default: what works here; seed: the source's settings", choices=tuple(PRESETS)
    )
    split: int = option(1, "seed that divides tasks into those for training and testing", low=0)
    test_share: float = option(
        0.2875,
        "share of the tasks for testing [1]; source: 23 of 80",
        low=0,
        high=1,
        high_open=True,
    )
    train_tasks: str = option("", "file with the tasks for training (row column); empty: the split")
    test_tasks: str = option("", "file with the tasks for testing; empty: the split")
    validation_share: float = option(
        0.0,
        "share of the training tasks that are kept out, to choose variants by; those for testing are then "
        "never played [1]",
        low=0, high=1, high_open=True,
    )  # fmt: skip
    layout: str = word_option(
        OWN, "tokens of a step: one, three, or three streams with cross-attention", LAYOUTS
    )
    states: str = word_option(
        OWN, "a cell by its row and column, by waves of them, or by a table", STATES
    )
    positions: str = word_option(OWN, "what tells a token's place in the window", POSITIONS)
    window: int = preset_option(-1, "steps of a window", 4096)
    width: int = preset_option(-1, "of a token", 4096)
    layers: int = preset_option(-1, "blocks", 64)
    heads: int = preset_option(-1, "of attention in a block", 64)
    feed_forward: int = preset_option(-1, "width of a block's hidden layer", 65536)
    embedding_dropout: float = preset_option(-1.0, "share of the tokens' numbers", 0.99)
    attention_dropout: float = preset_option(-1.0, "share of the attention's weights", 0.99)
    residual_dropout: float = preset_option(-1.0, "share of what a layer adds", 0.99)
    windows: str = word_option(OWN, "every k-th episode of a history, or steps as they came", KINDS)
    stride: float = option(
        0.3, "k of the windows, as a share of the episodes until a task is learned [1]", low=0
    )
    jitter: float = option(0.7, "of k, in its logarithm, uniform [1]", low=0, high=5)
    fresh: float = option(0.5, "share of the windows that begin with the agent [1]", low=0, high=1)
    searching: float = preset_option(
        -1.0, "share of the windows that begin with episodes in which no reward was met yet [1]", 1
    )
    candidates: int = preset_option(
        -1, "episodes of which each one of those is the one with most new cells; 1: any", 1000
    )
    history_steps: int = preset_option(-1, "first steps of a task that are used, 0: all")
    shift: int = preset_option(
        -1,
        "rows and columns that a window's room is moved by, at most, drawn for each [cells]",
        20,
    )
    stretch: float = preset_option(
        -1.0,
        "highest share of a window's rows and columns that are told two away from the last [1]",
        1,
    )
    batch_size: int = preset_option(-1, "windows of an update", 65536)
    updates: int = preset_option(-1, "of the whole training")
    optimizer: str = word_option(
        OWN, "AdamW for all weights, or Muon for those between hidden layers", OPTIMIZERS
    )
    lr: float = preset_option(-1.0, "AdamW's step size at its highest [1]", 1)
    muon_lr: float = preset_option(-1.0, "Muon's step size at its highest [1]", 1)
    lr_min: float = preset_option(-1.0, "where the cosine ends [1]", 1)
    warmup: int = preset_option(-1, "updates in which the step size rises")
    weight_decay: float = preset_option(-1.0, "of matrices and tables, times the step size [1]", 1)
    label_smoothing: float = preset_option(
        -1.0, "share of a target that is spread over all actions, and taken off in play", 0.99
    )
    max_grad_norm: float = option(
        1.0, "limit of the gradient's norm; source: 1", low=0, low_open=True
    )
    evaluations: int = option(
        10, "times that it plays while it is trained; source: every 64 updates", low=1
    )
    episodes: int = option(40, "episodes of each agent that plays then", low=5, high=10_000)
    copies: int = option(3, "agents of each task that play then", low=1, high=1000)
    when_full: str = option("halve", "what an agent does whose window is full", choices=WHEN_FULL)
    device: str = option(
        "cpu",
        "where it is trained; bits repeat on a processor",
        choices=("cpu", "cuda"),
        resumable=True,
    )
    precision: str = option(
        "fp32",
        "of the products; bf16: wide layers are twice as fast where the device has units for it",
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
        for name in (
            "window",
            "width",
            "layers",
            "heads",
            "feed_forward",
            "batch_size",
            "updates",
            "candidates",
        ):
            if getattr(settings, name) < 1:
                raise record.UserError(f"--{record.config.flag_name(name)}: at least 1")
        if settings.window < 2:
            raise record.UserError("--window: at least 2, of which a full one keeps the newer half")
        if settings.lr == 0:
            raise record.UserError("--lr: above 0")
        if settings.width % settings.heads:
            raise record.UserError(
                f"--width: {settings.width} cannot be divided among {settings.heads} heads"
            )
        if self.when_full == "ring" and settings.positions != "time":
            raise record.UserError("--when-full: a ring needs --positions time")
        if len(self.sides) > 1 and settings.states == "table":
            raise record.UserError("--states: a table has the cells of one size; use row_column")

    @property
    def sides(self) -> list[int]:
        """Of the rooms."""
        words = self.sizes.split()
        if not words or not all(word.isdecimal() and 2 <= int(word) <= 40 for word in words):
            raise record.UserError(f'--sizes: {self.sizes!r} are no sides of rooms; say "7 9"')
        sides = list(map(int, words))
        if len(set(sides)) < len(sides):
            raise record.UserError(f"--sizes: {self.sizes!r} has a side twice; one history of each")
        return sides

    def settings(self) -> Settings:
        """The preset's, but for the flags that are given."""
        names = {field.name for field in fields(Settings)} & {field.name for field in fields(self)}
        given = {name: getattr(self, name) for name in names}
        kept = {name: value for name, value in given.items() if value not in (OWN, -1)}
        return replace(PRESETS[self.preset], **kept)

    def shape(self, size: int, limit: int) -> Shape:
        """The transformer's.

        Args:
            size: Side of the rooms, if they are all alike; otherwise of the largest.
            limit: Steps of an episode.
        """
        settings = self.settings()
        chosen = {field.name: getattr(settings, field.name) for field in fields(Architecture)}
        farthest = size // 2 * (2 if settings.stretch else 1) + settings.shift
        reach = max(Shape().reach, farthest)
        return Shape(**chosen, size=size, limit=limit, reach=reach)

    def sampling(self) -> Sampling:
        """Of the windows."""
        settings = self.settings()
        return Sampling(
            settings.windows,
            settings.window,
            self.stride,
            self.jitter,
            self.fresh,
            settings.searching,
            settings.candidates,
        )
