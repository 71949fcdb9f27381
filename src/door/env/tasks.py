"""The door tasks, such as ``lever_push_left``.

The seven pull-type tasks and the two push-type ones are those of the source (DoorGym run list of
the thesis "Hypernetwork-PPO for Continual RL", series 2-9); ``SERIES`` is their order
there.
"""

from dataclasses import dataclass
from typing import Literal

Family = Literal["pull", "lever", "round"]
Side = Literal["right", "left"]


@dataclass(frozen=True)
class Task:
    """A kind of door.

    Attributes:
        name: Name on the command line.
        family: Kind of handle. ``lever`` and ``round`` are latched, ``pull`` is a fixed bar without
            a latch.
        hinge: Side of the hinge from the robot's view.
        push: Whether the door opens away from the robot.
        handle_offset: Distance of the handle from the free edge, as a share of the door's width.
    """

    name: str
    family: Family
    hinge: Side = "right"
    push: bool = False
    handle_offset: float = 0.15

    @property
    def latched(self) -> bool:
        """Whether a bolt holds the door until the handle is turned."""
        return self.family != "pull"

    @property
    def side(self) -> int:
        """Sign of the hinge's y coordinate: +1 right, -1 left from the robot's view."""
        return 1 if self.hinge == "right" else -1

    @property
    def opening_sign(self) -> int:
        """Sign of the hinge angle when the door opens."""
        return -self.side if self.push else self.side


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("pull", "pull"),
        Task("pull_left", "pull", hinge="left"),
        # The source moved the handle inward by this factor, away from the frame.
        Task("pull_left_fixed", "pull", hinge="left", handle_offset=0.15 * 1.2),
        Task("lever", "lever"),
        Task("lever_left", "lever", hinge="left"),
        Task("round", "round"),
        Task("round_left", "round", hinge="left"),
        Task("lever_push", "lever", push=True),
        Task("lever_push_left", "lever", hinge="left", push=True),
    )
}

SERIES = ("pull", "pull_left", "lever", "lever_left", "lever_push", "lever_push_left")


def get_task(name: str) -> Task:
    """Return the task of a name.

    Raises:
        ValueError: There is no such task; the message lists all tasks.
    """
    try:
        return TASKS[name]
    except KeyError:
        raise ValueError(f"unknown task {name!r}: choose from {', '.join(TASKS)}") from None
