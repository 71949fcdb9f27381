"""The commands of the README and of `guild help`, and what wrong ones get."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from journeys.shell import Project
from rendered import committed, local
from runcatalog.model import declarations

SMALL = "task=pull env-steps=4096 num-envs=8 num-steps=64 eval-interval=0 save-interval=2 video=no"


def test_every_operation_is_listed_with_a_description(project: Project) -> None:
    listed = dict(
        re.split(r"\s{2,}", line, maxsplit=1)
        for line in project.good("guild ops 2>/dev/null").splitlines()
    )
    declared = {
        operation.name: operation.body["description"].splitlines()[0]
        for operation in declarations.operations(project.root / "guild.yml")
    }
    assert listed == declared
    assert {"hnppo:train", "ppo:train", "ppo:opt@gp", "hnppo:lr_opt_pull"} <= set(declared)
    told = " ".join(project.good("guild help").split())
    for description in declared.values():
        assert description in told


def test_flags_come_with_type_default_choices_and_help(project: Project) -> None:
    told = " ".join(project.good("guild run hnppo:train --help-op").split())
    assert "lever_push_left" in told
    assert "Adam's step size" in told
    assert "default is 0.005" in told


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("guild run hnppo:train task=gate -y", ("task",)),
        ("guild run hnppo:train lr=-1 -y", ("--lr", "-1", "(0, 1]")),
        ("guild run hnppo:train lr=fast -y", ("lr", "fast")),
        ("guild run ppo:train value-loss=huber -y", ("Unsupported value", "value-loss")),
        ("guild run ppo:train learning=1 -y", ("learning",)),
        ("guild run ppo:train pretrained=/nowhere -y", ("/nowhere",)),
        ("guild run ppo:train network-size=wide -y", ("--network-size", "wide")),
        ("python src/door/train_ppo.py --task gate", ("gate",)),
        ("python src/door/train_ppo.py --lr -1", ("--lr", "-1")),
        ("python src/door/train_hnppo.py --resume /nowhere", ("/nowhere",)),
        ("catalog import nothing.csv", ("nothing.csv",)),
        ("catalog row ffffffff", ("ffffffff",)),
    ],
)
def test_a_mistake_gets_one_clear_line(project: Project, line: str, words: tuple[str, ...]) -> None:
    project.bad(line, *words)


def test_a_place_that_cannot_be_written_gets_one_clear_line(project: Project) -> None:
    # /proc refuses new files to root as well, which a folder's mode does not.
    project.bad("RUN_DIR=/proc/run python src/door/train_ppo.py", "/proc/run")


def test_a_run_is_journal_scalars_mlflow_and_row(project: Project) -> None:
    project.good(f"guild run ppo:train {SMALL} seed=7 -y")
    run = project.runs[-1]
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "FINISHED"
    assert (run / "artifacts/learning_curve.svg").exists()

    # What Guild shows is what the journal holds (as float32, TensorBoard's precision).
    compared = project.good("guild compare --csv - --operation ppo:train").splitlines()
    header = next(i for i, line in enumerate(compared) if line.startswith("run,"))
    cells = dict(zip(compared[header].split(","), compared[header + 1].split(","), strict=True))
    assert cells["run"] == run.name[:8]
    assert float(cells["opening_rate"]) == pytest.approx(result["result"]["objective"]["value"])

    before = committed(project.root)
    project.good("catalog sync")
    project.good("catalog render")
    row = project.good(f"catalog row {run.name[:8]}")
    assert run.name[:8] in row
    assert "| opening rate |" in row
    assert f"| {100 * result['result']['objective']['value']:.0f} % |" in row
    assert f"{run.name[:8]} *local*" in local(project.root)
    assert committed(project.root) == before


def test_a_killed_run_is_told_and_restarts_to_the_same_bits(project: Project) -> None:
    project.good(f"guild run ppo:train {SMALL} env-steps=8192 seed=8 -y", RECORD_MLFLOW="off")
    whole = json.loads((project.runs[-1] / "result.json").read_text())
    started = subprocess.Popen(
        f"exec guild run ppo:train {SMALL} env-steps=8192 seed=8 -y",
        shell=True, cwd=project.root, env=project.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    run = _wait_for_checkpoint(project, started, before=len(project.runs))
    process = json.loads((run / "journal/sessions.jsonl").read_text().splitlines()[-1])["pid"]
    os.kill(process, signal.SIGKILL)
    started.wait(240)
    assert not (run / "result.json").exists()
    project.good("catalog sync")
    assert "kill" in project.good(f"catalog row {run.name[:8]}").lower()

    project.good(f"guild run --restart {run.name[:8]} -y")
    result = json.loads((run / "result.json").read_text())
    assert result["digest"] == whole["digest"]
    assert result["session"] == 2
    project.good("catalog sync")
    assert "kill" not in project.good(f"catalog row {run.name[:8]}").lower()


def _wait_for_checkpoint(project: Project, started: subprocess.Popen, before: int) -> Path:
    while started.poll() is None:
        runs = project.runs
        if len(runs) > before and list((runs[-1] / "checkpoints").glob("0*")):
            return runs[-1]
        time.sleep(0.02)
    raise AssertionError(f"it ended by itself: {started.returncode}")


def test_a_gaussian_process_search_as_typed(project: Project) -> None:
    search = "ppo:lr_size_clip_opt_ppo_lever"
    quiet = {"RECORD_MLFLOW": "off"}
    project.good(f"guild run {search} trials=3 random-starts=2 env-steps=2048 -y", **quiet)
    batch = next(run for run in project.runs if (run / ".guild/proto").exists())
    trials = [
        json.loads((run / "search.json").read_text())
        for run in project.runs
        if (run / "search.json").exists()
    ]
    assert sorted(trial["kind"] for trial in trials) == ["gp", "initial", "initial"]
    for trial in trials:
        assert 1e-4 <= trial["point"]["lr"] <= 2e-2
        assert 0.2 <= trial["point"]["clip-coef"] <= 0.6
        assert trial["point"]["network-size"] in ("128 128", "64 64", "64 64 64")
    project.good("catalog sync")
    assert "best" in project.good(f"catalog row {batch.name[:8]}")
    # A long run takes the search's best setting.
    line = "guild run ppo:ppo_lever_long env-steps=2048 eval-interval=0 video=no -y"
    project.good(line, **quiet)
    run = project.runs[-1]
    taken = json.loads((run / "result.json").read_text())["result"]["tuned"]
    best = json.loads((batch / "result.json").read_text())["result"]["best"]
    assert (taken["search"], taken["trial"]) == (batch.name, best["run"])
    flags = json.loads((run / "journal/run.json").read_text())["flags"]
    assert best["point"].items() <= flags.items()
    assert flags["tuned"] == search


def test_mlflow_runs_the_same_job(project: Project) -> None:
    """`mlflow run` makes a run; the script records into that one and into no other."""
    database = project.root / "from_mlflow.db"
    tracking = f"sqlite:///{database}"
    project.good(
        "mlflow run . -e ppo_train --experiment-name door -P task=pull -P env_steps=2048 -P seed=5 -P eval-interval=0"
        " -P video=no --env-manager local",
        MLFLOW_TRACKING_URI=tracking,
    )
    project.good("catalog sync", MLFLOW_TRACKING_URI=tracking)
    with sqlite3.connect(database) as connection:
        query = "SELECT run_uuid, status FROM runs JOIN params USING (run_uuid) WHERE key = 'seed' AND value = '5'"
        ((run, status),) = connection.execute(query).fetchall()
        query = f"SELECT experiments.name FROM experiments JOIN runs USING (experiment_id) WHERE run_uuid = '{run}'"
        assert connection.execute(query).fetchall() == [("door",)]
        query = f"SELECT key, value FROM params WHERE run_uuid = '{run}'"
        params = dict(connection.execute(query).fetchall())
        query = f"SELECT key FROM latest_metrics WHERE run_uuid = '{run}'"
        metrics = {name for (name,) in connection.execute(query)}
    assert (status, params["task"]) == ("FINISHED", "pull")
    assert "opening_rate" in metrics


def test_a_machine_without_guild_and_mlflow_leaves_what_import_takes_in(project: Project) -> None:
    absent = "dict.fromkeys(['guild', 'mlflow', 'tensorboard'])"  # importing None is an ImportError
    script = "src/door/train_ppo.py"
    flags = "--task pull --env-steps 2048 --eval-interval 0 --video no --seed 9"
    project.good(
        f'python -c "import runpy, sys; sys.modules.update({absent}); '
        f"sys.argv = '{script} {flags}'.split(); runpy.run_path('{script}', run_name='__main__')\"",
        RECORD_MLFLOW="off",
    )
    run = next((project.root / "runs").iterdir())
    result = json.loads((run / "result.json").read_text())
    project.good(f"mkdir elsewhere && mv {run} elsewhere/copied && catalog import elsewhere/copied")
    row = project.good(f"catalog row {run.name}")
    assert f"| {100 * result['result']['objective']['value']:.0f} % |" in row
