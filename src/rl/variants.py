"""Names of the variants of GAE and PPO, for flags: without torch, which declaring an operation does not wait for."""

TIME_LIMITS = ("cut", "bootstrap")  # of rl.gae.gae
VALUE_LOSSES = ("max", "clipped", "plain")  # of rl.ppo.value_loss
