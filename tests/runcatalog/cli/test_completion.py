"""Completion as bash asks for it, and in a real bash."""

import os
import shutil
import subprocess

import pytest

import prepared


def answers(shell, line):
    """Return what is offered at the end of a line."""
    env = shell.env | {
        "_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1", "COMP_TYPE": "9", "_ARGCOMPLETE_STDOUT_FILENAME": str(shell.root / "out"),
    }  # fmt: skip
    command = [prepared.python(), "-m", "runcatalog.cli.main"]
    subprocess.run(command, cwd=shell.root, env=env, check=True)
    return [word.strip() for word in (shell.root / "out").read_text().split("\n")]


def test_commands_operations_runs_and_names_are_completed(shell):
    assert {"search", "sync"} <= set(answers(shell, "catalog s"))
    assert "toy:train" in answers(shell, "catalog best toy:")
    shell("guild run toy:train -y")
    (run,) = os.listdir(shell.env["GUILD_HOME"] + "/runs")
    assert answers(shell, f"catalog row {run[:3]}") == [run[:8]]
    shell.catalog("sync")
    assert "opening_rate" in answers(shell, "catalog best toy:train --metric opening")
    assert "lr=" in answers(shell, "catalog search lr")
    assert "lr" in answers(shell, "catalog best toy:train --group-by l")
    assert answers(shell, "catalog workers start opening") == [""]  # a worker's name


def test_nothing_is_offered_where_there_is_no_project(shell, tmp_path):
    shell.root = tmp_path / "elsewhere"
    shell.root.mkdir()
    assert answers(shell, "catalog best x") == [""]


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_bash_calls_it(shell):
    script = """
        eval "$(register-python-argcomplete catalog)"
        COMP_WORDS=(catalog ver) COMP_CWORD=1 COMP_LINE="catalog ver" COMP_POINT=11 COMP_TYPE=9
        _python_argcomplete catalog
        echo "<${COMPREPLY[@]}>"
    """
    path = shell.env["PATH"].partition(os.pathsep)[2]  # a prepared command has no file 8
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        cwd=shell.root,
        env=shell.env | {"PATH": path},
        capture_output=True,
        text=True,
    )
    assert "<verify" in done.stdout, done.stdout + done.stderr
