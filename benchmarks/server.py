"""Points a second into the group's server, and seconds of a request of its pages.

Three servers on one PostgreSQL, measured in turn: the group's server with users and passwords, MLflow with its own
authentication, and MLflow without any. Clients are processes that publish the journal of a run each, over HTTP on the
loopback interface; what counts is the time from a common start to the end of the last one.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from pathlib import Path

# The project's root instead of this folder, whose scripts are called as the packages are.
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from benchmarks import _report  # noqa: E402

from runcatalog import record  # noqa: E402
from runcatalog.record.delivery import mlflow_client  # noqa: E402
from runcatalog.server import postgresql, processes  # noqa: E402
from runcatalog.server.folder import Folder, read_credentials  # noqa: E402

METRICS = 10  # of a run
GOALS = {1: 5_000.0, 4: 10_000.0}  # clients: points a second
REQUESTS = 20  # of a page
EXPERIMENT = "bench"
OURS, STOCK, NONE = "group's server", "MLflow with basic auth", "MLflow without passwords"
FIRST_PORT = 5090


def record_run(directory: Path, steps: int) -> None:
    """Record a run that nothing has been sent of."""
    variables = {"RUN_DIR": str(directory), "RECORD_MLFLOW": "off"}
    os.environ |= variables | {"PROJECT_DIR": str(directory.parent)}
    with (
        contextlib.redirect_stdout(None),
        record.start(record.Config(), study=EXPERIMENT) as run,
    ):
        for step in range(1, steps + 1):
            run.log({f"metric/{i}": step / (i + 1.7) for i in range(METRICS)}, step)
        run.finish({"env_steps": steps})


def client(uri: str, directory: str) -> None:
    """Publish a run when a line comes; prints a line before and after."""
    from runcatalog.record.delivery.publish import publish

    connected = mlflow_client.connect(uri)
    mlflow_client.experiment_id(connected, uri, EXPERIMENT)
    print("ready", flush=True)
    sys.stdin.readline()
    print(publish(directory, uri, client=connected).points, flush=True)


def points_a_second(uri: str, user: tuple[str, str], clients: int, steps: int) -> float:
    """Return the points a second that clients publish together."""
    own = {"MLFLOW_TRACKING_USERNAME": user[0], "MLFLOW_TRACKING_PASSWORD": user[1]}
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for number in range(clients):
            directory = Path(folder) / f"run{number}"
            record_run(directory, steps)
            command = [sys.executable, __file__, "--client", uri, str(directory)]
            started.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                    env=os.environ | own | {"PROJECT_DIR": folder},
                )
            )  # fmt: skip
        for each in started:
            assert each.stdout.readline() == "ready\n"
        begin = time.perf_counter()
        for each in started:
            each.stdin.write("\n")
            each.stdin.flush()
        points = [int(each.stdout.readline()) for each in started]
        seconds = time.perf_counter() - begin
        for each in started:
            each.stdin.close()
            each.wait(60)
    if points != [steps * METRICS] * clients:
        raise RuntimeError(f"{points} points were sent, not {steps * METRICS} by each client")
    return sum(points) / seconds


def seconds_of_a_page(uri: str, user: tuple[str, str]) -> float:
    """Return the mean seconds of the request with which MLflow's pages list the experiments."""
    request = urllib.request.Request(
        f"{uri}/ajax-api/2.0/mlflow/experiments/search",
        json.dumps({"max_results": 25}).encode(),
        {
            "Content-Type": "application/json",
            "Authorization": f"Basic {b64encode(':'.join(user).encode()).decode()}",
        },
    )
    begin = time.perf_counter()
    for _ in range(REQUESTS):
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
    return (time.perf_counter() - begin) / REQUESTS


@contextlib.contextmanager
def servers() -> Iterator[tuple[dict[str, str], tuple[str, str]]]:
    """Start the three servers; returns their addresses, and the admin of those that have users."""
    # Not in the user's own temporary folder, which the account of PostgreSQL may not be able to enter.
    with tempfile.TemporaryDirectory(
        prefix="server-", dir="/tmp", ignore_cleanup_errors=True
    ) as root:
        os.chmod(root, 0o711)
        folder = Folder(Path(root) / "server")
        peers = []
        try:
            settings = dataclasses.replace(folder.settings(), port=FIRST_PORT)
            processes.start(folder, settings)
            uris = {OURS: processes.address(settings)}
            for number, name in enumerate((STOCK, NONE), 1):
                peer = dataclasses.replace(settings, port=FIRST_PORT + number)
                peers.append(_start_peer(folder, peer, passwords=name == STOCK))
                uris[name] = processes.address(peer)
                while not processes.answers(peer):
                    if peers[-1].poll() is not None:
                        raise RuntimeError(f"{name} did not start")
                    time.sleep(0.2)
            yield uris, read_credentials(folder.credentials)
        finally:
            for process in peers:
                process.terminate()
                process.wait(60)
            processes.stop(folder)


def _start_peer(
    folder: Folder, settings: processes.Settings, *, passwords: bool
) -> subprocess.Popen:
    """Start MLflow as its documentation has it, on a database of its own in the same PostgreSQL."""
    database = f"peer_{settings.port}"
    with postgresql.connect(folder, "postgres") as connection:
        connection.execute(f"CREATE DATABASE {database}")
    url = postgresql.url(folder, database)
    command = [sys.executable, "-m", "mlflow", "server", "--host", processes.HOST]
    command += ["--port", str(settings.port), "--workers", str(settings.workers)]
    command += [
        "--backend-store-uri",
        url,
        "--uvicorn-opts",
        "--log-level warning --timeout-worker-healthcheck 120",
    ]
    command += ["--artifacts-destination", str(folder.path.parent / database)]
    environment = processes.environment(folder)
    if passwords:
        command += ["--app-name", "basic-auth"]
        config = folder.path.parent / "auth.ini"
        escaped = url.replace("%", "%%")
        config.write_text(f"[mlflow]\ndefault_permission = READ\ndatabase_uri = {escaped}\n")
        environment |= {"MLFLOW_AUTH_CONFIG_PATH": str(config)}
    with (folder.path.parent / f"{database}.log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder.path)


def main() -> None:
    """Measure, print the rows and write results/server.json."""
    parser = _report.parser(__doc__)
    parser.add_argument("--steps", type=int, default=1000, help=f"of a run, {METRICS} points each")
    arguments = parser.parse_args()
    rows = []
    with servers() as (uris, admin):
        for name in uris:  # the first request of each process loads what it needs
            points_a_second(uris[name], admin, 4, 10)
        for clients, goal in GOALS.items():
            measures = {
                name: partial(points_a_second, uri, admin, clients, arguments.steps)
                for name, uri in uris.items()
            }
            values = _report.alternate(measures, arguments.repeats)
            what = (
                f"publish a run of {arguments.steps * METRICS:,} points over HTTP, {clients} client"
            )
            what += "s at once, a run each" if clients > 1 else ""
            for peer in (STOCK, NONE):
                options = {"peer_name": peer, "unit": "points/s", "target": None}
                rows.append(_report.row(what, values[OURS], values[peer], **options))
            goals = [goal] * len(values[OURS])
            options = {"peer_name": "the goal", "unit": "points/s", "target": 1.0}
            rows.append(_report.row(what, values[OURS], goals, **options))
        measures = {name: partial(seconds_of_a_page, uri, admin) for name, uri in uris.items()}
        values = _report.alternate(measures, arguments.repeats)
        for peer in (STOCK, NONE):
            options = {"peer_name": peer, "unit": "s", "target": None, "target_is": "at most"}
            rows.append(
                _report.row("list of experiments for a page", values[OURS], values[peer], **options)
            )
    _report.report("server", rows, dry_run=arguments.dry_run)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        client(*sys.argv[2:])
    else:
        main()
