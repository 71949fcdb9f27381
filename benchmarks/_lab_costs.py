"""What one operation of a lab costs: CPU seconds on one core, measured part by part on this machine.

CPU seconds, since these depend little on what else the machine does. `python -m benchmarks._lab_costs ROOT COUNT` is
the process with the many workers of the scheduler's measurement.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from benchmarks._lab import ENGINE, UNCHECKED, Lab, seeds_flag
from benchmarks._lab_simulation import Costs, Cubic, Linear

from runcatalog.cluster import engines, files, node, paths
from runcatalog.cluster.dask_engine import METRIC, DaskEngine, security
from runcatalog.cluster.engine import EngineError, Job, Place
from runcatalog.search.core import Observation, Settings, propose
from runcatalog.search.space import Dimension

ROOT = Path(__file__).resolve().parent.parent
_BATCHES = (2, 8)  # trials; the difference is what one trial more costs
_WORKERS = (20, 80)
_CALLS, _POLLS = 40, 200
_WINDOW = 20.0  # s of heartbeats
_POINTS = (100, 20_000)
_HISTORIES = (50, 100, 200, 400)  # trials that a proposal looks back on
_DIMENSIONS = [Dimension(f"x{i}", "real", 0, 1) for i in range(6)]


def measure(folder: Path) -> Costs:
    """Measure all costs.

    Args:
        folder: An empty folder.
    """
    lab = Lab(folder / "project")
    try:
        heartbeat, scheduler_list, submitter_list = _scheduler(lab)
        lab.set_workers(1)
        submitter_trial, worker_trial, memory = _trial(lab)
        submitter_poll, worker_poll = _poll(lab)
        sender, server, database, sender_memory = _delivery(lab, folder)
    finally:
        lab.close()
    return Costs(
        submitter_trial=submitter_trial,
        worker_trial=worker_trial,
        submitter_poll=submitter_poll,
        worker_poll=worker_poll,
        heartbeat=heartbeat,
        scheduler_list=scheduler_list,
        submitter_list=submitter_list,
        sender=sender,
        server=server,
        database=database,
        proposal=_proposal(),
        memory=memory + sender_memory,
        check=lab.settings.health,
        poll=lab.settings.poll,
    )


def _trial(lab: Lab) -> tuple[float, float, float]:
    """Return what a trial of a batch costs the submitter and the worker, and the submitter's memory [MB] meanwhile."""
    quiet = {"RECORD_MLFLOW": "off"}
    box = lab.processes()["box1"]

    def batch(trials: int) -> tuple[float, float]:
        before = _children(), _cpu(box)
        lab.guild("run", "bench:train", seeds_flag(trials), "-y", engine=UNCHECKED, **quiet)
        return _children() - before[0], _cpu(box) - before[1]

    batch(_BATCHES[0])  # imports the flags
    few, many = (np.median([batch(trials) for _ in range(2)], axis=0) for trials in _BATCHES)
    submitter, worker = (many - few) / (_BATCHES[1] - _BATCHES[0])
    running = lab.begin(
        "run", "bench:train", "seed=[1,2]", "seconds=20", "-y", engine=UNCHECKED, **quiet
    )
    memory = 0.0
    while running.poll() is None:
        with contextlib.suppress(psutil.Error):
            proxies = [
                p for p in psutil.Process(running.pid).children(recursive=True) if _is_proxy(p)
            ]
            # Guild's process of the trial, and the one that stands in for its script.
            memory = max([memory, *(_memory(p) + _memory(p.parent()) for p in proxies)])
        time.sleep(0.5)
    return float(submitter), float(worker), memory


def _is_proxy(process: psutil.Process) -> bool:
    return "runcatalog.cluster.proxy" in process.cmdline()


def _memory(process: psutil.Process | None) -> float:
    """Return the memory that would be free without a process [MB]."""
    return process.memory_full_info().uss / 1e6 if process else 0.0


def _poll(lab: Lab) -> tuple[float, float]:
    """Return what a look at a run costs the submitter and the worker."""
    (lab.root / "nothing.txt").touch()
    run = uuid.uuid4().hex
    archive, digest = files.pack(
        [(f"home/runs/{run}", lab.root, ["nothing.txt"]), ("project/p", lab.root, ["guild.yml"])]
    )
    command = [paths.PYTHON, "-c", "import time; time.sleep(600)"]
    job = Job(run, 1, "bench:sleep", archive, digest, command, {"RUN_DIR": paths.RUN})
    box = lab.processes()["box1"]
    engine = DaskEngine(lab.settings)
    try:
        while not isinstance(place := engine.submit(job), Place):
            time.sleep(0.2)
        engine.poll(place, run, 1)
        before = time.process_time(), _cpu(box)
        for _ in range(_POLLS):
            engine.poll(place, run, 1)
        spent = time.process_time() - before[0], _cpu(box) - before[1]
        engine.stop(place, run, 1, 15)
        while engine.poll(place, run, 1).code is None:
            time.sleep(0.1)
        engine.release(place, run, 1)
    finally:
        engine.close()
    return spent[0] / _POLLS, spent[1] / _POLLS


def _scheduler(lab: Lab) -> tuple[float, Linear, Linear]:
    """Return what a heartbeat costs the scheduler, and a list of the workers the scheduler and the submitter."""
    from distributed.scheduler import heartbeat_interval

    scheduler = lab.processes()["scheduler"]
    beats, lists, reads = [], [], []
    for count in _WORKERS:
        with _many_workers(lab, count) as engine:
            before = _cpu(scheduler)
            time.sleep(_WINDOW)
            load = (_cpu(scheduler) - before) / _WINDOW  # cores
            beats.append(load * heartbeat_interval(count) / count)
            begin, before, own = time.monotonic(), _cpu(scheduler), time.process_time()
            for _ in range(_CALLS):
                engine.workers()
            reads.append((time.process_time() - own) / _CALLS)
            spent = _cpu(scheduler) - before - load * (time.monotonic() - begin)
            lists.append(spent / _CALLS)
    return float(np.mean(beats)), Linear.through(_WORKERS, lists), Linear.through(_WORKERS, reads)


@contextlib.contextmanager
def _many_workers(lab: Lab, count: int) -> Iterator[DaskEngine]:
    """Give the scheduler so many workers, all in one process."""
    command = [sys.executable, "-m", "benchmarks._lab_costs", str(lab.root), str(count)]
    engine = DaskEngine(lab.settings)
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=ROOT, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        try:
            while _known(engine) != count:
                if process.poll() is not None:
                    raise SystemExit("the process of the workers has ended")
                time.sleep(0.5)
            time.sleep(2.0)  # the last ones are still being registered
            yield engine
        finally:
            process.kill()
    while _known(engine):
        time.sleep(0.5)
    engine.close()


def _known(engine: DaskEngine) -> int:
    try:
        return len(engine.workers())
    except EngineError:
        return -1


async def _be_workers(root: Path, count: int) -> None:
    """Be many workers of a lab, described as real ones are, until the process is killed."""
    from distributed import Worker

    class Quiet(Worker):
        """Without Dask's web page."""

        def start_http_server(self, *arguments: Any, **options: Any) -> None:
            """Start nothing."""

    settings = engines.read(root, ENGINE)
    scratch = settings.scratch / "many"
    description = node.Node("many", scratch).describe()

    def describer(name: str) -> Callable[[Worker], Any]:
        async def describe(_: Worker) -> dict[str, Any]:
            return description | {"name": name}

        return describe

    async with contextlib.AsyncExitStack() as stack:
        for index in range(count):
            name = f"many{index}"
            await stack.enter_async_context(
                Quiet(
                    settings.scheduler, name=name, nthreads=1, memory_limit=0,
                    security=security(settings, settings.certificate), host="127.0.0.1",
                    metrics={METRIC: describer(name)}, local_directory=str(scratch / "dask"),
                )
            )  # fmt: skip
        await asyncio.Event().wait()


def _delivery(lab: Lab, folder: Path) -> tuple[Linear, Linear, Linear, float]:
    """Return what a run's delivery costs its sender, MLflow's server and PostgreSQL by points, and a sender's memory.

    The memory [MB] is the sender's at its end.
    """
    sys.path.append(str(ROOT / "tests/helpers"))
    from mlflow_server import free_port
    from postgresql import MISSING, PostgreSQL

    if MISSING:
        raise SystemExit(MISSING)
    for points in _POINTS:
        lab.guild("run", "bench:train", f"points={points}", "-y", RECORD_MLFLOW="off")
    runs = sorted(
        (run for run in lab.runs() if (run / "result.json").exists()),
        key=lambda run: (run / "journal" / "metrics.jsonl").stat().st_size,
    )
    chosen = runs[0], runs[-1]
    database = PostgreSQL()
    database.start()
    address = f"http://127.0.0.1:{free_port()}"
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"),
        *("--port", address.rpartition(":")[2], "--backend-store-uri", database.address),
        *("--artifacts-destination", str(folder / "artifacts")),
    ]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    log = (folder / "server.log").open("wb")
    server = subprocess.Popen(
        command, stdout=log, stderr=log, env=os.environ | quiet, start_new_session=True
    )
    try:
        while not _answers(address):
            if server.poll() is not None:
                raise SystemExit((folder / "server.log").read_text())
            time.sleep(0.2)
        found, memory = [], 0.0
        for turn in range(3):  # the first one makes tables and connections
            for run in chosen:
                copy = folder / f"delivered-{turn}-{run.name}"
                shutil.copytree(run, copy, symlinks=True)
                _rename(copy)
                before = _tree(server.pid), _tree(database.process.pid)
                seconds, memory = _send(lab, copy, address)
                spent = _tree(server.pid) - before[0], _tree(database.process.pid) - before[1]
                found.append((turn, seconds, *spent))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, 9)
        server.wait()
        database.close()
        log.close()
    counted = [[row[1:] for row in found[each::2] if row[0]] for each in range(2)]
    few, many = (np.median(rows, axis=0) for rows in counted)
    sender, web, sql = (Linear.through(_POINTS, pair) for pair in zip(few, many, strict=True))
    return sender, web, sql, memory


def _answers(address: str) -> bool:
    try:
        return bool(urllib.request.urlopen(f"{address}/health", timeout=5).status == 200)
    except OSError:
        return False


def _rename(run: Path) -> None:
    """Make a copied run another run."""
    import json

    path = run / "journal" / "run.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(facts | {"id": uuid.uuid4().hex}))


def _send(lab: Lab, run: Path, address: str) -> tuple[float, float]:
    """Deliver a run that has ended; return the sender's CPU seconds and memory [MB]."""
    command = [sys.executable, "-m", "runcatalog.record.delivery.sender", str(run)]
    environment = lab.environment | {
        "MLFLOW_TRACKING_URI": address,
        "PROJECT_DIR": str(lab.root),
        "PYTHONPATH": str(ROOT / "src"),
    }
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=lab.root, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or not (run / "journal" / "mlflow.json").exists():
        log = run / "journal" / "sender.log"
        raise SystemExit(f"{run.name} was not delivered: {log.read_text() if log.exists() else ''}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


def _proposal() -> Cubic:
    """Return what a proposal of the Gaussian process costs by the number of trials before it."""
    rng = np.random.default_rng(0)
    seconds = []
    for size in _HISTORIES:
        points = rng.random((size, len(_DIMENSIONS)))
        history = [
            Observation(
                {f"x{i}": float(x) for i, x in enumerate(point)}, float(((point - 0.3) ** 2).sum())
            )
            for point in points
        ]
        begin = time.process_time()
        propose(_DIMENSIONS, history, size, Settings(method="gp", seed=0))
        seconds.append(time.process_time() - begin)
    return Cubic.through(_HISTORIES, seconds)


def _children() -> float:
    """Return the CPU seconds of the processes that were started here, and theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _cpu(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and of its children that have ended."""
    return float(sum(process.cpu_times()[:4]))


def _tree(pid: int) -> float:
    """Return the CPU seconds of a process and all of its children."""
    root = psutil.Process(pid)
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += _cpu(process)
    return total


if __name__ == "__main__":
    asyncio.run(_be_workers(Path(sys.argv[1]), int(sys.argv[2])))
