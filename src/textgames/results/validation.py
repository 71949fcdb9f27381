"""Validation: games that the model was not trained on, and averages over games."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from runcatalog import record
    from textgames.learning.options import PlayConfig
    from textgames.models.loading import Loaded
    from textgames.models.trajectories import Trajectory

ACTIONS = ("sampled", "greedy")


def validate(
    loaded: Loaded,
    config: PlayConfig,
    seeds: NDArray[np.int64],
    generator: torch.Generator | None = None,
    run: record.Run | None = None,
    replays: NDArray[np.int64] | None = None,
) -> list[Trajectory]:
    """Play games, `val_batch_size` at a time.

    Args:
        loaded: The model, see `loading.load`.
        config: The flags.
        seeds: Seeds of the games, int64 [n].
        generator: See `rollout.generation`.
        run: Shows the progress.
        replays: Random streams of the games, int64 [n], see `Game.reset`; None: 0.
    """
    import numpy as np

    from textgames.games.config import make_game
    from textgames.learning import rollout

    trajectories: list[Trajectory] = []
    how = rollout.generation(config, generator)
    own = loaded.ranks.share(np.arange(len(seeds)))
    for start in range(0, len(own), config.val_batch_size):
        part = own[start : start + config.val_batch_size]
        with loaded.autocast():
            trajectories += rollout.play(
                loaded.model, loaded.tokenizer, make_game(config), config, seeds[part], how,
                None if replays is None else replays[part],
            ).trajectories  # fmt: skip
        if run is not None and len(trajectories) < len(own):
            run.progress(len(trajectories), len(own), "game")
    return loaded.ranks.gather(trajectories)


def statistics(trajectories: list[Trajectory]) -> dict[str, float]:
    """Return averages over games, as RAGEN logs them.

    Returns:
        `success`, `score` (mean), `score_max`, `score_min`, `score_spread` (standard deviation), `turns`, the share of
        replies with an action (`valid`), and the share of actions that changed the state (`effective`).
    """
    import numpy as np

    scores = np.array([trajectory.score for trajectory in trajectories])
    turns = np.array([len(trajectory.turns) for trajectory in trajectories])
    valid = np.array([trajectory.valid for trajectory in trajectories])
    effective = sum(trajectory.effective for trajectory in trajectories)
    return {
        "success": float(np.mean([trajectory.success for trajectory in trajectories])),
        "score": float(scores.mean()),
        "score_max": float(scores.max()),
        "score_min": float(scores.min()),
        "score_spread": float(scores.std()),
        "turns": float(turns.mean()),
        "valid": float(valid.sum() / turns.sum()),
        "effective": float(effective / max(1, valid.sum())),
    }
