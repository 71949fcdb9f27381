"""Pages of whole conversations: the best, the median and the worst trajectory."""

from __future__ import annotations

from collections.abc import Sequence

from textgames.models.trajectories import Trajectory


def page(title: str, trajectories: Sequence[Trajectory]) -> str:
    """Return Markdown with the best, the median and the worst trajectory by score; ties: the first game.

    Args:
        title: Title of the page.
        trajectories: At least one.
    """
    ranked = sorted(range(len(trajectories)), key=lambda i: (-trajectories[i].score, i))
    places = {"Best": ranked[0], "Median": ranked[len(ranked) // 2], "Worst": ranked[-1]}
    parts = [f"# {title}", f"{len(trajectories)} games."]
    for name, i in places.items():
        parts.append(f"## {name}")
        parts += _messages(trajectories[i])
    return "\n\n".join(parts) + "\n"


def _messages(trajectory: Trajectory) -> list[str]:
    end = "success" if trajectory.success else "no success"
    turns = len(trajectory.turns)
    parts = [
        f"Game {trajectory.seed}: {end} after {turns} turn{'s' * (turns != 1)}, score {trajectory.score:g}."
    ]
    for turn in trajectory.turns:
        parts += [f"**User**\n\n{_fenced(turn.observation)}", f"**Model**\n\n{_fenced(turn.reply)}"]
        if turn.stored_reply != turn.reply:
            parts.append(f"stored as\n\n{_fenced(turn.stored_reply)}")
        parts.append(f"action {turn.action or 'none'}, reward {turn.reward:g}")
    return parts


def _fenced(text: str) -> str:
    """Return a text in a code block that it cannot close."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text.rstrip()}\n{fence}"
