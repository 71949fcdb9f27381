"""Series of tasks: finished training runs as steps of a series, and metrics of continual learning."""
