"""A worker without a scheduler: claims, checks, warnings."""

import asyncio
import contextlib
import os
import signal
import time

import pytest

from runcatalog.cluster import files, node, paths, serve
from runcatalog.cluster.node import Node
from runcatalog.record.journal.files import write_json

RUN = "7623993d" * 4
DEMANDS = {"seconds": 0.01, "disk": 0}


@pytest.fixture
def worker(tmp_path):
    return Node("box", tmp_path / "scratch")


@pytest.fixture
def archive(tmp_path):
    (tmp_path / "guild.yml").touch()
    names = ["guild.yml"]
    return files.pack([(f"home/runs/{RUN}", tmp_path, names), ("project/p", tmp_path, names)])


async def claim(worker, run=RUN, attempt=1, **demands):
    return await worker.claim(run, attempt, "small:code", DEMANDS | demands, time.time(), 60.0)


async def start(worker, archive, code, attempt=1):
    return await worker.start(RUN, attempt, *archive, [paths.PYTHON, "-c", code], {}, {})


async def look(worker, attempt=1):
    return await worker.poll(RUN, attempt, [], [0, 0], False)


async def end_of(worker, condition=lambda look: look["code"] is not None):
    while not condition(shown := await look(worker)):
        await asyncio.sleep(0.02)
    return shown


@contextlib.asynccontextmanager
async def watched(worker):
    watch = asyncio.ensure_future(worker.watch_leases())
    yield
    watch.cancel()


def run(worker, story):
    async def with_checks_ended():
        try:
            return await story()
        finally:
            await worker.end_checks()

    return asyncio.run(with_checks_ended())


def test_an_attempt_that_could_not_be_started_can_be_claimed_again(worker, archive):
    async def story():
        assert await claim(worker) == {}
        data, digest = archive
        assert "another digest" in (await start(worker, (data[:-1] + b"x", digest), ""))["refused"]
        assert await claim(worker) == {}
        assert await start(worker, archive, "") == {}
        return await end_of(worker)

    assert run(worker, story)["code"] == 0


def test_one_of_two_simultaneous_claims_is_refused(worker):
    async def story():
        return await asyncio.gather(claim(worker), claim(worker, run="0" * 32))

    assert run(worker, story) == [{}, {"refused": "no slot is free"}]


def test_an_attempt_that_runs_is_not_started_twice(worker, archive):
    async def story():
        await claim(worker)
        await start(worker, archive, "import time; time.sleep(600)")
        answer = await claim(worker)
        await worker.stop(RUN, 1, signal.SIGKILL)
        await end_of(worker)
        return answer

    assert "unknown to its submitter" in run(worker, story)["refused"]


def test_names_that_are_no_run_are_refused(worker):
    assert "no id of a run" in asyncio.run(claim(worker, run="../../x"))["refused"]


def test_too_little_memory_refuses_a_run_but_drains_nothing(worker):
    assert "GB of memory" in asyncio.run(claim(worker, memory=1e6))["refused"]
    assert not worker.drained


def test_a_submitter_with_another_clock_is_refused_and_others_are_not(worker):
    async def story():
        answer = await worker.claim(RUN, 1, "small:code", DEMANDS, time.time() - 300, 60.0)
        return answer, await claim(worker)

    refused, taken = run(worker, story)
    assert refused == {"refused": "its clock is 300 s ahead of the submitter's"}
    assert taken == {}


def test_the_check_before_the_next_run_starts_when_a_run_ends(worker, archive):
    async def story():
        async with watched(worker):
            await claim(worker)
            await start(worker, archive, "")
            await end_of(worker)
            while worker._prepared is None:
                await asyncio.sleep(0.02)
            prepared = worker._prepared
            await worker.release(RUN, 1)
            assert await claim(worker, attempt=2) == {}
            assert prepared.problem.done()
            assert worker._prepared is None

    run(worker, story)


def test_a_machine_that_fails_after_a_run_is_drained_before_the_next(worker, archive, monkeypatch):
    async def story():
        async with watched(worker):
            await claim(worker)
            monkeypatch.setattr(worker, "_problem", lambda demands: asyncio.sleep(0, "it throws"))
            await start(worker, archive, "")
            await end_of(worker)
            await worker.release(RUN, 1)
            return await claim(worker, attempt=2)

    assert run(worker, story) == {"refused": "drained: it throws"}


IGNORES = "import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN); open('ready', 'w'); "


@pytest.mark.parametrize(
    ("code", "end", "reason"),
    [
        ("open('ready', 'w'); signal = __import__('signal'); signal.pause()", -10, node.ENDS_SOON),
        (IGNORES + "__import__('time').sleep(0.5)", 0, ""),  # it has finished
        (IGNORES + "__import__('time').sleep(0.5); raise SystemExit(3)", 3, ""),  # it has failed
    ],
)
def test_a_warned_run_continues_elsewhere_unless_it_ends_by_itself(
    worker, archive, code, end, reason
):
    async def story():
        await claim(worker)
        await start(worker, archive, code)
        await end_of(worker, lambda look: b"ready" in look["files"])
        leaving = asyncio.ensure_future(worker.leave())
        shown = await end_of(worker)
        assert "being stopped" in (await claim(worker, run="0" * 32))["refused"]
        await worker.release(RUN, 1)
        await leaving
        assert worker.stopping.is_set()
        return shown

    shown = run(worker, story)
    assert (shown["code"], shown["reason"], shown["planned"]) == (end, reason, bool(reason))


def test_a_process_of_another_machine_is_not_taken_for_one_of_this(tmp_path):
    serve._write_state(tmp_path, "tls://127.0.0.1:1")
    state = serve.is_alive(tmp_path)
    assert state["pid"] == os.getpid()
    for key in ("boot", "pid_namespace"):
        write_json(tmp_path / serve.STATE, state | {key: "another"})
        assert serve.is_alive(tmp_path) is None


def test_a_queue_that_warns_all_processes_is_understood(worker, archive):
    async def story():
        await claim(worker)
        await start(worker, archive, "import os, signal; os.kill(os.getpid(), signal.SIGUSR1)")
        return await end_of(worker)

    shown = run(worker, story)
    assert (shown["reason"], shown["planned"]) == (node.ENDS_SOON, True)
