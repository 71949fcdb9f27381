"""The doors: worlds, MuJoCo models, robots, rewards, and the vectorised environment."""
