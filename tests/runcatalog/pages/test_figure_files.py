"""A figure of the page is drawn when its data, its code or its file has changed, and only then."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from runcatalog.model.run_record import Metric, RunRecord
from runcatalog.pages import figure_files
from runcatalog.plots.curves import Figure


@pytest.fixture
def figure(make) -> Figure:
    return Figure([_with_curve(make(1, value=0.75), 0.75)], "rate")


def _with_curve(record: RunRecord, last: float) -> RunRecord:
    metric = Metric.from_points([(1, 0.25), (2, last)])
    return replace(record, metrics={"rate": metric})


def test_it_is_drawn_when_data_code_or_file_changed(
    tmp_path: Path, figure: Figure, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, notes = tmp_path / "figure.svg", tmp_path / "notes"
    drawings = []
    real = Figure.svg
    monkeypatch.setattr(Figure, "svg", lambda self: drawings.append(self) or real(self))

    assert figure_files.write(path, figure, notes)
    expected = real(figure)
    assert path.read_text() == expected
    assert not figure_files.write(path, figure, notes)
    assert len(drawings) == 1

    damaged = expected.replace("0", "1", 1)
    for content in (damaged, ""):
        path.write_text(content)
        assert figure_files.write(path, figure, notes)
        assert path.read_text() == expected
    path.unlink()
    assert figure_files.write(path, figure, notes)
    assert len(drawings) == 4

    other = replace(figure, runs=[_with_curve(figure.runs[0], 0.5)])
    assert figure_files.write(path, other, notes)
    assert path.read_text() == real(other) != expected
    assert figure_files.write(path, figure, notes)  # the note of the older figure is no excuse
    assert path.read_text() == expected

    count = len(drawings)
    monkeypatch.setattr(figure_files, "_code", lambda: b"another version")
    assert not figure_files.write(path, figure, notes)  # drawn, with the same bytes
    assert len(drawings) == count + 1


def test_notes_that_cannot_be_written_only_cost_time(tmp_path: Path, figure: Figure) -> None:
    path, notes = tmp_path / "figure.svg", Path(os.devnull) / "notes"
    assert figure_files.write(path, figure, notes)
    assert not figure_files.write(path, figure, notes)
    assert path.read_text() == figure.svg()
