"""A run with the hyperparameters of a search: which trial is taken, from where, and what stays as typed."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from door import train_hnppo, train_ppo
from door.training import tuned_flags
from runcatalog.record import UserError
from runcatalog.record.config import flags_of, parse

SEARCH = "ppo:lr_size_clip_opt_ppo_lever"
DEFAULT = train_ppo.Config()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROJECT_DIR", str(tmp_path))
    monkeypatch.delenv("RUN_DIR", raising=False)
    return tmp_path


def record(project: Path, run: str, **fields) -> None:
    base = {
        "run": run,
        "operation": "ppo:train",
        "status": "FINISHED",
        "started": 0,
        "study": "door",
    }
    path = project / "experiments/records/door" / f"{run[:8]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(base | fields))


def search(
    project: Path, letter: str, values, *, goal="max", started=1, space=True, **fields
) -> None:
    """A search of as many trials, with lr 0.001, 0.002, …; a trial without a value has failed."""
    result = {"batch": True, "method": "gp", "optimised": {"name": "return", "goal": goal}}
    result |= {"space": {"lr": {}, "clip-coef": {}, "network-size": {}}} if space else {}
    head = {"operation": SEARCH, "result": result, "started": started}
    record(project, letter * 32, **(head | fields))
    for i, value in enumerate(values, 1):
        flags = {
            "lr": i / 1000,
            "clip-coef": 0.3,
            "network-size": "64 64 64",
            "seed": 1,
            "epochs": 3,
        }
        outcome = (
            {"metrics": {"return": {"last": value}}} if value is not None else {"status": "FAILED"}
        )
        record(project, f"{letter}{i:07d}" * 4, batch=letter * 32, flags=flags, **outcome)


def test_the_best_trial_of_the_latest_finished_search(project):
    search(project, "a", [9.0, 1.0], started=1)
    search(project, "b", [1.0, None, 5.0, "NaN", 4.0], started=2)
    search(project, "c", [9.0], started=3, status="KILLED")
    search(project, "d", [99.0], started=4, operation=f"{SEARCH}@random")
    config = train_ppo.Config(tuned=SEARCH)
    assert (config.lr, config.clip_coef, config.network_size) == (0.003, 0.3, "64 64 64")
    assert config.hidden() == (64, 64, 64)
    taken = config.tuned_from()
    assert (taken.search, taken.trial) == ("b" * 32, "b0000003" * 4)
    assert (taken.objective, taken.value) == ("return", 5.0)
    # What was not searched is the script's own, and all of it is recorded.
    assert config.epochs == DEFAULT.epochs
    assert flags_of(config) == flags_of(DEFAULT) | taken.point | {"tuned": SEARCH}


def test_superseded_and_retracted_runs_are_not_taken(project):
    search(project, "a", [1.0, 2.0, 9.0], started=1)
    marked = project / "experiments/records/door/a0000003.json"
    marked.write_text(json.dumps(json.loads(marked.read_text()) | {"retracted": "wrong reward"}))
    search(project, "b", [9.0], started=2, superseded_by="a" * 32)
    search(project, "c", [9.0], started=3, retracted="wrong reward")
    taken = train_ppo.Config(tuned=SEARCH).tuned_from()
    assert (taken.search, taken.trial) == ("a" * 32, "a0000002" * 4)


def test_a_minimising_search_and_a_search_without_recorded_space(project):
    search(project, "a", [3.0, 1.0, 2.0], goal="min", space=False)
    taken = train_ppo.Config(tuned=SEARCH).tuned_from()
    assert taken.point == {"lr": 0.002}
    assert taken.value == 1.0


def test_flags_on_the_command_line_stay(project):
    search(project, "a", [1.0])
    config = train_ppo.Config(tuned=SEARCH, lr=0.5)
    assert (config.lr, config.clip_coef) == (0.5, 0.3)


@pytest.mark.parametrize("values", [None, [], [None]])
def test_a_missing_search_is_an_error(project, values):
    if values is not None:
        search(project, "a", values)
    with pytest.raises(UserError, match=f"no finished search {SEARCH} in .*guild run {SEARCH}"):
        train_ppo.Config(tuned=SEARCH)


def test_a_searched_flag_that_the_script_does_not_have_is_an_error(project):
    search(project, "a", [1.0])
    path = project / "experiments/records/door" / ("a" * 8 + ".json")
    path.write_text(path.read_text().replace('"clip-coef": {}', '"te-dim": {}'))
    trial = project / "experiments/records/door" / "a0000001.json"
    trial.write_text(trial.read_text().replace("clip-coef", "te-dim").replace("0.3", "12"))
    with pytest.raises(UserError, match="searched te-dim, which this script does not have"):
        train_ppo.Config(tuned=SEARCH)
    assert train_hnppo.Config(tuned=SEARCH).te_dim == 12


def test_guilds_linked_search_has_priority_and_a_restart_takes_the_same(project, monkeypatch):
    search(project, "a", [1.0])
    batch, run = project / ("e" * 32), project / "run"
    (batch / ".guild").mkdir(parents=True)
    (batch / ".guild" / "opref").write_text(f"guildfile:. '' {SEARCH.replace(':', ' ')}")
    linked = {
        "objective": {"name": "opening_rate", "value": 0.9},
        "best": {"point": {"lr": 0.007, "network-size": "128 128"}, "run": "f" * 32},
    }
    (batch / "result.json").write_text(json.dumps({"result": linked}))
    (run / "tuned").mkdir(parents=True)
    (run / "tuned" / "result.json").symlink_to(batch / "result.json")
    monkeypatch.setenv("RUN_DIR", str(run))
    taken = train_ppo.Config(tuned=SEARCH).tuned_from()
    assert (taken.search, taken.trial, taken.point["lr"]) == ("e" * 32, "f" * 32, 0.007)
    # One of another name is not it.
    assert train_ppo.Config(tuned=SEARCH).lr == 0.007
    (batch / ".guild" / "opref").write_text("guildfile:. '' ppo other")
    assert train_ppo.Config(tuned=SEARCH).lr == 0.001

    parents: list[str] = []
    current = SimpleNamespace(directory=run, event=print, add_parent=parents.append)
    tuned_flags.note(current, taken)
    search(project, "b", [1.0, 2.0], started=9)
    again = train_ppo.Config(tuned=SEARCH)
    assert again.tuned_from() == taken
    assert again.lr == 0.007
    assert parents == ["e" * 32]


def test_a_flag_that_is_typed_with_its_default_value_stays(project, monkeypatch):
    search(project, "a", [1.0, 2.0])
    typed = ["--tuned", SEARCH, "--lr", repr(DEFAULT.lr)]
    config = parse(train_ppo.Config, typed)
    assert (config.lr, config.clip_coef) == (DEFAULT.lr, 0.3)
    assert "lr" not in config.tuned_from().point
    config = parse(train_ppo.Config, [f"--tuned={SEARCH}", f"--lr={DEFAULT.lr}"])
    assert config.lr == DEFAULT.lr
    # Guild passes every flag; it notes which ones were typed.
    attributes = project / "run" / ".guild" / "attrs"
    attributes.mkdir(parents=True)
    monkeypatch.setenv("RUN_DIR", str(project / "run"))
    (attributes / "user_flags").write_text(f"tuned: {SEARCH}\n")
    assert parse(train_ppo.Config, typed).lr == 0.002
    (attributes / "user_flags").write_text(f"lr: {DEFAULT.lr}\ntuned: {SEARCH}\n")
    assert parse(train_ppo.Config, typed).lr == DEFAULT.lr
