"""The cache of Guild's run files equals the files, also after they have changed."""

import os
import time
from pathlib import Path

import pytest

from runcatalog.guild import runs as guild_runs
from runcatalog.guild.runs import FIELDS, Cache, GuildRun

LONG_AGO = time.time() - 60


@pytest.fixture
def home(tmp_path) -> Path:
    """A Guild home with three runs."""
    for number in range(3):
        write(tmp_path, number, "opref", f"guildfile:x {'0' * 32} toy train{number}")
        for name in ("started", "initialized", "random_seed"):
            write(tmp_path, number, f"attrs/{name}", f"{1000 + number}")
        write(tmp_path, number, "attrs/stopped", "2000")
        write(tmp_path, number, "attrs/flags", "lr: 0.1")
        write(tmp_path, number, "attrs/label", "lr=0.1")
        write(tmp_path, number, "attrs/deps", f"{9:032x}")
    return tmp_path


def write(home: Path, number: int, name: str, content: str, when: float = LONG_AGO) -> None:
    path = home / "runs" / f"{number:032x}" / ".guild" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    for touched in (path, path.parent, path.parent.parent, path.parent.parent.parent):
        os.utime(touched, (when, when))


def fields(runs: list[GuildRun]) -> dict[str, list]:
    return {run.id: [getattr(run, name) for name in FIELDS] for run in runs}


def sync(home: Path) -> tuple[dict[str, list], set[str]]:
    """What one command reads: the fields, and the runs that needed no reading."""
    cache = Cache(home / "cache.json")
    runs = guild_runs.read(home, cache)
    known = {run.id for run in runs if "operation" in run.__dict__}
    current = fields(runs)
    cache.keep(runs)
    return current, known


def test_a_run_that_has_not_changed_is_not_read_again(home):
    first, known = sync(home)
    assert not known
    assert first == fields(guild_runs.read(home))
    assert first[f"{1:032x}"][0] == "toy:train1"
    again, known = sync(home)
    assert again == first
    assert known == set(first)


@pytest.mark.parametrize(
    ("name", "content"),
    [("attrs/label", "a person's"), ("attrs/started", "1500"), ("attrs/stopped", "9999")],
)
def test_changed_files_are_read_again(home, name, content):
    sync(home)
    write(home, 1, name, content, LONG_AGO + 10)
    current, known = sync(home)
    assert current == fields(guild_runs.read(home))
    assert known == {f"{0:032x}", f"{2:032x}"}


def test_a_search_note_and_a_new_run_are_read(home):
    sync(home)
    (home / "runs" / f"{2:032x}" / "search.json").write_text('{"kind": "gp"}')
    write(home, 7, "opref", f"guildfile:x {'0' * 32} toy late")
    current, _ = sync(home)
    assert current == fields(guild_runs.read(home))
    assert current[f"{2:032x}"][FIELDS.index("search")] == '{"kind": "gp"}'
    assert current[f"{7:032x}"][0] == "toy:late"


def test_files_that_changed_just_now_are_not_cached(home):
    write(home, 1, "attrs/label", "new", time.time())
    sync(home)
    _, known = sync(home)
    assert f"{1:032x}" not in known


def test_a_run_that_is_staged_again_is_not_listed(home):
    sync(home)
    write(home, 1, "PENDING", "", LONG_AGO + 10)
    current, _ = sync(home)
    assert set(current) == {f"{0:032x}", f"{2:032x}"}


def test_a_broken_cache_is_no_cache(home):
    expected, _ = sync(home)
    for content in ("{", "[]", '{"format": 1, "runs": []}', '{"format": 0}'):
        (home / "cache.json").write_text(content)
        assert sync(home)[0] == expected
