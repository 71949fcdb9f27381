"""Agents: the network and its kernels, policies, rollouts, evaluation and checkpoints."""
