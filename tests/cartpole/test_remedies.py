"""Who plays, who labels, and how labels are counted."""

import numpy as np
import pytest

from cartpole import remedies
from cartpole.cloning.demonstrations import RESTRICTIONS
from cartpole.cloning.expert_policies import greedy
from cartpole.policy_gradient import networks
from cartpole.policy_gradient.env import MAX_STEPS, CartPoleBatch
from cartpole.policy_gradient.networks import Shape
from runcatalog import record
from runcatalog.record.checkpoint import save_checkpoint

SMALL = {
    "episodes": 20, "horizon": 30, "limit": 40, "updates": 20, "batch_size": 5, "orders": 2,
    "starts": 10, "rounds": 2, "labels": 500,
}  # fmt: skip


def policies(count):
    return networks.initial(Shape(), [np.random.default_rng(7 + i) for i in range(count)])


@pytest.fixture
def run_of(tmp_path, monkeypatch):
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "run"))

    def make(**flags):
        config = remedies.Config(**{**SMALL, **flags})
        return config, record.start(config, study="cartpole")

    return make


def added(remedy, before):
    """What a round gave clone 0."""
    new = slice(before[0], remedy._count[0])
    return remedy._observations[0, new], remedy._labels[0, new]


@pytest.mark.parametrize("method", ["dagger", "dart", "expert"])
def test_the_right_one_plays_and_the_expert_labels(run_of, method):
    config, started = run_of(method=method, noise=0.3)
    experts, clones = policies(2), networks.take(policies(40), slice(10, 26))
    with started as run:
        remedy = remedies.Remedy(experts, config, run)
        before = remedy._count.copy()
        remedy.ask(0, clones)
        run.finish({})
    assert len(remedy.clones) == 4 * 2 * 2
    np.testing.assert_array_equal(remedy._count - before, remedy.labels)
    seen, labels = added(remedy, before)
    expert, clone = networks.take(experts, slice(0, 1)), networks.take(clones, slice(0, 1))
    np.testing.assert_array_equal(labels, greedy(expert, seen[None])[0])
    # The same episode again, in a loop.
    start = remedies.random_starts(remedy._rng("asked", 0, 0), 1)
    draws = remedy._rng("noise", 0, 0).random((1, MAX_STEPS))[0]
    env = CartPoleBatch(1)
    here, lived = env.reset(start), 0
    while env.alive.any():
        np.testing.assert_array_equal(here[0], seen[lived])
        meant = bool(greedy(expert, here[None])[0, 0])
        action = {
            "dagger": bool(greedy(clone, here[None])[0, 0]),
            "dart": meant ^ bool(draws[lived] < 0.3),
            "expert": meant,
        }[method]
        here, *_ = env.step(np.array([action]))
        lived += 1
    assert lived == len(seen) == remedy.labels[0]


def test_darts_noise_is_the_clones_error_on_new_states(run_of):
    config, started = run_of(method="dart")
    experts = policies(1)
    with started as run:
        remedy = remedies.Remedy(experts, config, run)
        clones = remedy.learn(0)
        first = remedy.flips.copy()
        assert (first < 1).all()
        before = remedy._count.copy()
        remedy.ask(0, clones)
        run.finish({})
    seen, labels = added(remedy, before)
    wrong = greedy(networks.take(clones, slice(0, 1)), seen[None])[0] != labels
    assert remedy.flips[0] == pytest.approx(wrong.mean())


def test_a_remedy_starts_from_restricted_pairs_alone(run_of):
    config, started = run_of()
    with started as run:
        remedy = remedies.Remedy(policies(2), config, run)
        run.finish({})
    names = [name for name, cut in RESTRICTIONS.items() if cut]
    for clone in range(16):
        cut = RESTRICTIONS[names[clone // 4]]
        seen = remedy._observations[clone, : remedy._count[clone]]
        assert 0 < len(seen) <= config.limit
        assert (np.abs(seen[:, cut.variable] - cut.centre) < cut.half_width + 1e-6).all()


def test_labels_are_drawn_from_the_episode_and_no_more_than_asked_for(run_of):
    experts, clones = policies(1), policies(8)
    seen = {}
    for labels in (500, 7):
        config, started = run_of(labels=labels)
        with started as run:
            remedy = remedies.Remedy(experts, config, run)
            before = remedy._count.copy()
            remedy.ask(0, clones)
            seen[labels] = added(remedy, before)[0]
            run.finish({})
        run.directory.rename(run.directory.with_name(f"run{labels}"))
    assert len(seen[7]) == 7 < len(seen[500])
    assert len(np.unique(seen[7], axis=0)) == 7
    assert {tuple(each) for each in seen[7]} <= {tuple(each) for each in seen[500]}


def test_the_control_asks_nobody_and_learns_anew(run_of):
    config, started = run_of(method="again", updates=60)
    with started as run:
        remedy = remedies.Remedy(policies(2), config, run)
        before, first = remedy._count.copy(), remedy.learn(0)
        remedy.ask(0, first)
        second = remedy.learn(1)
        run.finish({})
    assert not remedy.labels.any()
    np.testing.assert_array_equal(remedy._count, before)
    assert any(not np.array_equal(first[name], second[name]) for name in first)


def test_whole_is_what_stays_whole():
    """Clones by column: whole before; at once and for good; by luck and later for good; too late; never."""
    lasted = np.array(
        [
            [1.0, 0.5, 0.5, 0.5, 0.5],
            [0.9, 1.0, 1.0, 0.5, 0.9],
            [0.9, 1.0, 0.9, 0.5, 0.9],
            [0.9, 0.99, 1.0, 0.5, 0.9],
            [0.9, 0.5, 1.0, 1.0, 0.9],
            [0.9, 0.5, 1.0, 1.0, 0.9],
        ]
    )
    assert remedies.first_whole(lasted, 0.99).tolist() == [0, 1, 3, np.inf, np.inf]


@pytest.mark.parametrize(("method", "unit"), [("dagger", "labels"), ("again", "rounds")])
def test_a_whole_run_says_how_many_labels_it_took(run_of, tmp_path, method, unit):
    save_checkpoint(tmp_path / "experts", 1, {f"policy.{n}": v for n, v in policies(2).items()}, {})
    config, _ = run_of(experts=str(tmp_path / "experts"), target=0.01, method=method)
    written = remedies.main(config)["result"]
    assert written["objective"]["name"] == "mended"
    assert f"{unit} (median)" in written["summary"]
    assert [row[0] for row in written["table"]["rows"]] == [
        "position", "velocity", "angle", "angular velocity",
    ]  # fmt: skip
