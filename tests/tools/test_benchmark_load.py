"""Benchmarks start only on an idle machine; forced results are printed and not recorded. Their page."""

import importlib.util
import json
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks/_report.py"


@pytest.fixture
def report(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("benchmark_report", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(module, "LOAD_WAIT", 0.01)
    (tmp_path / "speed.py").write_text('"""How fast."""\n')
    return module


def measured(report, *flags, **options):
    """Run a small benchmark; return the recorded rows, [] without any."""
    options = report.parser("How fast.", **options).parse_args(list(flags))
    row = report.row("speed", [2.0], [1.0], peer_name="peer", unit="m/s", target=1.5)
    report.report("speed", [row], dry_run=options.dry_run)
    path = report.RESULTS / "speed.json"
    return json.loads(path.read_text()) if path.exists() else []


def loads(monkeypatch, *values):
    """Load averages of successive calls; the last one repeats."""
    rest = list(values)
    monkeypatch.setattr(
        "os.getloadavg", lambda: (rest.pop(0) if len(rest) > 1 else rest[0], 0.0, 0.0)
    )


def test_an_idle_machine_records_with_the_load_before_the_start(report, monkeypatch):
    loads(monkeypatch, 1.0, 9.0)
    (row,) = measured(report)
    assert row["load"] == 1.0
    assert "load 1.0" in (report.FOLDER / "README.md").read_text()


def test_a_loaded_machine_is_a_one_line_error(report, monkeypatch):
    loads(monkeypatch, 3.2)
    with pytest.raises(
        SystemExit, match=r"load average 3\.2 is above 1\.5: nothing is measured"
    ) as end:
        measured(report)
    assert "\n" not in str(end.value)
    assert not report.RESULTS.exists()


@pytest.mark.parametrize("repeats", ["2", "0", "many"])
def test_too_few_repeats_are_refused_before_anything_is_measured(report, capsys, repeats):
    with pytest.raises(SystemExit) as end:
        measured(report, "--dry-run", "--repeats", repeats)
    assert end.value.code == 2
    assert f"--repeats: at least 5 are needed, not {repeats}\n" in capsys.readouterr().err


def test_benchmarks_without_times_run_at_any_load(report, monkeypatch):
    loads(monkeypatch, 3.2)
    (row,) = measured(report, timed=False)
    assert row["load"] == 3.2
    measured(report, "--dry-run", timed=False)


def test_the_load_of_an_earlier_benchmark_may_fall(report, monkeypatch):
    monkeypatch.setattr(report, "LOAD_WAIT", 60)
    loads(monkeypatch, 2.0, 1.7, 1.4)
    assert measured(report)[0]["load"] == 1.4


def test_forced_results_are_not_recorded(report, monkeypatch, capsys):
    loads(monkeypatch, 3.2)
    assert measured(report, "--force") == []
    output = capsys.readouterr()
    assert json.loads(output.out)[0]["ratio"] == 2
    assert output.err == "load average 3.2 is above 1.5: results are not recorded\n"
    loads(monkeypatch, 0.5)
    assert measured(report, "--force")[0]["load"] == 0.5


def test_a_dry_run_starts_at_any_load_and_records_nothing(report, monkeypatch):
    loads(monkeypatch, 3.2)
    assert measured(report, "--dry-run") == []


def test_a_single_measurement_has_no_interval(report):
    row = report.row("speed", [2.0], [1.0], peer_name="peer", unit="m/s", target=1.5)
    assert "interval" not in row
    assert "ratio 2.00, target" in report.line(row)
    several = report.row("speed", [2.0, 3.0], [1.0, 1.0], peer_name="peer", unit="m/s", target=1.5)
    assert several["interval"] == (2, 3)


def test_the_page_counts_the_targets_and_lists_the_missed_ones(report):
    rows = [
        report.row(what, [ours], [1.0], peer_name="peer", unit="m/s", target=1.5)
        for what, ours in {"fast": 2.0, "slow": 1.0}.items()
    ]
    rows.append(report.row("aimless", [1.0], [1.0], peer_name="peer", unit="m/s", target=None))
    report.report("speed", rows, dry_run=False)
    page = (report.FOLDER / "README.md").read_text()
    assert "**1 of 2 targets are reached.** Missed:" in page
    assert [line for line in page.splitlines() if line.startswith("| [speed]")] == [
        "| [speed](#speed) | slow | peer | 1.0000 | at least 1.5 |"
    ]


def test_the_committed_page_is_that_of_the_committed_results(report, monkeypatch):
    monkeypatch.setattr(report, "FOLDER", PATH.parent)
    monkeypatch.setattr(report, "RESULTS", PATH.parent / "results")
    assert (PATH.parent / "README.md").read_text() == report.page()
