"""Unchanged commands on other machines: a scheduler and two workers as processes of this one."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess

import psutil
import pytest

from lab import REAL
from runcatalog.cluster import dask_engine, serve
from runcatalog.record.journal.metrics import read_points
from runcatalog.record.lifecycle.status import last_session


def result(run):
    return json.loads((run / "result.json").read_text())


def new_run(lab, known):
    """Wait for a new run, not in `known`, that has started on a worker."""

    def begun():
        fresh = [run for run in lab.runs if run not in known]
        return fresh[0] if fresh and (fresh[0] / "journal/sessions.jsonl").exists() else None

    return lab.wait(begun)


def place_of(run):
    return json.loads((run / ".guild/engine.json").read_text())["place"]["machine"]


def test_a_run_is_executed_by_a_worker_and_its_files_return(lab, engine):
    out = lab.good("guild run small:train updates=6 -y", ENGINE="lab")
    run = lab.runs[-1]
    facts = json.loads((run / "journal/run.json").read_text())
    assert f"engine: on {facts['machine']}" in out
    assert facts["machine"] in ("box1", "box2")
    assert facts["project"] == str(lab.root)
    assert facts["id"] == run.name
    assert "finished" in out
    assert result(run)["status"] == "FINISHED"
    assert [point.step for point in read_points(run / "journal/metrics.jsonl")][-1] == 6
    assert (run / ".guild/attrs/exit_status").read_text().strip() == "0"
    assert not list((lab.settings.scratch).glob("box*/trials/*"))  # nothing is left there
    here = lab.good("guild run small:train updates=6 -y")  # without ENGINE
    assert "engine:" not in here
    assert result(lab.runs[-1])["digest"] == result(run)["digest"]


def test_a_script_in_the_projects_folder_is_executed_by_a_worker(lab, engine):
    out = lab.good("guild run root:plain -y", ENGINE="lab")
    assert "engine: on" in out
    assert b"caf\xe9.txt" in os.listdir(os.fsencode(lab.runs[-1]))


@pytest.fixture
def repository(lab):
    """The lab's project under git, where Guild copies files of any kind that git does not ignore."""
    subprocess.run(["git", "init", "-q", lab.root], check=True)
    yield
    shutil.rmtree(lab.root / ".git")


def test_private_keys_in_the_project_are_not_copied_into_a_run(lab, engine, repository):
    assert "keys: 0" in lab.good("guild run root:plain -y")


def test_private_keys_in_a_run_are_not_shipped(lab, engine, repository):
    for name in (".gitignore", ".guild-nocopy"):  # as in a folder from before there were these
        (lab.settings.tls / name).unlink(missing_ok=True)
    out = lab.good("guild run root:plain -y", ENGINE="lab")
    assert (lab.runs[-1] / "tls/authority.key").exists()
    assert "keys: 0" in out


def test_a_script_that_fails_is_not_repeated_and_its_status_is_guilds(lab, engine):
    done = lab.type("guild run small:train fail=2 -y", ENGINE="lab")
    run = lab.runs[-1]
    assert done.returncode == 1
    assert "it fails" in done.stdout
    assert result(run)["reason"] == "as requested"
    assert json.loads((run / ".guild/engine.json").read_text())["attempt"] == 1


def test_the_trials_of_a_batch_run_side_by_side(lab, engine):
    before = set(lab.runs)
    lab.good("guild run small:train seed=[1,2] updates=20 pause=0.4 -y", ENGINE="lab")
    trials = [run for run in lab.runs if run not in before]
    # A free box1 is used first, so the second trial started while the first was running.
    assert {place_of(run) for run in trials} == {"box1", "box2"}
    assert len({result(run)["digest"]["metrics"] for run in trials}) == 2


def test_a_killed_worker_costs_the_updates_after_the_last_checkpoint(lab, engine):
    lab.wait_for_workers(engine, "box1", "box2")
    before = set(lab.runs)
    flags = "updates=60 every=10 seed=3"
    running = lab.background(f"guild run small:train {flags} pause=0.1 -y", ENGINE="lab")
    run = new_run(lab, before)
    lab.wait(lambda: any((run / "checkpoints").glob("*/checkpoint.json")))
    lost = place_of(run)
    trial = psutil.Process(last_session(run)["pid"])
    lab.kill(lost)
    out, _ = running.communicate(timeout=240)
    assert running.returncode == 0, out
    assert not trial.is_running()
    assert f"{lost} does not answer" in out
    assert last_session(run)["session"] == 2
    assert result(run)["resume_mismatch"] == 0
    assert last_session(run)["moved"]["machine"] == place_of(run)
    machines = json.loads((run / ".guild/engine.json").read_text())["machines"]
    assert [entry["machine"] for entry in machines] == [lost, *({"box1", "box2"} - {lost})]
    lab.good(f"guild run small:train {flags} -y")
    assert result(lab.runs[-1])["digest"] == result(run)["digest"]
    lab.start(lost)
    lab.wait_for_workers(engine, "box1", "box2")


def test_a_worker_that_is_warned_sends_its_runs_elsewhere_and_ends(lab, engine):
    before = set(lab.runs)
    flags = "updates=80 every=100000 seed=4"  # no checkpoint is due but for the warning
    running = lab.background(f"guild run small:train {flags} pause=0.1 -y", ENGINE="lab")
    run = new_run(lab, before)
    metrics = run / "journal/metrics.jsonl"
    lab.wait(lambda: metrics.exists() and metrics.read_text().count("\n") > 5)
    warned = place_of(run)
    lab.processes[warned].send_signal(signal.SIGUSR1)
    out, _ = running.communicate(timeout=240)
    assert running.returncode == 0, out
    assert "the machine ends soon (SIGUSR1); going on elsewhere" in out
    assert place_of(run) != warned
    assert last_session(run)["session"] == 2
    assert result(run)["resume_mismatch"] == 0
    assert lab.processes[warned].wait(240) == 0
    lab.good(f"guild run small:train {flags} -y")
    assert result(lab.runs[-1])["digest"] == result(run)["digest"]
    lab.start(warned)
    lab.wait_for_workers(engine, "box1", "box2")


def test_stop_reaches_the_run(lab, engine):
    before = set(lab.runs)
    running = lab.background("guild run small:train updates=100000 pause=0.05 -y", ENGINE="lab")
    run = new_run(lab, before)
    trial = psutil.Process(last_session(run)["pid"])
    lab.wait(lambda: any(w["running"] for w in engine.workers()))
    assert dask_engine.places(lab.settings) == 2
    assert dask_engine.places(lab.settings, own=[]) == 1
    assert dask_engine.places(lab.settings, own=[run.name]) == 2
    lab.good(f"guild stop {run.name} -y")
    running.communicate(timeout=240)
    assert (run / ".guild/attrs/exit_status").read_text().strip() == str(-signal.SIGTERM)
    assert result(run)["reason"] == "SIGTERM"
    trial.wait(240)


def test_a_run_without_its_submitter_ends_with_its_lease_and_can_be_resumed(lab, engine):
    before = set(lab.runs)
    running = lab.background(
        "guild run small:train updates=200 every=10 pause=0.1 -y", ENGINE="lab"
    )
    run = new_run(lab, before)
    lab.wait(lambda: any((run / "checkpoints").glob("*/checkpoint.json")))
    trial = psutil.Process(last_session(run)["pid"])
    lab.kill_all(running)
    trial.wait(240)
    assert not (run / "result.json").exists()  # no submitter fetched it
    out = lab.good(f"guild run --restart {run.name} -y", ENGINE="lab")
    assert "engine: on" in out
    assert last_session(run)["session"] == 2
    assert result(run)["status"] == "FINISHED"
    assert result(run)["resume_mismatch"] == 0


@pytest.fixture
def long_lease(lab):
    """A lease that outlasts the runs of a test, also on a busy machine."""
    file = lab.root / "experiments/engines.yml"
    text = file.read_text()
    file.write_text(text.replace("lease: 10", "lease: 120"))
    yield
    file.write_text(text)


def test_a_run_that_ended_without_its_submitter_is_fetched_not_repeated(lab, engine, long_lease):
    before = set(lab.runs)
    # Nine seconds to see its first checkpoint before its end.
    flags = "updates=100 every=10 pause=0.1"
    running = lab.background(f"guild run small:train {flags} -y", ENGINE="lab")
    run = new_run(lab, before)
    lab.wait(lambda: any((run / "checkpoints").glob("*/checkpoint.json")))
    trial = psutil.Process(last_session(run)["pid"])
    lab.kill_all(running)
    trial.wait(240)
    assert not (run / "result.json").exists()
    assert "engine: on" not in lab.good(f"guild run --restart {run.name} -y", ENGINE="lab")
    assert last_session(run)["session"] == 1
    assert result(run)["status"] == "FINISHED"
    assert (run / ".guild/attrs/exit_status").read_text().strip() == "0"


def test_a_required_run_and_the_records_are_there(lab, engine):
    lab.good("guild run small:train updates=2 -y")
    required = lab.runs[-1]
    folder = lab.root / "experiments/records/small"
    folder.mkdir(parents=True)
    (folder / "7623993d.json").write_text("{}")
    out = lab.good(f"guild run small:check earlier={required.name} -y", ENGINE="lab")
    assert "engine: on" in out
    assert f"requires {required.name}" in out
    assert "records 1" in out


def search_notes(lab, before):
    """Trials of a search that began after `before`, by number, and their notes."""
    runs = [run for run in lab.runs if run not in before and (run / "search.json").exists()]
    notes = [(json.loads((run / "search.json").read_text()), run) for run in runs]
    return sorted(notes, key=lambda pair: pair[0]["trial"])


def test_a_search_fills_the_free_places_of_the_engine(lab, engine):
    lab.wait_for_workers(engine, "box1", "box2")
    before = set(lab.runs)
    out = lab.good("guild run small:opt@gp -y", ENGINE="lab")
    trials = search_notes(lab, before)
    assert [note["trial"] for note, _ in trials] == [1, 2, 3]
    assert trials[1][0]["pending"] == [1]  # proposed while the first one was running
    assert len(trials[2][0]["pending"]) <= 1  # no more than there are workers
    assert {place_of(run) for _, run in trials} == {"box1", "box2"}
    assert "best distance" in out


def test_a_search_runs_as_many_trials_at_once_as_is_typed(lab, engine):
    lab.wait_for_workers(engine, "box1", "box2")
    before = set(lab.runs)
    flags = "updates=[2:9] --optimizer gp --opt-flag parallel=1 --max-trials 2 --minimize distance"
    lab.good(f"guild run small:train {flags} -y", ENGINE="lab")
    trials = search_notes(lab, before)
    assert [note["pending"] for note, _ in trials] == [[], []]
    assert all((run / ".guild/engine.json").exists() for _, run in trials)


def attribute(run, name):
    return int((run / ".guild/attrs" / name).read_text())


def test_pairs_of_two_seeds_run_side_by_side_with_the_same_bits_as_here(lab, engine):
    lab.wait_for_workers(engine, "box1", "box2")

    def pairs(pause, **env):
        """The runs of two pairs: the parents, and the children by seed and operation."""
        before = set(lab.runs)
        out = lab.good(f"guild run small:pairs seed=[1,2] updates=8 pause={pause} -y", **env)
        runs = [run for run in lab.runs if run not in before]
        parents = [run for run in runs if (run / "pairs.json").exists()]
        children = {}
        for parent in parents:
            seed = json.loads((parent / "journal/run.json").read_text())["flags"]["seed"]
            for name, run in json.loads((parent / "pairs.json").read_text()).items():
                children[seed, name] = lab.home / "runs" / run
        assert len(children) == 4
        assert len(runs) == 6  # Guild removes a batch that has ended
        return out, parents, children

    out, parents, there = pairs(0.6, ENGINE="lab")  # long enough for both to have begun
    assert not any((run / ".guild/engine.json").exists() for run in parents)
    assert out.count("engine: on") == 4
    for seed in (1, 2):
        assert attribute(there[seed, "second"], "started") > attribute(
            there[seed, "first"], "stopped"
        )
    first = [there[seed, "first"] for seed in (1, 2)]
    assert {place_of(run) for run in first} == {"box1", "box2"}
    assert max(attribute(run, "started") for run in first) < min(
        attribute(run, "stopped") for run in first
    )
    _, _, here = pairs(0)
    for name, run in here.items():
        assert not (run / ".guild/engine.json").exists()
        assert result(there[name])["digest"] == result(run)["digest"]
    assert len({result(run)["digest"]["weights"] for run in here.values()}) == 4


def test_runs_that_a_script_looks_up_are_sent_with_it(lab, engine):
    lab.good("guild run small:train updates=2 -y")
    lab.good("guild run small:train updates=4 -y")
    older, newest = lab.runs[-2:]
    flags = f"runs='{older.name[:8]} newest'"
    assert "2 of 3 runs" in lab.good(f"guild run small:average {flags} -y", ENGINE="lab")
    there = lab.runs[-1]
    assert [link.resolve() for link in sorted((there / "runs").iterdir())] == [older, newest]
    lab.good(f"guild run small:average {flags} -y")
    assert result(lab.runs[-1])["digest"] == result(there)["digest"]
    assert result(lab.runs[-1])["result"]["objective"] == result(there)["result"]["objective"]
    done = lab.type("guild run small:average runs=none -y", ENGINE="lab")
    assert done.returncode == 2
    assert "--runs: no run none" in done.stdout


def test_workers_are_shown_drained_stopped_and_started_with_two_slots_by_command(lab, engine):
    lab.wait_for_workers(engine, "box1", "box2")
    shown = lab.good("catalog workers").splitlines()
    assert [line.split()[0] for line in shown] == ["name", "box1", "box2"]
    assert "box2 takes no more runs" in lab.good("catalog workers drain box2 --why 'new fan'")

    def drained(name):
        return next(w["drained"] for w in engine.workers() if w["name"] == name)

    lab.wait(lambda: drained("box2") == "new fan")
    assert json.loads(lab.good("catalog workers --json"))[1]["drained"] == "new fan"
    assert "takes runs" in lab.good("catalog workers start box2")
    lab.wait(lambda: not drained("box2"))
    assert "box2 is stopped" in lab.good("catalog workers stop box2")
    lab.wait_for_workers(engine, "box1")
    # The real command: it waits for the process that it has started, not for a fork.
    start = f"{REAL / 'catalog'} workers start box2 --as-root --slots 2"
    assert "listens on tls://" in lab.good(start)
    lab.wait_for_workers(engine, "box1", "box2")
    shown = lab.good("catalog workers").splitlines()[1:]
    assert [re.search(r"0 of \d", line)[0] for line in shown] == ["0 of 1", "0 of 2"]
    before = set(lab.runs)
    lab.good("guild run small:train seed=[1,2,3] updates=20 pause=0.4 -y", ENGINE="lab")
    places = [place_of(run) for run in lab.runs if run not in before]
    assert sorted(places) == ["box1", "box2", "box2"]
    lab.good("catalog workers stop box2")
    lab.start("box2")
    lab.wait_for_workers(engine, "box1", "box2")


def test_a_worker_is_said_to_listen_only_once_it_has_its_name(lab, engine, tmp_path):
    lab.wait_for_workers(engine, "box1", "box2")
    start = f"{REAL / 'catalog'} workers start box1 --as-root --scratch"
    refused = lab.type(f"{start} {tmp_path}")
    assert refused.returncode == 1
    assert "the scheduler has another worker 'box1'" in refused.stdout
    assert "listens" not in refused.stdout
    lab.wait_for_workers(engine, "box1", "box2")


def test_a_worker_without_a_scheduler_is_said_to_wait_for_it(lab, tmp_path):
    path = lab.settings.file
    text = path.read_text()
    with socket.socket() as free:  # bound, but nothing listens
        free.bind(("127.0.0.1", 0))
        alone = re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{free.getsockname()[1]}", text)
        path.write_text(text + alone.replace("lab:", "alone:", 1))
        try:
            start = f"{REAL / 'catalog'} workers start box1 --as-root --engine alone --scratch"
            said = lab.good(f"{start} {tmp_path}")
            assert "box1 waits for tls://127.0.0.1" in said
        finally:
            path.write_text(text)
            if state := serve.is_alive(tmp_path / "box1"):
                os.kill(state["pid"], signal.SIGTERM)


def test_runs_go_on_while_the_scheduler_is_restarted(lab, engine):
    before = set(lab.runs)
    running = lab.background("guild run small:train updates=75 pause=0.2 -y", ENGINE="lab")
    run = new_run(lab, before)
    lab.kill("scheduler")
    lab.start("scheduler")
    lab.wait_for_workers(engine, *({"box1", "box2"} - {place_of(run)}))
    out, _ = running.communicate(timeout=240)
    assert running.returncode == 0, out
    assert last_session(run)["session"] == 1


def test_bad_settings_and_bad_names_are_one_line_errors(lab):
    for line, words in (
        ("ENGINE=nowhere guild run small:train -y", "ENGINE=nowhere: experiments/engines.yml"),
        ("catalog workers start box9", "box9.pem is missing; `catalog workers certificate box9`"),
        ("catalog workers drain", "the name is missing"),
    ):
        done = lab.type(line)
        assert done.returncode == 1
        assert words in done.stdout
        assert "Traceback" not in done.stdout
