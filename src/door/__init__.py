"""The door study: continual learning with a hypernetwork PPO on procedural MuJoCo doors.

Importing the package registers ``catalog/Door-v0`` with gymnasium, if that is installed.
"""

from contextlib import suppress


def register_envs() -> None:
    """Register ``catalog/Door-v0`` with gymnasium; a second call does nothing."""
    from gymnasium.envs.registration import register, registry

    if "catalog/Door-v0" not in registry:
        register(id="catalog/Door-v0", entry_point="door.env.gym_env:DoorEnv")


with suppress(ImportError):
    register_envs()
