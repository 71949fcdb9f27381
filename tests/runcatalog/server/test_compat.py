"""What the server uses of MLflow's undocumented parts is still there and behaves as it is used."""

import inspect
from importlib import import_module

import mlflow
import pytest

pytest.importorskip("flask_wtf", reason="needs the extra [server]")

from runcatalog.server import compat

FILE = "src/runcatalog/server/compat.py"
NAMES = [
    ("mlflow.server.auth", "create_app", ("app",)),
    ("mlflow.server.auth", "store", None),
    ("mlflow.server.auth", "_is_disabled_legacy_admin_login", ("username", "password", "user")),
    ("mlflow.server.auth", "make_basic_auth_response", ()),
    ("mlflow.server.handlers", "_get_tracking_store", ()),
    ("mlflow.server", "app", None),
]


def moved(name: str) -> str:
    """The message of a failure."""
    return f"mlflow {mlflow.__version__} moved {name}, used by {FILE}"


@pytest.mark.parametrize(("module", "name", "arguments"), NAMES)
def test_name(module, name, arguments):
    try:
        member = getattr(import_module(module), name)
    except (ImportError, AttributeError):
        pytest.fail(moved(f"{module}.{name}"))
    if arguments is not None:
        known = tuple(inspect.signature(member).parameters)
        assert known[: len(arguments)] == arguments, moved(f"the arguments of {name}")


def test_a_user_has_the_hash_and_the_right_of_an_admin(tmp_path, monkeypatch):
    from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore
    from werkzeug.security import check_password_hash

    store = SqlAlchemyStore()
    store.init_db(f"sqlite:///{tmp_path}/users.db")
    store.create_user("ada", "a password of ada", is_admin=True)
    monkeypatch.setattr("mlflow.server.auth.store", store)
    user = compat.find_user("ada")
    assert (user.username, user.is_admin) == ("ada", True), moved("SqlAlchemyStore.get_user")
    assert check_password_hash(user.password_hash, "a password of ada"), moved("User.password_hash")
    assert compat.find_user("eve") is None
    assert not compat.is_disabled("ada", "a password of ada", user)


def test_the_routes_are_there():
    from mlflow.server import app

    for path in (compat.LOG_BATCH, compat.CREATE_EXPERIMENT):
        rules = [rule for rule in app.url_map.iter_rules() if rule.rule.endswith(path)]
        assert len(rules) == 2, moved(path)
        assert all("POST" in rule.methods for rule in rules)
    for path in compat.ADMIN_ONLY:
        assert any(rule.rule.endswith(path) for rule in app.url_map.iter_rules()), moved(path)


def test_the_admin_creates_experiments_alone_by_one_route():
    """Another route that creates experiments would need the same rule."""
    from mlflow.server import app

    creating = [
        rule.rule
        for rule in app.url_map.iter_rules()
        if rule.rule.rstrip("/").endswith("create") and "experiment" in rule.rule
    ]
    assert creating
    assert all(rule.endswith(compat.CREATE_EXPERIMENT) for rule in creating), creating


def test_the_assistant_is_closed():
    """It runs commands on the server's machine, for all whose requests come from there, as a proxy's do."""
    import asyncio

    from mlflow.server import app
    from mlflow.server.assistant.api import assistant_router
    from mlflow.server.fastapi_app import create_fastapi_app

    application, answers = create_fastapi_app(app), []
    compat.close_parts(application)

    async def send(message):
        answers.append(message.get("status"))

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http", "method": "GET", "path": f"{assistant_router.prefix}/config",
        "headers": [(b"host", b"127.0.0.1:5000")], "query_string": b"",
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "scheme": "http",
    }  # fmt: skip
    asyncio.run(application(scope, receive, send))
    assert answers[0] == 403, moved("the assistant's routes")
