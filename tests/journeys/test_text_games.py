"""Text games as typed."""

from journeys.shell import Project

ENVIRONMENT = {"RECORD_MLFLOW": "off"}  # `catalog sync` sends; senders are in test_guild.py


def test_levels_are_listed_with_their_bounds(project: Project) -> None:
    project.good("guild run ragen:levels_multi levels=200 validation=40 -y")
    (run,) = project.runs
    assert "Your answer is one of" in (run / "artifacts/levels.txt").read_text()
    refused = project.type("guild run ragen:levels size=5 boxes=3 -y")
    assert refused.returncode != 0
    assert "--boxes: 3 find no place on a grid of 5; 1 do" in refused.stdout
    assert "Traceback" not in refused.stdout
