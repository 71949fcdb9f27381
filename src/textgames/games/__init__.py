"""The games: bandit, Sokoban and FrozenLake, their levels, solver, bounds and prompts."""
