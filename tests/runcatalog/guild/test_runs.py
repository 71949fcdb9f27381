"""Guild's runs from its files: ends of runs without a journal, damaged files."""

import os
import shutil
import struct
import subprocess
import time

import pytest

from runcatalog.guild.runs import Batch, GuildRun, batches, is_automatic, read
from runcatalog.record.lifecycle.signals import GONE, KILLED

ID = "ab" * 16


@pytest.fixture
def guild_run(tmp_path):
    """Return a run of Guild that has begun and has not ended."""
    directory = tmp_path / "runs" / ID
    (directory / ".guild" / "attrs").mkdir(parents=True)
    (directory / ".guild" / "opref").write_text("guildfile:/nowhere '' toy train")
    return GuildRun(ID, str(directory))


@pytest.fixture
def process():
    """Return a process that Guild has not started."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def lock(run, number, age=0.0):
    """Write LOCK as Guild did `age` seconds ago."""
    path = run.directory / ".guild" / "LOCK"
    path.write_text(str(number))
    os.utime(path, (time.time() - age,) * 2)


def test_a_run_whose_process_lives_is_running(guild_run, process):
    lock(guild_run, process.pid)
    assert guild_run.end() == ("RUNNING", "")
    process.kill()
    process.wait()
    assert guild_run.end() == (KILLED, GONE)


def test_a_batch_that_guild_deletes_after_it_was_read_has_finished(guild_run, process):
    """It became a killed row where a batch ended while it was sent, and stayed one."""
    batch = Batch("key", ID, "toy:train", run=guild_run)
    lock(guild_run, process.pid)
    assert batch.end() == ("RUNNING", "")
    process.kill()
    process.wait()
    assert batch.end() == (KILLED, GONE)
    shutil.rmtree(guild_run.directory)
    assert batch.end() == ("FINISHED", "")
    assert Batch("key", "key", "toy:train").end() == ("FINISHED", "")


def test_a_process_number_that_is_used_again_is_another_process(guild_run, process):
    lock(guild_run, process.pid, age=3600)
    assert guild_run.end() == (KILLED, GONE)


def test_a_zombie_process_is_gone(guild_run):
    with subprocess.Popen(["true"]) as process:
        end = time.monotonic() + 240
        while "Z" not in open(f"/proc/{process.pid}/stat").read().split():  # noqa: SIM115
            assert time.monotonic() < end
            time.sleep(0.01)
        lock(guild_run, process.pid)
        assert guild_run.end() == (KILLED, GONE)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("opref", "guildfile:/nowhere 'no end"),
        ("attrs/started", ".inf"),
        ("attrs/started", "true"),
        ("attrs/flags", "[1, 2]"),
        ("attrs/deps", "\0"),
        ("attrs/initialized", "[" * 600),
    ],
)
def test_damaged_files_of_a_run_hide_no_other(guild_run, tmp_path, name, content):
    damaged = tmp_path / "runs" / ("cd" * 16)
    (damaged / ".guild" / "attrs").mkdir(parents=True)
    (damaged / ".guild" / "proto" / ".guild").mkdir(parents=True)
    (damaged / ".guild" / "opref").write_text("guildfile:/nowhere '' toy train")
    (damaged / ".guild" / "proto" / ".guild" / "opref").write_text(
        "guildfile:/nowhere '' toy train"
    )
    (damaged / ".guild" / name).write_text(content)
    runs = read(tmp_path)
    assert ID in {run.id for run in runs}
    assert [batch.operation for batch in batches(runs, ())] in (["toy:train"], [""])
    for run in runs:
        run.end()
        assert run.started is None
        assert run.wall_seconds is None


FRAME = 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    main()\n'


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (f"loss: 3\n{FRAME}RuntimeError: CUDA\n\nCompile with\n  X=1\n", "RuntimeError: CUDA Compile with X=1"),
        (f"{FRAME}KeyError: 'a'\n\nDuring handling:\n\n{FRAME}ValueError: b\n", "ValueError: b"),
        (f"50 %{FRAME}ValueError: b\n", "ValueError: b"),
        (f"{FRAME}KeyError: 'a'\n" + "step: 1\n" * 40 + "no file: x\n", "no file: x"),
        (f"{FRAME}", "main()"),
        ("loss: 3\nno file: x\n\n", "no file: x"),
    ],
)  # fmt: skip
def test_the_reason_of_a_script_that_records_nothing_is_its_exception(guild_run, output, reason):
    (guild_run.directory / ".guild" / "attrs" / "exit_status").write_text("1")
    (guild_run.directory / ".guild" / "output").write_text(output)
    assert guild_run.end() == ("FAILED", f"exit status 1: {reason}")


@pytest.mark.parametrize(
    ("errors", "late_ms", "printed", "reason"),
    [
        (f"{FRAME}ValueError: b\n", 5, "loss: 3\n" * 3, "ValueError: b"),
        (f"{FRAME}ValueError: b\n", 5, "loss: 3\n" * 40 + "no file: x\n", "ValueError: b"),
        (f"{FRAME}ValueError: b\n", 60_000, "loss: 3\n" * 40 + "no file: x\n", "no file: x"),
        ("lr is -1\n", 5, "loss: 3\nloss: nan\n", "lr is -1"),
        ("a warning\n", 5, "loss: 3\nno file: x\n", "no file: x"),
        ("a warning\n", 60_000, "loss: 3\n", "loss: 3"),
    ],
)
def test_what_was_printed_before_the_last_words_and_read_after_them_is_no_reason(
    guild_run, errors, late_ms, printed, reason
):
    """Guild reads both streams side by side, and standard output often later; its index has the time of each line."""
    guild = guild_run.directory / ".guild"
    (guild / "attrs" / "exit_status").write_text("1")
    (guild / "output").write_text(f"lr: 1\n{errors}{printed}")
    index = [(0, 0), *[(7, 1)] * errors.count("\n"), *[(7 + late_ms, 0)] * printed.count("\n")]
    (guild / "output.index").write_bytes(b"".join(struct.pack("!QB", *each) for each in index))
    assert guild_run.end() == ("FAILED", f"exit status 1: {reason}")


@pytest.mark.parametrize(
    ("label", "automatic"),
    [("lr=0.1 seed=1", True), ("lr=0.1 resume='' seed=1", True), ("lr=0.1 mine", False), ("", False), ("x=1", False)],
)  # fmt: skip
def test_a_label_of_flags_alone_is_guilds(label, automatic):
    assert is_automatic(label, {"lr": 0.1, "seed": 1}) is automatic
