"""Kills workers during a sweep, restarts the scheduler, cuts links, kills PostgreSQL; then compares.

    python tests/faults/workers.py --kills 20 --trials 40 --seed 1

The trials of one batch run on four workers, at moments that a seed chooses a process of the lab dies: a worker, which
is restarted later; once the scheduler; the link of a worker, which is in a separate network namespace where that
can be created (as root), and restored when its runs have moved to another worker; PostgreSQL, to which senders deliver,
where it is installed. In the end every trial must have finished once, with the digests of the same trial that was not
disturbed, and MLflow must hold what the journals hold.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "helpers")]  # run as a script, not by pytest

import psutil  # noqa: E402

from faults.compare import differences  # noqa: E402
from lab import Lab  # noqa: E402
from postgresql import MISSING, PostgreSQL  # noqa: E402
from runcatalog.cluster import certificates  # noqa: E402
from runcatalog.cluster.dask_engine import DaskEngine  # noqa: E402
from runcatalog.cluster.engine import EngineError  # noqa: E402
from runcatalog.record.lifecycle.status import last_session  # noqa: E402

UPDATES, PAUSE = 30, 0.2
CUTS, DATABASE_KILLS = 3, 3
AWAY = 3.0  # s at most for which a worker or database stays dead
CUT = 10  # s for which a link is cut: twice `lost_after` of the engine
NETWORK = "10.213.77"


class Namespaces:
    """Network namespaces linked to a bridge of this machine."""

    BRIDGE = "lab-bridge"

    def __init__(self, names):
        self.names = names

    def open(self):
        """Create the namespaces."""
        self._ip("link", "add", "name", self.BRIDGE, "type", "bridge")
        self._ip("addr", "add", f"{NETWORK}.1/24", "dev", self.BRIDGE)
        self._ip("link", "set", self.BRIDGE, "up")
        for number, name in enumerate(self.names, 2):
            self._ip("netns", "add", name)
            self._ip(
                "link",
                "add",
                f"{name}-here",
                "type",
                "veth",
                "peer",
                "name",
                "there",
                "netns",
                name,
            )
            self._ip("link", "set", f"{name}-here", "master", self.BRIDGE, "up")
            self._ip("-n", name, "addr", "add", f"{NETWORK}.{number}/24", "dev", "there")
            for link in ("there", "lo"):
                self._ip("-n", name, "link", "set", link, "up")

    @staticmethod
    def _ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    @staticmethod
    def available():
        """Return whether this process may make them."""
        if os.geteuid() or shutil.which("ip") is None:
            return False
        tried = subprocess.run(["ip", "netns", "add", "lab-try"], capture_output=True)
        if tried.returncode == 0:
            subprocess.run(["ip", "netns", "del", "lab-try"], check=True)
        return tried.returncode == 0

    def set_link(self, name, state):
        """Set the link of a machine "down" or "up"."""
        self._ip("link", "set", f"{name}-here", state)

    def close(self):
        """Remove the namespaces."""
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        subprocess.run(["ip", "link", "del", self.BRIDGE], capture_output=True)


class Storm:
    """A lab and its strikes.

    Args:
        folder: An empty folder.
        workers: Number of workers.
        seed: Chooses which process dies when.
        apart: Whether workers are in separate network namespaces.
        database: Whether senders deliver to a PostgreSQL.
        say: Called with one line per strike.
    """

    def __init__(self, folder, workers, seed, apart=False, database=False, say=print):
        self.chance, self.say = random.Random(seed), say
        self.names = [f"box{number}" for number in range(1, workers + 1)]
        self.lab = Lab(folder / "project", self.names)
        self.namespaces = Namespaces(self.names) if apart else None
        self.postgresql = PostgreSQL() if database else None
        self.struck, self.late = Counter(), []
        self.engine = self.running = None
        self.database_lock = threading.Lock()  # a start is not killed before it has ended

    def open(self):
        """Start all processes."""
        if self.namespaces:
            self.namespaces.open()
        self._set_engine()
        if self.postgresql:
            self.postgresql.start()
            address = {"MLFLOW_TRACKING_URI": self.postgresql.address}
            self.lab.env |= address | {"RECORD_MLFLOW": "on", "MLFLOW_DISABLE_TELEMETRY": "true"}
        for name in (certificates.SCHEDULER, *self.names):
            self.start(name)
        self.engine = DaskEngine(self.lab.settings)
        self.lab.wait_for_workers(self.engine, *self.names)

    def _set_engine(self):
        path = self.lab.settings.file
        if self.namespaces:
            path.write_text(path.read_text().replace("127.0.0.1", f"{NETWORK}.1"))
        self.lab.read_settings()

    def start(self, name):
        """Start a process of the lab."""
        inside = self.namespaces and name in self.names
        self.lab.start(name, before=["ip", "netns", "exec", name] if inside else [])

    def sweep(self, trials, strikes):
        """Run a batch under strikes; return its exit status and output.

        Args:
            trials: Their number.
            strikes: What to do, in this order: "worker", "scheduler", "link", "database".
        """
        flags = (
            f"updates={UPDATES} every=5 pause={PAUSE} seed={list(range(1, trials + 1))}".replace(
                ", ", ","
            )
        )
        log = self.lab.root / "sweep.txt"
        running = self.running = self.lab.background(
            f"guild run small:train {flags} -y > {log} 2>&1", ENGINE="lab"
        )
        for count, strike in enumerate(strikes):
            # They are spread over the sweep, however fast this machine is.
            self._wait_for_trials(running, 1 + count * (trials - 2) // max(1, len(strikes)))
            time.sleep(self.chance.uniform(0, 2))
            if running.poll() is not None:
                break
            getattr(self, f"_strike_{strike}")()
            self.struck[strike] += 1
        running.wait(1200)
        for timer in self.late:
            timer.join()
        return running.returncode, log.read_text()

    def _wait_for_trials(self, running, count):
        """Wait until so many trials have begun."""
        begun = lambda: sum((run / "journal/sessions.jsonl").exists() for run in self.lab.runs)  # noqa: E731
        self.lab.wait(lambda: running.poll() is not None or begun() >= count, 300)

    def _later(self, seconds, call, *arguments):
        timer = threading.Timer(seconds, call, arguments)
        timer.start()
        self.late.append(timer)

    def _alive(self):
        alive = [name for name in self.names if self.lab.processes[name].poll() is None]
        busy = set()
        with contextlib.suppress(EngineError):
            busy = {w["name"] for w in self.engine.workers() if w["running"]}
        return [name for name in alive if name in busy] or alive

    def _strike_worker(self):
        self.lab.wait(self._alive)
        name = self.chance.choice(self._alive())
        self.say(f"kill {name}")
        self.lab.kill(name)
        self._later(self.chance.uniform(0, AWAY), self.start, name)

    def _strike_scheduler(self):
        self.say("kill the scheduler")
        self.lab.kill(certificates.SCHEDULER)
        self._later(self.chance.uniform(0, AWAY), self.start, certificates.SCHEDULER)

    def _strike_link(self):
        name = self.chance.choice(self._alive())
        self.say(f"cut the link of {name}")
        self.namespaces.set_link(name, "down")
        self._later(CUT, self.namespaces.set_link, name, "up")

    def _strike_database(self):
        self.say("kill PostgreSQL")
        with self.database_lock:
            self.postgresql.kill()
        self._later(self.chance.uniform(0, AWAY), self._start_database)

    def _start_database(self):
        with self.database_lock:
            self.postgresql.start()

    def trials(self):
        """Return the directories of the runs that are no batch."""
        return [run for run in self.lab.runs if (run / "journal").is_dir()]

    def problems(self, trials):
        """Return the problems after a sweep of so many trials."""
        directories = self.trials()
        problems = [] if len(directories) == trials else [f"{len(directories)} runs, not {trials}"]
        seeds = Counter()
        for run in directories:
            facts = json.loads((run / "journal/run.json").read_text())
            seeds[facts["flags"]["seed"]] += 1
            path = run / "result.json"
            result = json.loads(path.read_text()) if path.exists() else {}
            state = (result.get("status"), result.get("resume_mismatch"))
            if state not in {("FINISHED", 0), ("FINISHED", None)}:
                problems.append(f"{run.name}: {state}")
        if seeds != Counter(range(1, trials + 1)):
            problems.append(f"trials by seed: {dict(seeds)}")
        left = list(self.lab.settings.scratch.glob("box*/trials/*"))
        return problems + [f"{path} is left on a worker" for path in left]

    def moved(self):
        """Return the runs that went on elsewhere."""
        return [run for run in self.trials() if (last_session(run) or {}).get("session", 1) > 1]

    def other_digests(self, runs):
        """Return the runs whose digests are others than those of the same trial here, undisturbed."""
        others = []
        for run in runs:
            seed = json.loads((run / "journal/run.json").read_text())["flags"]["seed"]
            flags = f"updates={UPDATES} every=5 seed={seed}"
            home = str(self.lab.root / "undisturbed")
            Path(home).mkdir(exist_ok=True)
            self.lab.good(f"guild run small:train {flags} -y", GUILD_HOME=home, RECORD_MLFLOW="off")
            same = max(Path(home, "runs").glob("*"), key=lambda path: path.stat().st_ctime)
            digests = [json.loads((r / "result.json").read_text())["digest"] for r in (run, same)]
            if digests[0] != digests[1]:
                others.append(f"{run.name}, seed {seed}: {digests[0]}, undisturbed {digests[1]}")
        return others

    def in_mlflow(self):
        """Return the differences between MLflow and the journals after a sync."""
        self.postgresql.start()
        self.lab.wait(lambda: not self._senders(), 300)
        self.lab.good("catalog sync")
        return differences(
            self.lab.home / "runs", self.postgresql.address, self.lab.root, ["distance"]
        )

    def _senders(self):
        """Return the processes that still deliver a run."""
        runs = str(self.lab.home / "runs")
        commands = [p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"])]
        return [words for words in commands if words[-1:] and words[-1].startswith(runs)]

    def close(self):
        """End all processes."""
        for timer in self.late:
            timer.join()
        if self.running and self.running.poll() is None:
            self.lab.kill_all(self.running)
        if self.engine:
            self.engine.close()
        self.lab.close()
        if self.namespaces:
            self.namespaces.close()
        if self.postgresql:
            self.postgresql.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="of workers (default: 20)")
    parser.add_argument("--trials", type=int, default=40, help="of the sweep (default: 40)")
    parser.add_argument("--seed", type=int, default=1, help="of all choices (default: 1)")
    options = parser.parse_args()
    apart, database = Namespaces.available(), not MISSING
    for missing, what in (
        (not apart, "links are not cut: no network namespaces"),
        (not database, MISSING),
    ):
        if missing:
            print(what)
    folder = Path(tempfile.mkdtemp(prefix="workers-"))
    begin = time.monotonic()
    storm = Storm(folder, 4, options.seed, apart, database, lambda line: print(line, flush=True))
    try:
        storm.open()
        strikes = ["worker"] * options.kills + ["scheduler"]
        strikes += ["link"] * (CUTS * apart) + ["database"] * (DATABASE_KILLS * database)
        storm.chance.shuffle(strikes)
        code, output = storm.sweep(options.trials, strikes)
        problems = storm.problems(options.trials)
        moved = storm.moved()
        problems += storm.other_digests(moved)
        problems += storm.in_mlflow() if database else []
        problems += [f"the batch ended with {code}"] if code else []
        short = {w: strikes.count(w) - storm.struck[w] for w in set(strikes)}
        problems += [f"{n} strikes fewer: {what}" for what, n in short.items() if n > 0]
    finally:
        storm.close()
    print(", ".join(f"{what}: {count}" for what, count in sorted(storm.struck.items())))
    print(
        f"{options.trials} trials, {len(moved)} of them went on elsewhere, {time.monotonic() - begin:.0f} s"
    )
    print(*problems, f"{len(problems)} problems", sep="\n")
    if problems:
        print(output[-5000:])
    else:
        shutil.rmtree(folder)
    return 1 if problems else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
