"""Is a machine fit for a run? Driver, matrix products, free memory and disk, versions of packages.

`python -m runcatalog.cluster.health` reads the demands as JSON and prints what is wrong; a process of its own, since a
GPU that fails takes the process down. It may be started before the demands are known, so that it has its imports.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from runcatalog.record.provenance.machine import gpus

CLOCK_ERROR = 60.0  # s by which a machine's clock may differ from the submitter's
_SIDE = 512  # of the matrices
_TOLERANCE = (
    1e-2  # of an element; float32 sums of 512 products of normal numbers differ by less than 1e-3
)
_GB = 1e9
_PROBE_SECONDS = 60.0
_NICE = 19  # the least priority


def problem(demands: Mapping[str, Any]) -> str:
    """Return what is wrong with this machine in a line; "" if it is fit.

    Args:
        demands: `gpu`, `memory` [GB], `disk` [GB], `scratch` (folder), `seconds` (of matrix products), `probe`
            (command in place of these) and `versions` (by package).
    """
    computes = _probe if demands.get("probe") else _products
    return _driver(demands) or computes(demands)


def unmet(demands: Mapping[str, Any]) -> str:
    """Return which demand of a run for memory, disk or packages this machine does not meet; "" if none.

    Another run may have what it needs here.

    Args:
        demands: See `problem`.
    """
    return _memory(demands) or _disk(demands) or _versions(demands)


def clock_problem(here: float, submitter: float) -> str:
    """Return what is wrong with this machine's clock; "" if nothing is.

    Args:
        here, submitter: Seconds since the epoch.
    """
    difference = here - submitter
    if abs(difference) <= CLOCK_ERROR:
        return ""
    return f"its clock is {abs(difference):.0f} s {'ahead of' if difference > 0 else 'behind'} the submitter's"


def _driver(demands: Mapping[str, Any]) -> str:
    try:
        found = len(gpus())
    except OSError as error:
        return str(error)
    needed = int(demands.get("gpu", 0))
    return f"it has {found} GPUs that answer, not {needed}" if found < needed else ""


def _memory(demands: Mapping[str, Any]) -> str:
    """Return that too little memory is free; "" if it is enough."""
    import psutil

    free = psutil.virtual_memory().available / _GB
    return _too_little("memory", free, float(demands.get("memory", 0)))


def _disk(demands: Mapping[str, Any]) -> str:
    free = shutil.disk_usage(demands["scratch"]).free / _GB
    return _too_little("disk", free, float(demands.get("disk", 0)))


def _too_little(what: str, free: float, needed: float) -> str:
    return f"{free:.1f} GB of {what} are free, {needed:g} GB are needed" if free < needed else ""


def _versions(demands: Mapping[str, Any]) -> str:
    wrong = []
    for name, version in sorted(demands.get("versions", {}).items()):
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed = "none"
        # A build for a GPU or a CPU adds +cu130 or +cpu to the same version.
        if installed.partition("+")[0] != version.partition("+")[0]:
            wrong.append(f"{name} {installed} instead of {version}")
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return f"other versions: {', '.join(wrong[:3])}{more}" if wrong else ""


def _probe(demands: Mapping[str, Any]) -> str:
    """Run the lab's own command; its last line says what is wrong if its status is not 0."""
    command = demands["probe"]
    try:
        done = subprocess.run(
            shlex.split(command),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"{command} does not end within {_PROBE_SECONDS:g} s"
    except (OSError, ValueError) as error:
        return f"{command}: {error}"
    lines = (done.stdout + done.stderr).strip().splitlines() or [f"exit status {done.returncode}"]
    return f"{command}: {lines[-1][:200]}" if done.returncode else ""


def _products(demands: Mapping[str, Any]) -> str:
    """Multiply matrices for some seconds, on the GPU if one is needed, and compare with the CPU's product."""
    import numpy as np

    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((_SIDE, _SIDE)).astype(np.float32) for _ in range(2))
    expected = left.astype(np.float64) @ right.astype(np.float64)
    end = time.monotonic() + float(demands.get("seconds", 0))
    try:
        multiply = (_on_gpu if demands.get("gpu") else _on_cpu)(left, right)
        first = multiply()
        if (difference := float(np.abs(first - expected).max())) > _TOLERANCE:
            return f"a matrix product is wrong by {difference:.3g}"
        while time.monotonic() < end:
            if not np.array_equal(multiply(), first):
                return "the same matrix product differs from one time to the next"
    except Exception as error:  # whatever a broken GPU throws
        text = " ".join(str(error).split())[:200]
        return f"matrix products fail: {type(error).__name__}: {text}"
    return ""


def _on_cpu(left: Any, right: Any) -> Any:
    return lambda: left @ right


def _on_gpu(left: Any, right: Any) -> Any:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    pairs = [
        (torch.from_numpy(left).to(device), torch.from_numpy(right).to(device))
        for device in map(torch.device, range(torch.cuda.device_count()))
    ]
    turn = iter(range(1 << 62))

    def multiply() -> Any:
        a, b = pairs[next(turn) % len(pairs)]
        return (a @ b).cpu().numpy()

    return multiply


def _leave_cores_to_others() -> None:
    """Lower the priority of all threads: the products take idle cores, not those of the machine's other runs."""
    folder = Path("/proc/self/task")  # one of numpy's threads a core
    for thread in folder.iterdir() if folder.is_dir() else ():
        os.setpriority(os.PRIO_PROCESS, int(thread.name), _NICE)


def main() -> None:
    """Print what is wrong as the last line of the output."""
    import numpy as np  # noqa: F401
    import psutil  # noqa: F401

    given = sys.stdin.read()
    if not given:  # the worker has ended
        return
    demands = json.loads(given)
    # Products on a GPU take one core, and torch has to be imported for them.
    if not demands.get("gpu"):
        _leave_cores_to_others()
    print(json.dumps({"problem": problem(demands)}), flush=True)


if __name__ == "__main__":
    main()
