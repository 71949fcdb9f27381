"""Measures what a trial costs each part of a lab: submitter, node, scheduler, proposals.

CPU seconds of processes, not durations, wherever possible: they do not depend on what else the machine does.
"""

import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from benchmarks import search
from tests.runcatalog.cluster.conftest import Lab

from mlflow_server import free_port
from postgresql import PostgreSQL
from runcatalog.cluster import certificates
from runcatalog.cluster.dask_engine import DaskEngine
from runcatalog.cluster.engine import EngineError
from runcatalog.search.core import Observation, Settings, propose

PROPOSALS = (50, 100, 200, 500, 1000)  # finished trials
FLEETS = (10, 50, 100, 200)  # workers that a scheduler knows
TRIALS = 6  # of a batch
SECONDS = 30.0  # of a run whose looks are counted
POINTS = 2000  # of the longer of two runs that are delivered
POLL = 0.25  # s, in the tests' engines.yml
# Workers of one process, which send the scheduler what real ones send.
_FLEET = """
import asyncio, sys
from pathlib import Path
from runcatalog.cluster import dask_engine, engines
from runcatalog.cluster.node import Node
from distributed import Worker

class Quiet(Worker):
    def start_http_server(self, *arguments, **options): pass

async def main():
    project, count = Path(sys.argv[1]), int(sys.argv[2])
    settings = engines.read(project, "lab")
    security = dask_engine.security(settings, "box1")
    node = Node("box1", project / "fleet", 1)
    async def describe(_): return node.describe()
    workers = [
        Quiet(settings.scheduler, name=f"gpu{i}", nthreads=1, memory_limit=0, security=security,
              metrics={dask_engine.METRIC: describe}, local_directory=str(project / "fleet/dask"))
        for i in range(count)
    ]
    for worker in workers:
        await worker
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def proposals() -> dict[str, float]:
    """Return the CPU seconds of a proposal by the number of finished trials, in six dimensions."""
    surface = next(s for s in search.SURFACES if s.name == "Hartmann 6")
    rng = np.random.default_rng(0)
    points = [
        {d.name: float(rng.random()) for d in surface.dimensions} for _ in range(max(PROPOSALS))
    ]
    history = [Observation(point, surface.function(point)) for point in points]
    propose(surface.dimensions, history[:20], 20, Settings())  # imports
    seconds = {}
    for count in PROPOSALS:
        begin = time.process_time()
        propose(surface.dimensions, history[:count], count, Settings(seed=1))
        seconds[str(count)] = time.process_time() - begin
    return seconds


def trials() -> dict[str, float]:
    """Return what a trial costs the submitter and the node, see `lab_costs.json`."""
    with tempfile.TemporaryDirectory(prefix="lab-") as folder, _lab(Path(folder)) as lab:
        for name in (certificates.SCHEDULER, "box1"):
            lab.start(name)
        engine = DaskEngine(lab.settings)
        lab.wait_for_workers(engine, "box1")
        engine.close()
        lab.good("guild run small:train updates=1 -y", ENGINE="lab")  # caches
        worker = psutil.Process(lab.processes["box1"].pid)
        one = _batch(lab, worker, 1, 0)
        many = _batch(lab, worker, TRIALS, 0)
        submitter, node, wall = ((b - a) / (TRIALS - 1) for a, b in zip(one, many, strict=True))
        long = _batch(lab, worker, 1, SECONDS)
        looks = 2 * SECONDS / POLL
        return {
            "submitter_cpu": submitter,
            "node_cpu": node,
            "trial_overhead": wall,
            "submitter_cpu_per_look": (long[0] - one[0]) / looks,
            "node_cpu_per_look": (long[1] - one[1]) / looks,
            **_memory(lab),
        }


def scheduler() -> dict[str, dict[str, float]]:
    """Return the scheduler's CPU seconds a second and a list of workers, by the number of workers."""
    beats, lists = {}, {}
    for count in FLEETS:
        with tempfile.TemporaryDirectory(prefix="lab-") as folder, _lab(Path(folder)) as lab:
            lab.start(certificates.SCHEDULER)
            process = psutil.Process(lab.processes[certificates.SCHEDULER].pid)
            engine = DaskEngine(lab.settings)
            lab.wait(lambda lab=lab, engine=engine: _answers(engine))
            fleet = subprocess.Popen(
                [sys.executable, "-c", _FLEET, lab.root, str(count)], stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
            try:
                assert fleet.stdout is not None and fleet.stdout.readline() == "ready\n"
                time.sleep(10)  # the interval between heartbeats grows with the number of workers
                before = _cpu(process)
                time.sleep(20)
                beats[str(count)] = (_cpu(process) - before) / 20
                before, begin, calls = _cpu(process), time.monotonic(), 200
                for _ in range(calls):
                    assert len(engine.workers()) == count
                elapsed = time.monotonic() - begin
                lists[str(count)] = (_cpu(process) - before - beats[str(count)] * elapsed) / calls
            finally:
                fleet.kill()
                fleet.wait()
                engine.close()
    return {"scheduler_cpu_idle": beats, "scheduler_cpu_per_list": lists}


@contextlib.contextmanager
def _lab(folder: Path) -> Iterator[Any]:
    lab = Lab(folder / "project")
    try:
        yield lab
    finally:
        lab.close()


def _answers(engine: DaskEngine) -> bool:
    try:
        engine.workers()
    except EngineError:
        return False
    return True


def _cpu(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and of its children that have ended."""
    times = process.cpu_times()
    return times.user + times.system + times.children_user + times.children_system


def _batch(
    lab: Any, worker: psutil.Process, count: int, seconds: float
) -> tuple[float, float, float]:
    """Run a batch on one worker; return the CPU seconds of submitter and node, and the duration."""
    seeds = "[" + ",".join(map(str, range(count + 1))) + "]"  # one more: a single seed is no batch
    flags = f"updates={max(1, int(seconds / 0.5))} pause={0.5 if seconds else 0}"
    before, begin, ended = _cpu(worker), time.monotonic(), os.times()
    lab.good(f"guild run small:train seed={seeds} {flags} -y", ENGINE="lab")
    now = os.times()
    submitter = (
        now.children_user + now.children_system - ended.children_user - ended.children_system
    )
    return submitter, _cpu(worker) - before, time.monotonic() - begin


def _memory(lab: Any) -> dict[str, float]:
    """Return the memory [MB] of a trial's processes at the submitter, shared pages counted in parts."""
    running = lab.background("guild run small:train updates=1000 pause=0.1 -y", ENGINE="lab")
    time.sleep(8)
    sizes = {"guild_memory": 0.0, "proxy_memory": 0.0}
    for process in (
        psutil.Process(running.pid),
        *psutil.Process(running.pid).children(recursive=True),
    ):
        name = "proxy_memory" if "runcatalog.cluster.proxy" in process.cmdline() else "guild_memory"
        sizes[name] += process.memory_full_info().uss / 1e6
    os.killpg(running.pid, 15)
    running.communicate(timeout=60)
    return sizes


def delivery() -> dict[str, float]:
    """Return what the delivery of a run costs: its sender's CPU and memory, and MLflow's CPU a run and a point.

    MLflow is a server on PostgreSQL, as for a lab (docs/server.md), without authentication.
    """
    postgresql = PostgreSQL()
    with tempfile.TemporaryDirectory(prefix="lab-") as folder, _lab(Path(folder)) as lab:
        postgresql.start()
        port = free_port()
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
                *("--backend-store-uri", postgresql.address, "--workers", "1"),
                *("--artifacts-destination", folder),
            ],
            env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            lab.wait(lambda: _is_open(port), 120)
            for updates in (1, 1, 1, POINTS):  # the first one has made the experiment
                lab.good(f"guild run small:train updates={updates} -y")
            costs = [_sender(lab, run, f"http://127.0.0.1:{port}", server.pid) for run in lab.runs]
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            postgresql.close()
    (_, *few, many), points = costs, POINTS - 1
    small = [statistics.mean(column) for column in zip(*few, strict=True)]
    return {
        "sender_cpu": small[0],
        "sender_memory": many[1],
        "mlflow_cpu": small[2],
        "mlflow_cpu_per_point": (many[2] - small[2]) / points,
        "sender_cpu_per_point": (many[0] - small[0]) / points,
    }


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _sender(lab: Any, run: Path, uri: str, server: int) -> tuple[float, float, float]:
    """Return the CPU seconds and memory [MB] of a run's sender, and the CPU seconds of MLflow's server."""
    served, before = _tree_cpu(server), os.times()
    sender = subprocess.Popen(
        [sys.executable, "-m", "runcatalog.record.delivery.sender", run], cwd=lab.root,
        env=lab.env | {"RECORD_MLFLOW": "on", "MLFLOW_TRACKING_URI": uri},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    memory = 0.0
    while sender.poll() is None:
        with contextlib.suppress(psutil.Error):
            memory = max(memory, psutil.Process(sender.pid).memory_full_info().uss / 1e6)
        time.sleep(0.1)
    now = os.times()
    cpu = now.children_user + now.children_system - before.children_user - before.children_system
    return cpu, memory, _tree_cpu(server) - served


def _tree_cpu(pid: int) -> float:
    process = psutil.Process(pid)
    return sum(_cpu(each) for each in (process, *process.children(recursive=True)))
