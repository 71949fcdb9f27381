"""HN-PPO: the hypernetwork, its agent, and the gradient step with the regulariser."""
