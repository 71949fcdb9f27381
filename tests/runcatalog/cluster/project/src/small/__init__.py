"""A study of runs that take a second."""
