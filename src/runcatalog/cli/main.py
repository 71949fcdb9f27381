"""The `catalog` command."""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Sequence

from runcatalog.cli import (
    completion,
    init,
    keep,
    page,
    read,
    rerun,
    server,
    site,
    ui,
    verify,
    workers,
)
from runcatalog.cli.common import Commands, Help
from runcatalog.record.errors import UserError

_DESCRIPTION = """\
Maintains the list of experiments: runs go from Guild to MLflow, from MLflow
to records, and from records to runs_catalog.md."""

_EPILOG = """\
to set up your own project, once (docs/your-project.md):
  catalog init                            settings, a template of the page
for every experiment:
  guild run hnppo:train task=lever -y     run an operation
  catalog watch                           its progress, live
  catalog sync                            all runs into MLflow
  catalog export                          records to commit: experiments/records/
  catalog render                          runs_catalog.md and its figures, from the records;
                                          runs without a record go into runs_local.md
  catalog site                            a site of all runs, opened from disk
  catalog check                           does the page agree with the records?
  catalog verify                          do journals, MLflow and records agree?
  catalog rerun 7623993d                  does a recorded run give the same again?
  catalog forget 7623993d --why TEXT      out of the tables, with the reason
in a clone without runs:
  catalog import                          the committed records into MLflow
on other machines (docs/cluster.md):
  catalog workers                         machines, hardware, health, what runs where
for a group (docs/server.md):
  catalog server start                    MLflow on PostgreSQL, with users
questions:
  catalog search 'lr>1e-3 and task=pull'  which runs?
  catalog best ppo:train                  which flags are best, over seeds?
  catalog diff 7623993d 5eb1f174          what differs between two runs or batches?

MLflow is $MLFLOW_TRACKING_URI, else mlflow.db in the project's folder.
`catalog COMMAND --help` has the options and examples of a command."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; a user's error prints a line and exits with 1, wrong arguments exit with 2."""
    # Characters that a terminal's encoding lacks must not stop a table
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    commands = parser()
    completion.complete(commands)
    options, unknown = commands.parse_known_args(arguments)
    if unknown:  # with the usage of the command, where argparse shows that of `catalog`
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    # Millions of objects live until the end; collecting more often wastes time
    gc.set_threshold(1_000_000)
    try:
        code = options.run(options)
        sys.stdout.flush()
    except UserError as error:
        print(f"catalog: {_line(str(error))}", file=sys.stderr)
        code = options.error_code
    except KeyboardInterrupt:
        print("catalog: stopped", file=sys.stderr)
        code = 130
    except BrokenPipeError:  # `catalog … | head`
        _drop_output()
        code = 128 + signal.SIGPIPE  # a status of its own: 1 says that no run matches
    except OSError as error:
        if not error.filename and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        if not error.filename:  # of what was being written, which may be the output
            _drop_output()
        where = f"{error.filename}: " if error.filename else ""
        print(f"catalog: {_line(f'{where}{error.strerror}')}", file=sys.stderr)
        code = options.error_code
    gc.freeze()  # at its end Python would look for cycles among all of them
    sys.exit(code)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="catalog", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=Help
    )
    commands = Commands(top)
    init.add(commands)
    keep.add(commands)
    page.add(commands)
    read.add(commands)
    rerun.add(commands)
    verify.add(commands)
    site.add(commands)
    ui.add(commands)
    workers.add(commands)
    server.add(commands)
    return top


def _drop_output() -> None:
    """Let Python's last flush of the output succeed."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _line(text: str) -> str:
    from runcatalog.record.untrusted import printable

    return " ".join(printable(text).split())


if __name__ == "__main__":
    main()
