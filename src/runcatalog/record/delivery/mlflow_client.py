"""MLflow's client with this project's settings: few messages, short timeouts, no telemetry."""

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
    """MLflow rejected a request or did not answer; the message is a line that names the server."""


def tracking_uri(given: str | None = None) -> str:
    """Return the tracking URI: ``given``, else $MLFLOW_TRACKING_URI, else SQLite in the project.

    A relative SQLite path is relative to the project's directory, not to a run's.
    """
    uri = given or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        uri = f"sqlite:///{project_root() / uri.removeprefix('sqlite:///')}"
    return uri


def shown(uri: str) -> str:
    """Return a tracking URI with its password hidden."""
    return re.sub(r"://([^/@:]*):[^/@]*@", r"://\1:***@", uri)


def connect(uri: str) -> MlflowClient:
    """Return a client; a new SQLite database appears under its name when it is complete.

    Raises:
        MlflowError: The server or database cannot be used.
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
            path = _sqlite_path(uri)
            if path is not None and not (path.exists() and path.stat().st_size):
                # MLflow makes its tables in many steps; a kill in between leaves a database that never opens.
                new = path.with_name(f"{path.name}.new")
                new.unlink(missing_ok=True)
                MlflowClient(f"sqlite:///{new}", registry_uri=f"sqlite:///{new}")
                new.replace(path)
            return MlflowClient(uri, registry_uri=uri)


def experiment_id(client: MlflowClient, uri: str, name: str) -> str:
    """Return the id of an experiment; create the experiment if it is missing."""
    from mlflow.exceptions import MlflowException

    with database_lock(uri):
        experiment = client.get_experiment_by_name(name)
        if experiment is not None and experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment.experiment_id)
        if experiment is not None:
            return experiment.experiment_id
        root = _artifact_root(uri)
        location = (root / name).as_uri() if root else None
        try:
            return client.create_experiment(name, artifact_location=location)
        except MlflowException:  # another process created it in between
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
            return experiment.experiment_id


@contextlib.contextmanager
def database_lock(uri: str) -> Iterator[None]:
    """Hold a lock, so that two processes do not create the same SQLite database at once."""
    path = _sqlite_path(uri)
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f"{path.name}.lock"), timeout=60):
        yield


@contextlib.contextmanager
def one_line_errors(uri: str) -> Iterator[None]:
    """Convert the exceptions of MLflow, its database and the network to MlflowError."""
    try:
        yield
    except UserError:
        raise
    except ModuleNotFoundError as error:
        raise MlflowError(f"MLflow cannot be used: {error}") from error
    except Exception as error:
        if getattr(error, "error_code", "") == "INVALID_PARAMETER_VALUE":
            # The run is invalid; MLflow itself works.
            message = shown(str(error).splitlines()[0])[:300]
            raise UserError(f"MLflow rejects it: {message}") from error
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
