"""Results of evaluated agents in a record. Light to import: Guild reads flags by importing the scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runcatalog import record
from runcatalog.model.statistics import wilson

if TYPE_CHECKING:
    from typing import Protocol

    import numpy as np
    from numpy.typing import NDArray

    from skills.agents.evaluation import Episodes

    class HasSuccess(Protocol):
        """Outcomes of episodes."""

        @property
        def success(self) -> NDArray[np.bool_]:
            """bool [E]."""


def objective_and_metrics(
    episodes: dict[str, Episodes], update: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the record's objective, success with sampled actions, and the metrics of the test episodes."""
    sampled, greedy = episodes["sampled"], episodes["greedy"]
    objective = {
        "name": "success", "value": sampled.rate, "kind": "rate", "count": len(sampled.success), "goal": "max",
        "at": update, "axis": "update",
        "also": [
            {"name": "success/greedy", "value": greedy.rate, "kind": "rate", "count": len(greedy.success)}
        ],
    }  # fmt: skip
    metrics = {}
    for kind, played in episodes.items():
        metrics[f"success/{kind}"] = played.rate
        metrics[f"reward/{kind}"] = float(played.reward.mean())
        metrics[f"length/{kind}"] = float(played.steps.mean())
    return objective, metrics


def level_outcomes(levels: NDArray[Any], episodes: dict[str, Episodes]) -> dict[str, Any]:
    """Return the outcomes of the test episodes by level, under the names of the objective and its further number.

    Args:
        levels: Contents of the levels, [E].
        episodes: Sampled and greedy.
    """
    sampled, greedy = episodes["sampled"], episodes["greedy"]
    success = {"success": sampled.success, "success/greedy": greedy.success}
    return record.level_outcomes(levels, success)


def success_with_interval(episodes: HasSuccess) -> str:
    """Return success in percent with its 95 % score interval (Wilson 1927), as text."""
    successes, count = int(episodes.success.sum()), len(episodes.success)
    low, high = wilson(successes, count)
    return f"{100 * successes / count:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
