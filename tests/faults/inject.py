"""Kills training, sender, `catalog sync` and MLflow server at moments that a seed chooses, then compares.

    python tests/faults/inject.py --kills 100 --seed 1 [--store sqlite | server | postgresql]

Trainings run one after the other against a real MLflow: an SQLite file that every process opens itself, a server on
SQLite, or a server on PostgreSQL, which is killed too. Each training is killed several times, by a clock or at a named
call (between a batch and its offset, while result.json is written, …; see `POINTS`), alone or with others, and
continued. In the end everything is let recover: the server is started, the last training is waited for, `catalog sync`
runs. What MLflow holds must then be what the journals hold, and `catalog verify` must find no difference.
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
import time
import urllib.request
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "helpers")]  # run as a script, not by pytest

from faults.compare import count_points, differences  # noqa: E402
from mlflow_server import free_port  # noqa: E402
from postgresql import MISSING, PostgreSQL  # noqa: E402

UPDATES, WIDTH = 200, 6
NAMES = [*(f"walk/{i}" for i in range(WIDTH)), "odd", "time/update"]
PATIENCE = 180.0  # s to wait for an event that must happen
LONGEST, LATE = 40.0, 15.0  # s to wait for a call; for one after the end of a training
SPAN = 6.0  # s after the start of a strike in which the clock kills
AT_A_CALL = 0.65  # share of strikes at a named call
STAYS_AWAY = 0.3  # probability that the server is not started again before the next strike
# (call, when, what its arguments name, needs): "new": a new training; "start": one that starts or is
# continued; "end": one that ends; "saves": one with checkpoints.
POINTS = {
    "training": [
        ("os.replace", "before", "/run.json", "new"),
        ("os.replace", "after", "/run.json", "new"),
        ("os.write", "half", "/sessions.jsonl", "start"),
        ("os.write", "half", "/metrics.jsonl", ""),
        ("os.fsync", "before", "/metrics.jsonl", "saves"),
        ("os.rename", "before", "/checkpoints/", "saves"),
        ("os.rename", "after", "/checkpoints/", "saves"),
        ("shutil.rmtree", "before", "/checkpoints/0", "saves"),
        ("os.replace", "before", "/result.json", "end"),
        ("os.replace", "after", "/result.json", "end"),
    ],
    "sender": [
        ("MlflowClient.create_run", "before", "", "new"),
        ("MlflowClient.create_run", "after", "", "new"),
        ("MlflowClient.log_batch", "before", "", ""),
        ("MlflowClient.log_batch", "after", "", ""),
        ("os.replace", "before", "/mlflow.json", ""),
        ("os.replace", "after", "/mlflow.json", ""),
        ("MlflowClient.log_artifact", "before", "", "end"),
        ("MlflowClient.log_artifact", "after", "", "end"),
        ("MlflowClient.set_terminated", "before", "", "end"),
        ("MlflowClient.set_terminated", "after", "", "end"),
    ],
    "server": [
        ("SqlAlchemyStore.create_run", "after", "", "new"),
        ("SqlAlchemyStore.log_batch", "before", "", ""),
        ("SqlAlchemyStore._log_metrics", "before", "", ""),
        ("SqlAlchemyStore._log_metrics", "after", "", ""),
        ("SqlAlchemyStore.log_batch", "after", "", ""),
        ("LocalArtifactRepository.log_artifact", "after", "", "end"),
        ("SqlAlchemyStore.update_run_info", "before", "", "end"),
        ("SqlAlchemyStore.update_run_info", "after", "", "end"),
    ],
    "sync": [
        ("MlflowClient.log_batch", "before", "", ""),
        ("MlflowClient.log_batch", "after", "", ""),
        ("MlflowClient.set_terminated", "before", "", ""),
        ("MlflowClient.set_terminated", "after", "", ""),
        ("os.replace", "after", "/mlflow.json", ""),
    ],
}
# The process of a role opens the database itself where there is no server: these calls are then its own.
IN_THE_STORE = {
    "sender": POINTS["server"],
    "sync": [("SqlAlchemyStore._log_metrics", "before", "", "")],
}
VICTIMS = {  # who dies together, and how often
    ("training",): 30,
    ("sender",): 25,
    ("server",): 15,
    ("training", "sender"): 8,
    ("training", "server"): 7,
    ("sender", "server"): 6,
    ("training", "sender", "server"): 4,
    ("sync",): 5,
}
DATABASE = {  # more of them where the database is a server too
    ("database",): 10,
    ("server", "database"): 5,
    ("training", "sender", "server", "database"): 5,
}
STORES = {  # kinds of MLflow, and who can be killed there
    "server": VICTIMS,
    "sqlite": {victims: often for victims, often in VICTIMS.items() if "server" not in victims},
    "postgresql": VICTIMS | DATABASE,
}


class Arena:
    """A project in a separate folder, its MLflow, and a training.

    Args:
        folder: An empty folder.
        seed: Chooses whom, when and where.
        saving: Share of trainings that write checkpoints, for which torch must be loaded.
        say: Called with one line per strike.
        store: Which MLflow: a key of `STORES`.
    """

    def __init__(self, folder, seed, saving=0.4, say=print, store="server"):
        self.folder, self.say, self.chance = folder, say, random.Random(seed)
        self.saving = saving
        self.project, self.faults = folder / "project", folder / "faults"
        self.runs, self.stored = self.project / "runs", folder / "stored"
        self.database = f"sqlite:///{folder}/mlflow.db"
        for path in (self.runs, self.faults, folder / "guild"):
            path.mkdir(parents=True)
        (self.project / "guild.yml").write_text("")
        self.spawner = None
        self.port = free_port()
        self.has_server, self.postgresql = store != "sqlite", None
        if store == "postgresql":
            self.postgresql = PostgreSQL()
            self.database = self.postgresql.address
        self.uri = f"http://127.0.0.1:{self.port}" if self.has_server else self.database
        self.server = self.training = None
        self.run, self.lives, self.saves = None, 0, False
        self.strikes, self.most_senders = Counter(), 0

    def open(self):
        """Start the process from which the others are forked."""
        also = ["torch", "safetensors.torch"] if self.saving else []
        with (self.folder / "spawner.log").open("ab") as log:
            self.spawner = subprocess.Popen(
                # The real Python: killing a prepared one leaves the processes that it started.
                [sys.executable, str(HERE / "spawner.py"), str(self.faults), *also],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self._environment(), start_new_session=True,
            )  # fmt: skip
        there = self.faults / "spawner"
        _wait(lambda: there.exists() or self.spawner.poll() is not None, "the spawner")
        if self.spawner.poll() is not None:
            raise RuntimeError((self.folder / "spawner.log").read_text())

    def strike(self, victims):
        """Kill some processes at once; return whether all of them existed."""
        first = victims[0]
        if first == "sync" or (first == "sender" and not self._numbers("sender")):
            self._kill("training")  # else nothing would be sent
        if first == "sync":
            self._kill("sender")
        self._look()
        if first == "sync" or "server" in victims or self.chance.random() > STAYS_AWAY:
            self.start_server()
        at_a_call = self.chance.random() < AT_A_CALL
        reached = self.server or not self.has_server or first == "training"
        point = self._point(first) if at_a_call and reached and first in POINTS else None
        if point:
            self.arm(first, point)
        process = self.catalog("sync") if first == "sync" else None
        if process is None:
            self.start_training(new=bool(point) and point[3] == "new")
        hit = self._wait_for(first, process) if point else False
        if not hit:
            time.sleep(self.chance.uniform(0, SPAN))
        there = [self._kill(victim) for victim in victims[hit:]]
        self._look()
        if not (hit or any(there)):
            return False
        where = f"{point[1]} {point[0]} {point[2]}".strip() if hit else "by the clock"
        self.say(f"{'+'.join(victims)}: {where}")
        self.strikes[victims, where] += 1
        return True

    def finish(self):
        """Let everything recover as far as one sync can."""
        self.start_server()
        if self.training is not None:
            self.training.wait(PATIENCE)
            self.training = None
        return self.sync()

    def sync(self):
        """Run `catalog sync`; return what it printed."""
        process = self.catalog("sync")
        output = process.communicate(timeout=PATIENCE)[0]
        if process.returncode:
            raise RuntimeError(f"catalog sync: exit {process.returncode}\n{output}")
        return output

    def verify(self):
        """Run `catalog verify`; return its exit status and the lines that it printed."""
        process = self.catalog("verify")
        lines = process.communicate(timeout=PATIENCE)[0].splitlines()
        return process.returncode, lines

    def differences(self):
        """Return the differences between MLflow and the journals."""
        return differences(self.runs, self.database, self.stored, NAMES)

    def start_server(self):
        """Start the MLflow server and its database, unless they run, and wait for them."""
        if self.postgresql is not None:
            self.postgresql.start()
        if self.server is not None or not self.has_server:
            return
        command = ["-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--backend-store-uri", self.database, "--workers", "1"]
        command += ["--artifacts-destination", str(self.stored)]
        with (self.folder / "server.log").open("ab") as log:
            self.server = subprocess.Popen(
                [sys.executable, *command], stdout=log, stderr=log,
                env=self._environment(), start_new_session=True,
            )  # fmt: skip
        _wait(lambda: _answers(self.uri) or self.server.poll() is not None, "the server")
        if self.server.poll() is not None:
            raise RuntimeError(f"the server ended: {(self.folder / 'server.log').read_text()}")

    def start_training(self, new):
        """Continues the training, or begins another if that has ended or been killed often enough."""
        if self.training is not None:
            if not new:
                return
            self._kill("training")
        if new or self.run is None or self.lives <= 0 or (self.run / "result.json").exists():
            self.run = self.runs / f"run-{len(list(self.runs.iterdir())):03d}"
            self.lives = self.chance.randint(2, 6)
            self.saves = self.chance.random() < self.saving
        self.lives -= 1
        flags = ["--updates", UPDATES, "--width", WIDTH, "--every", 25 if self.saves else 0]
        flags += ["--seed", int(self.run.name[-3:])]
        with (self.folder / "training.log").open("ab") as log:
            self.training = subprocess.Popen(
                [sys.executable, str(HERE / "walk.py"), *map(str, flags)], stdout=log, stderr=log,
                env=self._environment(RUN_DIR=str(self.run)),
            )  # fmt: skip
        _wait(lambda: self._numbers("training") or self.training.poll() is not None, "the training")

    def close(self):
        """Kill what is left."""
        for victim in ("training", "sender", "server", "sync"):
            self._kill(victim)
        if self.postgresql is not None:
            self.postgresql.close()
        if self.spawner is not None:
            self.spawner.kill()
            self.spawner.wait()

    def _point(self, victim):
        """A call at which the victim can be killed now."""
        needs = {"", "end", "start", "new"} | ({"saves"} if self.saves else set())
        if self.training is not None:
            needs -= {"start"} if victim == "training" else set()
        points = POINTS[victim] + ([] if self.has_server else IN_THE_STORE.get(victim, []))
        return self.chance.choice([point for point in points if point[3] in needs])

    def arm(self, victim, point):
        """Let the process of a role die at its next call of this kind."""
        fault = dict(zip(("call", "when", "word"), point, strict=False))
        path = self.faults / victim
        path.with_suffix(".new").write_text(json.dumps(fault))
        path.with_suffix(".new").rename(path)

    def _wait_for(self, victim, process):
        """Wait until the victim has died at the call; return False if it never made the call."""
        end = time.monotonic() + LONGEST
        armed, done = self.faults / victim, self.faults / f"{victim}.done"
        over = False
        while time.monotonic() < end and not done.exists():
            last = process or self.training
            if not over and last is not None and last.poll() is not None:
                over = True
                end = time.monotonic() + (1 if last is process or victim == "training" else LATE)
            time.sleep(0.02)
        armed.unlink(missing_ok=True)
        hit = done.exists()
        done.unlink(missing_ok=True)
        time.sleep(0.05)  # the file is renamed just before the kill
        return hit

    def _numbers(self, role):
        """Return the process numbers of a role."""
        return [int(path.name.rpartition("-")[2]) for path in self.faults.glob(f"pids/{role}-*")]

    def _kill(self, victim):
        """Kill all processes of a role; return whether there were any."""
        if victim == "database":
            return self.postgresql is not None and self.postgresql.kill()
        numbers = self._numbers(victim)
        for number in numbers + (self._numbers("command") if victim == "server" else []):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        _wait(lambda: not set(numbers) & set(self._numbers(victim)), f"the end of {victim}")
        return bool(numbers)

    def _look(self):
        """Record which processes have died."""
        self.most_senders = max(self.most_senders, len(self._numbers("sender")))
        if self.training is not None and not self._numbers("training"):
            self.training.wait(PATIENCE)
            self.training = None
        if self.server is not None and not self._numbers("server"):
            self._kill("server")
            self.server.wait(PATIENCE)
            self.server = None

    def catalog(self, *arguments, cwd=None, **more):
        """Start the `catalog` command."""
        return subprocess.Popen(
            [sys.executable, "-m", "runcatalog.cli.main", *arguments], env=self._environment(**more),
            cwd=cwd or self.project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def _environment(self, **more):
        foreign = ("RUN_", "GUILD_", "MLFLOW_", "RECORD", "PROJECT_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
        return kept | {
            "PYTHONPATH": os.pathsep.join([str(HERE / "at_call"), str(ROOT / "src")]),
            "FAULTS": str(self.faults),
            "PROJECT_DIR": str(self.project),
            "GUILD_HOME": str(self.folder / "guild"),
            "MLFLOW_TRACKING_URI": self.uri,
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "OMP_NUM_THREADS": "1",
        } | more  # fmt: skip


def inject(arena, plan):
    """Strikes those whom a plan names, lets everything recover, and compares; returns a report."""
    begin = time.monotonic()
    for victims in plan:
        while not arena.strike(victims):
            continue  # it was over before
    arena.finish()
    remaining = arena.differences()
    again = arena.sync().splitlines()[-1]
    remaining += [
        f"after another sync, {line}" for line in arena.differences() if line not in remaining
    ]
    return {
        "strikes": arena.strikes,
        "runs": len(list(arena.runs.iterdir())),
        "points": count_points(arena.runs),
        "again": again,
        "verified": arena.verify(),
        "senders": arena.most_senders,
        "differences": remaining,
        "seconds": time.monotonic() - begin,
    }


def _answers(uri):
    try:
        return urllib.request.urlopen(f"{uri}/health", timeout=5).status == 200
    except OSError:
        return False


def _wait(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="how often (default: 100)")
    parser.add_argument("--seed", type=int, default=1, help="of all choices (default: 1)")
    parser.add_argument("--keep", metavar="DIR", help="new folder to work in, and to leave")
    stores = "an SQLite file, a server on SQLite (default), a server on PostgreSQL"
    parser.add_argument("--store", choices=STORES, default="server", help=stores)
    options = parser.parse_args()
    if options.store == "postgresql" and MISSING:
        parser.error(MISSING)
    folder = Path(options.keep or tempfile.mkdtemp(prefix="faults-")).resolve()
    arena = Arena(folder, options.seed, store=options.store)
    try:
        arena.open()
        victims = STORES[options.store]
        plan = arena.chance.choices(list(victims), list(victims.values()), k=options.kills)
        report = inject(arena, plan)
    finally:
        arena.close()
    by_victims, by_place = Counter(), Counter()
    for (victims, where), count in report["strikes"].items():
        by_victims["+".join(victims)] += count
        by_place[where] += count
    for title, counter in (("killed", by_victims), ("where", by_place)):
        print(title, *(f"  {count:3d}  {name}" for name, count in counter.most_common()), sep="\n")
    print(f"{report['runs']} runs, {report['points']} points, {report['seconds']:.0f} s")
    print(f"at most {report['senders']} senders at once; the next sync: {report['again']}")
    status, lines = report["verified"]
    print(*lines, f"catalog verify: exit status {status}", sep="\n")
    print(*report["differences"], f"{len(report['differences'])} differences", sep="\n")
    if not options.keep:
        shutil.rmtree(folder)
    return 1 if report["differences"] or status else 0


if __name__ == "__main__":
    sys.exit(main())
