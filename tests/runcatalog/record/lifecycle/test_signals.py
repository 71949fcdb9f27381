"""Status and reason of every way to end, with real processes."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

import ends_table
from runcatalog import record
from runcatalog.record.errors import Killed
from runcatalog.record.journal.files import read_json, write_json
from runcatalog.record.journal.lines import append_line
from runcatalog.record.journal.metrics import read_points
from runcatalog.record.lifecycle.process import boot_id, process_state
from runcatalog.record.lifecycle.signals import (
    GONE,
    Signals,
    end_from_exception,
    end_from_exit_status,
)
from runcatalog.record.lifecycle.status import elapsed, last_session, status_of

ENDS = ends_table.rows()


def ended(toy):
    status = status_of(toy.directory)
    return status.status, status.reason


@pytest.mark.parametrize(
    ("end", "code", "status", "reason", "lines"),
    [
        ("finish", 0, "FINISHED", "", 0),
        ("error", 1, "FAILED", "ValueError: the toy broke", None),
        ("nan", 1, "FAILED", "gradient explosion at update 3: loss is not finite", 1),
        ("memory", 1, "FAILED", "out of memory", 1),
        ("nothing", 0, "FAILED", "the script ended without a result", 0),
        ("exit", 3, "FAILED", "exit 3", 0),
        ("exit_0", 0, *ENDS["sys.exit without a result"][-2:], 0),
        ("bad_result", 1, *ENDS["a result that is no data"][-2:], None),
        ("late_error", 1, *ENDS["exception after the result"][-2:], None),
    ],
)
def test_end_by_itself(toy, end, code, status, reason, lines):
    returned, errors = toy.run("--updates", 3, "--every", 0, "--end", end)
    assert (returned, *ended(toy)) == (code, status, reason)
    assert lines is None or errors.count("\n") == lines
    result = read_json(toy.directory / "result.json")
    assert result["digest"]["metrics"]
    assert (result["failed_at"] == {"update": 3, "tensor": "loss"}) if end == "nan" else True
    if status == "FAILED" and end != "nothing":
        assert "Traceback" in (toy.directory / "artifacts" / "error.txt").read_text()


@pytest.mark.parametrize(
    ("number", "case"),
    [
        (signal.SIGTERM, "SIGTERM"),
        (signal.SIGINT, "Ctrl-C by hand"),
        (signal.SIGHUP, "terminal closed"),
        (signal.SIGUSR1, "queue's warning"),
    ],
)
def test_signals(toy, wait_until, number, case):
    process = toy.start("--updates", 10**6, "--every", 0)
    wait_until(lambda: toy.lines() > 100)
    assert status_of(toy.directory) == ("RUNNING", "", None)
    process.send_signal(number)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == -number
    ends_table.check(case, *ended(toy))
    assert errors == ""


@pytest.mark.parametrize("file", [".metrics.jsonl.new", ".events.out.writing", "reserve"])
def test_a_signal_while_a_continued_run_opens_is_its_end(project, capfd, file):
    with record.start(record.Config(), study="toy") as run:
        run.log({"loss": 1.0}, 1)
    child = os.fork()
    if not child:
        code = 1
        try:
            sys.addaudithook(_terminate_at(file))
            with record.start(record.Config(resume=str(run.directory)), study="toy"):
                pass
        except Killed:
            code = 2 if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else 3
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert status_of(run.directory)[:2] == ("KILLED", "SIGTERM")
    assert read_json(run.directory / "result.json")["session"] == 2
    assert f"--resume {run.directory}" in capfd.readouterr().out
    left = {path.name for path in run.directory.rglob("*")}
    assert not left & {"reserve", "crash.txt", ".metrics.jsonl.new"}
    assert not [name for name in left if name.startswith(".events")]


def _terminate_at(file):
    """Return an audit hook that sends this process SIGTERM when it first opens a file of that name."""
    sent = []

    def hook(event, arguments):
        if event == "open" and not sent and file in str(arguments[0]):
            sent.append(os.kill(os.getpid(), signal.SIGTERM))

    return hook


def test_sigkill_leaves_no_result_and_is_still_reported(toy, wait_until):
    toy.python = sys.executable
    process = toy.start("--updates", 10**6, "--every", 0)
    wait_until(lambda: toy.lines() > 100)
    process.kill()
    # Not waited for yet: a zombie is gone too.
    wait_until(lambda: process_state(process.pid)[0] == "Z")
    ends_table.check("SIGKILL by hand", *ended(toy))
    process.communicate()
    status = status_of(toy.directory)
    assert not (toy.directory / "result.json").exists()
    assert abs(status.ended / 1000 - time.time()) < 60


def test_a_run_dies_with_the_guild_process_that_started_it(toy, wait_until):
    environment = {"RUN_DIR": str(toy.directory), "GUILD_OP": "toy:train"}
    script = str(toy.start.__globals__["SCRIPT"])
    command = [sys.executable, script, "--updates", str(10**6), "--every", "0"]
    code = f"import subprocess; subprocess.run({command!r})"
    parent = subprocess.Popen([sys.executable, "-c", code], env=os.environ | environment)
    wait_until(lambda: toy.lines() > 100)
    parent.kill()
    parent.wait()
    wait_until(lambda: ended(toy)[0] != "RUNNING")
    wait_until(lambda: (toy.directory / "result.json").exists())
    assert ended(toy) == ("KILLED", "SIGTERM (the process that started the run is gone)")


def test_exceptions_that_mean_no_memory():
    import torch

    gpu = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1.00 GiB"
    case = "out of memory on the GPU"
    ends_table.check(case, *end_from_exception(torch.OutOfMemoryError(gpu)))
    ends_table.check(
        case, *end_from_exception(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when …"))
    )
    with pytest.raises(RuntimeError) as error:
        torch.zeros(1 << 58)
    ends_table.check("out of memory in torch", *end_from_exception(error.value))
    refused = OSError(errno.ENOMEM, "Cannot allocate memory")  # what a fork raises
    assert end_from_exception(refused).reason == "out of memory"
    assert (
        end_from_exception(ValueError("no memory of this")).reason
        == "ValueError: no memory of this"
    )


@pytest.mark.parametrize(
    ("code", "end"),
    [
        (-9, ("KILLED", "SIGKILL")),
        (137, ("KILLED", "SIGKILL")),
        (143, ("KILLED", "SIGTERM")),
        (-2, ("KILLED", "Ctrl-C")),
        (-16, ("KILLED", "Ctrl-C")),
        (-11, ("FAILED", "crashed: SIGSEGV")),
        (0, ("FAILED", "the script ended without a result")),
        (3, None),
        (200, None),
        (-200, None),
    ],
)
def test_exit_statuses(code, end):
    assert end_from_exit_status(code) == end


def test_an_exit_status_counts_for_the_session_that_it_is_of(toy, wait_until):
    process = toy.start("--updates", 10**6, "--every", 0)
    wait_until(lambda: toy.lines() > 10)
    process.kill()
    process.communicate()
    attributes = toy.directory / ".guild" / "attrs"
    attributes.mkdir(parents=True)
    (attributes / "exit_status").write_text("-9\n")
    for stopped, case in ((0, "SIGKILL by hand"), (time.time() * 1e6, "SIGKILL of the training")):
        (attributes / "stopped").write_text(f"{int(stopped)}\n")
        ends_table.check(case, *ended(toy))


@pytest.mark.parametrize("jump", [-3600, 3600])
def test_a_clock_that_is_set_moves_no_duration(project, monkeypatch, jump):
    with record.start(record.Config(), study="toy") as run:
        run.log({"loss": 1.0}, 1)
        monkeypatch.setattr(time, "time", lambda right=time.time: right() + jump)
        run.log({"loss": 0.5}, 2)
        run.progress(1, 1, "update")
        first, second = read_points(run.directory / "journal" / "metrics.jsonl")
        assert 0 <= second.time - first.time < 600_000
        killed_here = elapsed(run.directory, last_session(run.directory))
        assert 0 <= killed_here < 600
        written = run.finish({})
    assert killed_here <= written["wall_seconds"] < 600
    assert 0 <= written["ended"] - written["started"] < 600_000
    with record.start(record.Config(resume=str(run.directory)), study="toy") as again:
        continued = again.finish({})
    assert last_session(run.directory)["started"] >= written["ended"]
    assert continued["ended"] >= written["ended"]
    assert written["wall_seconds"] <= continued["wall_seconds"] < 600


def test_a_signal_during_a_write_in_an_except_block_ends_the_run_after_the_write():
    signals = Signals()
    signals.install()
    try:
        raise KeyError
    except KeyError:
        with pytest.raises(Killed), signals.deferred():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signals.restore()


def test_a_signal_during_a_write_that_fails_does_not_hide_the_failure():
    signals = Signals()
    signals.install()

    def write():
        with signals.deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            raise OSError("full")

    try:
        with pytest.raises(OSError, match="full"):
            write()
    finally:
        signals.restore()


@pytest.mark.parametrize("result", [{"session": 1}, {"session": 1, "status": "FINISHED"}])
def test_an_incomplete_result_is_none(project, result):
    with record.start(record.Config(), study="toy") as run:
        run.finish({})
    write_json(run.directory / "result.json", result)
    assert status_of(run.directory)[:2] == ("RUNNING", "")  # this process still lives
    session = last_session(run.directory) | {"session": 2, "pid_started": 1}
    append_line(run.directory / "journal" / "sessions.jsonl", session)
    write_json(run.directory / "result.json", result | {"session": 2})
    assert status_of(run.directory)[:2] == ("KILLED", GONE)
    with record.start(record.Config(resume=str(run.directory)), study="toy") as again:
        again.finish({})
    assert status_of(run.directory).status == "FINISHED"


def test_the_death_of_a_forked_worker_does_not_end_the_run(project, monkeypatch):
    monkeypatch.setenv("RUN_DIR", str(project / "run"))
    ready, tell = os.pipe()
    with record.start(record.Config(), study="toy") as run:
        worker = os.fork()
        if not worker:
            try:
                os.write(tell, b"1")  # a signal before Python is ready here is lost
                time.sleep(60)
            finally:
                os._exit(9)  # a handler that raised here would end up in this line
        os.read(ready, 1)
        os.kill(worker, signal.SIGTERM)
        assert os.waitpid(worker, 0)[1] == signal.SIGTERM
        assert status_of(run.directory).status == "RUNNING"
        run.finish({})
    assert status_of(run.directory).status == "FINISHED"


@pytest.mark.parametrize(
    ("age", "status", "reason"),
    [(60, "RUNNING", ""), (16 * 60, "KILLED", "lost: no heartbeat since ")],
)
def test_a_run_on_another_host_is_lost_when_its_heartbeats_stop(project, age, status, reason):
    now = int(time.time() * 1000)
    journal = project / "copied" / "journal"
    journal.mkdir(parents=True)
    session = {"session": 1, "pid": os.getpid(), "pid_started": process_state(os.getpid())[1]}
    session |= {"boot": "", "host": "another-" + socket.gethostname(), "started": now - 10**7}
    append_line(journal / "sessions.jsonl", session | {"earlier_seconds": 0})
    (journal / "progress.json").write_text(json.dumps({"t": now - age * 1000}))
    actual = status_of(journal.parent)
    assert actual.status == status
    assert actual.reason.startswith(reason)


def test_a_container_on_this_machine_counts_processes_by_itself(project):
    now = int(time.time() * 1000)
    journal = project / "run" / "journal"
    journal.mkdir(parents=True)
    session = {"session": 1, "pid": 2**22 + 1, "pid_started": 1, "boot": boot_id(), "started": now}
    session |= {"host": "container", "pid_namespace": "pid:[1]", "earlier_seconds": 0}
    append_line(journal / "sessions.jsonl", session)
    # The heartbeat is fresh; its process is not visible here
    assert status_of(journal.parent).status == "RUNNING"


def test_a_heartbeat_from_the_future_is_not_waited_for(project):
    now = int(time.time() * 1000)
    journal = project / "run" / "journal"
    journal.mkdir(parents=True)
    session = {"session": 1, "pid": 1, "pid_started": 1, "boot": "other", "host": "other"}
    append_line(journal / "sessions.jsonl", session | {"started": now, "earlier_seconds": 0})
    for ahead, status in ((60, "RUNNING"), (10**9, "KILLED")):
        (journal / "progress.json").write_text(json.dumps({"t": now + ahead * 1000}))
        assert status_of(journal.parent).status == status


def test_a_reused_process_number_is_not_the_run(project):
    journal = project / "run" / "journal"
    journal.mkdir(parents=True)
    with pytest.raises(FileNotFoundError):
        status_of(journal.parent)
    session = {"session": 1, "pid": os.getpid(), "pid_started": 1, "boot": boot_id(), "started": 1}
    append_line(journal / "sessions.jsonl", session | {"host": socket.gethostname()})
    assert status_of(journal.parent).status == "KILLED"


def test_a_run_that_is_alive_is_not_started_twice(toy, wait_until):
    toy.python = sys.executable
    process = toy.start("--updates", 10**6, "--every", 0)
    wait_until(lambda: toy.lines() > 10)
    code, errors = toy.run("--updates", 3)
    assert code == 2
    assert f"still running (process {process.pid}" in errors
    assert errors.count("\n") == 1
    process.kill()
    process.communicate()
    assert last_session(toy.directory)["session"] == 1


def test_a_directory_that_cannot_be_written_is_a_one_line_error(project, toys):
    (project / "runs").mkdir()
    (project / "runs" / "file").write_text("")
    code, errors = toys("file/run").run("--updates", 3)
    assert code == 2
    assert str(project / "runs" / "file") in errors
    assert errors.count("\n") == 1
