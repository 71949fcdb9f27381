"""Policy gradients on CartPole: REINFORCE with four baselines, many runs in lockstep."""
