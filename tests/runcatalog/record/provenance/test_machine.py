"""Facts about a machine: its name in the inventory, CPU and GPUs."""

from pathlib import Path

import pytest

from runcatalog.model.errors import CatalogError
from runcatalog.model.project import Project
from runcatalog.record.provenance import machine

FOUR = """\
0, GPU-aa11, NVIDIA A100-SXM4-40GB, 40960
1, GPU-aa22, NVIDIA A100-SXM4-40GB, 40960
2, GPU-bb33, NVIDIA H100, 81559
3, GPU-cc44, NVIDIA GB10, [N/A]
"""


@pytest.mark.parametrize(
    "text",
    [
        "box: {name: box1, gpu: none}",
        "box: box1",
        "machines: {box: {name: box1}}",
        "- {host: box, name: box1}",
    ],
)
def test_the_inventory_names_a_host(tmp_path, text):
    assert machine.machine_name(tmp_path, "box") == "box"
    (tmp_path / "experiments").mkdir()
    path = tmp_path / "experiments" / "machines.yml"
    path.write_text(text)
    assert machine.machine_name(tmp_path, "box") == "box1"
    assert [(m.host, m.name) for m in Project(tmp_path).machines()] == [("box", "box1")]
    assert machine.machine_name(tmp_path, "other") == "other"
    path.write_text("box: [unclosed")
    assert machine.machine_name(tmp_path, "box") == "box"


@pytest.mark.parametrize("text", ["5", "- 5", "- {gpu: H100}", "{machines: 5}"])
def test_an_inventory_of_another_form_is_refused_and_stops_no_run(tmp_path, text):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "machines.yml").write_text(text)
    with pytest.raises(CatalogError, match=r"machines\.yml: a (list of machines|machine needs)"):
        Project(tmp_path).machines()
    assert machine.machine_name(tmp_path, "box") == "box"


def test_of_two_machines_with_one_host_name_the_gpu_decides(tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "machines.yml").write_text(
        "- {host: vm, name: box1, gpu: ''}\n- {host: vm, name: gpu1, gpu: H100}"
    )
    assert machine.machine_name(tmp_path, "vm", "H100") == "gpu1"
    assert machine.machine_name(tmp_path, "vm", "") == "box1"
    assert machine.machine_name(tmp_path, "vm", "another") == "box1"


def test_the_cpu_is_recorded_with_its_model_numbers():
    name = machine.cpu_name()
    facts = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    assert name
    assert ("(family " in name) == ("cpu family" in facts)  # of x86
    assert name.partition(" (")[0] in facts or "model name" not in facts


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Return a function that puts an `nvidia-smi` with an output and a status first on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine.gpu_name.cache_clear()

    def install(output, status=0):
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\ncat <<END\n{output}END\nexit {status}\n")
        path.chmod(0o755)

    yield install
    machine.gpu_name.cache_clear()


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("2", [2]),
        ("2, 0", [2, 0]),
        ("GPU-bb", [2]),  # the beginning of a UUID
        ("GPU-bb33,1", [2, 1]),
        ("1,7,0", [1]),
        ("MIG-0f9e", [0]),
        ("MIG-GPU-bb33/1/0", [2]),
    ],
)
def test_the_gpus_are_those_that_cuda_would_use(driver, monkeypatch, visible, chosen):
    driver(FOUR)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    a100, h100 = ("NVIDIA A100-SXM4-40GB", 42.94967296), ("NVIDIA H100", 85.520809984)
    rows = [a100, a100, h100, ("NVIDIA GB10", 0.0)]
    assert machine.gpus() == [rows[index] for index in chosen]


def test_the_name_counts_equal_gpus(driver):
    driver(FOUR)
    assert machine.gpu_name() == "2 x NVIDIA A100-SXM4-40GB, NVIDIA H100, NVIDIA GB10"


def test_a_driver_that_fails_is_named_and_stops_no_run(driver):
    driver("Failed to initialize NVML\n", 255)
    assert machine.gpu_name() == ""
    with pytest.raises(OSError, match="nvidia-smi: Failed to initialize NVML"):
        machine.gpus()
