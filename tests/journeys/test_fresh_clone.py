"""What a newcomer types in a fresh clone changes no committed file."""

import os

import pytest

from journeys.shell import Project

REDRAWN = ("cartpole/bc", "door/series", "darkroom/ad")
SMALL = "env-steps=2048 num-envs=8 num-steps=64 eval-interval=4 video=no"


@pytest.fixture(scope="module")
def clone(project: Project) -> Project:
    """The project as it is, committed; one run that `make demo` has made, of a smaller size."""
    name = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a"}
    project.env |= name | {"GIT_COMMITTER_EMAIL": "a@b", "GIT_CONFIG_GLOBAL": os.devnull}
    project.good("git init -q . && git add -A && git commit -q -m all")
    told = project.type(f"tools/demo {SMALL}")
    assert told.returncode == 1, told.stdout  # so short a training does not open the door
    assert "at least 0.95 is required" in told.stdout
    project.told = told.stdout
    return project


def test_demo_changes_no_committed_file_and_shows_its_run(clone: Project) -> None:
    assert clone.good("git status --porcelain") == ""
    run = clone.finished("train")
    assert f"| {run.name[:8]} |" in clone.told
    page = clone.root / "runs_local.md"
    assert str(page) in clone.told
    assert f"[{run.name[:8]}](runs_local/door_runs.md#{run.name[:8]})" in page.read_text()
    # The figure in which it stands beside the committed runs is another one than theirs.
    figures = [path.name for path in (clone.root / "runs_local").rglob("*.svg")]
    assert figures == ["train_hnppo.svg"]
    shown = (clone.root / "runs_local/door.md").read_text()
    assert "(door/figures/train_hnppo.svg)" in shown
    assert f"[{run.name[:8]}](door_runs.md#{run.name[:8]}) *local*" in shown
    assert "(../experiments/door/figures/train_ppo.svg)" in shown


def test_neither_sync_and_render_nor_redrawing_changes_a_committed_file(clone: Project) -> None:
    clone.good("catalog sync && catalog render")
    for name in REDRAWN:
        clone.good(f"python src/{name}_redraw.py")
    clone.good("python src/skills/redraw.py")
    assert clone.good("git status --porcelain") == ""
    assert "agrees with" in clone.good("catalog check")
    # What is published is what was asked for.
    run = clone.finished("train")
    clone.good("catalog export && catalog render")
    changed = clone.good("git status --porcelain").split()[1::2]
    assert set(changed) == {
        "runs_catalog.md",
        "catalog/door.md",
        "catalog/door_runs.md",
        "experiments/door/figures/train_hnppo.svg",
        f"experiments/records/door/{run.name[:8]}.json",
    }
    clone.good("git diff --exit-code --diff-filter=D")
    clone.good("git add -A && git commit -q -m run && catalog check")
