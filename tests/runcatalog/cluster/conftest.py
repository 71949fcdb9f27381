"""A lab on this machine with two workers, see `lab.py`."""

import pytest

from runcatalog.cluster import certificates, serve
from runcatalog.cluster.dask_engine import DaskEngine

pytest.importorskip("distributed")

from lab import WORKERS, Lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A lab with a scheduler and two workers."""
    started = Lab(tmp_path_factory.mktemp("lab") / "project")
    for name in (certificates.SCHEDULER, *WORKERS):
        started.start(name)
    for name in WORKERS:
        started.wait(lambda name=name: serve.is_alive(started.settings.scratch / name))
    yield started
    started.close()


@pytest.fixture(scope="module")
def engine(lab):
    """The engine of the lab, whose workers are known."""
    client = DaskEngine(lab.settings)
    lab.wait_for_workers(client, *WORKERS)
    yield client
    client.close()
