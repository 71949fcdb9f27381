"""The text-game study: language models that play a bandit, Sokoban and FrozenLake in a conversation."""
