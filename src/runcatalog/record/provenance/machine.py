"""Facts about a machine: its name in the inventory, CPU and GPUs."""

from __future__ import annotations

import contextlib
import csv
import functools
import os
import platform
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from runcatalog.record.untrusted import load_yaml


class Gpu(NamedTuple):
    """A GPU: its name as the driver has it, and its memory [GB]."""

    name: str
    memory: float


@dataclass(frozen=True)
class Machine:
    """A machine of the inventory (experiments/machines.yml): its name in runs, host name, GPU and a note."""

    name: str
    host: str = ""
    gpu: str = ""
    note: str = ""


def inventory(content: Any) -> list[Machine]:
    """Return the machines of an inventory: a list of them, or names or entries by host, perhaps below `machines`.

    Args:
        content: The content of the file.

    Raises:
        ValueError: An entry has neither a name nor a host, or is no mapping.
    """
    if isinstance(content, dict):
        content = content.get("machines", content)
    if isinstance(content, dict):
        content = [
            {"host": host, **(entry if isinstance(entry, dict) else {"name": entry})}
            for host, entry in content.items()
        ]
    if not isinstance(content, list | None):
        raise ValueError(f"a list of machines is expected, got {str(content)[:40]!r}")
    machines = []
    for entry in content or []:
        if not isinstance(entry, dict) or not (entry.get("name") or entry.get("host")):
            raise ValueError(f"a machine needs a name or a host, got {entry!r}")
        text = {f.name: str(entry.get(f.name) or "") for f in fields(Machine)}
        machines.append(Machine(**text | {"name": text["name"] or text["host"]}))
    return machines


def name_of(machines: Iterable[Machine], host: str, gpu: str = "") -> str:
    """Return the name of a host in the inventory; the host itself if it is not listed.

    Of several machines with one host name, such as virtual ones, it is that with the given GPU, else the first.
    """
    fitting = [machine for machine in machines if machine.host == host]
    return min(fitting, key=lambda machine: machine.gpu != gpu).name if fitting else host


def machine_facts(project: Path) -> dict[str, Any]:
    """Return host, machine (its name in experiments/machines.yml, else the host), CPU and GPU."""
    host, gpu = socket.gethostname(), gpu_name()
    return {
        "host": host,
        "machine": os.environ.get("RECORD_MACHINE") or machine_name(project, host, gpu),
        "host_cpu": cpu_name(),
        "cores": cores(),
        "gpu": gpu,
        "platform": platform.platform(),
    }


def machine_name(project: Path, host: str, gpu: str = "") -> str:
    """Return the name of a host in a project's inventory, see :func:`name_of`; the host without a valid one."""
    path = project / "experiments" / "machines.yml"
    with contextlib.suppress(Exception):  # an error in the file must not stop a training
        return name_of(inventory(load_yaml(path.read_text(encoding="utf-8"))), host, gpu)
    return host


def cores() -> int | None:
    """Return the number of cores that this process may use, where the system says so, else of the machine."""
    is_known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if is_known else os.cpu_count()


@functools.cache
def cpu_name() -> str:
    """Return the CPU's model, for example "AMD EPYC (family 25, model 1, stepping 1)".

    Virtual machines hide the model's name; the numbers distinguish CPUs whose results differ in their bits.
    """
    facts: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
            name, _, value = line.partition(":")
            facts[name.strip()] = value.strip()
    name = facts.get("model name") or platform.processor() or platform.machine()
    keys = {"family": "cpu family", "model": "model", "stepping": "stepping"}
    numbers = ", ".join(f"{word} {facts[key]}" for word, key in keys.items() if facts.get(key))
    return f"{name} ({numbers})" if numbers else name


def gpus() -> list[Gpu]:
    """Return the GPUs that this process may use, by the driver and CUDA_VISIBLE_DEVICES, in the order of the latter.

    As in CUDA an id may be an index or the beginning of a UUID, and what follows an unknown id is not used. A part of a
    GPU (`MIG-...`) counts as the first GPU unless its id contains the UUID of another.

    Raises:
        OSError: The driver does not answer.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible in ("", "-1") or not shutil.which("nvidia-smi"):
        return []
    query = "--query-gpu=index,uuid,name,memory.total"
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
        )
    except subprocess.TimeoutExpired:
        raise OSError("nvidia-smi does not answer within 20 s") from None
    if done.returncode:
        raise OSError(f"nvidia-smi: {' '.join((done.stdout + done.stderr).split())[:200]}")
    by_id = {}
    for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True):
        if len(row) == 4:
            index, uuid, name, memory = (cell.strip() for cell in row)
            mib = float(memory) if memory.isdecimal() else 0.0  # "[N/A]" where it is the CPU's
            by_id[index, uuid] = Gpu(name, mib * (1 << 20) / 1e9)
    if visible is None:
        return list(by_id.values())
    chosen = []
    for wanted in map(str.strip, visible.split(",")):
        fitting = [
            gpu
            for (index, uuid), gpu in by_id.items()
            if wanted == index or (wanted.startswith("GPU-") and uuid.startswith(wanted))
        ]
        if wanted.startswith("MIG-"):
            fitting = [gpu for (_, uuid), gpu in by_id.items() if uuid in wanted] or [
                *by_id.values()
            ]
        if not fitting:
            break
        chosen.append(fitting[0])
    return chosen


@functools.cache
def gpu_name() -> str:
    """Return the GPUs that this process may use, for example "2 x NVIDIA A100"; empty without any."""
    try:
        counts = Counter(gpu.name for gpu in gpus())
    except OSError:  # a driver that does not answer must not stop a run
        return ""
    return ", ".join(f"{n} x {name}" if n > 1 else name for name, n in counts.items())
