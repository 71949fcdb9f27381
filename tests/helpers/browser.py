"""The browser of the tests: tools/screenshots.py, which finds Chromium and opens pages."""

import importlib.util
from pathlib import Path
from types import ModuleType


def _tool() -> ModuleType:
    path = Path(__file__).parents[2] / "tools/screenshots.py"
    spec = importlib.util.spec_from_file_location("screenshots", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = _tool()
BROWSER = TOOL.chromium()  # its path; None without one
