"""Algorithm Distillation on DarkRoom: source agents, their learning histories, and a transformer trained on them.

Importing the package registers the rooms, such as `catalog/DarkRoom-9x9-v0`, with gymnasium if that is installed.
"""

from contextlib import suppress

# id: (class, steps of an episode, arguments), as in toy-meta-gym.
_ROOMS = {
    "DarkRoom-9x9-v0": ("DarkRoom", 20, {"size": 9}),
    "DarkRoom-3x3-v0": ("DarkRoom", 10, {"size": 3}),
    "DarkRoomHard-17x17-v0": ("DarkRoom", 20, {"size": 17, "terminate_on_goal": True}),
    "DarkKeyToDoor-9x9-v0": ("DarkKeyToDoor", 50, {"size": 9, "random_start": True}),
    "DarkKeyToDoor-3x3-v0": ("DarkKeyToDoor", 20, {"size": 3, "random_start": True}),
}


def register_envs() -> None:
    """Register the rooms with gymnasium, with their limits of steps; repeated calls do nothing."""
    from gymnasium.envs.registration import WrapperSpec, register, registry

    for name, (room, limit, arguments) in _ROOMS.items():
        if f"catalog/{name}" not in registry:
            limited = WrapperSpec(
                "EpisodeLimit", "darkroom.rooms.env:EpisodeLimit", {"limit": limit}
            )
            register(
                id=f"catalog/{name}", entry_point=f"darkroom.rooms.env:{room}", kwargs=arguments,
                additional_wrappers=(limited,),
            )  # fmt: skip


with suppress(ImportError):
    register_envs()
