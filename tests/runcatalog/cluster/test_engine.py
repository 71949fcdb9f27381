"""What the engine promises, with small commands in place of runs: leases, stale attempts, health, certificates."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import replace

import psutil
import pytest
from distributed.core import rpc

from lab import plain_environment
from runcatalog.cluster import certificates, files, paths
from runcatalog.cluster.dask_engine import DaskEngine, fits, places
from runcatalog.cluster.engine import EngineError, Job, MachineLost, Place, StaleAttempt, Wanted
from runcatalog.cluster.engines import Needs


@pytest.fixture
def job(tmp_path):
    """Return a function that creates an attempt of a run whose command is Python code."""

    def make(code: str, run: str = "", attempt: int = 1, **fields) -> Job:
        run = run or uuid.uuid4().hex
        (tmp_path / "guild.yml").touch()
        (tmp_path / "given.txt").write_text("given")
        names = ["guild.yml", "given.txt"]
        parts = [(f"home/runs/{run}", tmp_path, names), ("project/p", tmp_path, names)]
        archive, digest = files.pack(parts)
        command = [paths.PYTHON, "-c", code]
        new = Job(run, attempt, "small:code", archive, digest, command, {"RUN_DIR": paths.RUN})
        return replace(new, **fields)

    return make


def until(engine, place, job, condition, seconds=240):
    """Looks at a run until a condition holds; returns the look."""
    end = time.monotonic() + seconds
    while not condition(look := engine.poll(place, job.run, job.attempt)):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return look


def test_files_output_status_and_signals(engine, job):
    code = """if True:
        import os, pathlib, signal, sys
        print(pathlib.Path("given.txt").read_text(), os.environ["RUN_DIR"] == os.getcwd(), flush=True)
        print("to stderr", file=sys.stderr, flush=True)
        pathlib.Path("a").mkdir(); pathlib.Path("a/new.txt").write_text("new"); os.unlink("guild.yml")
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
        pathlib.Path("ready").touch()
        signal.pause()
    """
    sent = job(code)
    place = engine.submit(sent)
    assert isinstance(place, Place), place
    look = until(engine, place, sent, lambda look: "ready" in look.files)
    assert set(look.files) == {"a/new.txt", "ready"}
    assert look.gone == ["guild.yml"]
    engine.stop(place, sent.run, 1, signal.SIGUSR1)
    look = until(engine, place, sent, lambda look: look.code is not None)
    assert (look.code, look.reason) == (7, "")
    assert (look.output, look.errors) == (b"given True\n", b"to stderr\n")
    engine.release(place, sent.run, 1)
    with pytest.raises(MachineLost):
        engine.poll(place, sent.run, 1)


def test_a_file_whose_name_is_not_utf_8_comes_home(engine, job):
    sent = job(r"open(b'caf\xe9.txt', 'w').write('x')")
    place = engine.submit(sent)
    until(engine, place, sent, lambda look: look.code is not None)
    name = os.fsdecode(b"caf\xe9.txt")
    look = engine.poll(place, sent.run, 1, [Wanted(name)], digests=True)
    assert (look.code, list(look.files), list(look.digests)) == (0, [name], [name])
    assert [(piece.name, piece.data) for piece in look.pieces] == [(name, b"x")]
    engine.release(place, sent.run, 1)


def test_output_that_cannot_be_read_is_an_error_and_no_lost_machine(lab, engine, job):
    sent = job("print(1)")
    place = engine.submit(sent)
    until(engine, place, sent, lambda look: look.code is not None)
    (lab.settings.scratch / place.machine / f"trials/{sent.run}-1/output").unlink()
    with pytest.raises(EngineError, match="No such file") as caught:
        engine.poll(place, sent.run, 1)
    assert caught.type is EngineError
    engine.release(place, sent.run, 1)


def start_again(lab, name, *options):
    """Starts a worker whose name is in use; returns its last line."""
    command = [sys.executable, "-m", "runcatalog.cluster.serve", lab.root, "lab", name, "1"]
    done = subprocess.run(
        [*command, *options], env=plain_environment(), text=True, capture_output=True, timeout=240
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_a_worker_whose_folder_is_in_use_does_not_start_and_removes_nothing(lab, engine, job):
    sent = job("import time; print('begun', flush=True); time.sleep(600)")
    place = engine.submit(sent)
    name, pid = place.machine, lab.pid(place.machine)
    folder = lab.settings.scratch / name
    owner = f"{folder} is in use by process {pid} on {socket.gethostname()}"
    assert start_again(lab, name) == f"{name}: {owner}; choose another name"
    assert lab.pid(name) == pid
    until(engine, place, sent, lambda look: look.output == b"begun\n")
    engine.stop(place, sent.run, 1, signal.SIGKILL)
    until(engine, place, sent, lambda look: look.code is not None)
    engine.release(place, sent.run, 1)


def test_a_worker_whose_name_the_scheduler_has_does_not_start(lab, engine, tmp_path):
    lab.wait_for_workers(engine, "box1", "box2")
    line = start_again(lab, "box1", "--scratch", tmp_path)
    assert line == "box1: the scheduler has another worker 'box1'"
    lab.wait_for_workers(engine, "box1", "box2")


def test_a_lease_that_is_not_renewed_ends_an_attempt(lab, engine, job):
    sent = job(
        "import time; open('pid', 'w').write(str(__import__('os').getpid())); time.sleep(600)"
    )
    # Longer than a start takes on a busy machine, shorter than the pauses between the looks.
    short = DaskEngine(replace(lab.settings, lease=2.0))
    place = short.submit(sent)
    short.close()
    look = until(engine, place, sent, lambda look: look.code is not None or time.sleep(4))
    assert look.code == -signal.SIGTERM
    assert "silent for 2 s" in look.reason
    engine.release(place, sent.run, 1)


def test_a_stale_attempt_is_refused(lab, engine, job):
    first = job("import time; time.sleep(600)")
    place = engine.submit(first)
    one = DaskEngine(replace(lab.settings, needs=Needs(machine=place.machine, disk=0)))
    second = job("print('second')", run=first.run, attempt=2)
    end = time.monotonic() + 240
    while not isinstance(again := one.submit(second), Place):  # while the first is ending
        assert time.monotonic() < end, again
        time.sleep(0.1)
    until(engine, again, second, lambda look: look.code is not None)
    lab.wait_for_workers(engine, "box1", "box2")
    for call in (lambda: engine.poll(place, first.run, 1), lambda: one.submit(first)):
        with pytest.raises(StaleAttempt):
            call()
    with pytest.raises(StaleAttempt):
        engine.stop(place, first.run, 1, signal.SIGTERM)
    look = until(engine, again, second, lambda look: look.code is not None)
    assert (look.code, look.output) == (0, b"second\n")
    engine.release(again, second.run, 2)
    one.close()


def test_a_suspended_worker_is_lost_and_its_runs_end_when_it_continues(lab, engine, job):
    sent = job("import time; time.sleep(600)")
    place = engine.submit(sent)
    process = psutil.Process(lab.pid(place.machine))
    (trial,) = [c for c in process.children() if "sleep" in " ".join(c.cmdline())]
    process.suspend()
    try:
        with pytest.raises(MachineLost):
            engine.poll(place, sent.run, 1)
    finally:
        process.resume()
    trial.wait(240)  # its lease is over
    engine.release(place, sent.run, 1)


def test_reading_all_files_may_take_longer_than_a_silence_that_means_lost(engine, job, monkeypatch):
    sent = job("open('weights', 'wb').truncate(1 << 20)")
    place = engine.submit(sent)
    until(engine, place, sent, lambda look: look.code is not None)
    monkeypatch.setattr(engine, "_settings", replace(engine._settings, lost_after=0.0))
    assert engine.poll(place, sent.run, 1, digests=True).digests.keys() == {"weights"}
    engine.release(place, sent.run, 1)


def test_a_run_that_wants_other_packages_is_refused_and_the_workers_stay_for_others(
    lab, engine, job
):
    lab.wait_for_workers(engine, "box1", "box2")
    refused = engine.submit(job("print(1)", versions={"numpy": "1.0"}))
    assert re.fullmatch(r"box\d: other versions: numpy .* instead of 1\.0", refused)
    for _ in range(2):
        sent = job("print(1)")
        place = engine.submit(sent)
        until(engine, place, sent, lambda look: look.code is not None)
        engine.release(place, sent.run, 1)
    assert not any(w["drained"] for w in engine.workers())


def test_needs_select_workers(lab, engine, job):
    sent = job("print(1)")
    for needs in (Needs(gpu=64), Needs(memory=1e6), Needs(machine="box3")):
        other = DaskEngine(replace(lab.settings, needs=needs))
        assert other.submit(sent) == "no worker has what the run needs"
        other.close()
    assert places(lab.settings) == 2
    assert places(replace(lab.settings, needs=Needs(machine="box1"))) == 1


@pytest.mark.parametrize("given", ["none", "of another lab"])
def test_connections_without_a_certificate_of_the_lab_are_refused(lab, engine, tmp_path, given):
    if given == "none":
        address = engine.workers()[0]["address"].replace("tls://", "tcp://")

        async def ask_plainly():
            remote = rpc(address, timeout=2)
            try:
                await asyncio.wait_for(remote.identity(), 3)
            finally:
                remote.close_comms()

        with pytest.raises((OSError, TimeoutError)):
            asyncio.run(ask_plainly())
        return
    certificates.issue(tmp_path, "anna")
    other = DaskEngine(replace(lab.settings, tls=tmp_path))
    with pytest.raises(EngineError):
        other.workers()
    place = Place("box1", engine.workers()[0]["address"])
    with pytest.raises(MachineLost):
        other.poll(place, "0" * 32, 1)
    other.close()


def test_which_workers_fit_the_needs():
    worker = {"name": "gpu7", "gpus": ["NVIDIA RTX 3090"], "gpu_memory": 25.8, "memory": 64.0}
    assert fits(worker, Needs(gpu=1, gpu_memory=24, memory=32, machine="gpu7"))
    assert not fits(worker, Needs(gpu=2))
    assert not fits(worker, Needs(gpu=1, gpu_memory=40))
    assert not fits(worker, Needs(memory=65))
    assert not fits(worker, Needs(machine="gpu8"))


def test_the_longest_waiting_submitter_is_notified_first_of_a_free_slot(lab, engine, job):
    lab.wait_for_workers(engine, "box1", "box2")
    sent = [job("import time; time.sleep(600)") for _ in range(3)]
    patient = DaskEngine(replace(lab.settings, lease=600))  # no submitter polls meanwhile
    slots = [patient.submit(item) for item in sent[:2]]
    patient.close()
    lab.wait(lambda: all(worker["running"] for worker in engine.workers()))
    assert "busy or drained" in engine.submit(sent[2])
    notified, connected = [], threading.Event()

    def wait(name):
        waiting = DaskEngine(lab.settings)
        waiting.workers()
        connected.set()
        waiting.wait(500)
        notified.append(name)
        waiting.close()

    threads = [threading.Thread(target=wait, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
        assert connected.wait(240)
        connected.clear()
        time.sleep(1)  # the first one is known there before the second has connected
    assert notified == []
    for number, place in enumerate(slots):
        engine.stop(place, sent[number].run, 1, signal.SIGKILL)
        threads[number].join(240)
        assert notified == ["first", "second"][: number + 1]
        until(engine, place, sent[number], lambda look: look.code is not None)
        engine.release(place, sent[number].run, 1)


def test_a_signal_ends_the_wait_for_a_slot(lab):
    waiting = DaskEngine(lab.settings)
    handled = []

    def note(number, _frame):
        handled.append(number)
        waiting.wake()

    before = signal.signal(signal.SIGUSR2, note)
    try:
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGUSR2)).start()
        waiting.wait(3600)  # longer than a test may take
        assert handled == [signal.SIGUSR2]
        waiting.wake()
        waiting.wait(3600)  # a signal that came before counts for the next wait
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert waiting.workers() is not None  # the scheduler is still reached
    waiting.close()
