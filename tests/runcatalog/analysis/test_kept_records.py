"""Committed records against git's history, in real repositories."""

import subprocess
from dataclasses import replace

import pytest

from refusing_git import refuse
from runcatalog.analysis.kept_records import problems
from runcatalog.model.marks import marked
from runcatalog.model.record_files import write_all


@pytest.fixture
def git(project):
    def run(*arguments, cwd=project.root):
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", *who, *arguments], cwd=cwd, check=True, capture_output=True, text=True
        )
        return done.stdout

    return run


@pytest.fixture
def history(project, git, make):
    """A project whose two records are committed."""
    git("init", "-q", "-b", "main")
    write_all([make(1, value=0.5), make(2, value=0.6)], project.records)
    git("add", "-A")
    git("commit", "-qm", "records")
    return project


def reported(project):
    lines, unchecked = problems(project)
    assert unchecked == ""
    return lines


def test_records_may_be_added_marked_and_moved(history, git, make):
    assert reported(history) == []
    moved = replace(make(2, value=0.6), study="other", label="as it is called now")
    write_all([marked(make(1, value=0.5), "bug"), moved, make(3, value=0.7)], history.records)
    assert reported(history) == []
    git("add", "-A")
    git("commit", "-qm", "more")
    assert reported(history) == []


@pytest.mark.parametrize("committed", [False, True])
def test_a_record_that_vanished_or_changed_is_named(history, git, make, committed):
    (history.records / "toy/00000001.json").unlink()
    write_all([make(2, value=0.9)], history.records)
    if committed:
        git("add", "-A")
        git("commit", "-qm", "better numbers")
    gone, changed = sorted(reported(history))
    assert gone.startswith(
        "experiments/records/toy/00000001.json: the record of run 00000001 (toy:train) was removed"
    )
    assert changed.endswith("run 00000002 was committed with another result")


def test_a_record_that_only_a_merge_dropped_is_named(history, git, make):
    git("checkout", "-qb", "side")
    write_all([make(3, value=0.7)], history.records)
    git("add", "-A")
    git("commit", "-qm", "a third")
    git("checkout", "-q", "main")
    git("commit", "-q", "--allow-empty", "-m", "main goes on")
    git("merge", "-q", "--no-commit", "--no-ff", "side")
    git("rm", "-qf", "experiments/records/toy/00000003.json")
    git("commit", "-qm", "merged without it")
    (line,) = reported(history)
    assert "run 00000003" in line


@pytest.mark.parametrize("command", ["rev-list", "cat-file"])
def test_history_that_git_does_not_tell_is_reported_as_unchecked(
    history, make, tmp_path, monkeypatch, command
):
    write_all([make(2, value=0.9)], history.records)
    refuse(monkeypatch, tmp_path / "bin", command)
    assert problems(history) == ([], "git did not answer")


def test_missing_history_is_reported_as_unchecked(project, make, tmp_path, git):
    write_all([make(1, value=0.5)], project.records)
    assert problems(project) == ([], "there is no git history")
    git("init", "-q", "-b", "main")
    for number in (1, 2):
        write_all([make(number, value=0.5)], project.records)
        git("add", "-A")
        git("commit", "-qm", "records")
    git("clone", "-q", "--depth=1", f"file://{project.root}", str(tmp_path / "clone"))
    clone = type(project)(tmp_path / "clone")
    changed, unchecked = problems(clone)
    assert (changed, "part of git's history" in unchecked) == ([], True)
