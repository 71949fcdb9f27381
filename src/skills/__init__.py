"""Skills on MiniGrid: levels of growing difficulty for five verbs, and an engine that plays many of them at once.

Importing the package registers `catalog/Skills-PKP3-v0` and its like with gymnasium, where that is installed; the
name of each of the stages of `skills.levels.stages` is in capitals.
"""

from contextlib import suppress


def env_id(stage: str) -> str:
    """Returns the id of a stage's environment in gymnasium."""
    return f"catalog/Skills-{stage.upper()}-v0"


def register_envs() -> None:
    """Registers an environment for each stage with gymnasium; calling it again does nothing."""
    from gymnasium.envs.registration import register, registry

    from skills.levels.stages import STAGES

    for stage in STAGES:
        if env_id(stage) not in registry:
            register(
                id=env_id(stage),
                entry_point="skills.levels.minigrid.env:SkillsEnv",
                kwargs={"stage": stage},
            )


with suppress(ImportError):
    register_envs()
