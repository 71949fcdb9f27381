"""Settings of all tests."""

import os

# Before numpy or torch is imported: four test processes share two cores, and each would start a thread per core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

# A machine that is busy is slow, not wrong; pytest's own timeout ends what hangs.
settings.register_profile("project", deadline=None)
settings.load_profile("project")


# Folders whose files take minutes come first, so that no process is left with one of them in the end.
SLOW = ("journeys", "textgames", "faults", "lifecycle", "record", "search")
# On a fresh machine it compiles what other files then find; two at once would both compile it, for 20 s.
FIRST = "test_skill_agents.py"


def pytest_collection_modifyitems(items):
    ranks = {name: rank for rank, name in enumerate(SLOW)}
    items.sort(
        key=lambda item: (item.path.name != FIRST, ranks.get(item.path.parent.name, len(SLOW)))
    )
