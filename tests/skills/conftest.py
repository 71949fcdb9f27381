"""Fixtures of the study's tests."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

RUN_VARIABLES = ("RUN_ID", "GUILD_OP", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "RECORD")


def run_script(folder: Path, script: ModuleType, **flags: Any) -> dict[str, Any]:
    """Run a script's `main` in this process, in a run directory, and return its result.json."""
    with pytest.MonkeyPatch.context() as patch:
        for name in RUN_VARIABLES:
            patch.delenv(name, raising=False)
        patch.setenv("RUN_DIR", str(folder))
        patch.setenv("RECORD_MLFLOW", "off")
        script.main(script.Config(**flags))
    return json.loads((folder / "result.json").read_text())


@pytest.fixture(scope="session")
def run_main() -> Callable[..., dict[str, Any]]:
    """`run_script`, for tests and their fixtures."""
    return run_script


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """Torch with one thread, as in the scripts: more slow down products this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
