"""What a transformer is made of, in numbers and words: what flags are read with, before torch is there."""

from __future__ import annotations

from dataclasses import dataclass

LAYOUTS = ("one", "three", "cross")
STATES = ("row_column", "fourier", "table")
POSITIONS = ("learned", "time")
TOKENS = {"one": 1, "three": 3, "cross": 1}  # places of a step in the sequence
WHEN_FULL = ("halve", "ring")  # see `darkroom.distillation.rollout`


@dataclass(frozen=True)
class Architecture:
    """Of a transformer, whatever rooms it is for.

    Attributes:
        layout: How many tokens a step becomes, see LAYOUTS.
        states: A cell is the sum of a vector of its row and one of its column, both counted from the centre
            (`row_column`), the same with waves in place of free vectors (`fourier`), or a vector of its own (`table`).
        positions: Vectors for the place in the window (`learned`), or none but those of the episode's time (`time`).
        window: Longest context [steps].
        width, layers, heads, feed_forward: Of the transformer.
        embedding_dropout, attention_dropout, residual_dropout: Shares.
        label_smoothing: Share of a target that training spreads over all actions; who plays takes it off again.
    """

    layout: str = "one"
    states: str = "row_column"
    positions: str = "learned"
    window: int = 256
    width: int = 64
    layers: int = 4
    heads: int = 4
    feed_forward: int = 256
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    residual_dropout: float = 0.0
    label_smoothing: float = 0.0


@dataclass(frozen=True)
class Shape(Architecture):
    """Of a transformer for rooms.

    Attributes:
        size: Side of the room, for the table of its states.
        limit: Longest episode [steps].
        reach: Cells from the centre that rows and columns go to.
    """

    size: int = 9
    limit: int = 20
    reach: int = 12

    def fits(self, size: int) -> bool:
        """Whether a room of this side can be told to it."""
        return size == self.size if self.states == "table" else size // 2 <= self.reach
