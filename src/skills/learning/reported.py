"""Numbers that the source reported: success in percent of 1,000 episodes, on levels known by name alone."""

from __future__ import annotations

_TASKS, _METHODS = ("GTG", "GTO", "PKP", "TGL", "ALL"), ("PPO", "DIS", "CON", "MOE")


def _table(columns: tuple[str, ...], **rows: tuple[int | None, ...]) -> dict[str, dict[str, int]]:
    by_column = {name: zip(columns, row, strict=True) for name, row in rows.items()}
    return {name: {k: v for k, v in row if v is not None} for name, row in by_column.items()}


AGENTS = _table(
    _TASKS,
    GTG=(86, 0, 0, 0, 19),
    GTO=(0, 72, 0, 0, 17),
    PKP=(0, 0, 57, 0, 26),
    PKPC=(0, 0, 68, 0, 32),
    TGL=(0, 0, 0, 47, 27),
    TGLC=(0, 0, 0, 65, 47),
    ALL=(75, 65, 59, 58, 65),
)
"""By agent and task; all trained by PPO."""

PROBLEMS = _table(
    _METHODS,
    GTG=(86, 86, 86, None),
    GTO=(72, 64, 73, None),
    PKP=(57, 47, 66, None),
    TGL=(65, 37, 64, None),
    ALL=(65, 56, 67, 72),
)
"""By task and training method. Cells with "xx" in the source are left out. Its PPO on TGL is TGLC's of `AGENTS`."""

REWARDS = {
    "NLM": (0, 0.9553719163, 0, 0, 0.7247933745, 0.8289256096, 0, 0.8661156893, 0, 0.9553719163),
    "DIS": (0.7322314, 0.9479339, 0.7247934, 0, 0.7563426, 0.7523325, 0.57603306, 0, 0, 0.9628099),
    "PPO": (0, 0.9486359, 0, 0, 0.7127631, 0.7322314, 0, 0, 0, 0.9436017),
    "MOE": (0.74710745, 0.9469437, 0.7237845, 0, 0.7157412, 0.7214331, 0, 0.87412578, 0, 0.9518792),
}
"""Rewards in the same ten episodes of the composite task, by agent, with a language model of unknown name; NLM without
one. The percentages that the source gives are their means."""
