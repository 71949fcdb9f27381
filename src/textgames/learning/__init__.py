"""Reinforcement and supervised learning: rollouts, advantages, PPO, imitation of the solver."""
