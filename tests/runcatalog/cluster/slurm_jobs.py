"""Workers in allocations of a real Slurm: time limit, scancel, a node that goes down, limits of a worker, GPUs.

    python tests/runcatalog/cluster/slurm_jobs.py

A private Slurm (munged, slurmctld, two slurmd) is started on this machine, and a lab beside it. Runs that are
interrupted have to give the digests of a run that was not. It takes four minutes, since a time limit of Slurm has at
least one, and skips with a line where Slurm is not installed.
"""

import contextlib
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(ROOT / "tests/helpers")]  # run as a script, not by pytest

from lab import Lab  # noqa: E402
from runcatalog.cluster import certificates  # noqa: E402
from runcatalog.cluster.dask_engine import DaskEngine  # noqa: E402
from runcatalog.cluster.engine import EngineError  # noqa: E402
from runcatalog.record.lifecycle.status import last_session  # noqa: E402
from slurm import MISSING, Slurm  # noqa: E402

CERTIFICATE = "slurm"


class End(NamedTuple):
    """The end of a run: its result, its number of sessions, the machines it was on, what it has printed."""

    result: dict
    sessions: int
    machines: list
    output: str


class Cluster:
    """A lab whose workers are jobs of Slurm."""

    def __init__(self, folder):
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.lab = Lab(folder / "project")
        certificates.issue(self.lab.settings.tls, CERTIFICATE)
        shutil.copytree(
            ROOT / "tools", self.lab.root / "tools", ignore=shutil.ignore_patterns("__pycache__")
        )
        (folder / "slurm").mkdir()
        self.slurm = Slurm(folder / "slurm")
        self.lab.start(certificates.SCHEDULER)
        self.engine = DaskEngine(self.lab.settings)

    def submit(self, *options, worker=("--as-root",), **env):
        """Submit a worker as a user does; return the job's number."""
        variables = self.lab.env | self.slurm.environment | {"TMPDIR": str(self.scratch)} | env
        command = ["sbatch", "--parsable", *options, "tools/slurm-worker", *worker]
        out = self.slurm.run(*command, cwd=self.lab.root, env=variables)
        return out.strip()

    def log(self, job):
        """Return what a job has printed."""
        path = self.lab.root / f"slurm-worker-{job}.log"
        return path.read_text() if path.exists() else ""

    def workers(self):
        """Return the names of the workers that take runs; None while the scheduler starts."""
        with contextlib.suppress(EngineError):
            return {worker["name"] for worker in self.engine.workers() if not worker["drained"]}
        return None

    def wait_for_workers(self, *names):
        """Wait until these workers take runs, and no others."""
        self.slurm.wait(lambda: self.workers() == set(names), f"the workers {names}")

    def begin(self, flags):
        """Start a run; return its process and its directory once its first points are known here."""
        before = set(self.lab.runs)
        process = self.lab.background(f"guild run small:train {flags} -y", ENGINE="lab")

        def has_begun():
            fresh = [run for run in self.lab.runs if run not in before]
            return fresh and (fresh[0] / "journal/metrics.jsonl").exists() and fresh[0]

        return process, self.slurm.wait(has_begun, "a run's first points")

    def finished(self, process, run):
        """Wait for the end of a run."""
        out, _ = process.communicate(timeout=200)
        assert process.returncode == 0, out
        result = json.loads((run / "result.json").read_text())
        state = json.loads((run / ".guild/engine.json").read_text())
        machines = [entry["machine"] for entry in state["machines"]]
        return End(result, last_session(run)["session"], machines, out)

    def check(self, end, flags):
        """Compare a run that went on once with the same run here, without interruption and without pauses."""
        assert end.sessions == 2
        assert end.result["resume_mismatch"] == 0
        self.lab.good(f"guild run small:train {flags} pause=0 -y")
        assert (
            json.loads((self.lab.runs[-1] / "result.json").read_text())["digest"]
            == end.result["digest"]
        )

    def wait_for_checkpoint(self, run):
        """Wait until a checkpoint of a run is known here."""
        known = lambda: any((run / "checkpoints").glob("*/checkpoint.json"))  # noqa: E731
        self.slurm.wait(known, "a checkpoint")

    def interrupted(self, flags, interrupt):
        """Interrupt the first of two jobs while it has a run; return both once the run has ended in the second."""
        first, second = self.submit("--nodelist=node1"), self.submit("--nodelist=node2")
        self.wait_for_workers(f"node1-{first}", f"node2-{second}")
        process, run = self.begin(f"{flags} pause=0.1")
        self.wait_for_checkpoint(run)
        interrupt(first)
        end = self.finished(process, run)
        assert end.machines == [f"node1-{first}", f"node2-{second}"], end.machines
        self.check(end, flags)
        return first, second

    def start_now(self, job):
        """Start a job that Slurm has queued again, which would otherwise wait for two minutes."""
        pending = lambda: self.slurm.state(job) == "PENDING"  # noqa: E731
        self.slurm.wait(pending, "a requeued job", 120)
        self.slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")

    def cancel(self, *jobs):
        """Cancel jobs and wait until their workers are gone."""
        self.slurm.run("scancel", *jobs)
        self.slurm.wait(
            lambda: not self.slurm.run("squeue", "--noheader").strip(), "the end of jobs", 120
        )
        self.wait_for_workers()

    def close(self):
        self.engine.close()
        self.slurm.close()
        self.lab.close()


def time_limit(cluster):
    """The warning before the time limit: the run writes a checkpoint and continues in another job."""
    flags = "updates=900 every=100000 seed=1"  # no checkpoint is due before the warning
    first = cluster.submit("--time=1", "--signal=B:USR1@10", "--nodelist=node1", "--gres=gpu:1")
    cluster.wait_for_workers(f"node1-{first}")
    process, run = cluster.begin(f"{flags} pause=0.1")
    second = cluster.submit("--nodelist=node2", "--gres=gpu:1")
    end = cluster.finished(process, run)
    print(end.output)
    assert end.machines == [f"node1-{first}", f"node2-{second}"], end.machines
    cluster.check(end, flags)
    assert cluster.slurm.state(first) == "COMPLETED", cluster.slurm.state(first)
    cluster.cancel(second)


def cancelled(cluster):
    """`scancel`: the run continues in another job from its last checkpoint."""
    first, second = cluster.interrupted(
        "updates=150 every=10 seed=2", lambda job: cluster.slurm.run("scancel", job)
    )
    cluster.slurm.wait(lambda: cluster.slurm.state(first) == "CANCELLED", "the end of a job")
    assert not list(cluster.scratch.glob(f"node1-{first}*"))
    cluster.cancel(second)


def node_down(cluster):
    """A node goes down: the run continues in another job, Slurm queues the lost one again."""
    first, second = cluster.interrupted(
        "updates=300 every=10 seed=3", lambda job: cluster.slurm.kill_node("node1")
    )
    cluster.start_now(first)  # not before the node is back
    cluster.slurm.start_node("node1")
    cluster.wait_for_workers(f"node1-{first}-r1", f"node2-{second}")
    cluster.cancel(first, second)


def preempted(cluster):
    """`scontrol requeue`, as preemption does: the run continues elsewhere, the job is started again."""
    first, second = cluster.interrupted(
        "updates=150 every=10 seed=4", lambda job: cluster.slurm.run("scontrol", "requeue", job)
    )
    cluster.start_now(first)
    cluster.wait_for_workers(f"node1-{first}-r1", f"node2-{second}")
    cluster.cancel(first, second)


def limits_of_a_worker(cluster):
    """A worker ends without runs, and one whose scheduler is gone after its runs, so that no allocation is wasted."""
    idle = cluster.submit("--nodelist=node1", worker=("--as-root", "--idle-timeout=5"))
    lost = cluster.submit("--nodelist=node2", worker=("--as-root", "--death-timeout=5"))
    cluster.wait_for_workers(f"node1-{idle}", f"node2-{lost}")
    cluster.slurm.wait(
        lambda: cluster.slurm.state(idle) == "COMPLETED", "the end of an idle worker"
    )
    process, run = cluster.begin("updates=150 pause=0.1 seed=5")
    cluster.lab.kill(certificates.SCHEDULER)
    assert cluster.finished(process, run).machines == [f"node2-{lost}"]
    cluster.slurm.wait(lambda: cluster.slurm.state(lost) == "COMPLETED", "the end of a lost worker")
    assert "ends after 5 s without a run" in cluster.log(idle)
    assert "ends after 5 s without a scheduler" in cluster.log(lost)
    cluster.lab.start(certificates.SCHEDULER)


SCENARIOS = (limits_of_a_worker, cancelled, preempted, node_down, time_limit)


def main():
    if MISSING:
        print(f"skipped: {MISSING}")
        return 0
    # Munge's socket needs a short path.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    cluster = Cluster(folder)
    chosen = [
        scenario
        for scenario in SCENARIOS
        if scenario.__name__ in (sys.argv[1:] or [scenario.__name__])
    ]
    try:
        for scenario in chosen:
            begin = time.monotonic()
            scenario(cluster)
            print(f"{scenario.__name__}: {time.monotonic() - begin:.0f} s", flush=True)
    finally:
        cluster.close()
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
