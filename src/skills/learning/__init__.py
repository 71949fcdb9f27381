"""Training: flags, schedule, recurrent PPO, distillation, the mixture's gate and the training loop's parts."""
