"""Tasks of Key-To-Door rooms, of which there are too many to train on all."""

from __future__ import annotations

from darkroom.rooms import grid
from runcatalog import record


def draw_key_tasks(count: int, size: int, seed: int) -> list[int]:
    """Draw tasks with a key, numbered as in :mod:`darkroom.rooms.grid`, in order.

    Args:
        count: Number of tasks.
        size: Side of the room [cells].
        seed: Seed of the choice.

    Raises:
        UserError: A room of this side has fewer.
    """
    every = grid.tasks_with_key(size)
    if count > len(every):
        raise record.UserError(
            f"--key-tasks: {count}, but a {size} x {size} room has {len(every)} tasks with a key"
        )
    rng = record.Seeds(seed).generator("key tasks")
    return sorted(rng.choice(every, count, replace=False).tolist())
