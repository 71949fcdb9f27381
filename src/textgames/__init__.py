"""The text-game study: language models that play a bandit, Sokoban and FrozenLake in a conversation.

Importing the package registers `catalog/TextGames-Sokoban-v0` and the other games with gymnasium, if it is installed.
"""

from contextlib import suppress

_NAMES = {"bandit": "Bandit", "sokoban": "Sokoban", "frozenlake": "FrozenLake"}


def env_id(env: str) -> str:
    """Return the id of a game's environment in gymnasium."""
    return f"catalog/TextGames-{_NAMES[env]}-v0"


def register_envs() -> None:
    """Register an environment per game with gymnasium; calling it again does nothing."""
    from gymnasium.envs.registration import register, registry

    for env in _NAMES:
        if env_id(env) not in registry:
            register(
                id=env_id(env), entry_point="textgames.games.gym_env:TextGame", kwargs={"env": env}
            )


with suppress(ImportError):
    register_envs()
