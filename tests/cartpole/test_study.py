"""A study in one run: the grid, its division over processes, and what it says."""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import yaml

from cartpole import study
from cartpole.policy_gradient import seed_statistics as intervals
from cartpole.policy_gradient import summary as results
from cartpole.policy_gradient import workers as pieces
from cartpole.policy_gradient.reinforce import Learner, Setting
from cartpole.policy_gradient.workers import Piece
from runcatalog import record

FOREIGN = ("RUN_DIR", "RUN_ID", "GUILD_OP", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "RECORD")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of its own; nothing goes to MLflow."""
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "guild.yml").write_text("")
    monkeypatch.setenv("PROJECT_DIR", str(tmp_path))
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    return tmp_path


def run(directory, monkeypatch, **flags):
    monkeypatch.setenv("RUN_DIR", str(directory))
    return study.main(study.Config(**flags))


def test_a_study_is_its_runs_one_by_one(project, monkeypatch):
    flags = {"algo": "mean rloo", "lr": "0.001 0.02", "updates": 12, "seeds": 3, "seed": 5}
    written = run(project / "two", monkeypatch, processes=2, **flags)
    saved = np.load(project / "two/artifacts/lengths.npz")
    assert set(saved) == {f"{a} lr {lr}" for a in ("mean", "rloo") for lr in ("0.001", "0.02")}
    for algo, batch in (("mean", 1), ("rloo", 10)):
        for lr in ("0.001", "0.02"):
            for place in range(3):
                alone = Learner([Setting(algo, 5 + place, lr=float(lr))], episodes=batch)
                expected = np.concatenate([alone.update()[0] for _ in range(12)])
                assert (saved[f"{algo} lr {lr}"][place] == expected).all()
    assert written["result"]["env_steps"] == sum(int(saved[n].sum()) for n in saved)
    rows = written["result"]["table"]["rows"]
    assert [row[0] for row in rows] == list(saved)
    assert all(row[1].startswith("0 of 3") for row in rows)
    assert {row[-1] for row in rows} == {"12", "120"}
    for figure in ("learning_curves.svg", "performance_profiles.svg"):
        assert (project / "two/artifacts" / figure).stat().st_size > 1000
    one = run(project / "one", monkeypatch, processes=1, **flags)
    assert one["digest"] == written["digest"]

    # A piece that is there already is not trained again.
    called = []
    monkeypatch.setattr(pieces, "_started", lambda *a: called.append(a))
    assert run(project / "two", monkeypatch, processes=2, **flags)["digest"] == one["digest"]
    assert not called


def test_curves_are_logged_by_episode_and_by_update(project, monkeypatch):
    run(project / "run", monkeypatch, algo="vpg rloo", updates=20, seeds=4, processes=1)
    points = {}
    for line in (project / "run/journal/metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        for name, value in entry["m"].items():
            points.setdefault(name, {})[entry["step"]] = value
    lengths = np.load(project / "run/artifacts/lengths.npz")
    curve = points["rloo/length_iqm"]
    assert max(curve) == 200
    assert curve[150] == pytest.approx(intervals.iqm(lengths["rloo"][:, 50:150].mean(1)))
    assert points["rloo/by_update/length_iqm"][15] == curve[150]
    assert points["vpg/by_update/length_iqm"] == points["vpg/length_iqm"]
    for step, value in points["rloo/length_median"].items():
        assert points["rloo/length_q25"][step] <= value <= points["rloo/length_q75"][step]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"algo": "vpg sarsa"}, "--algo: 'sarsa' is none of vpg, mean, value, rloo"),
        ({"gamma": "0.9 1.5"}, r"--gamma: 1.5 is not in \[0, 1\]"),
        ({"lr": "fast"}, "--lr: 'fast' is no number"),
        ({"lr": " "}, "--lr: no value"),
        ({"reset": "never"}, "--reset: 'never'"),
        ({"normalise_returns": "maybe"}, "--normalise-returns: 'maybe'"),
    ],
)
def test_a_mistake_gets_one_line(flags, told):
    with pytest.raises(record.UserError, match=told) as caught:
        study.Config(**flags)
    assert "\n" not in str(caught.value)


def test_names_say_what_differs():
    both = study.configurations(
        study.Config(algo="vpg rloo", normalise_returns="no yes", entropy="0 0.001")
    )
    assert list(both)[:3] == ["vpg entropy 0", "vpg entropy 0 normalised", "vpg entropy 0.001"]
    assert list(study.configurations(study.Config(algo="vpg", normalise_returns=""))) == ["vpg"]
    random = study.configurations(study.Config(algo="vpg", reset="fixed random"))
    assert list(random) == ["vpg fixed", "vpg random"]


def test_the_declared_operations_are_the_grids_that_they_promise():
    """Flags as Guild hands them over: what YAML reads, as text, and false as nothing."""
    path = Path(study.__file__).parents[2] / "experiments/cartpole/guild.yml"
    (model,) = (m for m in yaml.safe_load(path.read_text()) if m.get("model") == "pg")
    kinds = {field.name: type(field.default) for field in fields(study.Config)}
    grids = {}
    for operation in ("compare", "entropy", "lr", "gamma", "variants", "seeds", "fastest"):
        given = model["operations"][operation].get("flags", {})
        texts = {k.replace("-", "_"): "" if v is False else v for k, v in given.items()}
        config = study.Config(**{name: kinds[name](value) for name, value in texts.items()})
        grids[operation] = list(study.configurations(config))
        assert config.seeds == 20
    assert grids["compare"] == ["vpg", "mean", "value", "rloo"]
    assert grids["entropy"] == [
        f"{a} entropy {c}" for a in grids["compare"] for c in ("0", "0.001")
    ]
    assert grids["lr"] == [
        f"{a} lr {lr}" for a in ("vpg", "mean", "value") for lr in ("0.0008", "0.001", "0.0012")
    ]
    assert grids["gamma"] == [
        f"{a} gamma {g}" for a in ("vpg", "mean", "value") for g in ("0.9", "0.99", "0.999")
    ]
    assert grids["variants"][-2:] == ["rloo_step", "rloo_step normalised"]
    assert len(grids["seeds"]) == len(grids["fastest"]) == 1


def test_a_worker_that_meets_a_number_that_is_not_finite_fails_the_run(project, monkeypatch):
    piece = Piece((Setting("vpg", 1, lr=1.0, entropy=float("inf")),), (8, 4), 1, 5)
    with pytest.raises(record.NumericalError, match=r"at update 1: policy\.\w+ is not finite"):
        pieces.train([piece], 1, project / "pieces", lambda share: None)


def test_a_worker_that_is_killed_fails_the_run_and_leaves_no_other(project, monkeypatch):
    found, started = [], pieces._started

    def start_and_kill(piece, folder):
        pipe, process = started(piece, folder)
        found.append(process)
        if len(found) == 2:
            process.kill()
        return pipe, process

    monkeypatch.setattr(pieces, "_started", start_and_kill)
    work = [Piece((Setting("vpg", seed),), (8, 4), 1, 10**6) for seed in (1, 2)]
    with pytest.raises(record.RunFailed, match="killed"):
        pieces.train(work, 2, project / "pieces", lambda share: None)
    assert not any(process.is_alive() for process in found)


def test_work_is_divided_only_where_that_is_sooner():
    def piece(runs, batch, updates=100):
        return Piece(tuple(Setting("mean", s) for s in range(runs)), (8, 4), batch, updates)

    alone = pieces.divide([piece(2, 1)], 2)
    assert [len(p.settings) for p in alone] == [1, 1]
    two = [piece(60, 1), piece(20, 10)]
    assert pieces.divide(two, 1) == two[::-1]
    assert pieces.divide(two, 2) == two[::-1]  # one each: halves would take nearly as long
    many = pieces.divide([piece(60, 1, 10), piece(200, 10)], 4)
    assert sum(len(p.settings) for p in many) == 260
    assert len(many) >= 4
    loads = [p.load for p in many]
    assert loads == sorted(loads, reverse=True)


def summary(name, plateaus, batch=1, episodes=1400):
    """Seeds that reach their plateau in these episodes; 0: never, with ever better lengths."""
    lengths = np.full((len(plateaus), episodes), 500)
    for row, reached in enumerate(plateaus):
        lengths[row, : reached - 95 if reached else episodes] = 20 + row if not reached else 20
    point = study.configurations(study.Config(algo="mean", episodes_per_update=batch))["mean"]
    return results.summary(name, point, lengths)


def test_the_sentence_has_medians_intervals_shares_and_the_order():
    told = [
        summary("slow", [500, 510, 520, 530]),
        summary("fast", [200, 210, 220, 230]),
        summary("batched", [800, 810, 820, 830], batch=10),
        summary("never", [0, 0, 0, 600]),
    ]
    assert [each.reached for each in told] == [4, 4, 4, 1]
    text = results.sentence(told)
    assert "fast 215 [200, 230] (4 of 4)" in text
    assert "never never [600, never] (1 of 4)" in text
    assert "by episodes, first 1400: fast < slow < batched < never" in text
    # 80 updates; the others have been given no more than 140 either.
    assert "by updates, first 140: batched < fast" in text.replace("fast < batched", "?")
    result = results.result_of(told)
    assert result["objective"]["value"] == 215
    assert result["table"]["rows"][2][3] == "82 [80, 83]"
    assert len(result["summary"]) < 600
    alone = results.result_of([summary("never", [0, 0])])
    assert 1400 < alone["objective"]["value"] < 2800
    assert "<" not in alone["summary"]
