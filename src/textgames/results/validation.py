"""Validation: games that the model was not trained on, and averages over games."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from runcatalog import record
    from textgames.learning.options import PlayConfig
    from textgames.models.trajectories import Trajectory

ACTIONS = ("sampled", "greedy")


def validate(
    loaded: Any,
    config: PlayConfig,
    seeds: NDArray[np.int64],
    generator: Any | None = None,
    max_turns: int = 0,
    run: record.Run | None = None,
    luck: NDArray[np.int64] | None = None,
) -> list[Trajectory]:
    """Plays games, `val_batch_size` at a time; see `speech` for the other arguments.

    Args:
        loaded: The model, see `loading.load`.
        seeds: Of the games, int64 [n].
        run: Is told the progress.
        luck: Of the games, int64 [n], see `Game.reset`; None: the seeds' own.
    """
    import numpy as np

    from textgames.games.config import make_game
    from textgames.learning.rollout import play, speech

    found: list[Trajectory] = []
    how = speech(config, generator, max_turns)
    own = loaded.ranks.share(np.arange(len(seeds)))
    for start in range(0, len(own), config.val_batch_size):
        part = own[start : start + config.val_batch_size]
        with loaded.autocast():
            found += play(
                loaded.model, loaded.tokenizer, make_game(config), config, seeds[part], how,
                luck=None if luck is None else luck[part],
            )  # fmt: skip
        if run is not None and len(found) < len(own):
            run.progress(len(found), len(own), "game")
    return loaded.ranks.gather(found)


def statistics(trajectories: list[Trajectory]) -> dict[str, float]:
    """What the source logs of games that were played (section 3 of its rollouts), as means over games.

    Returns:
        `success`, `score` (mean, max, min, spread), `turns`, and of the replies the share with an action (`valid`) and
        of those the share that changed something (`effective`).
    """
    import numpy as np

    scores = np.array([each.score for each in trajectories])
    turns = np.array([len(each.turns) for each in trajectories])
    valid = np.array([each.valid for each in trajectories])
    effective = sum(each.effective for each in trajectories)
    return {
        "success": float(np.mean([each.success for each in trajectories])),
        "score": float(scores.mean()),
        "score/max": float(scores.max()),
        "score/min": float(scores.min()),
        "score/spread": float(scores.std()),
        "turns": float(turns.mean()),
        "valid": float(valid.sum() / turns.sum()),
        "effective": float(effective / max(1, valid.sum())),
    }
