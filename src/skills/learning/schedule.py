"""Training schedule of every stage, after the source's table: epochs, step sizes, and the stage that it continues.

The source names a model with its stage, epochs, and the learning rate from start to end. It does not say which weights
a stage begins with; our reading: a stage continues from the one before it, and the C variants, "fine tune all model",
from the last of ALL. Nor does it define an epoch (`EPOCH_STEPS`) or the samples of a gradient step, without which a
step size says little: `LR` is what works with this project's updates, and `lr=0` is the source's.
"""

from __future__ import annotations

from dataclasses import dataclass

EPOCH_STEPS = 8_000_000  # environment steps of an epoch; most stages stop before their last
# Adam's first and last step size in a stage, four gradient steps per 4,096 samples.
LR, LR_END = 2e-3, 2e-5


@dataclass(frozen=True)
class Schedule:
    """A stage's training.

    Attributes:
        epochs: Epochs of `EPOCH_STEPS`.
        lr: Adam's first step size, the source's.
        lr_end: Adam's last step size.
        after: Stage whose weights it begins with, or "".
    """

    epochs: int
    lr: float
    lr_end: float
    after: str = ""


_FIRST, _NEXT, _LAST = (1e-3, 3e-5), (3e-4, 3e-6), (2e-4, 3e-6)
SCHEDULES = {
    "gtg0": Schedule(6, *_FIRST), "gtg1": Schedule(4, *_NEXT, "gtg0"),
    "pkp0": Schedule(9, *_FIRST), "pkp1": Schedule(9, *_NEXT, "pkp0"), "pkp2": Schedule(9, *_NEXT, "pkp1"),
    "pkp3": Schedule(9, *_NEXT, "pkp2"), "pkp4": Schedule(6, *_LAST, "pkp3"),
    "pkpc1": Schedule(4, *_NEXT, "all6"), "pkpc2": Schedule(4, *_NEXT, "pkpc1"), "pkpc3": Schedule(4, *_NEXT, "pkpc2"),
    "gto0": Schedule(7, *_FIRST), "gto1": Schedule(7, *_NEXT, "gto0"), "gto2": Schedule(4, *_NEXT, "gto1"),
    "tgl0": Schedule(4, *_FIRST), "tgl1": Schedule(4, *_NEXT, "tgl0"), "tgl2": Schedule(4, *_NEXT, "tgl1"),
    "tgl3": Schedule(4, *_NEXT, "tgl2"),
    "tglc1": Schedule(4, *_NEXT, "all6"), "tglc2": Schedule(4, *_NEXT, "tglc1"),
    "all0": Schedule(6, *_FIRST), "all1": Schedule(6, *_NEXT, "all0"), "all2": Schedule(6, *_NEXT, "all1"),
    "all3": Schedule(4, *_NEXT, "all2"), "all4": Schedule(4, *_NEXT, "all3"), "all5": Schedule(4, *_NEXT, "all4"),
    "all6": Schedule(4, *_LAST, "all5"),
    "nlm0": Schedule(6, *_FIRST), "nlm1": Schedule(6, *_FIRST, "nlm0"), "nlm2": Schedule(4, *_LAST, "nlm1"),
}  # fmt: skip

BABYAI_SCHEDULE = Schedule(3, *_FIRST)
"""A BabyAI environment: one stage, from random weights."""

CURRICULA = {
    "gtg": "gtg1", "pkp": "pkp4", "pkpc": "pkpc3", "gto": "gto2", "tgl": "tgl3", "tglc": "tglc2", "all": "all6",
    "nlm": "nlm2",
}  # fmt: skip
"""The last stage of every curriculum."""
COMPOSITE = ("nlm0", "nlm1", "nlm2")
"""The stages of the composite task."""


def chain(stage: str) -> list[str]:
    """Return the stages from random weights to a stage, in training order."""
    previous = SCHEDULES[stage].after
    return [*(chain(previous) if previous else []), stage]
