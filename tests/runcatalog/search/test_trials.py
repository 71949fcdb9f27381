"""Trials of a search as files: a trial that has begun is never removed."""

import re

import pytest

from runcatalog.guild.compat import run
from runcatalog.search import trials
from runcatalog.search.space import SearchError

OBJECTIVE = trials.Objective("score", (None, "score", None), True)


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
    return trials.read(run.for_dir(str(trial.with_name("batch"))), OBJECTIVE)


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
