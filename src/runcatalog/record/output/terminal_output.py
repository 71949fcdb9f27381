"""Whether a terminal shows this process's output.

Guild reads a run's output from a pipe and passes it on, so the process that owns the terminal tells the processes
that it starts, by a variable in their environment.
"""

import os
import sys

VARIABLE = "RECORD_ON_TERMINAL"  # "1": a terminal shows the output; "0": a file or pipe has it
OF_CHILD = "child"  # value in the processes of child runs, whose progress is not shown


def is_shown() -> bool:
    """Return whether a terminal shows what this process prints."""
    if VARIABLE in os.environ:
        return os.environ[VARIABLE] == "1"
    try:
        return sys.stdout.isatty()
    except (AttributeError, ValueError):  # standard output is closed
        return False


def is_log() -> bool:
    """Return whether a file or pipe has what this process prints, and it is not a child of another run."""
    return not is_shown() and os.environ.get(VARIABLE) != OF_CHILD


def tell_children() -> None:
    """Tell the processes that this one starts, unless an outer process already did."""
    if os.environ.get(VARIABLE) != OF_CHILD:
        os.environ[VARIABLE] = str(int(is_shown()))
