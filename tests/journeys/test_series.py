"""A continual series through Guild: it is killed, restarted, and ends like an undisturbed one."""

import json
from pathlib import Path

import pytest

from door import series, train_hnppo
from door.continual.evaluations import final_matrix
from journeys.shell import Project, written
from runcatalog import record
from runcatalog.guild import child_runs

ENVIRONMENT = {"RECORD_MLFLOW": "off"}  # `catalog sync` sends; senders are in test_guild.py
RECORDS = ("door",)
SMALL = "env-steps=6144 video=no seed=5"
TWO = "steps='series3:hnppo_pull_0 series3:hnppo_pull_left_1'"


def _operation(run: Path) -> str:
    path = run / ".guild/opref"
    return path.read_text() if path.exists() else ""  # the run is just starting


def _newest(project: Project, name: str) -> Path | None:
    return next((run for run in reversed(project.runs) if name in _operation(run)), None)


@pytest.fixture
def killed(project: Project) -> Path:
    """A series that was killed in its second task and restarted."""
    known = set(project.runs)

    def learns_the_second() -> bool:
        second = _newest(project, "hnppo_pull_left_1")
        metrics = second / "journal/metrics.jsonl" if second else None
        return bool(metrics) and metrics.exists() and len(metrics.read_text().splitlines()) > 1

    project.kill_when(f"guild run series3:all {TWO} {SMALL} -y", learns_the_second)
    second = _newest(project, "hnppo_pull_left_1")
    whole = _newest(project, "series3 all")
    assert not (whole / "result.json").exists()
    assert not (second / "result.json").exists()
    project.good(f"guild run --restart {whole.name[:8]} -y")
    steps = {step.resolve().name for step in (whole / "steps").iterdir()}
    # No step ran twice
    assert {run.name for run in set(project.runs) - known} == {whole.name, *steps}
    return whole


def test_a_killed_series_ends_like_an_undisturbed_one(project, killed, monkeypatch) -> None:
    """In one test, so that parallel test processes do not run the series again."""
    _its_killed_step_equals_an_undisturbed_run(project, killed, monkeypatch)
    _a_finished_step_of_another_series_is_reused(project, killed, monkeypatch)
    _metrics_refuse_a_reference_that_does_not_fit(project, killed)


def _its_killed_step_equals_an_undisturbed_run(project: Project, killed: Path, monkeypatch) -> None:
    """The killed step equals a run in this process, with the same flags, that was not killed."""
    first, second = (killed / "steps/0_pull").resolve(), (killed / "steps/1_pull_left").resolve()
    flags = json.loads((second / "journal/run.json").read_text())["flags"]
    flags = {name.replace("-", "_"): value for name, value in flags.items() if name != "resume"}
    by_itself = project.root / "by_itself"
    with monkeypatch.context() as patch:
        patch.setenv("RUN_DIR", str(by_itself))
        patch.setenv("RECORD_MLFLOW", "off")
        patch.setenv("PROJECT_DIR", str(project.root))
        train_hnppo.main(train_hnppo.Config(**flags | {"pretrained": str(first)}))
    alone = written(by_itself)
    assert written(second)["digest"] == alone["digest"]
    assert written(second)["result"]["metrics"] == alone["result"]["metrics"]
    assert alone["result"]["task_id"] == 1
    assert (
        written(killed)["result"]["matrix"]
        == final_matrix([first, by_itself], reported=True).tolist()
    )


def _a_finished_step_of_another_series_is_reused(project, killed, monkeypatch) -> None:
    monkeypatch.setenv("GUILD_HOME", project.env["GUILD_HOME"])
    first = (killed / "steps/0_pull").resolve().name
    two = ["series3:hnppo_pull_0", "series4:hnppo_pull_left_1"]
    flags = {"steps": " ".join(two), "seed": 5, "env_steps": 6144, "video": "no"}

    def planned(**changes) -> list[series.Step]:
        return series.plan(series.Config(**flags | changes), killed / "no such file")

    reused, own = planned()
    assert (reused.run, reused.reused, own.run, own.after) == (
        first,
        True,
        "",
        {"previous": "task 0"},
    )
    for changed in ({"seed": 6}, {"env_steps": 4096}, {"video": "yes"}, {"reuse": False}):
        assert not planned(**changed)[0].run
    assert not planned(steps=two[0])[0].run  # a step of the same series is run again


def _metrics_refuse_a_reference_that_does_not_fit(project, killed) -> None:
    """The series is the last one, whose folder `steps` has nothing but links."""
    line = f"guild run door:metrics_series3 reference={killed.name} seed=5 -y"
    project.bad(line, "reference: ", "learned pull_left after another task")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("guild run series4:hnppo_lever_2 -y", ("series4:hnppo_pull_left_1",)),
        ("guild run series4:all steps=series4:nothing_0 -y", ("series4:nothing_0",)),
    ],
)
def test_a_mistake_gets_one_clear_line(project: Project, line: str, words: tuple[str, ...]) -> None:
    project.bad(line, *words)


def test_a_series_without_steps_and_one_without_guild(monkeypatch) -> None:
    with pytest.raises(record.UserError, match="--steps: empty"):
        series.Config(steps=" ")
    monkeypatch.delenv("GUILD_HOME", raising=False)
    with pytest.raises(record.UserError, match="a series runs under Guild"):
        series.main(series.Config(steps="series3:hnppo_pull_0"))


def test_the_file_of_an_older_interrupted_series_gives_the_ids(tmp_path) -> None:
    file, runs = tmp_path / "series.json", ["a" * 32, "b" * 32]
    steps = [{"operation": "x", "run": run, "reused": False, "seed": 1} for run in runs]
    file.write_text(json.dumps({"steps": steps}))
    config = series.Config(steps="s:0 s:1 s:2", reuse=False)
    assert [step.run for step in series.plan(config, file)] == [*runs, ""]
    for damaged in ('{"task 0": "c', "[1]"):
        file.write_text(damaged)
        with pytest.raises(record.UserError, match=r"series\.json.* restore it from a copy"):
            child_runs.plan(file, series.plan(config, file))
    file.write_text(json.dumps({"task 0": "c" * 32}))
    assert [step.run for step in series.plan(config, file)] == ["c" * 32, "", ""]
