"""Private parts of torch and numba that the studies use, one module per package."""
