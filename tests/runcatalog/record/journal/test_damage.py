"""Damaged lines of a journal: detected, counted, skipped; old journals without checksums stay readable."""

import json
import os
import random
import socket

import pytest

from runcatalog.record.digest import metrics_digest
from runcatalog.record.journal.damage import damage_of
from runcatalog.record.journal.files import locked, read_json, size_on_disk
from runcatalog.record.journal.lines import append_line, read_lines
from runcatalog.record.journal.metrics import (
    MetricsFile,
    changes_since,
    metrics_digest_of,
    points_of,
    read_points,
)

LINES = 2001


def fill(path, lines):
    """Write a metrics file with a point a line; return its content by lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = MetricsFile(path)
    for step in range(1, lines + 1):
        file.append(10**12 + step, step, {"loss": 1 / step})
    file.close()
    return path.read_bytes().splitlines(keepends=True)


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("whole") / "metrics.jsonl", LINES)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def steps(path):
    return [point.step for point in read_points(path)]


def test_a_whole_file_has_no_damage(path, lines):
    path.write_bytes(b"".join(lines))
    assert damage_of(path) == ((), 0, 0)
    assert not damage_of(path)
    assert not damage_of(path.with_name("missing.jsonl"))
    assert damage_of(path).text() == ""
    assert json.loads(lines[2]).keys() == {"t", "step", "m", "n", "crc"}


def test_zeros_over_many_lines(path, lines):
    raw = bytearray(b"".join(lines))
    raw[40_000:44_096] = bytes(4096)
    path.write_bytes(raw)
    damage = damage_of(path)
    kept = steps(path)
    assert damage.lost == LINES - len(kept) > 20
    (number,) = damage.lines
    assert damage.missing == damage.lost - 1
    assert kept == [*range(1, number), *range(number + damage.lost, LINES + 1)]
    total = LINES - damage.missing
    lost = f"1 of {total:,} lines cannot be read ({number}), {damage.missing} lines are missing"
    assert damage.text() == lost


def test_random_bytes(path, lines):
    raw = bytearray(b"".join(lines))
    raw[40_000:44_096] = random.Random(1).randbytes(4096)
    path.write_bytes(raw)
    damage = damage_of(path)
    assert damage.lines
    assert 20 < LINES - len(steps(path)) <= damage.lost


def test_a_flipped_digit_is_no_value(path, lines):
    changed = lines[1203].replace(b'"loss":0.0', b'"loss":0.1')
    assert changed != lines[1203]
    path.write_bytes(b"".join([*lines[:1203], changed, *lines[1204:]]))
    assert damage_of(path) == ((1204,), 0, LINES)
    assert damage_of(path).text() == "1 of 2,001 lines cannot be read (1204)"
    assert 1204 not in steps(path)


@pytest.mark.parametrize(
    ("order", "bad", "missing"),
    [
        ([1, 2, 5, 6], (), 2),
        ([3, 4], (), 2),
        ([1, 2, 2, 3], (3,), 0),
        ([1, 2, 3, 1, 2], (4, 5), 0),
        ([1, 2, 4, 3, 5], (4,), 1),
    ],
)
def test_deleted_and_repeated_lines(path, lines, order, bad, missing):
    path.write_bytes(b"".join(lines[number - 1] for number in order))
    damage = damage_of(path)
    assert (damage.lines, damage.missing) == (bad, missing)
    good = [n for place, n in enumerate(order, 1) if place not in bad]
    assert steps(path) == good
    file = MetricsFile(path)  # what is appended then is read
    file.append(0, 10_000, {"loss": 1.0})
    file.close()
    assert steps(path) == [*good, 10_000]
    assert damage_of(path)[:2] == (bad, missing)


def test_a_line_of_40_mb_hides_nothing_after_it(path, lines):
    path.write_bytes(lines[0] + b"x" * (40 << 20) + b"\n" + lines[1])
    assert steps(path) == [1, 2]
    assert damage_of(path).lines == (2,)


@pytest.mark.parametrize(
    "line",
    [
        b"[1]",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"step":1,"m":{"a":1}}',
        b'{"t":"1","step":1,"m":{"a":1}}',
        b'{"t":1,"step":1.5,"m":{"a":1}}',
        b'{"t":1,"step":9223372036854775808,"m":{"a":1}}',
        b'{"t":-9223372036854775809,"step":1,"m":{"a":1}}',
        b'{"t":1,"step":1,"m":[]}',
        b'{"t":1,"step":1,"m":{"a":"x"}}',
        b'{"t":1,"step":1,"m":{"a":null}}',
    ],
)
def test_unusable_lines_of_an_old_journal_are_skipped_and_counted(path, line):
    good = b'{"t":1,"step":7,"m":{"a":0.5}}\n'
    path.write_bytes(good + line + b"\n" + good.replace(b"7", b"8"))
    assert steps(path) == [7, 8]
    assert damage_of(path) == ((2,), 0, 3)
    with pytest.raises(ValueError, match="not a line of metrics"):
        points_of({"t": 1})


def test_an_old_journal_is_read_and_continued(path, lines):
    old = b"".join(b'{"t":%d,"step":%d,"m":{"loss":0.5}}\n' % (n, n) for n in (1, 2, 3))
    path.write_bytes(old)
    assert not damage_of(path)
    file = MetricsFile(path)
    file.append(4, 4, {"loss": 0.25})
    file.close()
    assert not damage_of(path)
    assert steps(path) == [1, 2, 3, 4]
    assert json.loads(path.read_bytes().splitlines()[3])["n"] == 4
    raw = path.read_bytes()
    path.write_bytes(raw + old)  # without checksums after a line with one
    assert steps(path) == [1, 2, 3, 4]
    assert [p["step"] for p, _ in read_lines(path, len(raw))] == []
    assert damage_of(path).lines == (5, 6, 7)
    path.write_bytes(raw.partition(b"\n")[2])
    assert damage_of(path).missing == 1


def test_lines_are_read_from_an_offset(path, lines):
    path.write_bytes(b"".join(lines))
    ends = [end for _, end in read_lines(path)]
    rest = list(read_lines(path, ends[1000]))
    assert [record["step"] for record, _ in rest] == list(range(1002, LINES + 1))
    assert [end for _, end in rest] == ends[1001:]


def test_appended_records_are_numbered(tmp_path):
    path = tmp_path / "events.jsonl"
    for text in "abc":
        append_line(path, {"text": text})
    path.write_bytes(path.read_bytes() + b'{"text":"to')  # torn by a kill
    append_line(path, {"text": "d"})
    assert [f"{r['n']}{r['text']}" for r, _ in read_lines(path)] == ["1a", "2b", "3c", "4d"]
    assert not damage_of(path)
    path.write_bytes(path.read_bytes() + path.read_bytes()[:40].partition(b"\n")[0] + b"\n")
    append_line(path, {"text": "e"})
    assert [record["text"] for record, _ in read_lines(path)] == list("abcde")


def test_sessions_need_their_fields(tmp_path):
    path = tmp_path / "sessions.jsonl"
    append_line(path, {"session": 1, "started": 5, "pid": 7, "host": "a", "boot": ""})
    append_line(path, {"session": "2", "started": 5, "pid": 7})
    append_line(path, {})
    assert damage_of(path) == ((2, 3), 0, 3)


def test_the_digest_is_that_of_the_points(tmp_path):
    fill(tmp_path / "journal" / "metrics.jsonl", 10)
    points = [("loss", step, 1 / step) for step in range(1, 11)]
    assert metrics_digest_of(tmp_path) == metrics_digest(points)


def test_pipes_sockets_and_devices_count_as_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an address has at most 107 characters
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        for name in ("pipe", "device", "socket"):
            path = tmp_path / name
            assert list(read_lines(path)) == []
            assert read_json(path) is None
            assert size_on_disk(path) == 0
            assert not damage_of(path)


def test_a_linked_lock_creates_no_file(tmp_path):
    (tmp_path / "lock").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path / "lock"):
        pass
    assert not (tmp_path / "target").exists()


def test_a_late_writer_of_an_earlier_session_adds_nothing(path):
    """A process that was suspended between its check and its write."""
    earlier = MetricsFile(path)
    earlier.append(1, 1, {"loss": 1.0})
    later = MetricsFile(path)
    earlier.append(2, 2, {"loss": 9.0})
    later.append(3, 2, {"loss": 0.5})
    earlier.append(4, 3, {"loss": 9.0})
    assert [point.value for point in read_points(path)] == [1.0, 0.5]
    assert not damage_of(path)
    for file in (earlier, later):
        file.close()


def test_a_difference_from_the_written_digest_is_reported(path):
    lines = fill(path, 100)
    file = MetricsFile(path)
    written = file.written
    assert written["lines"] == 100
    file.append(0, 101, {"loss": 0.0})
    file.close()
    assert changes_since(path, written) == ""
    path.write_bytes(b"".join(lines[:97]))
    assert changes_since(path, written) == "3 lines are missing at its end"
    path.write_bytes(b"".join([*lines[:9], *lines[10:]]))
    assert changes_since(path, written) == "1 line is missing"
    changed = lines[0].replace(b'"step":1', b'"step":2')
    path.write_bytes(b"".join([changed, *lines[1:]]))
    assert changes_since(path, written) == "1 of 100 lines cannot be read (1)"
