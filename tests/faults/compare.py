"""Journals and MLflow's database, side by side, without a line of what wrote them.

Everything is read as it is stored: JSON lines, the tables of SQLite or PostgreSQL, the folders of artifacts.
"""

import contextlib
import json
import math
import sqlite3
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

GONE = "process gone"
MOST = 1.7976931348623157e308  # what MLflow's SQL store keeps of an infinity
SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
SHOWN = 3  # examples of points in a difference


def differences(runs, database, stored, names):
    """Return the differences between MLflow and the journals, one line per difference.

    Args:
        runs: Folder of run directories.
        database: Address of MLflow's database, on SQLite or PostgreSQL.
        stored: Folder of the artifacts of an MLflow server.
        names: Metrics of every update of a run that has finished.
    """
    stored_runs = _stored_runs(database)
    journals = [Journal(path) for path in sorted(runs.iterdir()) if (path / "journal").is_dir()]
    lines = []
    for journal in (journal for journal in journals if journal.started):
        same = [run for run in stored_runs if run["tags"].get("run_id") == journal.facts["id"]]
        if len(same) != 1 or same[0]["lifecycle_stage"] != "active":
            lines.append(f"{journal.name}: {len(same)} runs in MLflow")
            continue
        lines += [f"{journal.name}: {line}" for line in _run(journal, same[0], stored)]
        lines += [f"{journal.name}: {line}" for line in journal.gaps(names)]
    known = {journal.facts["id"] for journal in journals if journal.started}
    for run in stored_runs:
        tags = run["tags"]
        if tags.get("catalog.batch") == tags.get("run_id", ""):
            continue  # a batch, which has trials instead of a journal
        if run["lifecycle_stage"] == "active" and tags.get("run_id") not in known:
            lines.append(f"MLflow: run {run['run_uuid']} is of no journal")
    return lines


def count_points(runs):
    """Return how many points all journals hold together."""
    return sum(sum(Journal(path).points().values()) for path in runs.iterdir())


class Journal:
    """A run's directory, read as its documentation says."""

    def __init__(self, path):
        self.path, self.name = path, path.name
        self.facts = _json(path / "journal" / "run.json")
        self.sessions = _lines(path / "journal" / "sessions.jsonl")
        self.started = bool(self.facts and self.sessions)
        result = _json(path / "result.json")
        current = self.started and result and result["session"] == self.sessions[-1]["session"]
        self.result = result if current else None

    def points(self):
        """Return a count of the points (name, step, time, value)."""
        return Counter(
            (name, line["step"], line["t"], _number(value))
            for line in _lines(self.path / "journal" / "metrics.jsonl")
            for name, value in line["m"].items()
        )

    def gaps(self, names):
        """Return the missing and duplicated points of a finished run."""
        if not self.result or self.result["status"] != "FINISHED":
            return []
        points = Counter((name, step) for name, step, _, _ in self.points().elements())
        steps = self.facts["flags"]["updates"]
        expected = Counter((name, step) for name in names for step in range(1, steps + 1))
        expected["objective", steps] += 1
        lines = _unequal_counts("points of the training", "in the journal", expected, points)
        if self.result["resume_mismatch"]:
            lines.append(f"{self.result['resume_mismatch']} points differ after a restart")
        return lines

    def output(self):
        """Return what the run has printed, which Guild keeps where it started the run."""
        places = (self.path / "journal" / "output.txt", self.path / ".guild" / "output")
        return next(place.read_bytes() for place in places if place.exists())

    def files(self):
        """Return the contents of the artifacts by name."""
        paths = {p.relative_to(self.path / "artifacts"): p for p in _files(self.path / "artifacts")}
        if (self.path / "result.json").exists():
            paths[Path("result.json")] = self.path / "result.json"
        return {name.as_posix(): path.read_bytes() for name, path in paths.items()}


def _run(journal, run, stored):
    facts, result = journal.facts, journal.result
    # Tags that only programs read have names that MLflow's pages do not show.
    tags = {name.removeprefix("mlflow.catalog."): value for name, value in run["tags"].items()}
    lines = _unequal_counts("points of the journal", "in MLflow", journal.points(), run["points"])
    params = {name: _param(value) for name, value in facts["flags"].items()}
    if run["params"] != params:
        lines.append(f"params are {run['params']}, the flags {params}")
    names = ("operation", "study", "machine", "host", "seed", "command", "started")
    moved = journal.sessions[-1].get("moved") or {}  # to another machine than that of run.json
    expected = {name: str(moved.get(name, facts[name])) for name in names}
    digest = (result or {}).get("digest", {})
    expected["digest_metrics"] = digest.get("metrics", "")
    expected["digest_weights"] = digest.get("weights", "")
    lines += [
        f"tag {name} is {tags.get(name)!r}, not {value!r}"
        for name, value in expected.items()
        if tags.get(name) != value
    ]
    status, reason, ended = "KILLED", GONE, None
    if result:
        status, reason, ended = result["status"], result["reason"], result["ended"]
    if run["status"] != status:
        lines.append(f"status is {run['status']}, not {status}")
    if not tags.get("reason", "?").startswith(reason) or (status == "FINISHED" and tags["reason"]):
        lines.append(f"reason is {tags.get('reason')!r}, not {reason!r}")
    if run["start_time"] != facts["started"] or (ended and run["end_time"] != ended):
        lines.append(f"it lasts from {run['start_time']} to {run['end_time']}")
    folder = _folder(run["artifact_uri"], stored)
    kept = {p.relative_to(folder).as_posix(): p.read_bytes() for p in _files(folder)}
    # Of a run that was killed, perhaps before it was continued.
    tail = kept.pop("log_tail.txt", b"")
    if tail and not set(tail.splitlines()) <= set(journal.output().splitlines()):
        lines.append("artifact log_tail.txt has other lines than the output")
    for name, content in journal.files().items():
        if kept.pop(name, None) != content:
            lines.append(f"artifact {name} is missing or differs")
    return lines + [f"artifact {name} is of no journal" for name in kept]


def _folder(address, stored):
    """Return the folder of a run's artifacts."""
    kind, _, path = address.partition(":/")
    if kind == "mlflow-artifacts":
        return stored / path.lstrip("/")
    return Path(unquote(address.removeprefix("file://")))


def _stored_runs(database):
    """Return every run of the database: the columns of its row, tags, params and points."""
    with contextlib.closing(_connect(database)) as connection:
        runs = {row["run_uuid"]: row for row in _rows(connection, "runs")}
        for run in runs.values():
            run |= {"tags": {}, "params": {}, "points": Counter()}
        for table in ("tags", "params"):
            for row in _rows(connection, table):
                runs[row["run_uuid"]][table][row["key"]] = row["value"]
        for row in _rows(connection, "metrics"):
            value = "NaN" if row["is_nan"] else row["value"] + 0.0
            point = row["key"], row["step"], row["timestamp"], value
            runs[row["run_uuid"]]["points"][point] += 1
    return list(runs.values())


def _connect(database):
    if database.startswith("sqlite:///"):
        return sqlite3.connect(f"file:{database.removeprefix('sqlite:///')}?mode=ro", uri=True)
    import psycopg

    return psycopg.connect(database)


def _rows(connection, table):
    cursor = connection.cursor()
    cursor.execute(f"SELECT * FROM {table}")
    names = [column[0] for column in cursor.description]
    for row in cursor:
        yield dict(zip(names, row, strict=True))


def _unequal_counts(what, where, left, right):
    lines = []
    for kind, counter in (("missing", left - right), ("too many", right - left)):
        if counter:
            shown = ", ".join(map(str, list(counter)[:SHOWN]))
            lines.append(f"{sum(counter.values())} {what} {kind} {where}: {shown}")
    return lines


def _number(value):
    """A value as MLflow keeps it."""
    number = SPECIAL[value] if isinstance(value, str) else float(value)
    if number != number:
        return "NaN"
    return max(-MOST, min(MOST, number)) + 0.0  # 0.0 for -0.0, which SQLite does not keep


def _param(value):
    return repr(value) if isinstance(value, float) else str(value)


def _files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def _json(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _lines(path):
    """Return the complete lines of a JSON lines file."""
    try:
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    except OSError:
        return []
