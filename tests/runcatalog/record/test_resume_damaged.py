"""Resuming a run whose journal is damaged: before its checkpoint refused, after it computed again."""

import re

import pytest

import ends_table
from runcatalog import record
from runcatalog.record.journal.damage import damage_of
from runcatalog.record.journal.files import read_json, write_json
from runcatalog.record.journal.lines import read_lines
from runcatalog.record.lifecycle.status import last_session, status_of


def result_of(toy):
    return read_json(toy.directory / "result.json")


@pytest.fixture
def killed(toys):
    """A toy training that ended at update 10, with checkpoints at 4 and 8: 2 lines an update."""
    toy = toys("killed")
    code, errors = toy.run("--updates", 10, "--end", "os_exit")
    assert (code, errors) == (0, "")
    assert toy.lines() == 20
    return toy


@pytest.fixture
def metrics(killed):
    return killed.directory / "journal" / "metrics.jsonl"


def cut(path, *numbers):
    """Delete lines."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for n, line in enumerate(lines, 1) if n not in numbers))


def spoil(path, *numbers):
    """Change a digit in lines."""
    lines = path.read_bytes().splitlines(keepends=True)
    for number in numbers:
        lines[number - 1] = re.sub(rb'"m":\{"([a-z/]+)":.', rb'"m":{"\1":7', lines[number - 1])
    path.write_bytes(b"".join(lines))


@pytest.mark.parametrize(
    ("damage", "description"),
    [
        (lambda path: spoil(path, 3, 7), "2 of 20 lines cannot be read (3, 7)"),
        (lambda path: cut(path, 5, 6, 7), "3 lines are missing"),
        (lambda path: cut(path, *range(13, 21)), "4 lines are missing at its end"),
        (lambda path: cut(path, *range(1, 21)), "16 lines are missing at its end"),
        (lambda path: path.unlink(), "16 lines are missing at its end"),
    ],
)
def test_lost_points_before_the_checkpoint_are_refused(killed, metrics, damage, description):
    damage(metrics)
    files = {p: p.read_bytes() for p in killed.directory.rglob("*") if p.is_file()}
    code, errors = killed.run("--updates", 12)
    assert (code, errors.count("\n")) == (2, 1)
    assert (
        f"{metrics}: damaged before checkpoint 8, from which the run would continue: {description}; "
        in errors
    )
    assert "restore the file from a copy, or start a new run" in errors
    assert {p: p.read_bytes() for p in killed.directory.rglob("*") if p.is_file()} == files
    assert last_session(killed.directory)["session"] == 1


RESULT = {"status": "KILLED", "reason": "", "ended": 1, "session": 1, "wall_seconds": 3.0}


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("journal/run.json", {"flags": []}, "journal/run.json: 'flags' is missing or invalid"),
        ("journal/run.json", {"started": None}, "journal/run.json: 'started' is missing or invalid"),
        ("journal/progress.json", {"t": "noon"}, ": its journal is damaged (TypeError"),
        ("journal/progress.json", {"seconds": 1e999}, ": its journal is damaged (OverflowError"),
        ("result.json", RESULT | {"ended": "noon"}, "result.json: invalid end 'noon'"),
        ("result.json", RESULT | {"wall_seconds": "an hour"}, ""),
    ],
)  # fmt: skip
def test_fields_that_somebody_has_edited_are_named(killed, name, content, text):
    path = killed.directory / name
    write_json(path, (read_json(path) or {}) | content)
    code, errors = killed.run("--updates", 12)
    if text:
        assert (code, errors.count("\n")) == (2, 1)
        assert text in errors
        assert last_session(killed.directory)["session"] == 1
    else:
        assert (code, result_of(killed)["status"]) == (0, "FINISHED")


def test_points_lost_after_the_checkpoint_are_computed_again(killed, metrics, toys):
    calm = toys("calm")
    assert calm.run("--updates", 12)[0] == 0
    spoil(metrics, 17, 19)
    cut(metrics, 20)
    assert killed.run("--updates", 12) == (0, "")
    result = result_of(killed)
    assert (result["status"], result["damaged_lines"]) == ("FINISHED", 2)
    assert result["digest"] == result_of(calm)["digest"]
    assert "damaged_lines" not in result_of(calm)
    message = (
        "journal/metrics.jsonl: 2 of 19 lines cannot be read (17, 19); what was computed after"
    )
    for updates in (14, 16):  # once, also after another resume
        events = [line["text"] for line, _ in read_lines(metrics.with_name("events.jsonl"))]
        assert [text[: len(message)] for text in events] == [message]
        assert killed.run("--updates", updates) == (0, "")
    assert result_of(killed)["damaged_lines"] == 2


def test_a_journal_without_checksums_is_resumed(killed, metrics, toys):
    """As a version without checksums wrote it."""
    calm = toys("calm")
    assert calm.run("--updates", 12)[0] == 0
    for path in killed.directory.glob("journal/*.jsonl"):
        path.write_bytes(re.sub(rb',"n":\d+,"crc":"\w+"', b"", path.read_bytes()))
    for path in killed.directory.glob("checkpoints/*/checkpoint.json"):
        content = read_json(path)
        del content["metrics"]
        write_json(path, content)
    assert killed.run("--updates", 12) == (0, "")
    assert result_of(killed)["digest"] == result_of(calm)["digest"]
    assert not any(damage_of(path) for path in killed.directory.glob("journal/*.jsonl"))


def test_damage_during_the_run_is_the_reason_of_its_end(project):
    run = record.start(record.Config(), study="toy")

    def train():
        with run:
            for step in range(1, 20):
                run.log({"loss": 1 / step}, step)
                if step == 10:
                    raw = run._metrics.path.read_bytes().splitlines(keepends=True)
                    for place in (2, 6):
                        raw[place] = raw[place].replace(b'"loss":0', b'"loss":1')
                    with run._metrics.path.open("rb+") as file:  # in place
                        file.write(b"".join(raw))
            run.finish({"env_steps": 1})

    with pytest.raises(record.RunFailed):
        train()
    ends_table.check("journal damaged", *status_of(run.directory)[:2])
    assert read_json(run.directory / "result.json")["damaged_lines"] == 2
