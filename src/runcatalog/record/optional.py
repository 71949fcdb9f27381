"""What a run can do without: a figure or a video that cannot be made is a remark, never the end of the run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runcatalog.record.run import Run


@contextlib.contextmanager
def optional(run: Run, what: str) -> Iterator[None]:
    """Turns an exception into an event of the run, `no WHAT: type: message`.

    Args:
        run: The run, which goes on.
        what: What is made inside, in a word or two.
    """
    try:
        yield
    except Exception as error:  # whatever matplotlib, ffmpeg or the renderer finds
        run.event(f"no {what}: {type(error).__name__}: {error}")
