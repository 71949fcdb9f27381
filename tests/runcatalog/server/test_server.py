"""A group's server as its users and its admin use it."""

import json
import os
import random
import re
import signal
import socket
import stat
import sys
import urllib.error
import urllib.request

import pytest

from runcatalog.record.journal.metrics import read_points
from runcatalog.server import postgresql
from runcatalog.server.processes import running

OPEN = ("/health", "/version", "/favicon.ico", "/static-files", "/server-info")


@pytest.fixture(scope="module")
def ada(group):
    """A user who may write to the experiments toy and ada."""
    return group.new_user("ada", "toy", "ada")


@pytest.fixture(scope="module")
def bob(group):
    """A user who may write to one experiment."""
    return group.new_user("bob", "bob")


def experiment(group, user, name):
    status, answer = group.ask(user, "GET", f"experiments/get-by-name?experiment_name={name}")
    assert status == 200
    return answer["experiment"]["experiment_id"]


def new_run(group, user, name):
    content = {"experiment_id": experiment(group, user, name), "start_time": 1}
    status, answer = group.ask(user, "POST", "runs/create", content)
    assert status == 200, answer
    return answer["run"]["info"]["run_id"]


def test_nothing_is_served_without_a_password(group):
    from mlflow.server import app, fastapi_app

    asked = 0
    for rule in app.url_map.iter_rules():
        path = re.sub("<[^>]*>", "1", rule.rule)
        if any(word in path for word in OPEN):
            continue
        for method in rule.methods & {"GET", "POST", "PUT", "PATCH", "DELETE"}:
            content = None if method == "GET" else {}
            status, _ = group.ask(None, method, path, content)
            assert status in (401, 403, 405), (method, path, status)
            asked += 1
    for route in fastapi_app.app.routes:
        path = re.sub("{[^}]*}", "1", getattr(route, "path", ""))
        for method in (getattr(route, "methods", None) or set()) - {"HEAD", "OPTIONS"}:
            if path and not any(word in path for word in OPEN):
                status, _ = group.ask(None, method, path, None if method == "GET" else {})
                assert status in (401, 403), (method, path, status)
                asked += 1
    assert asked > 200


def test_a_user_reads_all_and_writes_to_experiments_of_the_own(group, ada, bob):
    run, where = new_run(group, ada, "ada"), experiment(group, bob, "ada")
    point = {"key": "loss", "value": 1.5, "timestamp": 1, "step": 1}
    artifact = f"/api/2.0/mlflow-artifacts/artifacts/{where}/{run}/artifacts/x.txt"
    writes = [
        ("POST", "runs/create", {"experiment_id": where, "start_time": 1}),
        ("POST", "runs/log-batch", {"run_id": run, "metrics": [point]}),
        ("POST", "runs/log-metric", {"run_id": run, **point}),
        ("POST", "runs/set-tag", {"run_id": run, "key": "a", "value": "b"}),
        ("POST", "runs/update", {"run_id": run, "status": "FAILED"}),
        ("POST", "runs/delete", {"run_id": run}),
        (
            "POST",
            "experiments/set-experiment-tag",
            {"experiment_id": where, "key": "a", "value": "b"},
        ),
        ("POST", "experiments/delete", {"experiment_id": where}),
        ("POST", "experiments/create", {"name": "of bob's own"}),
        ("PUT", artifact, "text"),
        ("POST", "users/create", {"username": "eve", "password": "long enough a password"}),
        ("PATCH", "users/update-admin", {"username": "bob", "is_admin": True}),
    ]
    for method, route, content in writes:
        assert group.ask(bob, method, route, content)[0] == 403, route
    assert group.ask(ada, "POST", "runs/log-batch", {"run_id": run, "metrics": [point]})[0] == 200
    assert group.ask(ada, "PUT", artifact, "text")[0] == 200
    status, answer = group.ask(bob, "GET", f"runs/get?run_id={run}")
    assert (status, answer["run"]["data"]["metrics"]) == (200, [point])
    assert group.ask(bob, "GET", artifact) == (200, "text")
    assert group.catalog("user list").split("\n")[2].split("  ")[0] == "admin"


def test_a_users_runs_are_delivered_by_sync(group, ada):
    shell = group.project("arrive", ada)
    directory = group.record(shell, "first", steps=40)
    shell.inside("sync")
    query = (
        "SELECT m.timestamp, m.step, m.key, CASE WHEN m.is_nan THEN 'NaN' ELSE m.value END FROM metrics m "
        "JOIN tags t USING (run_uuid) WHERE t.key = 'run_id' AND t.value = %s"
    )
    run = json.loads((directory / "journal" / "run.json").read_text())["id"]
    stored = [(t, s, k, repr(float(v))) for t, s, k, v in group.rows(query, run)]
    points = read_points(directory / "journal" / "metrics.jsonl")
    assert sorted(stored) == sorted((p.time, p.step, p.name, repr(p.value)) for p in points)
    assert "no differences" in shell.inside("verify")


def test_a_run_that_was_sent_twice_stops_no_users_sync(group, ada, bob):
    shell = group.project("twice", ada)
    directory = group.record(shell, "first")
    shell.inside("sync")
    run = json.loads((directory / "journal" / "run.json").read_text())["id"]
    tag = {"run_id": new_run(group, ada, "toy"), "key": "run_id", "value": run}
    assert group.ask(ada, "POST", "runs/set-tag", tag)[0] == 200
    for user in (bob, ada, bob, ada):  # the first may not change it, no one may delete it
        group.project("others" if user is bob else "twice", user).inside("sync")
    group.record(shell, "second")
    shell.inside("sync")
    assert "no differences" in shell.inside("verify")
    query = "SELECT COUNT(*) FROM tags WHERE key = 'run_id' AND value = %s"
    assert group.rows(query, run) == [(1,)]


def test_a_wrong_password_is_refused_by_every_process_and_loses_nothing(group, ada):
    wrong = (ada[0], ada[1][:-1])
    for user, status in [(ada, 200), (wrong, 401), (("eve", ada[1]), 401)] * 6:
        assert group.ask(user, "POST", "experiments/search", {"max_results": 1})[0] == status
    shell = group.project("wrong", wrong)
    group.record(shell, "first")
    output = shell.inside("sync", code=1)
    assert "refuses the user or the password" in output
    assert "Traceback" not in output
    shell.env["MLFLOW_TRACKING_PASSWORD"] = ada[1]
    shell.inside("sync")
    assert "no differences" in shell.inside("verify")


def test_a_new_password_is_valid_at_once_in_every_process(group):
    first = group.new_user("carl")
    asked = "POST", "experiments/search", {"max_results": 1}
    for _ in range(6):
        assert group.ask(first, *asked)[0] == 200
    second = group.new_password("carl")
    for _ in range(6):
        assert group.ask(first, *asked)[0] == 401
        assert group.ask(second, *asked)[0] == 200
    group.catalog("user remove carl")
    for _ in range(6):
        assert group.ask(second, *asked)[0] == 401


def batches(seed):
    """Yield batches of points as clients send them, with repetitions and numbers that are none."""
    chance = random.Random(seed)
    values = [0, -1, 2.5, 1e300, "NaN", "Infinity", "-Infinity", -0.0, 5e-324]
    sent = []
    for _ in range(6):
        points = [
            {
                "key": chance.choice(["loss", "a/b c", "lr-1.x_y"]),
                "value": chance.choice(values),
                "timestamp": chance.randrange(3),
                "step": chance.randrange(-1, 2),
            }
            for _ in range(chance.randrange(1, 40))
        ]
        points += chance.sample(sent, min(len(sent), 5))
        sent += points
        yield points


@pytest.mark.parametrize("seed", range(4))
def test_points_are_stored_as_mlflow_stores_them(group, ada, seed):
    ours, mlflows = new_run(group, ada, "ada"), new_run(group, ada, "ada")
    for points in batches(seed):
        message = {"run_id": ours, "metrics": points}
        assert group.ask(ada, "POST", "runs/log-batch", message) == (200, {})
        message = {"run_id": mlflows, "metrics": points, "tags": [{"key": "k", "value": "v"}]}
        assert group.ask(ada, "POST", "runs/log-batch", message) == (200, {})
    for table in ("metrics", "latest_metrics"):
        query = (
            f"SELECT key, value::text, timestamp, step, is_nan FROM {table} WHERE run_uuid = %s "
            "ORDER BY 1, 2, 3, 4, 5"
        )
        assert group.rows(query, ours) == group.rows(query, mlflows)


def test_wrong_points_are_answered_by_mlflow(group, ada):
    run = new_run(group, ada, "ada")
    good = {"key": "loss", "value": 1.5, "timestamp": 1, "step": 1}
    for change in (
        {"key": "a\nb"}, {"key": "../x"}, {"key": "x" * 300}, {"timestamp": -1}, {"value": None},
        {"key": None},
    ):  # fmt: skip
        status, answer = group.ask(
            ada, "POST", "runs/log-batch", {"run_id": run, "metrics": [good, good | change]}
        )
        assert status == 400, change
        assert answer["error_code"] == "INVALID_PARAMETER_VALUE"
    many = [good | {"step": step} for step in range(1001)]
    assert group.ask(ada, "POST", "runs/log-batch", {"run_id": run, "metrics": many})[0] == 400
    # Of a run that is not there a user learns no more than of one that is another's.
    nowhere = {"run_id": "f" * 32, "metrics": [good]}
    assert group.ask(ada, "POST", "runs/log-batch", nowhere)[0] == 403
    assert group.rows("SELECT FROM metrics WHERE run_uuid = %s", run) == []
    group.ask(ada, "POST", "runs/log-batch", {"run_id": run, "metrics": [good]})
    admin = read_admin(group)
    assert group.ask(admin, "POST", "runs/delete", {"run_id": run})[0] == 200
    status, answer = group.ask(ada, "POST", "runs/log-batch", {"run_id": run, "metrics": [good]})
    assert status == 400
    assert "active" in answer["message"]


def read_admin(group):
    from runcatalog.server.folder import read_credentials

    return read_credentials(group.folder.credentials)


def test_secrets_are_private_and_readable_ones_are_refused(group):
    secrets = [group.folder.pgpass, group.folder.credentials, group.folder.session_key]
    secrets += list(group.root.glob("*.credentials"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    for path in secrets[:3]:
        path.chmod(0o640)
        output = group.catalog("start", code=1)
        assert f"chmod 600 {path}" in output
        assert output.count("\n") == 1
        path.chmod(0o600)


def test_a_backup_restores_everything_and_a_stop_loses_nothing(group, ada):
    shell = group.project("backup", ada)
    group.record(shell, "first")
    shell.inside("sync")
    older = group.root / "older.tar"
    group.catalog(f"backup {older}")
    assert stat.S_IMODE(older.stat().st_mode) == 0o600
    group.record(shell, "second", steps=50)
    shell.inside("sync")
    newer = group.root / "newer.tar"
    group.catalog(f"backup {newer}")
    damaged = group.root / "damaged.tar"
    whole = newer.read_bytes()
    for size in (len(whole) // 2, whole.rindex(b"artifacts/") // 512 * 512):
        damaged.write_bytes(whole[:size])
        output = group.catalog(f"restore {damaged}", code=1)
        assert "is no backup" in output
        assert output.count("\n") == 1
    before = sorted(p.relative_to(group.folder.path) for p in group.folder.artifacts.rglob("*"))
    group.new_user("late")
    group.catalog(f"restore {newer}")
    assert "no differences" in shell.inside("verify")
    after = sorted(p.relative_to(group.folder.path) for p in group.folder.artifacts.rglob("*"))
    assert after == before
    assert "late" not in group.catalog("user list")
    assert "exists" in group.catalog(f"backup {older}", code=1)
    assert "stopped" in group.catalog("stop")
    assert "did not run" in group.catalog("stop")
    assert "does not run" in group.catalog("status")
    assert "no server" in group.catalog("user list", code=1)
    group.catalog(f"restore {older}")
    assert "PostgreSQL does not run" in group.catalog("status")
    # Not a fork of a prepared process, which would outlive a kill unseen.
    line = f"-m runcatalog.cli.main server start --folder {group.folder.path}"
    assert group.uri in shell(f"{sys.executable} {line}")
    assert "runs already" in group.catalog(f"start --port {group.port}")
    assert group.uri in group.catalog("status")
    shell.inside("verify", code=1)
    assert "no differences" in shell.inside("verify --repair")


def test_a_database_that_is_in_use_is_not_restored_and_the_server_goes_on(group, ada):
    file = group.root / "in-use.tar"
    group.catalog(f"backup {file}")
    with postgresql.connect(group.folder):
        printed = group.catalog(f"restore {file}", code=1)
    assert "nothing is restored: another program uses the database" in printed
    assert "Traceback" not in printed
    assert experiment(group, ada, "toy")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("user add a:b", "no name of a user"),
        ("user add admin", "the server's own user"),
        ("user remove nobody", "no user 'nobody'"),
        ("start --host-name other.lab", "options count at a start"),
        ("restore /nowhere.tar", "there is no such file"),
        ("backup /nowhere/x.tar", "there is no folder /nowhere"),
        ("start --port 0", "between 1 and 65535"),
        ("start --workers 0", "between 1 and 64"),
        ("start --host-name a/b", "no name of a host"),
    ],
)
def test_bad_input_is_a_one_line_error(group, line, why):
    output = group.catalog(line, code=1)
    assert why in output
    assert output.count("\n") == 1


def test_only_a_new_right_names_experiments(group, bob):
    """`user remove bob toy` removed bob, not a right of bob's."""
    printed = group.catalog("user remove bob toy", code=2)
    assert "unrecognized arguments: toy" in printed
    assert "bob" in group.catalog("user list")


def test_a_proxys_name_is_let_in_and_no_other(group):
    def status(host):
        request = urllib.request.Request(f"{group.uri}/api/2.0/mlflow/users/current")
        request.add_header("Host", host)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=60)
        return caught.value.code

    assert status("mlflow.lab") == 401
    assert status("other.lab") == 403


def test_the_rest_of_a_killed_server_is_stopped(group):
    os.kill(running(group.folder), signal.SIGKILL)
    assert "stopped" in group.catalog("stop")
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", group.port))
