"""What restrictions leave, pair by pair; equal numbers; and the errors."""

import json

import numpy as np
import pytest

from cartpole import bc_redraw, remedies, restrictions
from cartpole.cloning import demonstrations
from cartpole.cloning import summary as bc_results
from cartpole.cloning.demonstrations import RESTRICTIONS, Pairs
from cartpole.policy_gradient import networks
from cartpole.policy_gradient.networks import Shape
from runcatalog import record
from runcatalog.model import committed
from runcatalog.record.checkpoint import save_checkpoint

SMALL = {
    "episodes": 12, "horizon": 40, "updates": 30, "batch_size": 5, "orders": 2, "starts": 20,
}  # fmt: skip


@pytest.fixture
def experts(tmp_path, monkeypatch):
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    params = networks.initial(Shape(), [np.random.default_rng(i) for i in range(2)])
    tensors = {f"policy.{name}": value for name, value in params.items()}
    save_checkpoint(tmp_path / "experts" / "checkpoints", 1, tensors, {})
    return str(tmp_path / "experts")


def naive(name, x, v, theta, omega):
    """The table of the fact sheet, section 5."""
    return {
        "none": True,
        "position": abs(x) < 0.05,
        "velocity": abs(v) < 0.1,
        "angular_velocity": abs(omega + 0.05) < 0.1,
        "angle": abs(theta) < 0.005,
    }[name]


@pytest.mark.parametrize("name", list(RESTRICTIONS))
def test_restrictions_keep_what_a_loop_keeps(name):
    rng = np.random.default_rng(0)
    observations = rng.normal(0, [0.05, 0.1, 0.005, 0.1], (2, 30, 20, 4)).astype(np.float32)
    happened = rng.random((2, 30, 20)) < 0.8
    pairs = Pairs(observations, np.zeros((2, 30, 20), bool), happened)
    found = demonstrations.left(pairs, name)
    for each in range(2):
        expected = [
            episode * 20 + step
            for episode in range(30)
            for step in range(20)
            if happened[each, episode, step]
            and naive(name, *map(float, observations[each, episode, step]))
        ]
        assert found[each].tolist() == expected


def test_a_restriction_that_leaves_nothing_is_told_and_nothing_half_written(
    experts, tmp_path, monkeypatch
):
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "run"))
    config = restrictions.Config(experts=experts, scale=1e-12, **SMALL)
    with pytest.raises(record.RunFailed, match=r"leaves none of \d+ pairs of expert 1"):
        restrictions.main(config)
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert written["status"] == "FAILED"
    assert "leaves none" in written["reason"]
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_equal_numbers_are_the_smallest_sets_and_subsets_of_the_unequal(
    experts, tmp_path, monkeypatch
):
    found = {}
    for equal in (False, True):
        monkeypatch.setenv("RUN_DIR", str(tmp_path / str(equal)))
        written = restrictions.main(restrictions.Config(experts=experts, equal=equal, **SMALL))
        points = {}
        for line in (tmp_path / str(equal) / "journal/metrics.jsonl").read_text().splitlines():
            entry = json.loads(line)
            for name, value in entry["m"].items():
                points.setdefault(name, {})[entry["step"]] = value
        found[equal] = points
        assert written["result"]["table"]["rows"][0][0] == "none"
        assert set(points["lifetimes/none"]) == set(range(0, 501, 10))
        for name in RESTRICTIONS:
            assert sum(points[f"lifetimes/{name}"].values()) == pytest.approx(1)
            assert len(points[f"survival/{name}"]) == 4
        for variable in demonstrations.VARIABLES:
            assert sum(points[f"distribution/{variable}"].values()) == pytest.approx(1)
    for expert in range(2):
        left = [found[False][f"left/{name}"][expert] for name in RESTRICTIONS]
        assert [found[False][f"used/{name}"][expert] for name in RESTRICTIONS] == left
        assert {found[True][f"used/{name}"][expert] for name in RESTRICTIONS} == {min(left)}


def test_histograms_are_those_of_numpy():
    rng = np.random.default_rng(0)
    lived = np.append(rng.integers(8, 500, 200), [500] * 50).reshape(5, 50)
    edges = [*range(0, 501, 10), 510]
    np.testing.assert_allclose(
        bc_results.lifetime_histogram(lived), np.histogram(lived, edges)[0] / 250
    )
    values = rng.normal(0, 0.01, 1000)
    half, bins = bc_results.AXES["angle"], bc_results.BINS
    expected = np.histogram(values, np.linspace(-half, half, bins + 1))[0] / 1000
    np.testing.assert_allclose(bc_results.distribution(values, "angle"), expected)
    assert bc_results.distribution(np.array([9.0, -9.0]), "angle")[[0, -1]].tolist() == [0.5, 0.5]


def test_restrictions_say_what_they_keep():
    told = [str(cut) for cut in RESTRICTIONS.values() if cut]
    assert told[0] == "|position| < 0.05 m"
    assert told[-1] == "|angular velocity + 0.05| < 0.1 rad/s"


def test_the_catalogs_figures_come_from_records_alone(experts, tmp_path, monkeypatch):
    """Records as `catalog export` writes them: curves by metric."""
    folder = tmp_path / "experiments" / "records" / "cartpole"
    folder.mkdir(parents=True)
    for index, (operation, main, config) in enumerate(
        [
            ("bc:restrictions", restrictions.main, restrictions.Config(experts=experts, **SMALL)),
            ("bc:dagger", remedies.main, remedies.Config(experts=experts, rounds=2, **SMALL)),
        ]
    ):
        monkeypatch.setenv("RUN_DIR", str(tmp_path / f"run{index}"))
        main(config)
        curves = {}
        for line in (tmp_path / f"run{index}/journal/metrics.jsonl").read_text().splitlines():
            entry = json.loads(line)
            for name, value in entry["m"].items():
                curves.setdefault(name, {"curve": []})["curve"].append([entry["step"], value])
        run = {"operation": operation, "status": "FINISHED", "started": index, "metrics": curves}
        (folder / f"{index}.json").write_text(json.dumps(run | {"flags": {"orders": 2}}))
    found = committed.finished_runs(folder)
    drawn = bc_redraw.draw(found, tmp_path)
    assert [path.name for path in drawn] == [
        "bc_lifetimes.svg", "bc_distributions.svg", "bc_survival.svg", "bc_labels.svg",
    ]  # fmt: skip
    before = [path.read_bytes() for path in drawn]
    assert [path.read_bytes() for path in bc_redraw.draw(found, tmp_path)] == before
