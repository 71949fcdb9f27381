"""The `catalog` command."""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import sys
from collections.abc import Iterator, Sequence

from runcatalog.cli import init, keep, page, read, ui
from runcatalog.cli.common import Commands, Help
from runcatalog.model.errors import CatalogError

_DESCRIPTION = """\
Keeps the list of experiments: runs go from Guild to MLflow, from there to
records, and from these to runs_catalog.md."""

_EPILOG = """\
in a project of your own, once (docs/your-project.md):
  catalog init                            settings, a template of the page
the usual way:
  guild run hnppo:train task=lever -y     run something
  catalog watch                           how far it is, live
  catalog sync                            its row, and every other, into MLflow
  catalog export                          records to commit: experiments/records/
  catalog render                          runs_catalog.md and its figures, from the records;
                                          what is not exported is in runs_local.md
  catalog check                           does the file say what the records say?
in a clone without runs:
  catalog import                          the committed records into MLflow
questions:
  catalog search 'lr>1e-3 and task=pull'  which runs?
  catalog best ppo:train                  which flags are best, over seeds?
  catalog diff 7623993d latest            what differs between two runs or batches?

MLflow is $MLFLOW_TRACKING_URI, else mlflow.db in the project's folder.
`catalog COMMAND --help` has the options and examples of a command."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; an error of the user's is one line and exit 1, a wrong call exit 2."""
    for stream in (sys.stdout, sys.stderr):  # a terminal of few characters must not stop a table
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    options = parser().parse_args(arguments)
    gc.set_threshold(1_000_000)  # thousands of runs are millions of objects that live to the end
    try:
        with _one_line():
            code = options.run(options)
        sys.stdout.flush()
    except CatalogError as error:
        print(f"catalog: {_line(error)}", file=sys.stderr)
        code = options.error_code
    except KeyboardInterrupt:
        print("catalog: stopped", file=sys.stderr)
        code = 130
    except BrokenPipeError:  # `catalog … | head`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    made = argparse.ArgumentParser(
        prog="catalog", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=Help
    )
    commands = Commands(made)
    init.add(commands)
    keep.add(commands)
    page.add(commands)
    read.add(commands)
    ui.add(commands)
    return made


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """Makes record's errors the catalog's, without importing it for commands that do not need it."""
    try:
        yield
    except Exception as error:
        errors = sys.modules.get("runcatalog.record.errors")
        if errors is not None and isinstance(error, errors.UserError):
            raise CatalogError(str(error)) from error
        if isinstance(error, OSError) and error.filename and not isinstance(error, BrokenPipeError):
            raise CatalogError(f"{error.filename}: {error.strerror}") from error
        raise


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


if __name__ == "__main__":
    main()
