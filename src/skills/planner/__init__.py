"""Planning in the composite task: planners, executors, prompts and a small language model."""
