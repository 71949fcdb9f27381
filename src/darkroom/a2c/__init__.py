"""Source agents: advantage actor-critic on every task, their learning histories, curves and videos."""
