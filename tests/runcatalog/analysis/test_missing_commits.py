"""Commits that records name and git's history lacks: a list marks their rows in every clone."""

import shutil
import subprocess

import pytest

from runcatalog.analysis import missing_commits
from runcatalog.model.errors import CatalogError
from runcatalog.model.project import Project
from runcatalog.model.record_files import write_all
from runcatalog.pages.render import Catalog


@pytest.fixture
def git(project):
    def run(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", *who, *arguments], cwd=project.root, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    return run


@pytest.fixture
def records(project, git, make):
    """Three records: of a commit of the history, of one that a later amendment replaced, and of no commit."""
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-qm", "code")
    kept = git("rev-parse", "HEAD")
    git("commit", "--allow-empty", "-qm", "more")
    lost = git("rev-parse", "HEAD")
    git("commit", "--amend", "--allow-empty", "-qm", "more, amended")
    runs = ((0.1, {"commit": kept}), (0.2, {"commit": lost}), (0.3, {}))
    return [make(n, value=value, lr=n, **more) for n, (value, more) in enumerate(runs, 1)]


def rows(project, records):
    """Return the cells of the rows of the toy's table, by id."""
    lines = Catalog(project, records).table(["toy:train"]).splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines]
    return {row[-1]: row for row in cells if row[-1].isdigit()}


def test_the_row_of_a_lost_commit_is_marked_in_every_clone(project, records, git, tmp_path):
    lost = records[1].commit
    assert missing_commits.missing(project, records) == [lost]
    wrong, note = missing_commits.problems(project, records)
    assert (wrong, note.partition(" ")[0]) == ([], "1")
    path = missing_commits.update(project, records)
    assert lost in path.read_text()
    assert missing_commits.update(project, records) is None
    assert missing_commits.problems(project, records) == ([], "")
    shown = rows(project, records)
    assert [i for i, row in shown.items() if "commit not in git" in " ".join(row)] == ["00000002"]

    write_all(records, project.records)
    git("add", "-A")
    git("commit", "-qm", "records")
    shallow = Project(tmp_path / "shallow")
    git("clone", "-q", "--depth", "1", f"file://{project.root}", str(shallow.root))
    without_git = Project(tmp_path / "archive")
    shutil.copytree(project.root, without_git.root, ignore=shutil.ignore_patterns(".git"))
    for clone in (shallow, without_git):
        assert missing_commits.update(clone, records) is None
        assert missing_commits.problems(clone, records) == ([], "")
        assert rows(clone, records) == shown


def test_a_list_that_cannot_be_written_is_named(project, records):
    (project.experiments / "missing_commits.txt").mkdir()
    before = sorted(project.experiments.iterdir())
    with pytest.raises(CatalogError, match=r"cannot write .*missing_commits\.txt"):
        missing_commits.update(project, records)
    assert sorted(project.experiments.iterdir()) == before


def test_a_restored_commit_is_no_longer_listed(project, records, git):
    missing_commits.update(project, records)
    git("branch", "other", records[1].commit)
    git("merge", "-q", "--no-edit", "other")
    wrong, note = missing_commits.problems(project, records)
    assert (len(wrong), note) == (1, "")
    assert records[1].commit in wrong[0]
    missing_commits.update(project, records)
    assert missing_commits.listed(project) == frozenset()
