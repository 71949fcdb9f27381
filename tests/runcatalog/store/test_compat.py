"""What the library uses of MLflow's undocumented parts is still there and behaves as it is used."""

import ast
import inspect
import math
import sqlite3
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

import runcatalog
from runcatalog.server import compat as server_compat
from runcatalog.store import compat

FILE = "src/runcatalog/store/compat.py"
# (module, name, how it is called)
NAMES = [
    ("mlflow.store.tracking.sqlalchemy_store", "SqlAlchemyStore", ()),
    ("mlflow.store.tracking.dbmodels.models", "SqlMetric", ()),
    ("mlflow.utils.validation", "_validate_batch_log_limits", ("metrics", "params", "tags")),
    ("mlflow.utils.validation", "_validate_batch_log_data", ("metrics", "params", "tags")),
    ("mlflow.utils.validation", "_validate_param", ("key", "value")),
    ("mlflow.utils.validation", "_validate_metric", ("key", "value", "timestamp", "step")),
    ("mlflow.utils.name_utils", "_generate_random_name", ()),
    ("mlflow.store.artifact.artifact_repository_registry", "get_artifact_repository", ("uri",)),
]


def moved(name: str) -> str:
    """The message of a failure."""
    return f"mlflow {mlflow.__version__} moved {name}, used by {FILE}"


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> MlflowClient:
    uri = f"sqlite:///{tmp_path_factory.mktemp('compat')}/mlflow.db"
    client = MlflowClient(uri, registry_uri=uri)
    client.search_experiments()
    return client


@pytest.fixture(scope="module")
def database(client) -> sqlite3.Connection:
    return sqlite3.connect(client.tracking_uri.removeprefix("sqlite:///"))


@pytest.mark.parametrize(("module", "name", "arguments"), NAMES)
def test_name(module, name, arguments):
    try:
        member = getattr(import_module(module), name)
    except (ImportError, AttributeError):
        pytest.fail(moved(f"{module}.{name}"))
    if arguments:
        arguments_by_name = dict(zip(arguments, arguments, strict=True))
        name_of_first = next(iter(inspect.signature(member).parameters))
        try:
            inspect.signature(member).bind(*arguments_by_name.values())
        except TypeError:
            pytest.fail(moved(f"the arguments of {module}.{name} (first: {name_of_first})"))


@pytest.mark.parametrize("table", compat.WRITTEN_COLUMNS)
def test_columns_that_are_written_are_all(database, table):
    columns = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
    assert columns == set(compat.WRITTEN_COLUMNS[table]), moved(f"columns of the table {table}")


@pytest.mark.parametrize("table", compat.READ_COLUMNS)
def test_columns_that_are_read_are_there(database, table):
    columns = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
    assert columns >= compat.READ_COLUMNS[table], moved(f"columns of the table {table}")


def test_points_are_read_from_the_database(client):
    run = client.create_run("0").info.run_id
    client.log_batch(run, [Metric("loss", 0.5, 7, 1), Metric("loss", math.nan, 8, 2)])
    rows = compat.points(client, [run])
    assert rows is not None, moved("_tracking_client.store")
    points = sorted((key, time, step, value, bool(nan)) for _, key, time, step, value, nan in rows)
    expected = [("loss", 7, 1, 0.5, False), ("loss", 8, 2, 0.0, True)]
    assert points == expected, moved("SqlMetric or ManagedSessionMaker")
    assert compat.points(MlflowClient("http://127.0.0.1:9"), [run]) is None, moved("store")


def test_an_infinity_becomes_the_largest_value(client, database):
    run = client.create_run("0").info.run_id
    client.log_metric(run, "high", math.inf)
    client.log_metric(run, "low", -math.inf)
    query = "SELECT value FROM metrics WHERE run_uuid = ? ORDER BY key"
    stored = [row[0] for row in database.execute(query, (run,))]
    assert stored == [compat.LARGEST, -compat.LARGEST], moved("the value stored for an infinity")


def test_validation_refuses_what_the_client_refuses(client):
    run = client.create_run("0").info.run_id
    for metric in [Metric("../x", 1.0, 1, 1), Metric("x", 1.0, -1, 1)]:
        with pytest.raises(MlflowException):
            client.log_batch(run, [metric])
        with pytest.raises(MlflowException):
            compat.checked_batch([metric], [], [])
        with pytest.raises(MlflowException):
            compat.check_metrics([metric.key], metric.timestamp)
    for params in ({"../x": "1"}, {"a|b": ""}):
        with pytest.raises(MlflowException):
            compat.checked_params(params)
    with pytest.raises(MlflowException):
        compat.checked_batch([Metric("x", 1.0, 1, 1)] * 1001, [], [])
    good = [Metric("x", 1.0, 1, 1)], [Param("lr", "0.1")], [RunTag("label", "a")]
    assert compat.checked_batch(*good) == good, moved("_validate_batch_log_data")
    many = {f"flag {number}": "1" for number in range(150)}
    assert compat.checked_params(many) == many, moved("_validate_param")


def test_artifacts_are_written_where_the_client_lists_them(client, tmp_path):
    run = client.create_run("0")
    (tmp_path / "a.txt").write_text("a")
    compat.artifact_repository(run.info.artifact_uri).log_artifact(str(tmp_path / "a.txt"))
    listed = [file.path for file in client.list_artifacts(run.info.run_id)]
    assert listed == ["a.txt"], moved("get_artifact_repository")


@pytest.mark.parametrize("tag", [compat.SHARED_VIEW, compat.EXPERIMENT_KIND])
def test_mlflows_page_reads_the_tag(tag):
    page = Path(mlflow.__file__).parent / "server" / "js" / "build"
    # The bundle puts some tags together from their parts.
    word = tag.removeprefix("mlflow.").rstrip(".").encode()
    scripts = page.rglob("*.js")
    assert any(word in script.read_bytes() for script in scripts), moved(f"the page's tag {tag}")


def test_no_other_file_uses_such_a_part():
    root = Path(runcatalog.__file__).parent
    documented = {"mlflow", "mlflow.entities", "mlflow.exceptions"}
    for path in root.rglob("*.py"):
        if path in {Path(compat.__file__), Path(server_compat.__file__)}:
            continue
        text = path.read_text(encoding="utf-8")
        assert "_tracking_client" not in text, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mlflow"):
                assert node.module in documented, f"{path}: from {node.module} import …"
                assert not any(name.name.startswith("_") for name in node.names), path
            if isinstance(node, ast.Import):
                names = {name.name for name in node.names if name.name.startswith("mlflow")}
                assert names <= documented, path


def test_mlflow_is_imported_on_demand():
    code = "import sys; from runcatalog.store import client, compat; assert 'mlflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
