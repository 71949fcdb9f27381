"""What `runcatalog_engine.pth` changes of Guild in every process of Guild."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runcatalog.guild.compat import flag_util, var
from runcatalog.guild.compat import run as guild_run

OPERATION = "guildfile:/nowhere '' toy train"


def made(home: Path, number: int, operation: str = OPERATION) -> Path:
    """A run's directory in a Guild home, with only its operation."""
    directory = home / "runs" / f"{number:032x}"
    (directory / ".guild" / "attrs").mkdir(parents=True)
    (directory / ".guild" / "opref").write_text(operation)
    return directory


def write_on(directory: Path) -> None:
    run = guild_run.for_dir(str(directory))
    while True:
        run.write_encoded_opref(OPERATION)


def test_a_run_that_is_restarted_has_an_operation_all_the_time(tmp_path):
    directory = made(tmp_path, 1)
    path = directory / ".guild" / "opref"
    begun = path.stat().st_mtime_ns
    writer = multiprocessing.get_context("fork").Process(target=write_on, args=(directory,))
    writer.start()
    try:
        while path.stat().st_mtime_ns == begun:
            assert writer.is_alive()
        read = {path.read_text() for _ in range(20_000)}
        assert writer.is_alive()
    finally:
        writer.kill()
        writer.join()
    assert read == {OPERATION}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("12e34567", "12e34567"), ("01234567", "01234567"), (f"1e{'0' * 30}", f"1e{'0' * 30}")],
        *[("12345678", 12345678), ("1e-3", 1e-3), ("1e3", 1e3), ("0.00000001", 1e-8), ("007", 7)],
    ],
)
def test_the_beginning_of_a_runs_id_is_no_number(text, value):
    """One id in sixty is like that, and pages print commands such as `expert=12e34567`."""
    assert flag_util.decode_flag_val(text) == value


def test_guild_lists_the_runs_beside_damaged_ones(tmp_path):
    made(tmp_path, 1)
    made(tmp_path, 2, operation="")
    made(tmp_path, 3, operation="no operation")
    attributes = tmp_path / "runs" / f"{1:032x}" / ".guild" / "attrs"
    (attributes / "label").write_text("{lr: [")
    (attributes / "started").write_bytes(b"\xff\xfe")
    listed = subprocess.run(
        [Path(sys.executable).with_name("guild"), "runs", "--all"],
        env=os.environ | {"GUILD_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert listed.returncode == 0, listed.stderr
    assert [line[1:11] for line in listed.stdout.splitlines()] == ["1:00000000"]
    for name in ("label", "started"):
        assert listed.stderr.count(f"run 00000000: attribute {name} cannot be read\n") == 1


def test_a_run_without_a_directory_is_left_out(tmp_path):
    (tmp_path / "runs" / f"{3:032x}").mkdir(parents=True)
    directory = made(tmp_path, 1)
    assert [run.dir for run in var.runs(str(tmp_path / "runs"))] == [str(directory)]
