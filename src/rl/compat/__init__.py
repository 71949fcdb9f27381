"""Private parts of torch and numba that the studies use, a module for each package."""
