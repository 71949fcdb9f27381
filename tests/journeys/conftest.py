import pytest

from journeys.shell import Project


@pytest.fixture(scope="module")
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("journey") / "project")
    made.env |= getattr(request.module, "ENVIRONMENT", {})
    return made
