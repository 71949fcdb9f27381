"""A private Slurm in a folder, for tests: the controller, and nodes that are all this machine."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil

from mlflow_server import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "squeue")
# Daemons are often outside of an ordinary user's path.
PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
_ABSENT = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
MISSING = f"needs Slurm and munge; there is no {', '.join(_ABSENT)}" if _ABSENT else ""
GPUS = 2  # of a node; any device stands for one, since Slurm only counts them

_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
SlurmdTimeout=5
KillWait=45
SchedulerParameters=batch_sched_delay=0,sched_interval=1
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} CPUs=1 RealMemory=100 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Slurm:
    """A Slurm with some nodes.

    Args:
        folder: An empty folder; its path is short, since munge has a socket there.
        nodes: Names of the nodes.

    Attributes:
        environment: What `sbatch` and the other commands need.
    """

    def __init__(self, folder: Path, nodes=("node1", "node2")):
        self.folder, self._nodes = folder, {}
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        for name in ("munge", "state", *(f"spool-{node}" for node in nodes)):
            (folder / name).mkdir(mode=0o755)
        (folder / "munge/key").write_bytes(os.urandom(128))
        (folder / "munge/key").chmod(0o400)
        (folder / "slurm.conf").write_text(
            _CONF.format(
                host=socket.gethostname(), port=free_port(), folder=folder, gpus=GPUS,
                user=pwd.getpwuid(os.getuid()).pw_name, nodes=",".join(nodes),
                ports=",".join(str(free_port()) for _ in nodes),
            )
        )  # fmt: skip
        devices = "/dev/zero,/dev/full"
        (folder / "gres.conf").write_text(f"Name=gpu Count={GPUS} File={devices}\n")
        options = {
            name: folder / "munge" / name
            for name in ("socket", "pid-file", "log-file", "seed-file")
        }
        self._start("munged", "--foreground", "--key-file", folder / "munge/key",
                    *(word for name, path in options.items() for word in (f"--{name}", path)))  # fmt: skip
        self.wait((folder / "munge/socket").exists, "munge")
        self._start("slurmctld", "-D", "-i")
        for node in nodes:
            self.start_node(node)

        def idle():
            shown = self.run("sinfo", "--noheader", "--Node", "--format=%T").split()
            return shown == ["idle"] * len(nodes)

        self.wait(idle, "idle nodes")

    def _start(self, program, *options):
        with (self.folder / f"{program}.out").open("ab") as out:
            process = subprocess.Popen(
                [shutil.which(program, path=PATH), *options], stdout=out, stderr=out,
                stdin=subprocess.DEVNULL, env=os.environ | self.environment,
            )  # fmt: skip
        self._nodes[program] = process
        return process

    def start_node(self, node):
        """Start the daemon of a node."""
        self._nodes[node] = self._start("slurmd", "-D", "-N", node)

    def kill_node(self, node):
        """Kill a node's daemon and all that runs below it and its jobs, as when the machine goes down."""
        daemon = psutil.Process(self._nodes.pop(node).pid)
        steps = [
            process for process in psutil.process_iter(["name", "cmdline"])
            if process.info["name"] == "slurmstepd" and self._is_step_of(process, node)
        ]  # fmt: skip
        doomed = [
            daemon,
            *(process for step in steps for process in (step, *step.children(recursive=True))),
        ]
        for process in doomed:
            process.suspend()
        for process in doomed:
            process.kill()
        daemon.wait()

    def _is_step_of(self, step, node):
        for process in (step, *step.children(recursive=True)):
            try:
                variables = process.environ()
            except psutil.Error:
                continue
            if (
                variables.get("SLURMD_NODENAME") == node
                and variables.get("SLURM_CONF") == self.environment["SLURM_CONF"]
            ):
                return True
        return False

    def run(self, program, *options, env=os.environ, **more):
        """Run a command of Slurm; return what it prints."""
        command = [shutil.which(program, path=PATH), *options]
        done = subprocess.run(
            command, env=env | self.environment, text=True, capture_output=True, timeout=240, **more
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
        return done.stdout

    def state(self, job):
        """Return the state of a job, such as RUNNING."""
        shown = self.run("scontrol", "show", "job", job, "--oneliner")
        return dict(word.partition("=")[::2] for word in shown.split())["JobState"]

    def wait(self, condition, what, seconds=240.0):
        """Wait until a condition holds; return what it returns."""
        end = time.monotonic() + seconds
        while not (value := condition()):
            if time.monotonic() > end:
                logs = "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))
                raise TimeoutError(f"waited in vain for {what}\n{logs}")
            time.sleep(0.1)
        return value

    def close(self):
        """Cancel all jobs and end all daemons."""
        self.run("scancel", "--user", pwd.getpwuid(os.getuid()).pw_name, "--full", "--signal=KILL")
        self.run("scancel", "--user", pwd.getpwuid(os.getuid()).pw_name)
        self.wait(lambda: not self.run("squeue", "--noheader").strip(), "the end of all jobs")
        for process in reversed(self._nodes.values()):
            process.send_signal(signal.SIGTERM)
        for process in self._nodes.values():
            process.wait(120)
