"""The door study: continual learning with a hypernetwork PPO on procedural MuJoCo doors."""


def register_envs() -> None:
    """Registers ``catalog/Door-v0``; gymnasium calls this through the entry point."""
