"""Import of `guild compare --csv`: a small export, and the three of the original study."""

import time
from pathlib import Path

import pytest
from guild.util import format_timestamp

from runcatalog.model.errors import CatalogError
from runcatalog.pages.tables import batch_summary
from runcatalog.sync import compare_csv, imports
from runcatalog.sync.compare_csv import Options

SMALL = Path(__file__).parents[1] / "data" / "compare.csv"
REAL = Path(__file__).parents[4] / "shared" / "data" / "guild-compare"


def summary_and_trials(path: Path, **options) -> tuple[str, list]:
    batch, *trials = compare_csv.records(path, Options("door", **options))
    assert all(t.batch == batch.run for t in trials)
    return batch_summary.summary(batch, trials), trials


def test_a_small_export():
    text, trials = summary_and_trials(SMALL)
    assert text == (
        "best **clip-param=0.478, lr=2.8e-3, network-size=64 64**: Episode rewards 5959, "
        "101 % Opening rate per update (1a1b2c3d); best cluster (2 of 5): "
        "clip-param=0.478–0.479, lr=2.8e-3–2.9e-3, network-size=64 64: 5828 to 5959; "
        "2 of 7 trials failed: 1 × error at step 0, 1 × error before the first step; "
        "imported: guild compare, compare.csv"
    )
    by_id = {t.run: t for t in trials}
    assert "6a1b2c3d" not in by_id  # pending: it never ran
    diverged = by_id["3a1b2c3d"]
    assert diverged.status == "FINISHED"
    assert diverged.metrics["Episode_rewards"].last == -9841083.0
    assert diverged.flags["network-size"] == "64 64"
    assert diverged.wall_seconds == 3 * 3600 + 23 * 60 + 57
    assert by_id["5a1b2c3d"].metrics == {}


def test_a_later_export_of_the_same_batch_is_the_same_batch(tmp_path):
    lines = SMALL.read_text().splitlines()
    oldest = min(range(1, len(lines)), key=lambda i: lines[i].split(",")[2])
    fewer = tmp_path / "fewer.csv"
    fewer.write_text("\n".join([lines[0], lines[1], lines[oldest]]))
    options = Options("door")
    assert compare_csv.records(fewer, options)[0].run == compare_csv.records(SMALL, options)[0].run
    assert compare_csv.records(SMALL, Options("door", batch="ce5370cc"))[0].run == "ce5370cc"


def test_labels_identify_flags_without_a_step_column(tmp_path):
    path = tmp_path / "c.csv"
    path.write_text(
        "run,operation,started,time,status,label,lr,seed,opening_rate\n"
        "0a1b2c3d,hnppo:train,2026-01-01 00:00:00,0:01:00,completed,lr=0.1 seed=1,0.1,1,0.93\n"
    )
    _, trials = summary_and_trials(path)
    assert trials[0].flags == {"lr": 0.1, "seed": 1}
    assert trials[0].seed == 1
    assert set(trials[0].metrics) == {"opening_rate"}


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_times_are_local_as_guild_writes_them(zone, tmp_path, monkeypatch):
    path, moments = tmp_path / "export.csv", [1_658_687_273, 1_700_000_000]  # summer and winter
    try:
        with monkeypatch.context() as patch:
            patch.setenv("TZ", zone)
            time.tzset()
            rows = [
                f"0a1b2c3{n},o,{format_timestamp(moment * 1e6)},0:05,completed,{n}"
                for n, moment in enumerate(moments)
            ]
            path.write_text("\n".join(["run,operation,started,time,status,score", *rows]) + "\n")
            _, *trials = compare_csv.records(path, Options("door", objective="score"))
    finally:
        time.tzset()
    assert sorted(trial.started for trial in trials) == [moment * 1000 for moment in moments]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "no column 'run'"),
        ("run,operation,status\n2,o,completed\n", "exports a flag or scalar named 'run' in place"),
        ("run,operation,status\n0a1b2c3d,o,ok\n", ":2: status 'ok' is not a status of Guild"),
        ("run,operation,status\n0a1b2c3d,o\n", ":2: 3 cells are expected"),
        ("run,operation,status,lr,lr\n", "the same name"),
        ("\x00", "no column 'run'"),
        (
            "run,operation,status,step,loss\n0a1b2c3d,o,completed,1,0.5\n1a1b2c3d,o,completed,1,oops\n",
            "run 1a1b2c3d: loss is 'oops', which is no number",
        ),
    ],
)
def test_an_invalid_export_is_named(tmp_path, text, words):
    path = tmp_path / "wrong.csv"
    path.write_text(text)
    with pytest.raises(CatalogError) as caught:
        compare_csv.records(path, Options("door"))
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_the_unit_of_a_rate_is_that_of_its_column(tmp_path):
    """0.8 and 1.0 in a column with 95.0 are per cent."""
    path = tmp_path / "c.csv"
    rows = [("95.0", "0.4"), ("0.8", "1.0"), ("1.0", "")]
    path.write_text(
        "run,operation,started,time,status,label,step,reward,success_rate,other_rate\n"
        + "".join(
            f"{i}a1b2c3d,t,2026-01-01 00:00:00,0:01:00,completed,,1,7,{percent},{share}\n"
            for i, (percent, share) in enumerate(rows)
        )
    )
    _, trials = summary_and_trials(path)
    rates = {t.run: t.result["objective"]["also"][0] for t in trials}
    assert [rates[run]["value"] for run in sorted(rates)] == pytest.approx([0.95, 0.008, 0.01])
    shares = tmp_path / "shares.csv"
    shares.write_text(path.read_text().replace("success_rate", "losses"))
    _, trials = summary_and_trials(shares)
    rated = [t.result["objective"]["also"][0] for t in trials if "also" in t.result["objective"]]
    assert sorted(rate["value"] for rate in rated) == [0.4, 1.0]


def test_a_rate_that_a_source_counted_too_high_does_not_make_the_others_per_cent(tmp_path):
    path = tmp_path / "c.csv"
    path.write_text(
        "run,operation,started,time,status,label,step,reward,success_rate\n"
        + "".join(
            f"{i}a1b2c3d,t,2026-01-01 00:00:00,0:01:00,completed,,1,7,{rate}\n"
            for i, rate in enumerate((0.97, 1.01))
        )
    )
    _, trials = summary_and_trials(path)
    rates = [t.result["objective"]["also"][0]["value"] for t in trials]
    assert sorted(rates) == [0.97, 1.01]


@pytest.mark.parametrize(
    ("metrics", "options", "objective"),
    [
        ("train_loss learning_rate", {}, ("train_loss", "min")),
        ("learning_rate success_rate", {}, ("success_rate", "max")),
        ("accuracy error", {"objective": "error"}, ("error", "min")),
        ("accuracy error", {"objective": "error", "goal": "max"}, ("error", "max")),
    ],
)
def test_an_objective_that_is_not_declared_is_a_result_and_small_where_it_is_a_loss(
    tmp_path, metrics, options, objective
):
    path = tmp_path / "sweep.csv"
    first, second = metrics.split()
    path.write_text(
        f"run,operation,status,lr,step,{first},{second}\naaaaaaaa,any:train,completed,0.1,10,0.5,0.25\n"
    )
    _, trial = compare_csv.records(path, Options(study="any", **options))
    assert (trial.objective["name"], trial.objective["goal"]) == objective
    assert "also" not in trial.objective


def test_a_missing_objective_is_named():
    with pytest.raises(CatalogError, match="no metric 'x'; metrics: Episode_rewards"):
        compare_csv.records(SMALL, Options("door", objective="x"))


@pytest.mark.parametrize(
    ("name", "trials", "failed", "best", "value"),
    [
        ("lr_size_clip_opt_ppo_pull", 20, 4, "bcf307c8", 5958.57),
        ("lr_size_clip_opt_hnppo_lever", 20, 1, "4173dc78", 9645.47),
        ("lr_size_clip_entropy_opt_hnppo_lever", 40, 1, "66f0572e", 7890.53),
    ],
)
def test_the_original_studys_exports(name, trials, failed, best, value):
    path = REAL / f"{name}.csv"
    if not path.exists():
        pytest.skip(f"the original study's exports are not beside the repository ({REAL})")
    text, imported = summary_and_trials(path)
    assert len(imported) == trials
    assert sum(t.status == "FAILED" for t in imported) == failed
    assert f"({best})" in text
    assert f"{failed} of {trials} trials failed: error" in text
    chosen = next(t for t in imported if t.run == best)
    assert chosen.objective["value"] == pytest.approx(value, abs=0.01)
    if name.endswith("pull"):
        assert "101 %" in text
        assert min(t.objective["value"] for t in imported if t.objective) < -9.8e6
        assert "best cluster (3 of 16): clip-param=0.478, lr=2.78e-3, network-size=64 64" in text


def test_of_two_machines_with_one_host_name_the_first_has_the_runs_of_a_csv(project, tmp_path):
    """As where runs are recorded; it was the last."""
    (project.experiments / "machines.yml").write_text(
        "- {host: vm, name: a}\n- {host: vm, name: b}"
    )
    (project.root / "guild.yml").write_text("train: {main: train, compare: [.host, score]}\n")
    path = tmp_path / "c.csv"
    path.write_text(
        "run,operation,started,time,status,label,host,score\n"
        "0a1b2c3d,train,2026-01-01 00:00:00,0:01:00,completed,,vm,0.93\n"
    )
    _, run = imports.read_csv(project, path, "toy", Options(""))
    assert run.machine == "a"


def test_a_run_of_a_csv_is_in_the_study_that_declares_its_operation(project, tmp_path):
    (project.root / "guild.yml").write_text(
        "- include: [experiments/toy/guild.yml, experiments/other/guild.yml]\n"
    )
    (project.experiments / "other").mkdir()
    (project.experiments / "other" / "guild.yml").write_text(
        "- model: other\n  operations:\n    train: {main: train}\n"
    )
    row = "{},{},2026-01-01 00:00:00,0:01:00,completed,,0.93\n"
    path = tmp_path / "c.csv"
    header = "run,operation,started,time,status,label,score\n"
    path.write_text(
        header + row.format("0a1b2c3d", "other:train") + row.format("1a1b2c3d", "toy:train")
    )
    _, *read = imports.read_csv(project, path, "", Options(""))
    assert {run.operation: run.study for run in read} == {
        "other:train": "other",
        "toy:train": "toy",
    }
    assert {run.study for run in imports.read_csv(project, path, "toy", Options(""))} == {"toy"}
    path.write_text(path.read_text() + row.format("2a1b2c3d", "unknown:train"))
    with pytest.raises(CatalogError, match="no study declares 'unknown:train'"):
        imports.read_csv(project, path, "", Options(""))


def test_each_operation_of_a_csv_has_its_own_objective(project, tmp_path):
    """With two operations in a file it was guessed for all, and the larger loss was the better one."""
    (project.root / "guild.yml").write_text(
        "train: {main: train, objective: loss}\n"
        "evaluate: {main: train, objective: {maximize: accuracy}}\n"
        "other: {main: train}\n"
    )
    path = tmp_path / "c.csv"
    path.write_text(
        "run,operation,started,time,status,label,lr,step,loss,accuracy,reward\n"
        "0a1b2c3d,train,2026-01-01 00:00:00,0:01:00,completed,,0.1,3,0.4,0.8,1\n"
        "1a1b2c3d,evaluate,2026-01-01 00:00:00,0:01:00,completed,,,3,,0.9,1\n"
        "2a1b2c3d,other,2026-01-01 00:00:00,0:01:00,completed,,,3,,0.9,1\n"
    )
    read = imports.read_csv(project, path, "toy", Options(""))
    objectives = {run.operation: run.objective for run in read if run.objective}
    assert {name: (o["name"], o["goal"]) for name, o in objectives.items()} == {
        "train": ("loss", "min"),
        "evaluate": ("accuracy", "max"),
        "other": ("reward", "max"),
    }
