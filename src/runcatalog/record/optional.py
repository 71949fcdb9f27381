"""Optional outputs such as figures and videos, whose errors do not end the run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runcatalog.record.run import Run


@contextlib.contextmanager
def optional(run: Run, output: str) -> Iterator[None]:
    """Turn an exception into an event of the run, `no OUTPUT: type: message`.

    Args:
        run: The run, which continues.
        output: Short name of the output.
    """
    try:
        yield
    except Exception as error:  # matplotlib, ffmpeg and renderers raise all kinds
        run.event(f"no {output}: {type(error).__name__}: {error}")
