"""Policy gradients and behaviour cloning on CartPole, with seeds enough to believe the result."""
