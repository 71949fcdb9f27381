"""A killed and resumed run equals, bit for bit, the uninterrupted run."""

import os
import random
import shutil
import signal
import threading

import numpy as np
import pytest
import torch

import ends_table
from runcatalog import record
from runcatalog.record.delivery import tags
from runcatalog.record.delivery.publish import publish
from runcatalog.record.errors import Killed
from runcatalog.record.journal import files
from runcatalog.record.journal.files import read_json
from runcatalog.record.journal.lines import read_lines
from runcatalog.record.journal.metrics import read_points
from runcatalog.record.lifecycle.status import status_of
from runcatalog.store.sqlite_reader import reader


def result_of(toy):
    return read_json(toy.directory / "result.json")


@pytest.mark.parametrize(("seed", "kills"), [(1, 3), (2, 3)])
def test_killed_and_restarted_runs_end_bit_equal(toys, wait_until, seed, kills):
    chance = random.Random(seed)
    calm, toy = toys("calm"), toys("killed")
    flags = ["--seed", seed, "--updates", 120, "--every", 5]
    assert calm.run(*flags)[0] == 0
    uri = f"sqlite:///{toy.directory.parent}/mlflow.db"
    goals = sorted(chance.sample(range(1, 100), kills))
    for goal in goals:
        process = toy.start(*flags, "--pause", 0.01, "--hold", 110)  # it never ends by itself
        # Two lines an update; what a restart repeats is not written again.
        wait_until(lambda goal=goal: toy.lines() >= 2 * goal)
        process.kill()
        process.communicate()
        assert status_of(toy.directory).status == "KILLED"
        run = _in_mlflow(uri, publish(toy.directory, uri).mlflow_run_id)
        assert run.info.status == "KILLED"
        assert run.data.tags["reason"] == "process gone (SIGKILL or os._exit)"
    assert toy.run(*flags)[0] == 0
    assert result_of(toy)["digest"] == result_of(calm)["digest"]
    assert result_of(toy)["resume_mismatch"] == 0
    # A kill may precede the opening of the journal
    assert 1 < result_of(toy)["session"] <= kills + 1
    run = _in_mlflow(uri, publish(toy.directory, uri).mlflow_run_id)
    assert (run.info.status, run.data.tags["reason"]) == ("FINISHED", "")
    points = [p[1:3] for p in read_points(toy.directory / "journal" / "metrics.jsonl")]
    assert len(points) == len(set(points)) == 120 * 3 + 1


def test_a_warned_run_saves_a_checkpoint_ends_and_resumes_bit_equal(toys, wait_until):
    calm, toy = toys("calm"), toys("warned")
    flags = ["--updates", 200, "--every", 10**6]  # no checkpoint is due but for the warning
    assert calm.run(*flags)[0] == 0
    process = toy.start(*flags, "--pause", 0.1)  # long enough to be warned in time
    wait_until(lambda: toy.lines() > 20)
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=240)
    assert process.returncode == -signal.SIGUSR1
    assert list((toy.directory / "checkpoints").glob("0*"))
    ends_table.check("queue's warning with checkpoints", *status_of(toy.directory)[:2])
    assert toy.run(*flags)[0] == 0
    assert result_of(toy)["session"] == 2
    assert result_of(toy)["resume_mismatch"] == 0
    assert result_of(toy)["digest"] == result_of(calm)["digest"]


def _in_mlflow(uri, run_id):
    from mlflow import MlflowClient

    return MlflowClient(uri).get_run(run_id)


def test_a_torn_journal_and_checkpoint_are_repaired(toys):
    calm, toy = toys("calm"), toys("torn")
    assert calm.run("--updates", 12)[0] == 0
    assert toy.run("--updates", 8)[0] == 0
    with (toy.directory / "journal" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"t":1,"step":9,"m":{"lo')
    weights = toy.directory / "checkpoints" / "00000008" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:50])
    (toy.directory / "checkpoints" / ".writing-00000012-1").mkdir()
    # The objective of the shorter run is another point, since it ends at another update.
    assert toy.run("--updates", 12)[0] == 0
    assert result_of(toy)["digest"]["weights"] == result_of(calm)["digest"]["weights"]
    names = {path.name for path in (toy.directory / "checkpoints").iterdir()}
    assert names == {"00000004", "00000008", "00000012"}


def test_checkpoints_that_cannot_be_loaded_are_reported_and_put_aside(toy):
    assert toy.run("--updates", 12)[0] == 0
    folder = toy.directory / "checkpoints"
    for step in (8, 12):
        (folder / f"{step:08d}" / "state.pt").write_bytes(b"")
    assert toy.run("--updates", 7, "--every", 1)[0] == 0
    names = {path.name for path in folder.iterdir()}
    assert names == {"00000005", "00000006", "00000007", "00000008.unusable", "00000012.unusable"}
    events = [line["text"] for line, _ in read_lines(toy.directory / "journal" / "events.jsonl")]
    for step, text in zip((12, 8), events, strict=True):
        name = f"{step:08d}"
        assert f"checkpoints/{name}: state.pt is missing or damaged" in text
        assert f"not used, and now named {name}.unusable" in text


def test_restarting_a_finished_run_changes_nothing(toy):
    assert toy.run("--updates", 6)[0] == 0
    before = result_of(toy)
    lines = toy.lines()
    assert toy.run("--updates", 6)[0] == 0
    after = result_of(toy)
    assert (after["digest"], after["resume_mismatch"]) == (before["digest"], 0)
    assert toy.lines() == lines
    assert after["wall_seconds"] == before["wall_seconds"]


def test_resume_takes_the_flags_of_the_run(toy):
    assert toy.run("--updates", 4, "--lr", 0.1, "--task", "lever")[0] == 0
    resume = ["--resume", toy.directory]
    without = {"RUN_DIR": ""}
    assert toy.run(*resume, "--updates", 8, env=without)[0] == 0
    assert read_json(toy.directory / "journal" / "run.json")["flags"]["lr"] == 0.1
    assert result_of(toy)["progress"]["done"] == 8
    code, errors = toy.run(*resume, "--lr", 0.2, env=without)
    assert (code, errors.count("\n")) == (2, 1)
    assert "--lr: the run to continue was started with 0.1, not 0.2" in errors
    assert result_of(toy)["status"] == "FINISHED"


def test_flags_changed_at_a_resume_are_in_the_journal_in_mlflow_and_in_the_next_resume(toy):
    uri = f"sqlite:///{toy.directory.parent}/mlflow.db"
    resume, without = ["--resume", toy.directory], {"RUN_DIR": ""}

    def changed():
        sessions = read_lines(toy.directory / "journal" / "sessions.jsonl")
        return [line.get("flags") for line, _ in sessions]

    assert toy.run("--updates", 2, "--every", 0)[0] == 0
    publish(toy.directory, uri)
    assert toy.run(*resume, "--updates", 5, env=without)[0] == 0
    assert changed() == [None, {"updates": 5}]
    publish(toy.directory, uri)
    (run,) = reader(uri).runs()
    assert run.flags["updates"] == "5"
    assert toy.run(*resume, env=without)[0] == 0
    assert changed()[2:] == [{"updates": 5}]
    assert toy.run(*resume, "--updates", 2, env=without)[0] == 0
    assert changed()[3:] == [None]
    publish(toy.directory, uri)
    (run,) = reader(uri).runs()
    assert run.flags["updates"] == "2"


def test_another_script_does_not_resume_a_run(toy, tmp_path):
    assert toy.run("--updates", 4)[0] == 0
    before = (toy.directory / "result.json").read_bytes()
    begun = toy.script
    toy.script = tmp_path / "other.py"
    toy.script.write_bytes(begun.read_bytes())
    code, errors = toy.run("--resume", toy.directory, "--updates", 8, env={"RUN_DIR": ""})
    assert (code, errors.count("\n")) == (2, 1)
    assert "toy_training.py" in errors
    assert "other.py cannot" in errors
    assert (toy.directory / "result.json").read_bytes() == before
    # A run from before scripts were recorded.
    facts = toy.directory / "journal" / "run.json"
    facts.write_text(facts.read_text().replace('"script"', '"another"'))
    assert toy.run("--resume", toy.directory, "--updates", 8, env={"RUN_DIR": ""})[0] == 0


def test_under_guild_another_run_is_not_resumed(toys):
    old = toys("0123456789abcdef")
    assert old.run("--updates", 2)[0] == 0
    code, errors = toys("new").run("--resume", old.directory)
    assert code == 2
    assert "guild run --restart 01234567" in errors


def test_recording_can_be_switched_off(project, monkeypatch):
    monkeypatch.setenv("RECORD", "off")
    with record.start(record.Config(seed=4), study="toy") as run:
        assert run.restore() is None
        run.log({"a": 1.0}, 1)
        run.progress(1, 2, "update")
        run.checkpoint(1, {}, {})
        run.artifact("figure.txt").write_text("")
        run.digest_weights({})
        directory = run.directory
        assert run.finish({"env_steps": 3})["result"] == {"env_steps": 3}
    assert not directory.exists()
    assert [path.name for path in project.iterdir()] == ["guild.yml"]


def test_a_new_run_without_guild_lies_in_the_project(project, capsys):
    with record.start(record.Config(), study="toy") as run:
        with pytest.raises(ValueError, match="metric"):
            run.log({"bad=name": 1.0}, 1)
        run.log({"fine": 1.0}, 1)
        run.event("half of it is done")
        run.add_parent("f" * 32)
        written = run.finish({"objective": {"name": "x", "value": float("nan")}})
    assert ": x NaN" in capsys.readouterr().out
    assert run.directory == project / "runs" / run.id[:8]
    assert written["result"]["objective"]["value"] != written["result"]["objective"]["value"]
    assert read_json(run.directory / "result.json")["result"]["objective"]["value"] == "NaN"
    shutil.rmtree(run.directory)


def test_arrays_in_a_result_are_lists(project):
    table = {"rows": np.arange(4.0).reshape(2, 2), "best": np.float32(0.5), "count": np.int64(3)}
    with record.start(record.Config(), study="toy") as run:
        run.finish({"metrics": table})
    written = read_json(run.directory / "result.json")
    assert written["status"] == "FINISHED"
    assert written["result"]["metrics"] == {"rows": [[0, 1], [2, 3]], "best": 0.5, "count": 3}


def test_a_result_that_is_too_long_to_be_read_fails_the_run_and_says_so(project, monkeypatch):
    """It was written, and the run was called killed, since no reader took the file."""
    monkeypatch.setattr(files, "MAX_BYTES", 20_000)
    with (
        pytest.raises(ValueError, match=r"result.json: 3\d,\d{3} bytes; at most 20,000 are read"),
        record.start(record.Config(), study="toy") as run,
    ):
        run.finish({"metrics": {f"metric {i}": i for i in range(1500)}})
    status, reason, _ = status_of(run.directory)
    ends_table.check("a result that is too long", status, reason)


def test_a_long_table_of_a_result_reaches_mlflow_whole(project):
    from runcatalog.record.delivery.hidden_tags import plain_names, stored_names
    from runcatalog.store.run_rows import _result

    rows = [[i, f"a setting with the number {i}", "12.3 [11.2, 13.4]"] for i in range(160)]
    result = {"table": {"columns": ["a", "b", "c"], "rows": rows}, "summary": "160 settings"}
    result |= {"objective": {"name": "loss", "value": 2.0}, "variant": {"method": "grid"}}
    sent = stored_names({tags.RESULT: tags._result_text(result)})
    assert max(map(len, sent.values())) <= 8000
    assert _result(plain_names(sent)) == result


@pytest.mark.parametrize(
    "use",
    [
        lambda run: run.log({"loss": 1.0}, 1),
        lambda run: run.event("half"),
        lambda run: run.checkpoint(1, {}, {}),
        lambda run: run.add_parent("f" * 32),
        lambda run: run.progress(1, 1, "update"),
        lambda run: run.finish({}),
    ],
)
def test_a_run_that_was_not_entered_says_how_to(project, use):
    run = record.start(record.Config(), study="toy")
    with pytest.raises(RuntimeError, match="`with record"):
        use(run)
    assert not run.directory.exists()


@pytest.mark.parametrize("value", [None, "low", 10**400, np.ones(2), torch.ones(2)])
def test_of_many_metrics_the_one_that_is_no_number_is_named(project, value):
    with record.start(record.Config(), study="toy") as run:
        with pytest.raises(ValueError, match="metric 'time/y': not a number but "):
            run.log({"x": 1.0, "time/y": value, "z": 2}, 1)
        run.log({"x": 1.0, "time/y": np.float32(2), "z": torch.tensor(3)}, 1)
        run.finish({})
    points = read_points(run.directory / "journal" / "metrics.jsonl")
    assert [point.value for point in points] == [1, 2, 3]


def test_threads_that_log_at_once_lose_no_point_and_delay_no_signal(project):
    """Such as a thread that evaluates while the main one trains."""

    def log(name: str) -> None:
        for step in range(1000):
            run.log({name: step / 7}, step)

    with record.start(record.Config(), study="toy") as run:
        threads = [threading.Thread(target=log, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for step in range(1000):
            run.log({"main": step / 7}, step)
        for thread in threads:
            thread.join()
        run.finish({})
        points = {
            (p.name, p.step, p.value) for p in read_points(run.directory / "journal/metrics.jsonl")
        }
        assert points == {(n, s, s / 7) for n in [*"abcd", "main"] for s in range(1000)}
        with pytest.raises(Killed):
            os.kill(os.getpid(), signal.SIGTERM)


def test_metrics_after_the_end_are_named_and_do_not_damage_the_run(project, capsys):
    """The digest in its result is of all of its metrics."""
    with record.start(record.Config(), study="toy") as run:
        run.log({"loss": 1.0}, 1)
        run.finish({"objective": {"name": "loss", "value": 1.0, "at": 1}})
        run.log({"test/loss": 2.0}, 1)
    run.log({"test/loss": 3.0}, 2)
    said = capsys.readouterr().out
    assert said.count("test/loss came after run.finish and is not recorded") == 2
    assert read_json(run.directory / "result.json")["status"] == "FINISHED"
    assert not publish(run.directory).journal
    points = read_points(run.directory / "journal" / "metrics.jsonl")
    assert [(p.step, p.name) for p in points] == [(1, "loss"), (1, "objective")]


def test_another_value_of_a_point_is_told_once(project, capsys):
    with record.start(record.Config(), study="toy") as run:
        for step in (1, 2, 2, 1):
            run.log({"loss": step / 2, "same": 1.0, "time/x": step / 4}, step)
        assert "another value" not in capsys.readouterr().out
        for step in (1, 2):
            run.log({"loss": 5.0, "same": 1.0, "time/x": 3.0}, step)
        run.finish({})
    assert capsys.readouterr().out.count("step 1: another value than before of loss; the") == 1
    events = (run.directory / "journal" / "events.jsonl").read_text()
    assert events.count("another value") == 1


@pytest.mark.parametrize("name", ["../plots/a.txt", "b/../../a.txt", ".."])
def test_an_artifact_outside_of_its_folder_is_refused(project, name):
    with record.start(record.Config(), study="toy") as run:
        folder = run.directory / "artifacts"
        for given in (name, folder / name):
            with pytest.raises(ValueError, match=r"without \.\."):
                run.artifact(given)
        assert run.artifact("plots/../a.txt").resolve() == folder / "a.txt"
        assert run.artifact(folder / "a.txt") == folder / "a.txt"
        run.finish({})
    assert {path.name for path in run.directory.iterdir()} >= {"artifacts", "journal"}
    assert not (run.directory / "plots").exists()


@pytest.mark.parametrize(
    ("at", "step"),
    [
        *[({"at": 0}, 0), ({"at": 5}, 5), ({"at": None}, 2), ({}, 2)],
        *[({"at": 2.5}, 2), ({"at": -1}, 2), ({"at": "the end"}, 2)],
    ],
)
def test_the_objective_is_a_point_where_it_was_reached(project, at, step):
    with record.start(record.Config(), study="toy") as run:
        run.log({"loss": 1.0}, 2)
        written = run.finish({"objective": {"name": "loss", "value": 3.0} | at})
    assert written["status"] == "FINISHED"
    assert written["result"]["objective"] == {"name": "loss", "value": 3.0} | at
    points = read_points(run.directory / "journal" / "metrics.jsonl")
    assert [(point.step, point.value) for point in points if point.name == "objective"] == [
        (step, 3.0)
    ]
