"""MLflow's application as the group's server runs it, in each of its processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from runcatalog.record.journal.files import locked
from runcatalog.server import compat, points

LOCK = "CATALOG_SERVER_LOCK"  # environment variable: a file


def create_app() -> Any:
    """Return the application, with MLflow's authentication and this library's storing of points."""
    app = compat.application()
    # The first process makes the tables of users and the admin; MLflow would let all of them try.
    with locked(Path(os.environ[LOCK])):
        application = compat.with_authentication(app)
    compat.close_parts(application)
    compat.replace_view(app, compat.LOG_BATCH, points.log_batch)
    return application
