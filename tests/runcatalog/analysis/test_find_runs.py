"""`catalog search`: names, dates, what is read, and the forms of the output."""

import csv
import importlib
import io
import json
import math
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from memory_reader import MemoryReader
from runcatalog.analysis import find_runs
from runcatalog.cli import main
from runcatalog.model.record_files import read
from runcatalog.query.language import QueryError

ROOT = Path(__file__).parents[3]


def ids(matches):
    return [int(run.run[:8], 16) for run in matches.stored]


def find(records, query):
    return ids(find_runs.find_runs(MemoryReader(records), query))


def test_a_name_that_is_a_flag_and_a_metric_is_the_flag(make):
    runs = [make(1, entropy=0.1), make(2, entropy=0.5)]
    runs = [run.with_points({"entropy": [(0, 9.0), (1, run.flags["entropy"] + 3)]}) for run in runs]
    assert find(runs, "entropy<1") == [1, 2]
    assert find(runs, "entropy>0.2") == [2]
    assert find(runs, "flag:entropy>0.2") == [2]
    assert find(runs, "last:entropy<3.3") == [1]
    assert find(runs, "best:entropy=9") == [1, 2]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("lrr>1", "no run has a flag, metric or field lrr, did you mean lr?"),
        ("clip_coef>1", "did you mean clip-coef?"),
        ("opening-rate>1", "did you mean opening_rate?"),
        ("best:lr>1", "no run has a metric lr"),
        ("flag:opening_rate>1", "no run has a flag opening_rate"),
        ("xyzzy", "no run has a flag, metric or field xyzzy"),
        ("status=finishd", "did you mean FINISHED?"),
        ("status=7", "one of RUNNING, FINISHED, FAILED, KILLED"),
        ("task>lever", "> compares numbers, lever is none"),
        ("label>3", "> compares numbers and dates, label is text"),
        ("opening_rate=high", "a number is expected for opening_rate, not high"),
        ("opening_rate~0", "~ looks for text, opening_rate is a metric"),
        ("seed=one", "a number is expected for seed"),
        ("started>soon", "a date (UTC) is expected"),
        ("started=2026-13", "a date (UTC) is expected"),
        ("started~2026", "~ looks for text, started is a date (UTC)"),
        ("lr=" + "9" * 5000, ""),
    ],
)
def test_a_wrong_name_or_value_is_a_one_line_error(make, query, words):
    run = make(1, lr=1e-3, clip_coef=0.2, task="pull").with_points({"opening_rate": [(0, 0.5)]})
    if not words:
        assert find([run], query) == []
        return
    with pytest.raises(QueryError) as caught:
        find([run], query)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("value", "equal", "other"),
    [
        (5e-3, ["5e-3", "0.005", "'.005'", "+5E-03"], ["0.0051", "5", "five"]),
        (64, ["64", "64.0", "6.4e1"], ["64 64", "6", "064x"]),
        (True, ["yes", "True", "'true'"], ["no", "1", "''"]),
        (False, ["no", "FALSE"], ["yes", "0"]),
        (None, ["none", "null"], ["0", "''", "no"]),
        ("64 64", ["'64 64'", '"64 64"'], ["64", "'64  64'"]),
        ("", ["''"], ["none", "no"]),
        ("Lever", ["Lever"], ["lever", "Leve"]),
        ("1" * 20, ["1" * 20], ["1" * 19 + "2"]),
    ],
)
def test_a_flag_is_equal_to_what_one_would_type(make, value, equal, other):
    run = make(1, x=value)
    for typed in equal:
        assert find([run], f"x={typed}") == [1]
        assert find([run], f"x!={typed}") == []
    for typed in other:
        typed = typed if typed.startswith("'") else f"'{typed}'"
        assert find([run], f"x={typed}") == []
        assert find([run], f"x!={typed}") == [1]


def test_a_seed_of_many_digits_matches_exactly(make):
    seeds = [12345678901234567, 12345678901234568, 2**63 - 1]
    runs = [make(n, seed=seed) for n, seed in enumerate(seeds)]
    for number, seed in enumerate(seeds):
        assert find(runs, f"seed={seed}") == [number]
    assert find(runs, f"seed>{seeds[0]}") == [1, 2]
    assert (
        json.loads(find_runs.as_json(find_runs.find_runs(MemoryReader(runs), "seed")))[2]["seed"]
        == 2**63 - 1
    )


def test_a_value_that_no_run_has_gets_a_hint(make):
    reader = MemoryReader([make(1, task="lever", lr=1), make(2, task="pull", lr=2, label="mine")])
    assert (
        find_runs.find_runs(reader, "lr=1 and task=levr").hint
        == "task is never levr, did you mean lever?"
    )
    assert find_runs.find_runs(reader, "operation=toy:trian").hint.endswith(
        "did you mean toy:train?"
    )
    assert find_runs.find_runs(reader, "lr=3").hint == "lr is never 3"
    assert find_runs.find_runs(reader, "lr=1 and task=pull").hint == ""
    assert find_runs.find_runs(reader, "lr>3 and not label=x").hint == ""


def test_ids_may_be_abbreviated(make):
    runs = [make(0xABC, commit="0123456789abcdef", batch="f" * 32), make(0xABD, dirty="77ff")]
    assert find(runs, "run=00000abc") == [0xABC]
    assert find(runs, "run=00000AB") == [0xABC, 0xABD]
    assert find(runs, "commit=01234567") == [0xABC]
    assert find(runs, "batch=ffff and not dirty") == [0xABC]
    assert find(runs, "dirty") == [0xABD]
    assert find(runs, "commit!=0123") == []  # the other has none: no comparison is true of it


@pytest.mark.parametrize(
    "text", ["2026", "2026-02", "2026-02-28", "2026-02-28T23:59", "2026-02-28 23:59:58"]
)
def test_a_date_covers_everything_below_its_last_unit(make, text):
    parts = [
        int(part) for part in text.replace("T", "-").replace(" ", "-").replace(":", "-").split("-")
    ]
    begin = datetime(*[*parts, 1, 1][: max(3, len(parts))], tzinfo=UTC)
    after = begin
    while tuple(after.timetuple()[: len(parts)]) == tuple(begin.timetuple()[: len(parts)]):
        after += timedelta(hours=1) if len(parts) < 4 else timedelta(seconds=1)
    times = {
        1: begin - timedelta(milliseconds=1),
        2: begin,
        3: after - timedelta(milliseconds=1),
        4: after,
    }
    runs = [make(n, started=round(t.timestamp() * 1000)) for n, t in times.items()]
    expected = {"=": [2, 3], "!=": [1, 4], "<": [1], "<=": [1, 2, 3], ">": [4], ">=": [2, 3, 4]}
    for sign, numbers in expected.items():
        assert find(runs, f"started{sign}'{text}'") == numbers


@pytest.mark.parametrize("hour", [0, 12, 24 - 1e-6])
def test_today_and_yesterday(make, monkeypatch, hour):
    now = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(hours=hour)
    monkeypatch.setattr(time, "time", now.timestamp)
    midnight = datetime(2026, 3, 1, tzinfo=UTC)
    first, last = timedelta(0), timedelta(days=1, milliseconds=-1)
    runs = [
        make(2 * ago + n, started=round((midnight - timedelta(days=ago) + at).timestamp() * 1000))
        for ago in (0, 1, 2)
        for n, at in enumerate((first, last))
    ]
    assert find(runs, "started=today") == [0, 1]
    assert find(runs, "started>today") == []
    assert find(runs, "started=yesterday") == [2, 3]
    assert find(runs, "started>=yesterday") == [0, 1, 2, 3]
    assert find(runs, "started<yesterday") == [4, 5]


def test_curves_are_read_only_where_the_query_needs_them(make):
    runs = [make(n, lr=n).with_points({"rate": [(0, n / 10), (1, 0.0)]}) for n in range(10)]
    reader = MemoryReader(runs)
    assert ids(find_runs.find_runs(reader, "lr>=7 and best:rate>0.75")) == [8, 9]
    assert reader.read == 3
    assert ids(find_runs.find_runs(reader, "lr<2 or best:rate>=0.9")) == [0, 1, 9]
    assert reader.read == 3 + 8


def test_best_is_the_smallest_where_small_is_good(make):
    runs = [make(n).with_points({"loss": [(0, 5.0), (1, float(n)), (2, 4.0)]}) for n in (1, 2)]
    assert find(runs, "best:loss<2") == [1]
    assert find(runs, "loss=4") == [1, 2]


def test_the_table_shows_the_queried_names_and_ends_with_the_newest_run(make):
    runs = [
        make(1, value=0.9, lr=1e-3, task="pull", label="a|b\n\x1b[31mred"),
        make(2, lr=5e-3, task="lever", status="FAILED", reason="gradient explosion at update 7: x"),
        make(3, lr=5e-3, task="lever", status="KILLED", reason="SIGTERM").with_points(
            {"rate": [(8, 1.0)]}
        ),
    ]
    matches = find_runs.find_runs(MemoryReader(runs), "lr>0 and (task=pull or rate or not rate)")
    lines = find_runs.as_table(matches, 0, None)
    assert lines[0].split() == [
        "run",
        "operation",
        "label",
        "status",
        "lr",
        "task",
        "rate",
        "result",
    ]
    assert "a|b [31mred" in lines[1]
    assert "90 % opening rate after 360 updates [83, 94]" in lines[1]
    assert "failed at update 7: gradient explosion (x)" in lines[2]
    assert "killed after step 8: SIGTERM" in lines[3]
    assert lines[-1] == "3 of 3 runs"
    narrow = find_runs.as_table(matches, 2, 60)
    assert [line[:8] for line in narrow[1:-1]] == ["00000002", "00000003"]
    assert max(map(len, narrow[:-1])) <= 60
    assert narrow[-1] == "3 of 3 runs, the newest 2 are shown (-n 0 shows all)"


def test_json_and_csv_are_complete_and_strict(make):
    run = make(1, value=0.5, lr=1e-3, net="64 64").with_points({"loss": [(0, 2.0), (1, math.nan)]})
    other = make(2, lr=2e-3)
    matches = find_runs.find_runs(MemoryReader([run, other]), "lr or best:loss<3")
    whole = json.loads(find_runs.as_json(matches), parse_constant=lambda name: pytest.fail(name))
    assert [entry["run"] for entry in whole] == [run.run, other.run]
    assert whole[0]["flags"] == {"lr": 0.001, "net": "64 64"}
    assert whole[0]["metrics"] == {"loss": "NaN"}
    assert whole[0]["values"] == {"lr": 0.001, "best:loss": 2.0}
    assert whole[1]["values"] == {"lr": 0.002, "best:loss": None}
    assert whole[0]["objective"] == {"name": "opening_rate", "value": 0.5}
    rows = list(csv.DictReader(io.StringIO(find_runs.as_csv(matches))))
    assert [row["best:loss"] for row in rows] == ["2.0", ""]
    assert [row["value"] for row in rows] == ["0.5", ""]
    assert json.loads(find_runs.as_json(find_runs.find_runs(MemoryReader([run]), "lr>1"))) == []
    queried = find_runs.find_runs(MemoryReader([run]), "machine!=x or commit!=y or wall_seconds<5")
    header = find_runs.as_csv(queried).partition("\n")[0].split(",")
    assert len(set(header)) == len(header)


@pytest.mark.parametrize("form", [find_runs.as_csv, find_runs.as_json])
def test_no_form_of_the_output_commands_a_terminal(make, form):
    hostile = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202e"
    run = make(1, value=0.5, label=f"a{hostile}b", operation=f"x{hostile}", net=f"n{hostile}")
    run = run.with_points({f"m{hostile}": [(0, 1.0)]})
    shown = form(find_runs.find_runs(MemoryReader([run]), f"net~n or 'm{hostile}'>0"))
    assert all(c.isprintable() or c == "\n" for c in shown)
    if form is find_runs.as_json:
        assert json.loads(shown)[0]["label"] == run.label
    else:
        assert next(csv.DictReader(io.StringIO(shown)))["label"] == "a]0;owned[2J31mb"


@pytest.fixture(scope="module")
def committed():
    """Some of the repository's own records."""
    # These take the reader when they are imported: not while it is another.
    for name in ("runcatalog.store.run_index", "runcatalog.mlflow_ui.arrange"):
        importlib.import_module(name)
    paths = sorted((ROOT / "experiments/records").glob("*/*.json"))
    return MemoryReader(map(read, paths[::20]))


def test_the_names_in_the_help_exist(committed):
    text = main.parser()._subparsers._group_actions[0].choices["search"].format_help()
    for line in re.findall(r"^  (?:flags|metrics|dates|a name alone[^:]*:) +(.*)", text, re.M):
        for query in filter(None, re.split(r"   +|, | *\([^)]*\)", line)):
            find_runs.find_runs(committed, query)  # an unknown name raises
