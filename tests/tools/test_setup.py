"""The set-up script: its error messages, and a lock file that installs anywhere."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def checkout(tmp_path):
    """A folder with a space in its name that holds what the set-up reads."""
    folder = tmp_path / "a checkout"
    shutil.copytree(ROOT / "tools", folder / "tools")
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def run(folder: Path, *command: str, **variables: str) -> tuple[int, str]:
    """Return the exit status of a command with these variables alone, and its output."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout


def test_a_named_python_is_taken(checkout):
    status, output = run(checkout, "tools/find-python", PATH="/usr/bin:/bin", PYTHON=sys.executable)
    assert status == 0
    version = subprocess.check_output([output.strip(), "--version"], text=True)
    assert version.split()[1].startswith("{}.{}.".format(*sys.version_info))
    assert not output.startswith(sys.prefix) or sys.prefix == sys.base_prefix


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("#!/bin/sh\nexit 1\n", "does not run"),
        ("#!/bin/sh\ncase $2 in *platform*) echo is Python 3.14.1;; *) exit 1;; esac\n", "is Python 3.14.1"),
    ],
)  # fmt: skip
def test_a_named_python_that_does_not_fit(checkout, script, says):
    python = checkout / "python"
    python.write_text(script)
    python.chmod(0o755)
    status, output = run(checkout, "make", "setup", PATH="/usr/bin:/bin", PYTHON=str(python))
    assert status != 0
    first = output.splitlines()[0]
    assert first == f"PYTHON={python} {says}: name a Python 3.11, 3.12 or 3.13."


def test_no_python_at_all(checkout):
    programs = checkout / "bin"
    programs.mkdir()
    for name in ("dirname", "uname"):
        (programs / name).symlink_to(shutil.which(name))
    status, output = run(
        checkout, "/bin/sh", "tools/find-python", PATH=str(programs), HOME="/nowhere"
    )
    assert status == 1
    assert re.fullmatch(r"No Python 3\.11, 3\.12 or 3\.13 found: [^\n]+\n", output)


def test_a_build_of_torch_that_does_not_exist(checkout):
    status, output = run(checkout, "tools/setup", PATH="/usr/bin:/bin", TORCH="gpu")
    assert (status, output) == (1, "TORCH=gpu: it is cpu or cuda.\n")


@pytest.mark.parametrize(
    ("installed", "variables", "build"),
    [
        ("2.0.0", {}, "cuda"),  # stays what it is
        ("2.0.0+cpu", {}, "cpu"),
        ("2.0.0", {"TORCH": "cpu"}, "cpu"),
        ("2.0.0+cpu", {"TORCH": "cuda"}, "cuda"),
        ("", {}, "cpu"),
    ],
)
def test_a_newer_torch_is_of_the_build_that_is_installed(checkout, installed, variables, build):
    """Of an older version; the programs that the set-up calls are stand-ins."""
    packages = checkout / ".venv/lib/python3.12/site-packages"
    for folder in (packages, checkout / ".venv/bin", checkout / "bin", checkout / "src"):
        folder.mkdir(parents=True)
    (checkout / "src/runcatalog_engine.pth").touch()
    torch = f"echo {installed}" if installed else "exit 1"
    for path, script in (
        (".venv/bin/python", f"case $2 in *metadata*) {torch};; *) echo 3.12;; esac"),
        ("bin/uv", 'echo "$@" >>uv.log'),
        ("bin/ldconfig", "echo libEGL.so.1"),
    ):
        (checkout / path).write_text(f"#!/bin/sh\n{script}\n")
        (checkout / path).chmod(0o755)
    status, output = run(checkout, "tools/setup", PATH=f"{checkout}/bin:/usr/bin:/bin", **variables)
    assert status == 0, output
    called = (checkout / "uv.log").read_text()
    assert ("+cpu" in called, "torch.lock" in called) == (build == "cpu", build == "cuda")


def test_a_place_that_cannot_be_written_to(checkout):
    (checkout / ".venv").touch()  # for root too
    status, output = run(checkout, "tools/setup", PATH="/usr/bin:/bin")
    assert (status, len(output.splitlines())) == (1, 1)
    assert "a checkout cannot be written to" in output


def test_the_lock_names_all_dependencies_with_hashes_and_no_address():
    blocks = re.split(r"\n(?=\S)", LOCK.strip())
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in LOCK
    locked = {re.match(r"[\w.-]+", block)[0].lower() for block in blocks}
    extras = PROJECT["optional-dependencies"]
    asked = PROJECT["dependencies"] + extras["studies"] + extras["bench"] + extras["test"]
    assert {re.match(r"[\w.-]+", requirement)[0].lower() for requirement in asked} <= locked
    assert not {re.match(r"[\w.-]+", requirement)[0] for requirement in PROJECT["dependencies"]} & {
        "torch", "mujoco", "minigrid", "transformers", "gymnasium"
    }  # fmt: skip
