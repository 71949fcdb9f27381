"""MLflow's client, set up for this project: quiet, impatient, and without any traffic of its own."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runcatalog.record.errors import UserError
from runcatalog.record.journal import locked
from runcatalog.record.provenance.environment import project_root

if TYPE_CHECKING:
    from mlflow import MlflowClient

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # by default 7, with minutes of waiting in between
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # s; by default 120
    "GIT_PYTHON_REFRESH": "quiet",
}


class MlflowError(UserError):
    """MLflow did not take what it was sent; one line that names the server."""


def tracking_uri(given: str | None = None) -> str:
    """Returns where runs are sent: ``given``, else $MLFLOW_TRACKING_URI, else SQLite in the project.

    A relative SQLite path counts from the project's directory, not from a run's.
    """
    uri = given or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        uri = f"sqlite:///{project_root() / uri.removeprefix('sqlite:///')}"
    return uri


def shown(uri: str) -> str:
    """Returns a tracking URI without the password that it may hold."""
    return re.sub(r"://([^/@:]*):[^/@]*@", r"://\1:***@", uri)


def connect(uri: str) -> MlflowClient:
    """Returns a client; a new SQLite database is set up by one process at a time.

    Raises:
        MlflowError: No such server or database.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in ("alembic", "mlflow", "urllib3"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with one_line_errors(uri), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.ERROR)
        with database_lock(uri):
            return MlflowClient(uri, registry_uri=uri)


def experiment_id(client: MlflowClient, uri: str, name: str) -> str:
    """Returns the id of an experiment, which is made if it is missing."""
    from mlflow.exceptions import MlflowException

    with database_lock(uri):
        found = client.get_experiment_by_name(name)
        if found is not None and found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
        if found is not None:
            return found.experiment_id
        root = _artifact_root(uri)
        location = (root / name).as_uri() if root else None
        try:
            return client.create_experiment(name, artifact_location=location)
        except MlflowException:  # someone else made it in between
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
            return found.experiment_id


@contextlib.contextmanager
def database_lock(uri: str) -> Iterator[None]:
    """Keeps two processes from setting up the same new SQLite database at once."""
    path = _sqlite_path(uri)
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f"{path.name}.lock"), timeout=60):
        yield


@contextlib.contextmanager
def one_line_errors(uri: str) -> Iterator[None]:
    """Turns whatever MLflow, its database or the network raise into MlflowError."""
    try:
        yield
    except UserError:
        raise
    except ModuleNotFoundError as error:
        raise MlflowError(f"MLflow cannot be used: {error}") from error
    except Exception as error:
        if getattr(error, "error_code", "") == "INVALID_PARAMETER_VALUE":
            # The run is wrong, not MLflow.
            told = shown(str(error).splitlines()[0])[:300]
            raise UserError(f"MLflow refuses it: {told}") from error
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        text = f"{type(error).__name__}: {shown(first)[:300]}"
        raise MlflowError(f"MLflow at {shown(uri)} did not answer ({text})") from error


def _sqlite_path(uri: str) -> Path | None:
    if not uri.startswith("sqlite:///"):
        return None
    return Path(uri.removeprefix("sqlite:///").partition("?")[0])


def _artifact_root(uri: str) -> Path | None:
    path: Any = _sqlite_path(uri)
    return path.parent / "mlartifacts" if path else None
