"""Flags: types, ranges, spellings, and what Guild reads of them."""

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from runcatalog import record
from runcatalog.record.config import (
    check_same_flags,
    find_folder,
    flags_of,
    of_run,
    without_effect,
)
from runcatalog.record.journal.files import write_json
from runcatalog.record.journal.metrics import read_points


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of a test."""

    lr: float = record.option(5e-3, "rate, 100 %", low=0, low_open=True, high=1)
    task: str = record.option("pull", "task", choices=("pull", "lever"))
    te_dim: int = record.option(8, "length", low=1)
    fresh: bool = record.option(True, "fresh")


def test_defaults_and_values():
    assert record.parse(Config, []) == Config()
    config = record.parse(Config, ["--lr", "1e-2", "--task", "lever", "--te-dim", "3"])
    assert (config.lr, config.task, config.te_dim, config.seed) == (0.01, "lever", 3, 1)
    assert flags_of(config) == {
        "seed": 1,
        "lr": 0.01,
        "task": "lever",
        "te-dim": 3,
        "fresh": True,
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [("yes", True), ("True", True), ("1", True), ("no", False), ("false", False), ("", False)],
)
def test_every_spelling_of_a_bool(text, value):
    assert record.parse(Config, ["--fresh", text]).fresh is value


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lr", "-1"], ["--lr", "-1", "(0, 1]"]),
        (["--lr", "0"], ["--lr", "(0, 1]"]),
        (["--lr", "nan"], ["--lr"]),
        (["--lr", "fast"], ["--lr", "fast"]),
        (["--te-dim", "0"], ["--te-dim", "[1, inf)"]),
        (["--te-dim", "1.5"], ["--te-dim", "1.5"]),
        (["--task", "nix"], ["--task", "nix", "lever"]),
        (["--fresh", "maybe"], ["--fresh", "maybe"]),
        (["--tas", "pull"], ["--tas"]),
        (["--unknown", "1"], ["--unknown"]),
        (["--resume", "nowhere"], ["--resume", "nowhere"]),
        (["--seed", "-1"], ["--seed"]),
    ],
)
def test_a_wrong_flag_is_a_one_line_error(arguments, words, capsys):
    with pytest.raises(SystemExit) as exit_:
        record.parse(Config, arguments)
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert all(word in error for word in words)


@pytest.mark.parametrize("content", ["[]", "{}", '{"flags": []}', '{"flags": null}', "{", ""])
def test_a_run_whose_flags_cannot_be_read_is_a_one_line_error(content, tmp_path, capsys):
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal/run.json").write_text(content)
    with pytest.raises(SystemExit):
        record.parse(Config, ["--resume", str(tmp_path)])
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"--resume {tmp_path}: no run" in error


def test_values_are_checked_without_a_command_line_too():
    with pytest.raises(record.UserError, match="--lr"):
        Config(lr=2.0)
    assert Config(lr=1).lr == 1.0  # a whole number where a float is meant


def test_help_shows_texts_defaults_and_choices(capsys):
    with pytest.raises(SystemExit):
        record.parse(Config, ["--help"])
    text = capsys.readouterr().out
    assert "rate, 100 % (default: 0.005)" in text
    assert "{pull,lever}" in text


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (record.UserError("--x: not there"), 2, "--x: not there"),
        (record.RunFailed("the robot fell"), 1, "the robot fell"),
        (record.NumericalError(12, "policy.bias"), 1, "update 12: policy.bias"),
        (MemoryError(), 1, "out of memory"),
    ],
)
def test_expected_errors_of_a_script_are_one_line_errors(error, code, words, capsys):
    def main(config):
        raise error

    with pytest.raises(SystemExit) as exit_:
        record.run_script(main, Config, argparse.ArgumentParser(), [])
    assert exit_.value.code == code
    printed = capsys.readouterr().err
    assert words in printed
    assert printed.count("\n") == 1


def test_importing_record_loads_neither_torch_nor_mlflow():
    code = (
        "import sys; from runcatalog import record; from runcatalog.record.delivery import publish, sender; "
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "mlflow", "tensorboard", "safetensors"} & set(done.stdout.split())


GUILD = """
- model: toy
  operations:
    train:
      description: The toy
      main: toy_training
      flags-import: all
      output-scalars: no
      pip-freeze: no
      sourcecode: {select: ['*.py']}
"""


def test_guild_reads_the_flags_and_the_scalars(project, tmp_path):
    (project / "guild.yml").write_text(GUILD)
    script = Path(__file__).parent / "toy_training.py"
    (project / script.name).write_text(script.read_text())
    (tmp_path / "home").mkdir()
    environment = os.environ | {"GUILD_HOME": str(tmp_path / "home")}

    def guild(*arguments):
        command = [sys.executable, "-m", "guild.main_bootstrap", *arguments]
        return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)

    text = " ".join(guild("help").stdout.split())
    assert "lr step size [1], 100 % in (0, 1] (default is 0.005)" in text
    assert "Choices: pull, lever" in text
    assert "fresh begin at zero (default is yes)" in text

    run = guild("run", "toy:train", "lr=1e-2", "fresh=no", "te-dim=3", "-y")
    assert run.returncode == 0, run.stderr
    table = guild("compare", "--csv", "-").stdout.splitlines()
    row = dict(zip(table[0].split(","), table[1].split(","), strict=True))
    assert (row["status"], row["fresh"], row["lr"]) == ("completed", "False", "0.01")
    directory = next((tmp_path / "home" / "runs").glob("*/result.json")).parent
    assert record.load_checkpoint(directory).run_id == directory.name
    points = list(read_points(directory / "journal" / "metrics.jsonl"))
    last = [point.value for point in points if point.name == "loss"][-1]
    assert float(row["loss"]) == pytest.approx(last, rel=1e-6)
    assert float(row["objective"]) == pytest.approx(last, rel=1e-6)

    wrong = guild("run", "toy:train", "lr=-1", "-y")
    assert wrong.returncode != 0
    assert "--lr: -1.0 is not in (0, 1]" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_a_folder_may_be_a_path_a_path_below_the_project_or_a_run_id(tmp_path, monkeypatch):
    project, home = tmp_path / "project", tmp_path / "home"
    run = home / "runs/1234abcd5678ef001234abcd5678ef00"
    for folder in (project / "below", run, home / "runs/99999999aa", home / "runs/99999999bb"):
        folder.mkdir(parents=True)
    monkeypatch.setenv("PROJECT_DIR", str(project))
    monkeypatch.delenv("GUILD_HOME", raising=False)
    assert find_folder(str(run)) == run
    assert find_folder("below") == project / "below"
    assert find_folder("1234abcd") is None
    monkeypatch.setenv("GUILD_HOME", str(home))
    assert find_folder("1234abcd") == find_folder(run.name) == run
    for named in ("1234abc", "99999999", "abcdabcd", "../runs/1234abcd", "1234abc*"):
        assert find_folder(named) is None


def test_a_run_from_before_a_flag_is_continued_as_it_was_started():
    @dataclass(frozen=True)
    class New(record.Config):
        careful: bool = record.option(True, "a newer flag", older=False)
        quick: bool = record.option(True, "another one, without effect before")

    stored = {"seed": 1}
    check_same_flags(New(careful=False), stored)
    with pytest.raises(
        record.UserError, match="--careful: the run to continue was started with False"
    ):
        check_same_flags(New(), stored)
    check_same_flags(New(), stored | {"careful": True})


def test_a_flag_that_a_run_lacks_is_what_older_runs_did(tmp_path):
    @dataclass(frozen=True)
    class Newer(Config):
        of_run: float = record.option(0.2, "share", older=0.0)

    (tmp_path / "journal").mkdir()
    write_json(tmp_path / "journal" / "run.json", {"flags": {"lr": 0.5}})
    resumed = record.parse(Newer, ["--resume", str(tmp_path)])
    assert (resumed.of_run, resumed.lr, resumed.resume) == (0.0, 0.5, str(tmp_path))
    check_same_flags(resumed, {"lr": 0.5})
    assert of_run(tmp_path, Newer) == replace(resumed, resume="")
    assert record.parse(Newer, ["--resume", str(tmp_path), "--of-run", "0.3"]).of_run == 0.3


SCRIPT = """
import argparse
from dataclasses import dataclass
from runcatalog import record

@dataclass(frozen=True)
class Config(record.Config):
    critic: bool = record.option(True, "with a critic")
    beta: float = record.option(1.0, "weight")
    kind: str = record.option("a", "kind", choices=("a", "b", "c"))
    rate: float = record.option(0.5, "rate", unless={"critic": False, "kind": ("b", "c")})
    look_ahead: bool = record.option(True, "look", unless={"beta": 0})
    path: str = record.option("", "path")
    warm: bool = record.option(False, "warm", unless={"path": ""})

def main(config):
    with record.start(config) as run:
        run.finish({})

if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser())
"""


@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        ("--rate 0.5 --look-ahead no", []),
        ("--critic no --beta 0 --kind b", []),  # what was not typed misleads nobody
        ("--critic no --rate 0.5", ["--rate has no effect with critic=no"]),
        ("--kind c --rate 1", ["--rate has no effect with kind=c"]),
        ("--warm yes --path a", []),
        ("--warm yes", ["--warm has no effect without path"]),
        ("--beta 0 --look-ahead yes", ["--look-ahead has no effect with beta=0.0"]),
    ],
)
def test_a_typed_flag_without_effect(typed, lines):
    names: dict = {"__name__": "script"}
    exec(SCRIPT, names)
    assert without_effect(record.parse(names["Config"], typed.split())) == lines


def test_a_run_tells_which_flag_has_no_effect(tmp_path):
    (tmp_path / "guild.yml").write_text("")
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", "--critic", "no", "--rate", "0.5"]
    environment = os.environ | {"RECORD_MLFLOW": "off"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "  --rate has no effect with critic=no" in done.stdout.splitlines()
