"""Secrets of a run's shell stay hidden, whichever process sends the run, and however often."""

import json
import re
import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcatalog.record.provenance.redact import HIDDEN, is_hidden, still_hidden

PASSWORD = "correct-horse-battery"
LEAK = '''"""Records, or does not, and names its password wherever it can."""

import argparse
import os
import sys
from dataclasses import dataclass

from runcatalog import record


@dataclass(frozen=True)
class Config(record.Config):
    note: str = record.option("", "a remark")
    fail: bool = record.option(False, "whether it fails")
    silent: bool = record.option(False, "whether it records nothing")


def main(config: Config) -> dict:
    secret = os.environ.get("DB_PASSWORD", "")
    if config.silent:
        sys.exit(f"cannot log in with {secret}")
    with record.start(config, study="toy") as run:
        run.log({"rate": 0.5}, step=1)
        run.event(f"logging in with {secret}")
        run.artifact("login.txt").write_text(f"user: me\\nword: {secret}\\n")
        run.log({f"rate of {secret}": 1.0}, step=1)
        run.artifact(f"as-{secret}.txt").write_bytes(f"caf\\xe9 {secret}\\n".encode("latin-1"))
        if config.fail:
            raise SystemExit(f"401 for {secret}")
        objective = {"name": "rate", "value": 0.5, "kind": "mean", "goal": "max", "at": 1}
        return run.finish({"objective": objective, "summary": f"as {secret}", "variant": {"w": secret}})


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
'''


@pytest.fixture
def leaky(shell):
    """The toy project with an operation that leaks; its runs are typed in a shell with a password."""
    (shell.root / "src/toy/leak.py").write_text(LEAK)
    with (shell.root / "experiments/toy/guild.yml").open("a") as file:
        file.write("    leak: {main: src/toy.leak, flags-import: all}\n")

    def run(line, **env):
        label = f"--label 'try {PASSWORD}'"
        return shell(
            f"guild run toy:leak {line} {label} -y", code=None, DB_PASSWORD=PASSWORD, **env
        )

    shell.leak = run
    return shell


def tags(shell):
    """All tags and params in MLflow, by name."""
    with closing(sqlite3.connect(shell.root / "mlflow.db")) as database:
        return database.execute(
            "SELECT key, value FROM tags UNION ALL SELECT key, value FROM params"
        ).fetchall()


def published(shell):
    """Texts of every file that is published, by path: records, pages, artifacts, MLflow's database."""
    paths = [*shell.root.rglob("*.md"), *shell.root.rglob("*.json"), shell.root / "mlflow.db"]
    paths += (shell.root / "mlartifacts").rglob("*")
    return {path: path.read_bytes().decode("utf-8", "replace") for path in paths if path.is_file()}


def send_from_another_shell(shell):
    shell.inside("sync")
    shell.inside("export")
    shell.inside("render")


@pytest.mark.parametrize("sender", ["on", "off"])
def test_a_later_sync_from_another_shell_shows_nothing(leaky, sender):
    output = leaky.leak(f"note='my {PASSWORD}'", RECORD_MLFLOW=sender)
    output += leaky.leak("fail=yes", RECORD_MLFLOW=sender)
    output += leaky.leak("silent=yes", RECORD_MLFLOW=sender)
    assert "401 for" in output
    if sender == "on":
        leaky("python -m runcatalog.cli.main sync", DB_PASSWORD=PASSWORD)
    assert "DB_PASSWORD" not in leaky.env
    for _ in range(2):
        send_from_another_shell(leaky)
    hidden = {}
    for name, value in tags(leaky):
        hidden.setdefault(name, set()).add(value)
    assert hidden["label"] == hidden["mlflow.runName"] == {f"try {HIDDEN}"}
    assert f"my {HIDDEN}" in hidden["note"]
    assert any(f"401 for {HIDDEN}" in stored for stored in hidden["reason"])
    assert any(f"cannot log in with {HIDDEN}" in stored for stored in hidden["reason"])
    (result,) = (
        json.loads(stored) for stored in hidden["mlflow.catalog.result"] if stored.startswith("{")
    )
    assert result["summary"] == f"as {HIDDEN}"
    assert any(HIDDEN in stored for stored in hidden["command"])
    files = published(leaky)
    assert {"log_tail.txt", "login.txt", "result.json"} <= {path.name for path in files}
    assert {"as-hidden.txt"} <= {path.name for path in files}
    for path, text in files.items():
        assert PASSWORD not in f"{path} {text}"
    assert any("rate of hidden" in text for text in files.values())


def test_what_was_published_before_runs_hid_their_secrets_stays_hidden(leaky):
    """A run of an earlier version has its secrets in its directory; MLflow holds them hidden."""
    leaky.leak("", RECORD_MLFLOW="off")
    (run,) = (leaky.root.parent / "guild/runs").iterdir()
    for path in (run / ".guild/attrs/label", run / "result.json"):
        path.write_text(path.read_text().replace(HIDDEN, PASSWORD))
    facts = json.loads((run / "journal/run.json").read_text())
    facts["command"] += f" --note {PASSWORD}"
    facts["flags"]["note"] = PASSWORD
    (run / "journal/run.json").write_text(json.dumps(facts))
    leaky("python -m runcatalog.cli.main sync", DB_PASSWORD=PASSWORD)
    before = tags(leaky)
    assert PASSWORD not in str(before)
    (run / "journal/mlflow.json").unlink()
    assert leaky.inside("sync").endswith(" 0 sent\n")
    # Another tag, and the run would be sent once more.
    with closing(sqlite3.connect(leaky.root / "mlflow.db")) as database, database:
        database.execute("UPDATE tags SET value = '' WHERE key = 'mlflow.catalog.stamp'")
    leaky.inside("sync")
    after = [tag for tag in tags(leaky) if tag[0] != "mlflow.catalog.stamp"]
    assert sorted(after) == sorted(tag for tag in before if tag[0] != "mlflow.catalog.stamp")


def test_a_run_with_a_hidden_flag_goes_on(leaky):
    leaky.leak(f"note='my {PASSWORD}' fail=yes", RECORD_MLFLOW="off")
    (run,) = (leaky.root.parent / "guild/runs").iterdir()
    assert (run / ".guild/attrs/env").stat().st_mode & 0o777 == 0o600
    output = leaky(f"guild run --restart {run.name} note=other -y", code=None)
    assert "was started with" in output
    output = leaky(f"guild run --restart {run.name} note='my {PASSWORD}' -y", code=None)
    assert "was started with" not in output
    assert len((run / "journal/sessions.jsonl").read_text().splitlines()) == 2


TEXTS = st.text('ab \n{}[]"\\.*', max_size=30)


@given(st.lists(TEXTS, min_size=2, max_size=4), st.lists(st.text("xyz", min_size=1), min_size=3))
def test_what_was_hidden_is_hidden_again(shown, secrets):
    before, now = shown[0], shown[0]
    for part, secret in zip(shown[1:], secrets, strict=False):
        before, now = f"{before}{HIDDEN}{part}", f"{now}{secret}{part}"
    assert still_hidden(now, before) == before
    assert still_hidden(before, before) == before
    assert is_hidden(now, before)


SHORT = st.text("ab", max_size=2)


@given(st.text("ab", max_size=8), st.lists(SHORT, min_size=2, max_size=4))
def test_a_text_is_the_published_one_where_the_regular_expression_says_so(now, shown):
    pattern = ".+".join(map(re.escape, shown))
    assert is_hidden(now, HIDDEN.join(shown)) == bool(re.fullmatch(pattern, now, re.DOTALL))


def test_many_hidden_parts_are_compared_with_another_text():
    """Tried in all combinations they would take longer than the age of the universe."""
    before = ",".join([HIDDEN] * 30) + " end"
    assert not is_hidden("x," * 300, before)
    assert is_hidden("x," * 300 + "y end", before)


def test_another_text_stays_and_a_longer_one_hides_what_it_repeats():
    assert still_hidden("gradient explosion", f"401 for {HIDDEN}") == "gradient explosion"
    assert still_hidden("", f"401 for {HIDDEN}") == ""
    assert still_hidden("try me", "try me") == "try me"
    before = json.dumps({"b": f"in with {HIDDEN} at 9", "c": f"x {HIDDEN}"})
    now = json.dumps({"a": 3, "b": "in with s1 at 9", "c": "x s2"})
    expected = {"a": 3, "b": f"in with {HIDDEN} at 9", "c": f"x {HIDDEN}"}
    assert json.loads(still_hidden(now, before)) == expected
    assert not is_hidden("yours", f"my {HIDDEN}")
    assert not is_hidden("my", "my")
