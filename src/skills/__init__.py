"""Skills on MiniGrid: five verbs in stages of increasing difficulty, with a compiled engine.

Importing the package registers an environment per stage with gymnasium, if that is installed, such as
`catalog/Skills-PKP3-v0`.
"""

from contextlib import suppress


def env_id(stage: str) -> str:
    """Return the gymnasium id of a stage's environment."""
    return f"catalog/Skills-{stage.upper()}-v0"


def register_envs() -> None:
    """Register an environment per stage with gymnasium, unless registered."""
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
