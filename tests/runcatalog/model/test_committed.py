"""The reader of committed records and the scripts that draw from them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import prepared
from runcatalog.model import committed
from runcatalog.record import UserError

ROOT = Path(__file__).resolve().parents[3]


def _write(folder: Path, name: str, **changes) -> None:
    content = {
        "operation": "pg:train", "status": "FINISHED", "started": 5, "flags": {},
        "metrics": {"return": {"curve": [[1, 0.5], [2, 0.25]]}},
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content | {"run": name} | changes))


def test_finished_records_by_operation_oldest_first(tmp_path):
    _write(tmp_path, "a", started=9)
    _write(tmp_path, "b", started=7)
    _write(tmp_path, "c", started=8, status="FAILED")
    _write(tmp_path, "d", operation="bc:train")
    _write(tmp_path, "e", superseded_by="b")
    _write(tmp_path, "f", retracted="a bug")
    _write(tmp_path, "g", started=None)  # as of a run that a CSV without times names
    by_operation = committed.finished_runs(tmp_path)
    assert {name: [run["run"] for run in runs] for name, runs in by_operation.items()} == {
        "pg:train": ["g", "b", "a"], "bc:train": ["d"],
    }  # fmt: skip
    assert committed.metric_values(by_operation["pg:train"][0], "return").tolist() == [0.5, 0.25]


def test_a_record_is_read_as_utf_8_whatever_the_locale_is(tmp_path, monkeypatch):
    (tmp_path / "a.json").write_bytes(
        json.dumps(
            {
                "operation": "pg:größer",
                "status": "FINISHED",
                "started": 5,
                "flags": {},
                "metrics": {},
            },
            ensure_ascii=False,
        ).encode()
    )
    code = "import sys, pathlib; from runcatalog.model import committed; "
    code += "print(ascii(list(committed.finished_runs(pathlib.Path(sys.argv[1])))))"
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONCOERCECLOCALE", "0")
    command = [sys.executable, "-X", "utf8=0", "-c", code, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "['pg:gr\\xf6\\xdfer']\n", done.stderr


def test_values_that_are_no_numbers_stay_what_they_are():
    run = {"metrics": {"loss": {"curve": [[1, 0.5], [2, "NaN"], [3, "-Infinity"]]}}}
    values = committed.metric_values(run, "loss")
    assert values.dtype == np.float64
    np.testing.assert_array_equal(values, [0.5, np.nan, -np.inf])


def test_all_committed_records_can_be_read():
    records = ROOT / "experiments" / "records"
    for folder in records.iterdir():
        contents = [json.loads(path.read_text()) for path in folder.glob("*.json")]
        current = [c for c in contents if not c.keys() & {"superseded_by", "retracted"}]
        finished = [c for c in current if c["status"] == "FINISHED"]
        by_operation = committed.finished_runs(folder)
        assert sum(len(runs) for runs in by_operation.values()) == len(finished) > 0


@pytest.mark.parametrize("content", ["{}", "[]", "{", '{"operation": "pg:train"}'])
def test_an_invalid_record_is_named(tmp_path, content):
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(UserError, match=r"bad\.json: not a record"):
        committed.finished_runs(tmp_path)


@pytest.mark.parametrize(
    ("script", "study", "nothing"),
    [
        ("cartpole/bc_redraw.py", "cartpole", "no record of bc:restrictions"),
        ("door/series_redraw.py", "door", "no record of door:metrics"),
        ("darkroom/ad_redraw.py", "darkroom", "no record of ad:study"),
    ],
)
def test_drawing_scripts_report_missing_records(tmp_path, script, study, nothing):
    def run() -> subprocess.CompletedProcess:
        command = [prepared.python(), ROOT / "src" / script, "--experiments", tmp_path]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    ended = run()
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"{Path(script).stem}: ")
    assert "catalog export" in ended.stderr
    _write(tmp_path / "records" / study, "a")
    ended = run()
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(nothing)
