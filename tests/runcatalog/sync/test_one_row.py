"""One correct row per run and batch: simultaneous syncs, deletions, restarts, repeated imports."""

import re
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

import prepared
from rendered import local
from runcatalog.model.record_files import read_all
from runcatalog.record.delivery.mlflow_client import connect
from runcatalog.record.journal.files import write_json
from runcatalog.store.client import Store
from runcatalog.store.sqlite_reader import reader
from runcatalog.sync.sync import Sync

SWEEPS = {"": ("1e-3", "5e-3"), "die=9": ("2e-3", "4e-3")}


@pytest.fixture(scope="module")
def lab(shell_in, tmp_path_factory):
    """Two sweeps that ran at once, of one both trials killed, and a run; sent by two syncs at once."""
    shell = shell_in(tmp_path_factory.mktemp("lab"))
    both = [f"guild run toy:train lr='[{','.join(lr)}]' {die} -y" for die, lr in SWEEPS.items()]
    shell(" & ".join([*both, "wait"]), code=None, RECORD_MLFLOW="off")
    shell("guild run toy:train updates=12 --label 'a | label' -y", RECORD_MLFLOW="off")
    sync = "python -m runcatalog.cli.main sync"
    shell.sync_output = shell(f"{sync} & {sync} & wait")
    shell(f"guild compare --csv {shell.root.parent / 'export.csv'} --operation toy:train")
    # What an MLflow is before the first run: making one takes seconds.
    connect(f"sqlite:///{shell.root.parent}/empty.db").search_experiments()
    return shell


@pytest.fixture
def world(lab, shell_in, tmp_path):
    """The lab, moved to a folder of the test's own."""
    shutil.copytree(lab.root.parent, tmp_path, symlinks=True, dirs_exist_ok=True)
    away = lab.root.rename(lab.root.with_name("away"))
    yield shell_in(tmp_path)
    shutil.rmtree(lab.root, ignore_errors=True)  # a restarted run writes where it began
    away.rename(lab.root)


def rows(shell):
    """Render what MLflow holds, without the records; return the rows of runs and batches by their id."""
    records, aside = shell.root / "experiments" / "records", shell.root.parent / "aside"
    records.mkdir(exist_ok=True)
    records.rename(aside)
    (shell.root / "runs_catalog.md").unlink(missing_ok=True)  # their rows would be missed
    shutil.rmtree(shell.root / "catalog", ignore_errors=True)
    shell.inside("render")
    aside.rename(records)
    entries = {}
    for line in local(shell.root).splitlines():
        if entry := re.match(r'\| <a id="([0-9a-f]{8})"></a>[0-9a-f]{8} \*local\* \|', line):
            assert entry[1] not in entries, line
            entries[entry[1]] = line
    return entries


def ask(shell, query):
    """Return the rows of a query to MLflow's database."""
    path = Path(shell.env.get("MLFLOW_TRACKING_URI", f"sqlite:///{shell.root}/mlflow.db")[10:])
    with sqlite3.connect(path) as connection:
        return connection.execute(query).fetchall()


def live(shell):
    """Return (run_id, operation, batch, status) of the runs that are not deleted in MLflow."""
    tag = "(SELECT value FROM tags WHERE tags.run_uuid = runs.run_uuid AND key = '{}')".format
    names = ", ".join(map(tag, ("run_id", "operation", "batch")))
    return ask(shell, f"SELECT {names}, status FROM runs WHERE lifecycle_stage = 'active'")


def check_points(shell):
    """Check that every metric of every run that is not deleted has one point per step, from the first on."""
    select = "SELECT m.run_uuid, key, COUNT(*), COUNT(DISTINCT step), MIN(step), MAX(step)"
    query = f"{select} FROM metrics m JOIN runs r USING (run_uuid) WHERE lifecycle_stage = 'active'"
    metrics = ask(shell, f"{query} AND key != 'objective' GROUP BY m.run_uuid, key")
    assert metrics
    for _, _, points, steps, first, last in metrics:
        assert points == steps == last - first + 1
        assert first == 1


def trials(shell):
    """Return the ids of the trials by status, which is the same within a sweep."""
    by_status = {"FINISHED": [], "KILLED": []}
    for run_id, _, batch, status in live(shell):
        if batch:
            by_status[status].append(run_id)
    return by_status


def home(shell):
    return Path(shell.env["GUILD_HOME"])


def test_two_sweeps_and_two_syncs_at_once(lab):
    assert sorted(re.findall(r"(\d) sent", lab.sync_output)) == ["0", "7"]
    runs = live(lab)
    assert len(runs) == len({run_id for run_id, *_ in runs}) == 7
    by_batch = {}
    for run_id, _, batch, status in runs:
        by_batch.setdefault(batch, set()).add((run_id, status))
    heads = {run_id for run_id, _ in by_batch.pop("")}
    assert len(heads) == 3
    assert heads > set(by_batch)
    assert sorted(
        {s for _, s in trials_of_batch}.pop() for trials_of_batch in by_batch.values()
    ) == [
        "FINISHED",
        "KILLED",
    ]
    assert set(map(len, by_batch.values())) == {2}
    assert set(rows(lab)) == {run_id[:8] for run_id in heads}
    check_points(lab)


def test_a_restarted_trial_stays_in_its_sweep(world):
    before, one = rows(world), trials(world)["KILLED"][0]
    shutil.copytree(home(world) / "runs" / one, world.root.parent / "early", symlinks=True)
    world(f"guild run --restart {one} -y", RECORD_MLFLOW="off")
    world.inside("sync")
    after = rows(world)
    assert set(after) == set(before)
    assert sum(after[name] != before[name] for name in before) == 1
    assert len(live(world)) == 7
    assert len(trials(world)["FINISHED"]) == 3
    check_points(world)
    world.inside("import ../early")  # a copy from before the restart takes nothing back
    assert rows(world) == after


def test_a_copy_of_a_runs_directory_is_no_run_of_its_own(world):
    """The run and its copy became a batch, also in the run's record."""
    runs, before = home(world) / "runs", rows(world)
    # Batches have rows too, and no journal.
    single = next(
        path for path in runs.glob("*") if path.name[:8] in before and (path / "journal").exists()
    )
    shutil.copytree(single, runs / ("f" * 32), symlinks=True)
    world.inside("sync")
    assert rows(world) == before
    check_points(world)


def test_a_run_deleted_in_guild_keeps_its_row(world):
    before, by_status = rows(world), trials(world)
    for gone in (
        # Of the other trial one cannot see any more that it is of a sweep
        by_status["FINISHED"][:1],
        by_status["FINISHED"][1:],
        [run_id for run_id, _, batch, _ in live(world) if not batch],
    ):
        world(f"guild runs rm -y {' '.join(gone)}", code=None)  # of a grid, no batch is left there
        assert world.inside("sync").endswith(" 0 sent\n")
        assert rows(world) == before


def test_a_running_run_that_is_deleted_in_guild_is_recorded_to_its_end(world):
    before, one = rows(world), trials(world)["FINISHED"][0]
    where = f"(SELECT run_uuid FROM tags WHERE key = 'run_id' AND value = '{one}')"
    ask(world, f"UPDATE runs SET status = 'RUNNING' WHERE run_uuid = {where}")
    ask(world, f"DELETE FROM metrics WHERE run_uuid = {where} AND step > 5")
    (home(world) / "runs" / one / "journal" / "mlflow.json").unlink()
    assert rows(world) != before
    world(f"guild runs rm -y {one}")
    assert world.inside("sync").endswith("1 sent\n")
    assert rows(world) == before
    check_points(world)


def killed_sweep(world, updates):
    """Return the directories of a sweep and its first trial, which were killed during that trial."""
    line = f"exec guild run toy:train lr='[1e-3,2e-3]' updates={updates} -y"
    there = set(home(world).glob("runs/*"))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = world.env | {"RECORD_MLFLOW": "off"}
    sweep = subprocess.Popen(line, shell=True, cwd=world.root, env=environment, **quiet)
    try:
        new = _wait(lambda: set(home(world).glob("runs/*/journal/metrics.jsonl")), there)
        batches = {p.parents[2] for p in home(world).glob("runs/*/.guild/proto/.guild")}
        (batch,) = batches - there
    finally:
        prepared.kill_all(sweep, prepared.folder().parent)  # and waits for all of them
    return batch, new


def test_a_sweep_that_was_stopped_and_deleted_keeps_its_row(world):
    batch, new = killed_sweep(world, 200_000)
    world.inside("sync")
    before = rows(world)
    assert batch.name[:8] in before
    world(f"guild runs rm -y {batch.name}")
    world.inside("sync")
    assert rows(world) == before
    world(f"guild runs rm -y {new.name}")
    world.inside("sync")
    assert rows(world) == before


def test_a_killed_sweep_that_was_restarted_to_its_end_has_finished(world):
    batch, _ = killed_sweep(world, 20_000)
    world.inside("sync")
    ends = {run_id: status for run_id, _, _, status in live(world)}
    assert ends[batch.name] == "KILLED"
    world(f"guild run --restart {batch.name} -y", RECORD_MLFLOW="off")
    assert not batch.exists()  # Guild removes a sweep that has finished
    world.inside("sync")
    (head, *trials) = sorted(
        (
            (batch_, status)
            for run_id, _, batch_, status in live(world)
            if batch.name in (run_id, batch_)
        ),
    )
    assert head == ("", "FINISHED")
    assert trials == [(batch.name, "FINISHED")] * 2
    assert "killed" not in rows(world)[batch.name[:8]]


def _wait(candidates, before):
    end = time.monotonic() + 240
    while time.monotonic() < end:
        for path in candidates():
            if path.parents[1] not in before:
                return path.parents[1]
        time.sleep(0.05)
    raise AssertionError("no run began")


def test_a_search_that_was_extended_after_a_trial_was_deleted_has_its_new_importance(project):
    """Its row, and so its record for good, had that of the trials before."""

    def guild_run(number, operation, **attributes):
        directory = project.root.parent / "home" / "runs" / f"{number:032x}"
        (directory / ".guild" / "attrs").mkdir(parents=True, exist_ok=True)
        (directory / ".guild" / "opref").write_text(operation)
        times = {"started": number * 10**12, "stopped": number * 10**12 + 10**6, "exit_status": 0}
        for name, value in (times | attributes).items():
            (directory / ".guild" / "attrs" / name).write_text(f"{value}\n")
        return directory

    def sent(r2):
        importance = {"parameters": {"lr": {"share": 0.5, "low": 0.2, "high": 0.8}}, "r2": r2}
        write_json(batch / "result.json", {"result": {"importance": importance}})
        Sync(project, Store(), lambda line: None).run(batch.parents[1])
        (row,) = (run.record for run in reader(None).runs() if run.run == batch.name)
        return row.result["importance"]["r2"], row.result["method"]

    train = f"guildfile:{project.root}/guild.yml '' toy train"
    batch = guild_run(1, "builtin:runcatalog 0.1.0 search gp")
    (batch / ".guild" / "proto" / ".guild").mkdir(parents=True)
    (batch / ".guild" / "proto" / ".guild" / "opref").write_text(train)
    for number in (2, 3, 4):
        trial = guild_run(number, train, flags=f"lr: 0.{number}")
        write_json(trial / "search.json", {"method": "gp", "trial": number - 1})
        (batch / trial.name).symlink_to(trial)
        if number < 4:
            assert sent(0.1) == (0.1, "gp")
    shutil.rmtree(batch.parent / f"{2:032x}")
    assert sent(0.7) == (0.7, "gp")


def test_a_run_deleted_in_mlflow_stays_deleted_until_it_is_restored(world):
    from mlflow import MlflowClient

    before = rows(world)
    client = MlflowClient(f"sqlite:///{world.root}/mlflow.db")
    world.inside("export")
    ids = dict(ask(world, "SELECT value, run_uuid FROM tags WHERE key = 'run_id'"))
    batches = {batch for _, _, batch, _ in live(world) if batch}
    single = next(r for r, _, batch, _ in live(world) if not batch and r not in batches)
    for gone in (single, min(batches)):
        client.delete_run(ids[gone])
    assert world.inside("sync").endswith("0 sent\n2 deleted in MLflow: not sent again\n")
    world(f"guild run --restart {single} -y", RECORD_MLFLOW="off")
    world.inside("sync")
    assert "0 imported" in world.inside("import")
    left = rows(world)
    assert single[:8] not in left
    assert len(left) == len(before) - 1  # the trials of a deleted batch are still one row
    assert len(ask(world, "SELECT * FROM runs")) == 7
    for gone in (single, min(batches)):
        client.restore_run(ids[gone])
    world.inside("sync")
    assert set(rows(world)) == set(before)
    assert len(live(world)) == 7
    check_points(world)


def test_a_request_that_was_executed_twice_leaves_one_run(world):
    from mlflow import MlflowClient

    before, one = rows(world), trials(world)["FINISHED"][0]
    client = MlflowClient(f"sqlite:///{world.root}/mlflow.db")
    experiment = client.get_experiment_by_name("toy").experiment_id
    batch = next(batch for run_id, _, batch, _ in live(world) if run_id == one)
    for run_id in (one, batch):
        client.create_run(experiment, 1, {"run_id": run_id})
    assert len(live(world)) == 9
    assert world.inside("sync").endswith(" 0 sent\n")
    assert len(live(world)) == 7
    assert rows(world) == before
    check_points(world)


def test_a_csv_of_all_sweeps_of_an_operation_adds_to_none_of_them(world, tmp_path):
    lines = (world.root.parent / "export.csv").read_text().splitlines()
    assert len(lines) == 1 + 5
    path = tmp_path / "all.csv"
    path.write_text("\n".join([*lines, f"abcdef12{lines[-1][8:]}"]) + "\n")
    before = {run_id: batch for run_id, _, batch, _ in live(world)}
    world.inside(f"import {path} -q")
    after = {run_id: batch for run_id, _, batch, _ in live(world)}
    assert before.items() < after.items()
    (new,) = (run_id for run_id in after if run_id.startswith("abcdef12"))
    assert after[new] not in before.values()


def test_a_run_that_is_sent_after_it_was_imported_from_a_csv_is_one(world, tmp_path):
    before = live(world)
    batches = {batch for _, _, batch, _ in before if batch}
    one = next(run_id for run_id, _, batch, _ in before if not batch and run_id not in batches)
    lines = (world.root.parent / "export.csv").read_text().splitlines()
    path = tmp_path / "one.csv"
    path.write_text(
        "\n".join([lines[0], next(line for line in lines if line[:8] == one[:8])]) + "\n"
    )
    tag = "SELECT run_uuid FROM tags WHERE key = 'run_id' AND value"
    ((id_,),) = ask(world, f"{tag} = '{one}'")
    ask(world, f"UPDATE tags SET value = '{'0' * 32}' WHERE key = 'run_id' AND run_uuid = '{id_}'")
    world.inside(f"import {path} -q")
    assert len(live(world)) == len(before) + 2  # and the batch of the file
    ask(world, f"UPDATE tags SET value = '{one}' WHERE key = 'run_id' AND run_uuid = '{id_}'")
    world.inside("sync")
    assert sorted(live(world)) == sorted(before)


@pytest.mark.parametrize("order", ["journals", "records", "sync"])
def test_imported_twice_and_synced_is_the_row_of_the_run_itself(world, tmp_path, order):
    before = rows(world)
    world.inside("export")
    shutil.copytree(home(world) / "runs", tmp_path / "copied", symlinks=True)
    shutil.copy(tmp_path / "empty.db", tmp_path / "other.db")
    world.new_mlflow(tmp_path / "other.db")
    ways = {"journals": f"import {tmp_path / 'copied'}", "records": "import", "sync": "sync"}
    turn = [*ways][[*ways].index(order) :] + [*ways][: [*ways].index(order)]
    for way in turn:
        for _ in range(2):
            output = world.inside(ways[way])
            assert rows(world) == before, way
            assert len(live(world)) == 7
        assert " 0 imported" in output or " 0 sent" in output
    check_points(world)


def test_a_copied_guild_home_gives_the_rows_of_its_batches_and_of_runs_without_a_journal(
    world, tmp_path
):
    """A batch that Guild kept has its own name, id, method and end."""
    quiet = {"RECORD_MLFLOW": "off"}
    world("guild run toy:train lr='[6e-3,7e-3]' --keep-batch -y", **quiet)
    world("guild run toy:broken -y", code=None, **quiet)
    world.inside("sync")
    before, runs = rows(world), live(world)
    assert len(runs) == 7 + 3 + 1
    batches = (path.parents[1] for path in home(world).glob("runs/*/.guild/proto"))
    kept = max(batches, key=lambda path: path.stat().st_mtime_ns)
    assert kept.name in {run_id for run_id, *_ in runs}
    shutil.copytree(home(world), tmp_path / "copied", symlinks=True)
    links = [path for path in (tmp_path / "copied/runs" / kept.name).iterdir() if path.is_symlink()]
    assert len(links) == 2
    for folder in ("copied/runs", "copied"):
        shutil.copy(tmp_path / "empty.db", tmp_path / "other.db")
        world.new_mlflow(tmp_path / "other.db")
        output = world.inside(f"import {tmp_path / folder}")
        assert output.endswith("11 runs read: 11 imported\n")
        assert rows(world) == before
        assert sorted(live(world)) == sorted(runs)
        assert world.inside(f"import {tmp_path / folder}").endswith(" 0 imported\n")
    check_points(world)
    (tmp_path / "odd" / "mine" / ".guild").mkdir(parents=True)
    shutil.copy(kept / ".guild" / "opref", tmp_path / "odd" / "mine" / ".guild")
    assert "mine: name it after its run's id" in world.inside(f"import {tmp_path}/odd", code=1)


@pytest.mark.parametrize("first", ["csv", "records", "sync"])
def test_a_csv_is_no_second_row(world, tmp_path, first):
    expected = rows(world)
    world.inside("export")
    shutil.copy(tmp_path / "empty.db", tmp_path / "other.db")
    world.new_mlflow(tmp_path / "other.db")
    csv = f"import {tmp_path / 'export.csv'}"
    turn = {"csv": [csv, "sync"], "records": [csv, "import"], "sync": ["sync"]}[first]
    for line in [*turn, csv, csv]:
        world.inside(line)
    actual = rows(world)
    assert len(actual) == len(expected)
    batches = {batch for _, _, batch, _ in live(world) if batch}
    assert {run_id for run_id, *_ in live(world)} >= batches
    check_points(world)
    if first != "csv":  # no value comes from the CSV
        assert actual == expected


def test_records_read_back_are_those_of_the_runs(world):
    world.inside("export")
    records = {record.run: record for record in read_all(world.root / "experiments" / "records")}
    assert set(records) == {run_id for run_id, *_ in live(world)}
    for run_id, operation, batch, status in live(world):
        assert (records[run_id].operation, records[run_id].status) == (operation, status)
        assert records[run_id].batch == batch
