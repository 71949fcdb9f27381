"""Trials of a search as files: a trial that has begun is never removed."""

import json
import re

import pytest

from runcatalog.guild.compat import run
from runcatalog.search import trials
from runcatalog.search.space import Dimension, SearchError

OBJECTIVE = trials.Objective("score", (None, "score", None), True)


def without(note, name):
    """Return a note without a key."""
    return {key: value for key, value in note.items() if key != name}


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """Return the directory of a trial without files, linked from that of its batch, `batch`."""
    monkeypatch.setenv("GUILD_HOME", str(tmp_path / "home"))
    directory = tmp_path / "runs" / "trial"
    directory.mkdir(parents=True)
    (tmp_path / "runs" / "batch").mkdir()
    (tmp_path / "runs" / "batch" / "trial").symlink_to("../trial")
    return directory


def read(trial):
    batch = run.for_dir(str(trial.with_name("batch")))
    return trials.read(batch, OBJECTIVE, [Dimension("x", "real")])


@pytest.mark.parametrize("content", ["", '{"trial": 1', "\x80"])
def test_a_trial_whose_note_is_damaged_is_kept(trial, content):
    path = trial / "search.json"
    path.write_bytes(content.encode("latin1"))
    with pytest.raises(SearchError, match=re.escape(f"{path} cannot be read")):
        read(trial)
    assert path.exists()


@pytest.mark.parametrize(
    "name", ["journal/metrics.jsonl", ".guild/output", ".guild/attrs/exit_status"]
)
def test_a_trial_that_has_begun_is_kept_without_its_note(trial, name):
    (trial / name).parent.mkdir(parents=True)
    (trial / name).write_text("0")
    with pytest.raises(SearchError, match=re.escape(f"{trial / 'search.json'} is missing")):
        read(trial)
    assert (trial / name).exists()


NOTE = {"trial": 1, "point": {"x": 0.5}, "objective": {"name": "score", "goal": "max"}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (NOTE | {"trial": None}, "the key 'trial' has the value None"),
        *((without(NOTE, name), f"the key {name!r} is missing") for name in NOTE),
        (NOTE | {"objective": {"goal": "max"}}, "the key 'name' is missing"),
        (NOTE | {"point": {"y": 0.5}}, "the key 'x' is missing"),
        ([NOTE], "the key 'trial' is missing"),
    ],
)
def test_a_trial_whose_note_lacks_a_key_is_kept(trial, content, words):
    path = trial / "search.json"
    path.write_text(json.dumps(content))
    (trial.with_name("batch") / "other").symlink_to("../other")
    trial.with_name("other").mkdir()
    (trial.with_name("other") / "search.json").write_text(json.dumps(NOTE))
    with pytest.raises(SearchError) as error:
        read(trial)
    assert str(error.value).startswith(f"{path}: {words}: restore it from a copy")
    assert json.loads(path.read_text()) == content


def test_a_whole_note_is_read(trial):
    (trial / "search.json").write_text(json.dumps(NOTE))
    (known,) = read(trial)
    assert (known.number, known.point, known.state) == (1, {"x": 0.5}, "pending")


def test_a_trial_whose_setup_was_interrupted_is_removed(trial):
    assert read(trial) == []
    assert not trial.exists()
    assert not list(trial.with_name("batch").iterdir())


def test_earlier_results_that_cannot_be_read_are_not_selected_anew(trial):
    batch = run.for_dir(str(trial.with_name("batch")))
    path = trial.with_name("batch") / "prior.json"
    path.write_text("")
    with pytest.raises(SearchError, match=re.escape(f"{path} cannot be read")):
        trials.prior_observations(batch, [], OBJECTIVE, "batch")
    path.write_text('[{"point": {"x": 0.5}}]')
    with pytest.raises(SearchError, match=re.escape(f"{path}: the key 'value' is missing")):
        trials.prior_observations(batch, [], OBJECTIVE, "batch")
