"""The transformer's shape, in numbers and words; importing it needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

LAYOUTS = ("one", "three", "cross")
STATES = ("row_column", "fourier", "table")
POSITIONS = ("learned", "time")
TOKENS = {"one": 1, "three": 3, "cross": 1}  # tokens of a step, along the sequence
WHEN_FULL = ("halve", "ring")  # see `darkroom.distillation.rollout`
MIN_REACH = 12  # cells from the centre: rooms of up to 25 x 25 can be shown to every model


@dataclass(frozen=True)
class Architecture:
    """Shape of a transformer without the size of its rooms.

    Attributes:
        layout: Tokens of a step, one of LAYOUTS.
        states: Embedding of a cell: the sum of a vector of its row and one of its column, both counted from the centre
            (`row_column`), the same with sines and cosines in place of free vectors (`fourier`), or a vector per cell
            (`table`).
        positions: A vector per position in the window (`learned`), or the time within the episode alone (`time`).
        window: Context length [steps].
        width: Width of a token.
        layers: Number of blocks.
        heads: Attention heads of a block.
        feed_forward: Width of a block's hidden layer.
        embedding_dropout: Dropout of the tokens.
        attention_dropout: Dropout of the attention weights.
        residual_dropout: Dropout of what a layer adds to its input.
        label_smoothing: Share of a training target that is spread over all actions; the policy removes it again.
    """

    layout: str
    states: str
    positions: str
    window: int
    width: int
    layers: int
    heads: int
    feed_forward: int
    embedding_dropout: float
    attention_dropout: float
    residual_dropout: float
    label_smoothing: float


@dataclass(frozen=True)
class Shape(Architecture):
    """Shape of a transformer, with the size of its rooms.

    Attributes:
        size: Side of the room that a table of states is for [cells].
        limit: Longest episode [steps].
        reach: Farthest row or column that has a vector, counted from the centre [cells].
    """

    size: int
    limit: int
    reach: int

    def fits(self, size: int) -> bool:
        """Return whether all cells of a room with this side have an embedding."""
        return size == self.size if self.states == "table" else size // 2 <= self.reach
