"""Ranges of the doors' parameters as the source has them, (low, high)."""

import math

RANGES = {
    "height": (2.0, 2.5),
    "thickness": (0.02, 0.03),
    "door_damping": (1, 2),
    "door_stiffness": (0.1, 0.2),
    "handle_damping": (1, 2),
    "handle_stiffness": (1, 1.5),
    "handle_limit": (math.radians(75), math.radians(80)),
    "robot_damping": (0.9, 1.1),
}
