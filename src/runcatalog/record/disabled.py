"""A run that records nothing: the other side of a measurement of what recording costs."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runcatalog.record.config import Config
from runcatalog.record.lifecycle import signals
from runcatalog.record.run import Run
from runcatalog.record.seeds import Seeds


class OffRun(Run):
    """The run of ``RECORD=off``: its directory is a temporary one, and everything else does nothing."""

    def __init__(self, config: Config, study: str) -> None:
        self.config, self.study, self.seeds = config, study, Seeds(config.seed)
        self.id, self.resumed, self._weights = uuid.uuid4().hex, False, ""

    def __enter__(self) -> OffRun:
        self._scratch = tempfile.TemporaryDirectory(prefix="run-")
        self.directory = Path(self._scratch.name)
        return self

    def __exit__(self, *error: object) -> None:
        self._scratch.cleanup()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Does nothing."""

    def progress(self, done: float, total: float, unit: str) -> None:
        """Does nothing."""

    def event(self, text: str) -> None:
        """Prints the remark."""
        print(text, flush=True)

    def checkpoint(self, step: int, tensors: Any, state: Any, keep: int | None = 3) -> Path:
        """Does nothing."""
        return self.directory

    def add_parent(self, run_id: str) -> None:
        """Does nothing."""

    def finish(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the result as it is."""
        return {"status": signals.FINISHED, "reason": "", "result": dict(result)}
