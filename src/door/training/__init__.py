"""Flags, trainer, evaluation on held-out worlds, and the summary of a training run."""
