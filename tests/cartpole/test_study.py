"""A study in one run: the grid, its division into jobs of worker processes, and its summary."""

import itertools
import json
import multiprocessing
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import yaml

from cartpole import clone, experts, remedies, restrictions, study, train
from cartpole.policy_gradient import seed_statistics as statistics
from cartpole.policy_gradient import summary, workers
from cartpole.policy_gradient.grid import GridConfig, configurations, references
from cartpole.policy_gradient.reinforce import Learner, RunSettings
from cartpole.policy_gradient.workers import Job, split_jobs, train_jobs
from runcatalog import record

RUN_VARIABLES = ("RUN_DIR", "RUN_ID", "GUILD_OP", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "RECORD")
DECLARED = yaml.safe_load(
    (Path(study.__file__).parents[2] / "experiments/cartpole/guild.yml").read_text()
)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project without MLflow."""
    for name in RUN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "guild.yml").write_text("")
    monkeypatch.setenv("PROJECT_DIR", str(tmp_path))
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    return tmp_path


def settings_of(algo="mean", seed=1, **changed):
    source = {"lr": 1e-3, "gamma": 0.99, "entropy": 0.0, "normalise": False, "reset": "fixed"}
    return RunSettings(algo, seed, **(source | changed))


def test_a_study_equals_its_runs_trained_alone(project, monkeypatch):
    config = study.Config(
        algo="mean rloo", lr="0.001 0.02", updates=12, seeds=3, seed=5, processes=2
    )
    monkeypatch.setenv("RUN_DIR", str(project / "run"))
    written = study.main(config)
    lengths = np.load(project / "run/artifacts/lengths.npz")
    assert set(lengths) == {f"{a} lr {lr}" for a in ("mean", "rloo") for lr in ("0.001", "0.02")}
    points = configurations(config)
    jobs = split_jobs(study.jobs_of(config, points), 2)
    files = [project / f"run/pieces/{job.key}.npz" for job in jobs]
    times = [file.stat().st_mtime_ns for file in files]
    trained = train_jobs(jobs, 2, project / "run/pieces", lambda share: None)
    assert [file.stat().st_mtime_ns for file in files] == times  # results are not computed again
    for name, point in points.items():
        for row, settings in enumerate(study.settings_of(config, point)):
            learner = Learner([settings], config.widths, point.batch)
            alone = []
            for _ in range(12):
                rollout = learner.collect()
                learner.update(rollout)
                alone.extend(rollout.lengths[0])
            assert lengths[name][row].tolist() == alone
            for key, value in trained[settings].policy.items():
                assert (learner.policy[key][0] == value).all()
    result = written["result"]
    assert result["env_steps"] == sum(int(lengths[name].sum()) for name in lengths)
    rows = result["table"]["rows"]
    assert [row[0] for row in rows] == list(lengths)
    assert all(row[1].startswith("0 of 3") for row in rows)
    assert {row[-1] for row in rows} == {"12", "120"}
    for figure in ("learning_curves.svg", "performance_profiles.svg"):
        assert (project / "run/artifacts" / figure).stat().st_size > 1000
    check_curves(project / "run", lengths)


def check_curves(run, lengths):
    """Curves by episode and by update are those of the episode lengths."""
    points = {}
    for line in (run / "journal/metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        for name, value in entry["m"].items():
            points.setdefault(name, {})[entry["step"]] = value
    curve = points["rloo lr 0.02/length_iqm"]
    assert max(curve) == 120
    means = lengths["rloo lr 0.02"][:, 10:110].mean(1)
    assert curve[110] == pytest.approx(statistics.iqm(means))
    assert points["rloo lr 0.02/by_update/length_iqm"][11] == curve[110]
    single = "mean lr 0.02"  # one episode per update
    assert points[f"{single}/by_update/length_iqm"] == points[f"{single}/length_iqm"]
    for step, value in points["rloo lr 0.02/length_median"].items():
        low, high = (points[f"rloo lr 0.02/length_{q}"][step] for q in ("q25", "q75"))
        assert low <= value <= high


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"algo": "vpg sarsa"}, "--algo: 'sarsa' is not one of vpg, mean, value, rloo"),
        ({"gamma": "0.9 1.5"}, r"--gamma: 1.5 is not in \[0, 1\]"),
        ({"lr": "fast"}, "--lr: 'fast' is no number"),
        ({"lr": " "}, "--lr: no value"),
        (
            {"algo": "vpg", "lr": "1e-3 0.001"},
            "'vpg lr 1e-3' and 'vpg lr 0.001' are one configuration",
        ),
        ({"reset": "never"}, "--reset: 'never'"),
        ({"normalise_returns": "maybe"}, "--normalise-returns: 'maybe'"),
    ],
)
def test_a_wrong_flag_is_a_one_line_error(flags, words):
    with pytest.raises(record.UserError, match=words) as error:
        study.Config(**flags)
    assert "\n" not in str(error.value)


def test_names_of_configurations_contain_what_varies():
    both = configurations(
        study.Config(algo="vpg rloo", normalise_returns="no yes", entropy="0 0.001")
    )
    assert list(both)[:3] == ["vpg entropy 0", "vpg entropy 0 normalised", "vpg entropy 0.001"]
    assert list(configurations(study.Config(algo="vpg", normalise_returns=""))) == ["vpg"]
    random = configurations(study.Config(algo="vpg", reset="fixed random"))
    assert list(random) == ["vpg fixed", "vpg random"]


def declared_config(model, operation, config_class):
    """The configuration of a declared operation, with flags as Guild passes them: false is an empty text."""
    (operations,) = (m["operations"] for m in DECLARED if m.get("model") == model)
    types = {field.name: type(field.default) for field in fields(config_class)}
    flags = operations[operation].get("flags", {})
    values = {k.replace("-", "_"): "" if v is False else v for k, v in flags.items()}
    return config_class(**{name: types[name](value) for name, value in values.items()})


def test_declared_studies_have_the_grids_of_their_descriptions():
    grids = {}
    for operation in (
        "compare",
        "entropy",
        "lr",
        "gamma",
        "gamma_lr",
        "variants",
        "seeds",
        "fastest",
    ):
        config = declared_config("pg", operation, study.Config)
        grids[operation] = list(configurations(config))
        assert config.seeds == 20
    assert grids["compare"] == ["vpg", "mean", "value", "rloo"]
    assert grids["entropy"] == [
        f"{a} entropy {c}" for a in grids["compare"] for c in ("0", "0.001", "0.01", "0.1")
    ]
    assert grids["lr"] == [
        f"{a} lr {lr}" for a in ("vpg", "mean", "value") for lr in ("0.0008", "0.001", "0.0012")
    ]
    assert grids["gamma"] == [
        f"{a} gamma {g}" for a in ("vpg", "mean", "value") for g in ("0.9", "0.99", "0.999")
    ]
    assert len(grids["gamma_lr"]) == 27
    assert grids["variants"][-2:] == ["rloo_step", "rloo_step normalised"]
    assert len(grids["seeds"]) == len(grids["fastest"]) == 1


@pytest.mark.parametrize(
    ("model", "names", "script"),
    [
        ("pg", "train", train),
        ("bc", "experts", experts),
        ("bc", "train", clone),
        ("bc", "restrictions restrictions_thorough restrictions_equal", restrictions),
        ("bc", "restrictions_episodes restrictions_narrow", restrictions),
        ("bc", "dagger dart more again", remedies),
    ],
)
def test_flags_of_declared_operations_are_valid(model, names, script):
    for name in names.split():
        declared_config(model, name, script.Config)


def test_a_worker_with_a_number_that_is_not_finite_fails_the_run(project):
    job = Job((settings_of("vpg", lr=1.0, entropy=float("inf")),), (8, 4), 1, 5)
    with pytest.raises(record.NumericalError, match=r"at update 1: policy\.\w+ is not finite"):
        train_jobs([job], 1, project / "pieces", lambda share: None)


def test_a_killed_worker_fails_the_run_and_stops_the_others(project, monkeypatch):
    monkeypatch.setattr(workers, "PROGRESS_SECONDS", 0.05)
    killed = []

    def kill_one(share):
        children = multiprocessing.active_children()
        if len(children) == 2 and not killed:
            killed.extend(children)
            children[0].kill()

    jobs = [Job((settings_of("vpg", seed),), (8, 4), 1, 10**6) for seed in (1, 2)]
    with pytest.raises(record.RunFailed, match="killed"):
        train_jobs(jobs, 2, project / "pieces", kill_one)
    assert len(killed) == 2
    assert not any(child.is_alive() for child in killed)


def test_jobs_are_split_only_if_that_saves_time():
    def job(runs, batch, updates=100):
        return Job(tuple(settings_of(seed=s) for s in range(runs)), (8, 4), batch, updates)

    alone = split_jobs([job(2, 1)], 2)
    assert [len(part.settings) for part in alone] == [1, 1]
    two = [job(60, 1), job(20, 10)]
    assert split_jobs(two, 1) == two[::-1]
    assert split_jobs(two, 2) == two[::-1]  # one per process: halves would take nearly as long
    many = split_jobs([job(60, 1, 10), job(200, 10)], 4)
    assert sum(len(part.settings) for part in many) == 260
    assert len(many) >= 4
    loads = [part.load for part in many]
    assert loads == sorted(loads, reverse=True)


def summary_of(name, plateaus, batch=1, episodes=1400):
    """A configuration whose seeds reach their plateau at these episodes; 0: never, with growing lengths."""
    lengths = np.full((len(plateaus), episodes), 500)
    for row, reached in enumerate(plateaus):
        lengths[row, : reached - 95 if reached else episodes] = 20 + row if not reached else 20
    return summary.summarise(name, batch, lengths)


def test_the_sentence_has_medians_intervals_shares_and_the_order():
    summaries = [
        summary_of("slow", [500, 510, 520, 530]),
        summary_of("fast", [200, 210, 220, 230]),
        summary_of("batched", [800, 810, 820, 830], batch=10),
        summary_of("never", [0, 0, 0, 600]),
    ]
    assert [s.reached for s in summaries] == [4, 4, 4, 1]
    text = summary.sentence(summaries)
    assert "fast 215 [200, 230] (4 of 4)" in text
    assert "never never [600, never] (1 of 4)" in text
    assert "by episodes, first 1400: fast < slow < batched < never" in text
    # The batched configuration needs 80 updates; the smallest budget is 140 updates.
    assert "by updates, first 140: batched < fast" in text.replace("fast < batched", "?")
    result = summary.result_of(summaries, {})
    assert result["objective"]["value"] == 215
    assert result["table"]["rows"][2][3] == "82 [80, 83]"
    assert len(result["summary"]) < 600
    alone = summary.result_of([summary_of("never", [0, 0])], {})
    assert 1400 < alone["objective"]["value"] < 2800
    assert "<" not in alone["summary"]


def test_a_table_has_the_paired_differences_from_the_sources_setting():
    summaries = [
        summary_of("value", [500, 600, 700, 800]),
        summary_of("value lr 0.1", [490, 590, 690, 790]),
        summary_of("value lr 0.2", [0, 0, 0, 0]),
        summary_of("vpg", [0, 0, 0, 0]),
        summary_of("vpg lr 0.1", [0, 0, 0, 0]),
        summary_of("vpg lr 0.2", [500, 600, 700, 800]),
    ]
    compared = {f"{algo} lr {lr}": algo for algo in ("value", "vpg") for lr in ("0.1", "0.2")}
    table = summary.table(summaries, compared)
    cells = [row[table["columns"].index("paired difference")] for row in table["rows"]]
    # Every seed differs by ten episodes, and so does every median: unpaired, the interval would include zero.
    assert cells == ["", "−10 [−10, −10]", "∞ [∞, ∞]", "", "both never", "−∞ [−∞, −∞]"]
    assert "paired difference" not in summary.table(summaries, {})["columns"]


def test_points_are_compared_with_the_same_algorithm_at_the_sources_values():
    def of(**flags):
        return references(configurations(GridConfig(**flags)))

    assert of() == {}
    assert of(algo="mean", lr="0.002 0.003") == {}
    assert of(algo="mean value", lr="0.001 0.002", gamma="0.9 0.99") == {
        f"{algo} lr {lr} gamma {gamma}": f"{algo} lr 0.001 gamma 0.99"
        for algo in ("mean", "value")
        for lr, gamma in (("0.001", "0.9"), ("0.002", "0.9"), ("0.002", "0.99"))
    }
    assert of(algo="rloo", normalise_returns="no yes") == {"rloo normalised": "rloo"}
    assert of(algo="rloo rloo_step", normalise_returns="no yes") == {
        "rloo normalised": "rloo",
        "rloo_step": "rloo",
        "rloo_step normalised": "rloo_step",
    }
    assert of(algo="rloo_step value") == {}


def test_the_division_has_the_least_time_and_stays_that_of_the_start(tmp_path):
    def job(runs, batch, updates):
        return Job(tuple(settings_of(seed=s) for s in range(runs)), (8, 4), batch, updates)

    def longest(parts):
        loads = [0.0, 0.0, 0.0]
        for part in sorted(parts, key=lambda job: -job.load):
            loads[loads.index(min(loads))] += part.load
        return round(max(loads), 6)

    rng = np.random.default_rng(1)
    for _ in range(20):
        jobs = [job(*(int(n) for n in rng.integers(1, 40, 3))) for _ in range(2)]
        choices = [range(1, min(3, len(each.settings)) + 1) for each in jobs]
        divisions = [workers._split_all(jobs, counts) for counts in itertools.product(*choices)]
        assert longest(split_jobs(jobs, 3)) == min(map(longest, divisions))
    assert study.first_processes(tmp_path / "pieces", 2) == 2
    # The run is resumed on a larger machine
    assert study.first_processes(tmp_path / "pieces", 8) == 2
