"""Algorithm Distillation: a transformer trained on learning histories, and its in-context rollouts."""
