"""The commit of a project, and what differs from it."""

import shlex
import subprocess

import pytest

from refusing_git import refuse
from runcatalog import record
from runcatalog.record.journal.files import read_json
from runcatalog.record.journal.lines import read_lines
from runcatalog.record.provenance.git import commit_facts


def test_commit_and_what_differs_from_it(tmp_path):
    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    assert commit_facts(tmp_path) == {"commit": "", "dirty": ""}
    git("init", "-q")
    (tmp_path / "train.py").write_text("lr = 1\n")
    (tmp_path / ".gitignore").write_text("runs/\n")
    git("add", "-A")
    git("commit", "-qm", "first")
    clean = commit_facts(tmp_path)
    assert (len(clean["commit"]), clean["dirty"]) == (40, "")
    (tmp_path / "README.md").write_text("prose changes no run")
    (tmp_path / "nohup.out").write_text("nor does the output of a command")
    (tmp_path / "sweep.log").write_text("nor does this one")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "x").write_text("ignored")
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "benchmarks" / "results" / "speed.json").write_text("[]")
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "engines.yml").write_text("lab: {scheduler: tls://box:8786}")
    assert commit_facts(tmp_path) == clean
    digests = {""}
    for name, text in [("train.py", "lr = 2\n"), ("new.py", "a"), ("new.py", "b")]:
        (tmp_path / name).write_text(text)
        digests.add(commit_facts(tmp_path)["dirty"])
    assert len(digests) == 4


@pytest.mark.parametrize("command", ["diff", "ls-files"])
def test_changes_that_git_does_not_tell_are_not_none(tmp_path, monkeypatch, command):
    work = tmp_path / "work"
    work.mkdir()
    for line in ("init -q", "-c user.name=a -c user.email=a@b commit -qm first --allow-empty"):
        subprocess.run(["git", *line.split()], cwd=work, check=True, capture_output=True)
    assert commit_facts(work)["dirty"] == ""
    refuse(monkeypatch, tmp_path / "bin", command)
    assert commit_facts(work)["dirty"] == "unknown"


def test_a_repository_of_another_user_is_named(tmp_path, monkeypatch, capsys):
    """A run in a container on a folder of the host recorded no commit, and said nothing."""
    work = tmp_path / "it's here"
    work.mkdir()
    (work / "guild.yml").write_text("train: train\n")
    for line in ("init -q", "-c user.name=a -c user.email=a@b commit -qm first --allow-empty"):
        subprocess.run(["git", *line.split()], cwd=work, check=True, capture_output=True)
    for name, value in (("PROJECT_DIR", work), ("RECORD_MLFLOW", "off")):
        monkeypatch.setenv(name, str(value))

    def events():
        with record.start(record.Config()) as run:
            run.finish({})
        facts = read_json(run.directory / "journal" / "run.json")
        lines = read_lines(run.directory / "journal" / "events.jsonl")
        return len(facts["commit"]), [line["text"] for line, _ in lines]

    assert events() == (40, [])
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own, for its tests
    commit, (said,) = events()
    assert (commit, said in capsys.readouterr().out) == (0, True)
    *_, allow, folder = shlex.split(said)
    assert (allow, folder) == ("safe.directory", str(work))
    monkeypatch.setenv("PROJECT_DIR", str(tmp_path))
    assert events() == (0, [])
