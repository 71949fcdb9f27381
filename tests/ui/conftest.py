import shutil

import pytest

from runcatalog.store.client import Store
from ui.sweep import Sweep


@pytest.fixture(scope="session")
def sweep(tmp_path_factory):
    """A committed sweep in an MLflow, which tests only read."""
    return Sweep(tmp_path_factory.mktemp("mlflow"))


@pytest.fixture
def copied(sweep, tmp_path):
    """A copy of that MLflow, to change."""
    shutil.copy(sweep.uri.removeprefix("sqlite:///"), tmp_path / "mlflow.db")
    return Store(f"sqlite:///{tmp_path}/mlflow.db")
