"""Runs of a shared Guild home are assigned to projects by the folder that they were started in."""

import subprocess
from pathlib import Path

import pytest

from runcatalog.guild.runs import GuildRun
from runcatalog.model.project import Project
from runcatalog.sync.ownership import GuildHome

NUMBERS = iter(range(1, 1000))


def project(folder: Path) -> Project:
    folder.mkdir(parents=True)
    (folder / "guild.yml").write_text("train: {main: train}\n")
    return Project(folder)


def run(home: Path, opref: str, proto: str = "", commit: str = "", **attributes: str) -> GuildRun:
    name = f"{next(NUMBERS):032x}"
    guild = home / "runs" / name / ".guild"
    (guild / "attrs").mkdir(parents=True)
    (guild / "opref").write_text(opref)
    if proto:
        (guild / "proto/.guild").mkdir(parents=True)
        (guild / "proto/.guild/opref").write_text(proto)
    if commit:
        (guild / "attrs/vcs_commit").write_text(commit)
    for attribute, content in attributes.items():
        (guild / "attrs" / attribute).write_text(content)
    return GuildRun(name, str(guild.parent))


def started(root: Path, operation: str = "train") -> str:
    return f"guildfile:'{root / 'guild.yml'}' 0123 '' {operation}"


@pytest.fixture
def here(tmp_path):
    return project(tmp_path / "here")


def test_another_project_is_another(here, tmp_path):
    there, home = project(tmp_path / "there"), tmp_path / "home"
    owned = GuildHome(here, home)
    assert owned.is_own(run(home, started(here.root)))
    assert not owned.is_own(run(home, started(there.root)))
    assert not owned.is_own(run(here.root / ".guild", started(there.root)))


def test_a_batch_is_of_the_project_whose_trials_it_runs(here, tmp_path):
    there, home = project(tmp_path / "there"), tmp_path / "home"
    owned = GuildHome(here, home)
    for optimizer in ("builtin:guildai 0.9.0 '' +", "builtin:runcatalog 0.1.0 search gp"):
        assert owned.is_own(run(home, optimizer, started(here.root)))
        assert not owned.is_own(run(home, optimizer, started(there.root)))


def test_a_folder_below_and_a_link_to_it_are_the_project(here, tmp_path):
    home = tmp_path / "home"
    (here.root / "scripts").mkdir()
    (tmp_path / "link").symlink_to(here.root)
    owned = GuildHome(here, home)
    assert owned.is_own(run(home, f"script:{here.root / 'scripts'} '' '' train.py"))
    assert owned.is_own(run(home, started(tmp_path / "link")))
    project(here.root / "nested")
    assert not owned.is_own(run(home, started(here.root / "nested")))


def test_a_project_that_was_moved_keeps_the_runs_of_a_home_inside(here, tmp_path):
    gone, inside = tmp_path / "gone", here.root / ".venv/.guild"
    owned = GuildHome(here, inside)
    assert owned.is_own(run(inside, started(gone)))
    assert owned.is_own(run(inside, "builtin:guildai 0.9.0 '' +", started(gone)))
    assert not owned.is_own(run(inside, started(gone, "other")))
    outside = tmp_path / "home"
    assert not GuildHome(here, outside).is_own(run(outside, started(gone)))


def test_a_commit_identifies_a_run_from_another_machine(here, tmp_path):
    gone, home = tmp_path / "gone", tmp_path / "home"
    git = ["git", "-C", here.root, "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    owned = GuildHome(here, home)
    assert owned.is_own(run(home, started(gone), commit=f"git:{commit.strip()}*"))
    assert not owned.is_own(run(home, started(gone), commit="0" * 40))
    assert not owned.is_own(run(home, started(gone), commit="--help"))


def test_an_operation_of_a_package_is_where_it_was_called(here, tmp_path):
    there, home = project(tmp_path / "there"), tmp_path / "home"
    owned = GuildHome(here, home)
    package = "package:gpkg.mnist 1.0 mnist train"
    assert owned.is_own(run(home, package, env=f"PROJECT_DIR: {here.root}"))
    assert not owned.is_own(run(home, package, env=f"PROJECT_DIR: {there.root}"))
    assert not owned.is_own(run(home, package))


def test_projects_of_one_name_are_distinguished(tmp_path):
    one, two = project(tmp_path / "a/same"), project(tmp_path / "b/same")
    home = tmp_path / "home"
    owned = GuildHome(one, home)
    other = run(home, started(two.root))
    assert owned.tag(run(home, started(one.root))) == "same"
    assert owned.tag(other).startswith("other:same-")
