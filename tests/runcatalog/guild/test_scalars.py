"""Scalars of event files, against TensorBoard's own writer."""

import math
import os

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from runcatalog.guild import scalars


def write(folder, *values) -> None:
    writer = EventFileWriter(str(folder))
    for name, step, value in values:
        scalar = Summary.Value(tag=name, simple_value=value)
        writer.add_event(Event(step=step, summary=Summary(value=[scalar])))
    writer.close()


def read(folder) -> dict:
    return scalars.points(folder, scalars.event_files(folder))


def test_values_by_step(tmp_path):
    write(tmp_path / ".guild", ("loss", 1, 0.93), ("loss", 3, 0.5), ("acc", 3, 2.0))
    assert read(tmp_path) == {"acc": [(3, 2.0)], "loss": [(1, 0.93), (3, 0.5)]}


def test_without_steps_values_are_numbered(tmp_path):
    write(
        tmp_path / ".guild", ("loss", 0, 3.0), ("loss", 0, 1.0), ("loss", 0, 2.0), ("one", 0, 5.0)
    )
    assert read(tmp_path) == {"loss": [(0, 3.0), (1, 1.0), (2, 2.0)], "one": [(0, 5.0)]}


def test_a_folder_is_part_of_the_name(tmp_path):
    write(tmp_path / "logs/train", ("loss", 1, 1.0))
    write(tmp_path / "logs/eval", ("loss", 1, 2.0))
    write(tmp_path, ("top", 1, 3.0))
    points = read(tmp_path)
    assert points == {
        "logs/eval#loss": [(1, 2.0)],
        "logs/train#loss": [(1, 1.0)],
        "top": [(1, 3.0)],
    }
    assert scalars.find("loss", list(points)) == "logs/eval#loss"
    assert scalars.find("oss", list(points)) is None


def test_links_and_hidden_folders_are_left_alone(tmp_path):
    write(tmp_path / "elsewhere", ("loss", 1, 1.0))
    run = tmp_path / "run"
    write(run / ".cache", ("hidden", 1, 1.0))
    (run / "link").symlink_to(tmp_path / "elsewhere")
    assert read(run) == {}
    assert scalars.stamp([], run) == ""


def test_files_of_earlier_sessions_are_left_out(tmp_path):
    write(tmp_path / ".guild", ("loss", 1, 1.0))
    (old,) = scalars.event_files(tmp_path)
    os.utime(old, (1000.0, 1000.0))
    assert scalars.event_files(tmp_path, 1_000_000) == [old]
    assert scalars.event_files(tmp_path, 1_000_001) == []


def test_a_run_that_is_moved_keeps_its_stamp(tmp_path):
    write(tmp_path / "here", ("loss", 1, 1.0))
    before = scalars.stamp(scalars.event_files(tmp_path / "here"), tmp_path / "here")
    moved = (tmp_path / "here").rename(tmp_path / "there")
    assert scalars.stamp(scalars.event_files(moved), moved) == before != ""


def test_a_file_that_was_cut_short(tmp_path):
    write(tmp_path, ("loss", 1, 1.0), ("loss", 2, 2.0))
    (path,) = scalars.event_files(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    assert read(tmp_path) == {"loss": [(1, 1.0)]}
    path.write_bytes(b"no events")
    assert read(tmp_path) == {}


@pytest.mark.parametrize(
    ("which", "expected"), [("first", (1, 3.0)), ("last", (4, 2.0)), ("min", (2, 1.0)), ("max", (1, 3.0))]
)  # fmt: skip
def test_which_value_counts(which, expected):
    points = [(1, 3.0), (2, 1.0), (3, math.nan), (4, 2.0)]
    assert scalars.chosen(points, which) == expected


def test_of_very_many_scalars_the_objective_is_kept(tmp_path):
    """It was left out by its name, and `catalog sync` said that the run had not logged it."""
    write(tmp_path, *((f"layer{number:03}", 1, 0.5) for number in range(300)), ("score", 1, 2.0))
    files = scalars.event_files(tmp_path)
    found = scalars.points(tmp_path, files, "score")
    assert found.pop("score") == [(1, 2.0)]
    assert list(found) == [f"layer{number:03}" for number in range(199)]
    assert len(scalars.points(tmp_path, files)) == 200
