"""Restrictions: which pairs they select, equal numbers of pairs, tables, figures, and errors."""

import argparse
import json

import numpy as np
import pytest

from cartpole import bc_redraw, clone, remedies, restrictions
from cartpole.cloning import demonstrations, summary
from cartpole.cloning.behaviour_cloning import HIDDEN
from cartpole.cloning.demonstrations import RESTRICTIONS, Pairs
from cartpole.policy_gradient import networks
from cartpole.policy_gradient.networks import Shape
from runcatalog import record
from runcatalog.model import committed
from runcatalog.numbers import wilson
from runcatalog.record.training.checkpoint import save_checkpoint

SMALL = {
    "episodes": 12, "horizon": 40, "updates": 20, "batch_size": 5, "orders": 2, "starts": 20,
}  # fmt: skip


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experts")
    params = networks.initial(Shape(HIDDEN), [np.random.default_rng(i) for i in range(2)])
    tensors = {f"policy.{name}": value for name, value in params.items()}
    save_checkpoint(folder / "checkpoints", 1, tensors, {})
    return str(folder)


@pytest.fixture(scope="module")
def runs(experts, tmp_path_factory):
    """Results and curves {metric: {step: value}} of two runs, by whether the numbers of pairs are equal."""
    folder, finished = tmp_path_factory.mktemp("runs"), {}
    for equal in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RECORD_MLFLOW", "off")
            patch.setenv("RUN_DIR", str(folder / str(equal)))
            if equal:
                patch.setattr(summary, "draw", lambda *arguments: None)  # one run draws figures
            written = restrictions.main(restrictions.Config(experts=experts, equal=equal, **SMALL))
        curves = {}
        for line in (folder / str(equal) / "journal/metrics.jsonl").read_text().splitlines():
            entry = json.loads(line)
            for name, value in entry["m"].items():
                curves.setdefault(name, {})[entry["step"]] = value
        finished[equal] = (folder / str(equal), written["result"], curves)
    return finished


def naive(name, x, v, theta, omega):
    """The source's restrictions, written out."""
    return {
        "none": True,
        "position": abs(x) < 0.05,
        "velocity": abs(v) < 0.1,
        "angular_velocity": abs(omega + 0.05) < 0.1,
        "angle": abs(theta) < 0.005,
    }[name]


@pytest.mark.parametrize("name", list(RESTRICTIONS))
def test_a_restriction_selects_what_a_loop_selects(name):
    rng = np.random.default_rng(0)
    observations = rng.normal(0, [0.05, 0.1, 0.005, 0.1], (2, 30, 20, 4)).astype(np.float32)
    valid = rng.random((2, 30, 20)) < 0.8
    pairs = Pairs(observations, np.zeros((2, 30, 20), bool), valid)
    selection = demonstrations.selected(pairs, name)
    for data_set in range(2):
        expected = [
            episode * 20 + step
            for episode in range(30)
            for step in range(20)
            if valid[data_set, episode, step]
            and naive(name, *map(float, observations[data_set, episode, step]))
        ]
        assert selection[data_set].tolist() == expected


def test_an_empty_selection_fails_the_run_before_a_checkpoint(experts, tmp_path, monkeypatch):
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "run"))
    config = restrictions.Config(experts=experts, scale=1e-12, **SMALL)
    with pytest.raises(record.RunFailed, match=r"leaves none of \d+ pairs of expert 1"):
        restrictions.main(config)
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert written["status"] == "FAILED"
    assert "leaves none" in written["reason"]
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_curves_hold_the_data_of_tables_and_figures(runs):
    folder, result, curves = runs[False]
    assert [row[0] for row in result["table"]["rows"]] == [
        n.replace("_", " ") for n in RESTRICTIONS
    ]
    assert set(curves["lifetimes/none"]) == set(range(0, 501, 10))
    for name in RESTRICTIONS:
        assert sum(curves[f"lifetimes/{name}"].values()) == pytest.approx(1)
        assert len(curves[f"survival/{name}"]) == 4
    for variable in demonstrations.VARIABLES:
        assert sum(curves[f"distribution/{variable}"].values()) == pytest.approx(1)
    for figure in ("lifetimes.svg", "distributions.svg"):
        assert (folder / "artifacts" / figure).stat().st_size > 1000


def test_equal_numbers_are_those_of_the_smallest_set(runs):
    unequal, equal = runs[False][2], runs[True][2]
    for expert in range(2):
        selected = [unequal[f"left/{name}"][expert] for name in RESTRICTIONS]
        assert [unequal[f"used/{name}"][expert] for name in RESTRICTIONS] == selected
        assert {equal[f"used/{name}"][expert] for name in RESTRICTIONS} == {min(selected)}


def test_histograms_are_those_of_numpy():
    rng = np.random.default_rng(0)
    steps = np.append(rng.integers(8, 500, 200), [500] * 50).reshape(5, 50)
    edges = [*range(0, 501, 10), 510]
    np.testing.assert_allclose(
        summary.lifetime_histogram(steps), np.histogram(steps, edges)[0] / 250
    )
    values = rng.normal(0, 0.01, 1000)
    half, bins = summary.AXES["angle"], summary.BINS
    expected = np.histogram(values, np.linspace(-half, half, bins + 1))[0] / 1000
    np.testing.assert_allclose(summary.distribution(values, "angle"), expected)
    assert summary.distribution(np.array([9.0, -9.0]), "angle")[[0, -1]].tolist() == [0.5, 0.5]


def test_restrictions_are_printed_as_intervals():
    texts = [str(restriction) for restriction in RESTRICTIONS.values() if restriction]
    assert texts[0] == "|position| < 0.05 m"
    assert texts[-1] == "|angular velocity + 0.05| < 0.1 rad/s"


def test_the_catalogs_figures_are_drawn_from_records(runs, tmp_path):
    """Records as `catalog export` writes them: curves by metric."""
    _, _, curves = runs[False]
    rounds = {
        f"{metric}/{name}": {0: 0.0, 1: 1.0}
        for metric in ("labels", "survival")
        for name in RESTRICTIONS
    } | {"labels_needed/angle": {0: 0.0, 2: 1.0, 3: 5.0}}  # of four clones
    folder = tmp_path / "experiments" / "records" / "cartpole"
    folder.mkdir(parents=True)
    fails = {name: dict.fromkeys(points, 0.0) for name, points in curves.items()}
    for index, (operation, metrics, scale) in enumerate(
        [
            ("bc:restrictions", curves, 1),
            ("bc:dagger", rounds, 0.2),
            ("bc:coverage", curves, 0.1),
            ("bc:coverage", curves, 1),
            ("bc:coverage", fails, 0.1),
        ]
    ):
        run = {
            "operation": operation,
            "status": "FINISHED",
            "started": index,
            "metrics": {name: {"curve": list(m.items())} for name, m in metrics.items()},
            "flags": {"orders": 2, "scale": scale, "starts": SMALL["starts"]},
            "result": {"table": {"columns": ["broken"], "rows": [["3 of 4"]]}},
        }
        (folder / f"{index}.json").write_text(json.dumps(run))
    # The batch of the last runs, whose record has neither flags nor metrics.
    batch = run | {"flags": {}, "metrics": {}, "result": {"batch": True, "method": "grid"}}
    (folder / "batch.json").write_text(json.dumps(batch))
    records = committed.without_batches(committed.finished_runs(folder))
    queried, share, low, high = bc_redraw.recovered(records["bc:dagger"][-1], "angle")
    assert (queried.tolist(), share.tolist()) == ([0, 1], [0.25, 0.5])
    assert all(low <= [wilson(n, 4)[0] for n in (1, 2)])
    assert all(high >= [wilson(n, 4)[1] for n in (1, 2)])
    assert bc_redraw.recovered(records["bc:dagger"][-1], "position")[1].tolist() == [0, 0]
    widths, shares, _, most = bc_redraw.coverage_curves(records["bc:coverage"])["angle"]
    mean = np.mean(list(curves["survival/angle"].values()))
    assert widths.tolist() == [0.1, 1]
    assert shares.tolist() == [0, pytest.approx(mean)]
    # All clones fail from all starts
    assert most[0] == pytest.approx(wilson(0, SMALL["starts"])[1])
    drawn = bc_redraw.draw(records, tmp_path)
    assert [path.name for path in drawn] == [
        "bc_lifetimes.svg", "bc_distributions.svg", "bc_survival.svg", "bc_coverage.svg",
        "bc_labels.svg",
    ]  # fmt: skip
    assert "reported: 36 %" in drawn[0].read_text()
    assert "DAgger" in drawn[-1].read_text()


@pytest.mark.parametrize(
    ("script", "flags", "words"),
    [
        (clone, "--restriction height", "--restriction"),
        (clone, "--horizon 501", "--horizon: 501 is not in [1, 500]"),
        (clone, "--experts /nowhere", "--experts: checkpoint /nowhere"),
        (clone, "", "bc:experts"),
        (remedies, "--method hope", "--method"),
        (remedies, "--method dagger --noise 0.1", "--noise: method=dagger"),
        (restrictions, "--scale 0", "--scale"),
    ],
)
def test_a_wrong_flag_is_a_one_line_error(tmp_path, monkeypatch, capsys, script, flags, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        record.run_script(script.main, script.Config, argparse.ArgumentParser(), flags.split())
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
