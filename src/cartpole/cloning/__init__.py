"""Behaviour cloning of CartPole policies: demonstrations, training, survival, DAgger and DART."""
