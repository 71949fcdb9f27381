"""All undocumented parts of MLflow that the server uses.

As of MLflow 3.17.2. tests/runcatalog/server/test_compat.py names the part that an update of MLflow has moved; what the
server's points need of the tables is in `runcatalog.store.compat`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy
    from flask import Flask, Response
    from mlflow.server.auth.entities import User

# Ends of the paths of routes. As of MLflow 3.17.2.
LOG_BATCH = "/mlflow/runs/log-batch"
CREATE_EXPERIMENT = "/mlflow/experiments/create"
# MLflow opens these to every user; the last one creates an experiment with made-up runs.
ADMIN_ONLY = (
    "/mlflow/registered-models/create",
    "/mlflow/gateway/secrets/create",
    "/mlflow/gateway/endpoints/create",
    "/mlflow/gateway/model-definitions/create",
    "/mlflow/demo/generate",
)
# Of routes outside of Flask: the assistant runs commands on the server's machine for every user whose requests seem to
# come from there, as all do behind a reverse proxy that names no client; servers of tools are registered by every user.
_CLOSED = re.compile(r"/(?:ajax-)?api/[0-9.]+/mlflow/(?:assistant|mcp-servers)(?:/|\Z)")


def application() -> Flask:
    """Return MLflow's application without authentication."""
    from mlflow.server import app  # as of MLflow 3.17.2

    return app


def with_authentication(app: Flask) -> Any:
    """Return MLflow's application with its own authentication."""
    from mlflow.server.auth import create_app  # as of MLflow 3.17.2

    return create_app(app)


def close_parts(application: Any) -> None:
    """Refuse the parts of MLflow that no user of the server may use, the admin neither."""

    class Closed:
        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if not _CLOSED.match(scope.get("path", "")):
                await self._app(scope, receive, send)
                return
            headers = [(b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            text = b"Permission denied: the server has this part closed"
            await send({"type": "http.response.body", "body": text})

    application.add_middleware(Closed)


def find_user(name: str) -> User | None:
    """Return a user with the hash of the password and the right of an admin, from the database."""
    from mlflow.exceptions import MlflowException
    from mlflow.server.auth import store  # as of MLflow 3.17.2

    try:
        return store.get_user(name)
    except MlflowException:
        return None


def is_disabled(name: str, password: str, user: User) -> bool:
    """Return whether this is the admin's login with the password that earlier versions of MLflow shipped."""
    # mlflow.server.auth._is_disabled_legacy_admin_login, as of MLflow 3.17.2
    from mlflow.server.auth import _is_disabled_legacy_admin_login

    return bool(_is_disabled_legacy_admin_login(name, password, user))


def not_authenticated() -> Response:
    """Return MLflow's answer to a request without a valid password."""
    from mlflow.server.auth import make_basic_auth_response  # as of MLflow 3.17.2

    return make_basic_auth_response()


def tracking_engine() -> sqlalchemy.Engine:
    """Return the connections to MLflow's database of this process."""
    # mlflow.server.handlers._get_tracking_store, as of MLflow 3.17.2
    from mlflow.server.handlers import _get_tracking_store

    return _get_tracking_store().engine  # type: ignore[attr-defined]


def replace_view(app: Flask, path: str, make: Callable[[Callable[..., Any]], Any]) -> None:
    """Replace the function behind the routes whose path has an end; `make` gets the function of before."""
    for rule in app.url_map.iter_rules():
        if rule.rule.endswith(path):
            app.view_functions[rule.endpoint] = make(app.view_functions[rule.endpoint])
