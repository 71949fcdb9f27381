"""How long and with which step sizes each stage is trained, and what it goes on from: the source's table.

The source gives a model's name with its stage, epochs, and the learning rate from start to end. Which weights a stage
begins with it does not tell; our reading: a stage goes on from the one before it, and the C variants, "fine tune all
model", from the last of ALL. Nor does it tell what an epoch is, `EPOCH_STEPS`, nor how many samples a step is made of,
without which a step size says little: `LR` is what works with the updates made here, and `lr=0` the source's.
"""

from __future__ import annotations

from dataclasses import dataclass

EPOCH_STEPS = 8_000_000  # environment steps of an epoch; few stages need theirs all
LR, LR_END = 2e-3, 2e-5  # Adam's first and last step size in a stage, four steps for 4,096 samples


@dataclass(frozen=True)
class Course:
    """A stage's training.

    Attributes:
        epochs: Of `EPOCH_STEPS`.
        lr: Adam's step size at the start, the source's.
        lr_end: At the end.
        after: The stage whose weights it begins with; empty: none.
    """

    epochs: int
    lr: float
    lr_end: float
    after: str = ""


_FIRST, _NEXT, _LAST = (1e-3, 3e-5), (3e-4, 3e-6), (2e-4, 3e-6)
COURSES = {
    "gtg0": Course(6, *_FIRST), "gtg1": Course(4, *_NEXT, "gtg0"),
    "pkp0": Course(9, *_FIRST), "pkp1": Course(9, *_NEXT, "pkp0"), "pkp2": Course(9, *_NEXT, "pkp1"),
    "pkp3": Course(9, *_NEXT, "pkp2"), "pkp4": Course(6, *_LAST, "pkp3"),
    "pkpc1": Course(4, *_NEXT, "all6"), "pkpc2": Course(4, *_NEXT, "pkpc1"), "pkpc3": Course(4, *_NEXT, "pkpc2"),
    "gto0": Course(7, *_FIRST), "gto1": Course(7, *_NEXT, "gto0"), "gto2": Course(4, *_NEXT, "gto1"),
    "tgl0": Course(4, *_FIRST), "tgl1": Course(4, *_NEXT, "tgl0"), "tgl2": Course(4, *_NEXT, "tgl1"),
    "tgl3": Course(4, *_NEXT, "tgl2"),
    "tglc1": Course(4, *_NEXT, "all6"), "tglc2": Course(4, *_NEXT, "tglc1"),
    "all0": Course(6, *_FIRST), "all1": Course(6, *_NEXT, "all0"), "all2": Course(6, *_NEXT, "all1"),
    "all3": Course(4, *_NEXT, "all2"), "all4": Course(4, *_NEXT, "all3"), "all5": Course(4, *_NEXT, "all4"),
    "all6": Course(4, *_LAST, "all5"),
    "nlm0": Course(6, *_FIRST), "nlm1": Course(6, *_FIRST, "nlm0"), "nlm2": Course(4, *_LAST, "nlm1"),
}  # fmt: skip

ELSEWHERE = Course(3, *_FIRST)
"""For an environment of BabyAI: one stage, from nothing."""

CURRICULA = {
    "gtg": "gtg1", "pkp": "pkp4", "pkpc": "pkpc3", "gto": "gto2", "tgl": "tgl3", "tglc": "tglc2", "all": "all6",
    "nlm": "nlm2",
}  # fmt: skip
"""The last stage of each."""


def chain(stage: str) -> list[str]:
    """Returns the stages that lead to a stage, in order, itself the last."""
    before = COURSES[stage].after
    return [*(chain(before) if before else []), stage]
