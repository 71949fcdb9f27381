"""DAgger and DART: who plays, who labels, and how labels are counted."""

import numpy as np
import pytest

from cartpole import remedies
from cartpole.cloning import dagger_summary
from cartpole.cloning.behaviour_cloning import HIDDEN
from cartpole.cloning.dagger import DataAggregation
from cartpole.cloning.demonstrations import RESTRICTIONS, demonstrate
from cartpole.cloning.survival import held_out_starts, unused_starts
from cartpole.policy_gradient import networks
from cartpole.policy_gradient.env import MAX_STEPS, CartPoleBatch, random_starts
from cartpole.policy_gradient.networks import Shape, greedy
from runcatalog import record
from runcatalog.numbers import wilson
from runcatalog.record.training.checkpoint import save_checkpoint

SMALL = {
    "episodes": 20, "horizon": 30, "limit": 40, "updates": 20, "batch_size": 5, "orders": 2,
    "starts": 10, "rounds": 3, "labels": 500,
}  # fmt: skip


def policies(count):
    return networks.initial(Shape(HIDDEN), [np.random.default_rng(7 + i) for i in range(count)])


def data_of(experts, **flags):
    config = remedies.Config(**{**SMALL, **flags})
    return DataAggregation(experts, config, record.Seeds(config.seed)), config


def sizes(data):
    return [len(data.data_set(clone)[1]) for clone in range(len(data.clones))]


def added(data, before):
    """Pairs that a round added to clone 0."""
    observations, labels = data.data_set(0)
    return observations[before[0] :], labels[before[0] :]


@pytest.mark.parametrize("method", ["dagger", "dart", "expert"])
def test_the_method_decides_who_plays_and_the_expert_labels(method):
    experts, clones = policies(2), networks.take(policies(40), slice(10, 26))
    data, config = data_of(experts, method=method, noise=0.3 if method == "dart" else 0.0)
    assert data.env_steps == demonstrate(experts, config, record.Seeds(config.seed)).valid.sum()
    before = sizes(data)
    data.query(0, clones)
    assert len(data.clones) == 4 * 2 * 2
    assert data.labels.tolist() == [n - m for n, m in zip(sizes(data), before, strict=True)]
    observations, labels = added(data, before)
    expert, clone = networks.take(experts, slice(0, 1)), networks.take(clones, slice(0, 1))
    np.testing.assert_array_equal(labels, greedy(expert, observations[None])[0])
    # The same episode again, in a loop.
    start = random_starts(data.rng("asked", 0, 0), 1)
    draws = data.rng("noise", 0, 0).random((1, MAX_STEPS))[0]
    env = CartPoleBatch(1)
    observed, steps = env.reset(start), 0
    while env.alive.any():
        np.testing.assert_array_equal(observed[0], observations[steps])
        label = bool(greedy(expert, observed[None])[0, 0])
        action = {
            "dagger": bool(greedy(clone, observed[None])[0, 0]),
            "dart": label ^ bool(draws[steps] < 0.3),
            "expert": label,
        }[method]
        observed, *_ = env.step(np.array([action]))
        steps += 1
    assert steps == len(observations) == data.labels[0]


def test_darts_noise_is_the_clones_error_rate_on_new_states():
    data, _ = data_of(policies(1), method="dart")
    clones = data.train(0)
    assert (data.noise < 1).all()
    before = sizes(data)
    data.query(0, clones)
    observations, labels = added(data, before)
    wrong = greedy(networks.take(clones, slice(0, 1)), observations[None])[0] != labels
    assert data.noise[0] == pytest.approx(wrong.mean())


def test_the_initial_data_are_restricted_pairs():
    data, config = data_of(policies(2))
    restrictions = [restriction for restriction in RESTRICTIONS.values() if restriction]
    for clone in range(16):
        restriction = restrictions[clone // 4]
        observations, _ = data.data_set(clone)
        assert 0 < len(observations) <= config.limit
        distance = np.abs(observations[:, restriction.variable] - restriction.centre)
        assert (distance < restriction.half_width + 1e-6).all()


def test_labels_are_drawn_from_one_episode_and_no_more_than_the_flag_says():
    experts, clones = policies(1), policies(8)
    states = {}
    for labels in (500, 7):
        data, _ = data_of(experts, labels=labels)
        before = sizes(data)
        data.query(0, clones)
        states[labels] = added(data, before)[0]
    assert len(states[7]) == 7 < len(states[500])
    assert len(np.unique(states[7], axis=0)) == 7
    assert {tuple(state) for state in states[7]} <= {tuple(state) for state in states[500]}


def test_the_control_adds_no_labels_and_trains_from_scratch():
    data, _ = data_of(policies(2), method="again", updates=60)
    before, first = sizes(data), data.train(0)
    data.query(0, first)
    second = data.train(1)
    assert not data.labels.any()
    assert sizes(data) == before
    assert any(not np.array_equal(first[name], second[name]) for name in first)


def test_a_success_has_to_last():
    """Clones by column: successful before; from round 1; by chance in 1, lasting from 3; too late; never."""
    shares = np.array(
        [
            [1.0, 0.5, 0.5, 0.5, 0.5],
            [0.9, 1.0, 1.0, 0.5, 0.9],
            [0.9, 1.0, 0.9, 0.5, 0.9],
            [0.9, 0.99, 1.0, 0.5, 0.9],
            [0.9, 0.5, 1.0, 1.0, 0.9],
            [0.9, 0.5, 1.0, 1.0, 0.9],
        ]
    )
    assert dagger_summary.first_success(shares, 0.99).tolist() == [0, 1, 3, np.inf, np.inf]


def test_starts_that_decide_nothing_confirm_a_success():
    """Clones by column: successful before; from round 1, confirmed; from 1, not confirmed; never."""
    rounds = np.array([0, 1, 1, np.inf])
    tested = np.array(
        [
            [1.0, 0.0, 1.0, 1.0],
            [1.0, 0.97, 0.99, 1.0],  # in floating point, the mean of 0.97, 1 and 1 is below 0.99
            [1.0, 1.0, 0.99, 1.0],
            [1.0, 1.0, 0.98, 1.0],
            [1.0, 0.0, 1.0, 1.0],
        ]
    )
    confirmed = dagger_summary.confirmed_successes(rounds, tested, 0.99)
    assert confirmed.tolist() == [False, True, False, False]


def test_a_run_tests_on_other_starts_than_those_that_decide():
    deciding, test = (f(record.Seeds(1), 50) for f in (held_out_starts, unused_starts))
    assert not (deciding[:, None] == test).all(-1).any()


@pytest.mark.parametrize(("method", "unit"), [("dagger", "labels"), ("again", "rounds")])
def test_a_run_reports_how_many_labels_were_needed(tmp_path, monkeypatch, method, unit):
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "run"))
    save_checkpoint(tmp_path / "experts", 1, {f"policy.{n}": v for n, v in policies(2).items()}, {})
    flags = SMALL | {"experts": str(tmp_path / "experts"), "target": 0.01, "method": method}
    result = remedies.main(remedies.Config(**flags))["result"]
    assert result["objective"]["name"] == "mended"
    assert f"{unit} (median)" in result["summary"]
    assert [row[0] for row in result["table"]["rows"]] == [
        "position", "velocity", "angle", "angular velocity",
    ]  # fmt: skip


def test_a_clone_needs_its_own_labels():
    """An episode shorter than the labels of a round gives fewer; the second clone's are half as long."""
    history = dagger_summary.RoundHistory(remedies.Config(**SMALL), None)
    history._labels = [np.array([100, 50, 100]) * round_ for round_ in range(4)]
    assert history._costs(np.array([1.0, 2.0, np.inf])).tolist() == [100, 100, np.inf]
    assert history._costs(np.array([0.0, 1.0, 3.0])).tolist() == [0, 50, 300]


def test_the_interval_of_the_median_is_over_experts():
    """Equal costs, spread over experts or gathered in them; clones that failed at no time do not count."""
    rng = np.random.default_rng(0)
    costs, broken = rng.permutation(400).reshape(4, 20, 5), rng.random((4, 20, 5)) < 0.9
    gathered = np.sort(costs[broken])
    # The same costs of the same number of clones, the lowest in the first experts.
    of_experts = np.full(costs.shape, 7000).swapaxes(0, 1)
    of_experts[broken.swapaxes(0, 1)] = gathered
    texts = [dagger_summary._median(c, broken) for c in (costs, of_experts.swapaxes(0, 1))]
    middle = f"{np.median(gathered):,.0f}"
    ends = [text.removeprefix(f"{middle} [").removesuffix("]").split(", ") for text in texts]
    (low, high), (least, most) = (map(float, pair) for pair in ends)
    assert least < low < high < most
    assert most - least > 2 * (high - low)


def test_a_median_of_few_clones():
    costs, broken = np.array([[3.0, 1000.0], [np.inf, 20.0]]), np.ones((2, 2), bool)
    assert dagger_summary._median(costs, broken) == "510 [502, never]"
    assert dagger_summary._median(costs[:1], broken[:1]) == "502"  # one expert has no interval
    assert dagger_summary._median(costs, ~broken) == "no"


def test_the_interval_of_repaired_clones_is_over_experts():
    config = remedies.Config(**SMALL)
    history = dagger_summary.RoundHistory(config, None)
    # All are broken: four restrictions, ten experts, two orders
    rounds = np.ones((4, 10, config.orders))
    spread, gathered = np.ones((2, 4, 10, config.orders), bool)
    spread[0, :, 0] = False  # a failure of every expert
    gathered[:, :1] = gathered[0, 1, 0] = gathered[1, 1, 0] = False  # ten failures of two experts
    intervals = []
    for mended in (spread, gathered):
        assert mended.sum() == 70
        (low, high), least = history._interval(rounds, mended.ravel())["interval"], wilson(70, 80)
        assert low <= least[0] < 70 / 80 < least[1] <= high
        intervals.append(high - low)
    assert intervals[1] > 1.2 * intervals[0]
    assert history._interval(np.zeros((4, 10, config.orders)), np.zeros(80, bool)) == {}
