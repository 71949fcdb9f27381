"""Settings of all tests."""

from hypothesis import settings

# A machine that is busy is slow, not wrong; pytest's own timeout ends what hangs.
settings.register_profile("project", deadline=None)
settings.load_profile("project")
