"""Whole conversations as a page to read: the best, the median and the worst trajectory."""

from __future__ import annotations

from collections.abc import Sequence

from textgames.models.trajectories import Trajectory


def page(title: str, trajectories: Sequence[Trajectory]) -> str:
    """Returns Markdown with the best, the median and the worst trajectory by score; ties: the first game.

    Args:
        title: What they are.
        trajectories: At least one.
    """
    ranked = sorted(range(len(trajectories)), key=lambda i: (-trajectories[i].score, i))
    places = {"Best": ranked[0], "Median": ranked[len(ranked) // 2], "Worst": ranked[-1]}
    parts = [f"# {title}", f"{len(trajectories)} games."]
    for name, i in places.items():
        parts.append(f"## {name}")
        parts += _told(trajectories[i])
    return "\n\n".join(parts) + "\n"


def _told(trajectory: Trajectory) -> list[str]:
    end = "success" if trajectory.success else "no success"
    turns = len(trajectory.turns)
    parts = [
        f"Game {trajectory.seed}: {end} after {turns} turn{'s' * (turns != 1)}, score {trajectory.score:g}."
    ]
    for turn in trajectory.turns:
        parts += [f"**User**\n\n{_block(turn.shown)}", f"**Model**\n\n{_block(turn.reply)}"]
        if turn.kept != turn.reply:
            parts.append(f"remembered as\n\n{_block(turn.kept)}")
        parts.append(f"action {turn.action or 'none'}, reward {turn.reward:g}")
    return parts


def _block(text: str) -> str:
    """A text as it is, whatever it holds."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text.rstrip()}\n{fence}"
