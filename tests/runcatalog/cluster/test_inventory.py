"""A laboratory's nine machines: its GPUs are declared, since they are not here; one of them fails its check."""

import json
import os
import shutil

import pytest

from lab import Lab
from runcatalog.cluster import certificates
from runcatalog.cluster.dask_engine import DaskEngine
from runcatalog.cluster.engine import Place

BROKEN = "CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm(handle)"
GPUS = {  # name and memory [MiB], as nvidia-smi has them
    "gpu1": ("NVIDIA GeForce GTX 1080 Ti", 11264),
    "gpu2": ("NVIDIA GeForce GTX 1060 6GB", 6144),
    "gpu3": ("NVIDIA GeForce RTX 2080 Ti", 11264),
    "gpu4": ("NVIDIA GeForce GTX TITAN X", 12288),
    "gpu5": ("NVIDIA GeForce RTX 2070", 8192),
    "gpu6": ("NVIDIA GeForce GTX 1080", 8192),
    "gpu7": ("NVIDIA GeForce RTX 3090", 24576),
    "gpu8": ("NVIDIA GeForce RTX 3090", 24576),
    "gpu9": ("NVIDIA GeForce RTX 3090", 24576),
}
BIG = """big:
  <<: *lab
  needs: {gpu: 1, gpu_memory: 20}
"""


def declare(folder, name):
    """Write the programs that say what a machine has, and whether it computes; return the folder of both."""
    gpu, memory = GPUS[name]
    programs = {
        "nvidia-smi": f"echo '0, GPU-{name}, {gpu}, {memory}'",
        "check-gpu": f"echo '{BROKEN}'; exit 1" if name == "gpu9" else "exit 0",
    }
    folder.mkdir(parents=True)
    for program, line in programs.items():
        path = folder / program
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def nine(tmp_path_factory):
    """A lab of nine workers; the folder of the fourth has nothing of the project but its settings."""
    folder = tmp_path_factory.mktemp("nine")
    lab = Lab(folder / "project", GPUS)
    file = lab.root / "experiments/engines.yml"
    declared = (
        file.read_text()
        .replace("lab:\n", "lab: &lab\n")
        .replace("tls: tls", f"tls: {lab.root}/tls")
    )
    file.write_text(f"{declared}  probe: check-gpu\n{BIG}")
    alone = folder / "alone"
    (alone / "experiments").mkdir(parents=True)
    (alone / "guild.yml").touch()
    shutil.copy(file, alone / "experiments")
    lab.start(certificates.SCHEDULER)
    for name in GPUS:
        programs = declare(folder / "machines" / name, name)
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        lab.start(name, alone if name == "gpu4" else None, PATH=path)
    yield lab
    lab.close()


@pytest.fixture(scope="module")
def engine(nine):
    """The engine of that lab, whose workers are known."""
    client = DaskEngine(nine.settings)
    nine.wait_for_workers(client, *GPUS)
    yield client
    client.close()


def health(lines):
    """Return what lines of `catalog workers` say of the machines' health, by name."""
    begin, end = lines[0].index("health"), lines[0].index("runs")
    return {line.split()[0]: line[begin:end].strip() for line in lines[1:]}


def test_a_machine_whose_gpu_fails_drains_itself_and_the_run_goes_to_another(nine, engine):
    shown = nine.good("catalog workers --engine lab").splitlines()
    assert health(shown) == dict.fromkeys(GPUS, "ok")
    assert all(gpu in line for line, (gpu, _) in zip(shown[1:], GPUS.values(), strict=True))
    places = {w["name"]: Place(w["name"], w["address"]) for w in engine.workers()}
    for name in ("gpu7", "gpu8"):
        engine.drain(places[name], "new fan")
    nine.wait(lambda: sum(bool(w["drained"]) for w in engine.workers()) == 2)
    # What needs 20 GB of GPU memory can only go to the ninth.
    running = nine.background("guild run small:train updates=3 -y", ENGINE="big")
    nine.wait(lambda: BROKEN in engine.workers()[-1]["drained"])
    engine.drain(places["gpu8"], "")
    out, _ = running.communicate(timeout=240)
    assert running.returncode == 0, out
    machines = json.loads((nine.runs[-1] / ".guild/engine.json").read_text())["machines"]
    assert machines == [{"attempt": 1, "machine": "gpu8"}]
    wrong = {"gpu7": "drained: new fan", "gpu9": f"drained: check-gpu: {BROKEN}"}
    expected = dict.fromkeys(GPUS, "ok") | wrong
    assert health(nine.good("catalog workers --engine lab").splitlines()) == expected
