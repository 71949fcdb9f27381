import pytest

from journeys.shell import Project


@pytest.fixture(scope="module")
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy of the project for a module, with the environment ENVIRONMENT and the records of the studies RECORDS."""
    records = getattr(request.module, "RECORDS", None)
    made = Project(tmp_path_factory.mktemp("journey") / "project", records)
    made.env |= getattr(request.module, "ENVIRONMENT", {})
    return made
