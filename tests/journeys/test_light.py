"""The scripts of the operations: help and Guild's reading of flags are quick, and a run has its script's name."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runcatalog.model.project import Project

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "mlflow")
_TRAP = """\
import os
with open(os.environ["HEAVY_LOG"], "a") as log:
    log.write(f"{__name__} in {os.getpid()}\\n")
raise ImportError(f"{__name__} was imported")
"""
_HELP = """\
import runpy, sys
for script in sys.argv[1:]:
    sys.argv = [script, "--help"]
    print("==", script, flush=True)
    try:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        print("exit", end.code or 0, flush=True)
"""


@pytest.fixture
def trap(tmp_path):
    """An environment in which an import of a heavy package is noted and fails, and the note's path."""
    for name in HEAVY:
        package = tmp_path / "trap" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(_TRAP)
    (tmp_path / "home").mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GUILD_", "RUN_", "RECORD"))}
    paths = [str(tmp_path / "trap"), str(ROOT / "src")]
    log = tmp_path / "heavy.log"
    return kept | {
        "PYTHONPATH": os.pathsep.join(paths),
        "HEAVY_LOG": str(log),
        "GUILD_HOME": str(tmp_path / "home"),
        "PYTHONWARNINGS": "ignore",
        "COLUMNS": "100",
    }, log


def scripts() -> list[str]:
    """Modules that the operations run, by their declarations."""
    mains = {each.main.split(" ")[0] for each in Project(ROOT).operations().values()}
    return sorted(main.removeprefix("src/").replace("/", ".") for main in mains if main)


def test_guild_reads_all_flags_without_them(trap):
    env, log = trap
    guild = Path(sys.executable).with_name("guild")
    done = subprocess.run(
        [guild, "help", "--no-pager"],
        cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert re.search(r"^ +hnppo$", done.stdout, re.M)
    assert "target-kl" in done.stdout  # a flag that the script alone declares
    assert not log.exists(), log.read_text()


def test_help_needs_none_of_them(trap):
    env, log = trap
    assert "door.train_hnppo" in scripts()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _HELP, *scripts()],
        cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    helps = re.split(r"^== ", done.stdout, flags=re.MULTILINE)[1:]
    assert [text.split()[0] for text in helps] == scripts()
    for text in helps:
        assert text.endswith("exit 0\n"), text
        assert "--" in text
    assert not log.exists(), log.read_text()


def test_the_trap_catches(trap):
    env, log = trap
    done = subprocess.run([sys.executable, "-c", "import torch"], env=env, capture_output=True)
    assert done.returncode == 1
    assert log.read_text().startswith("torch in ")


def test_without_guild_a_run_has_the_name_of_its_script():
    """A run takes it from the module of its flags: two scripts had theirs in another module."""
    names = [name for name in scripts() if not name.startswith("runcatalog.")]
    modules = [importlib.import_module(name) for name in names]
    assert [m.__name__ for m in modules if m.Config.__module__ != m.__name__] == []
