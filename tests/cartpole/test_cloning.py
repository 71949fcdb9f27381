"""Batched cloning against a plain loop in torch; survival against gymnasium's own environment."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch

from cartpole.cloning import behaviour_cloning, summary, survival
from cartpole.cloning.behaviour_cloning import HIDDEN, Clones, PairOrder
from cartpole.cloning.demonstrations import Pairs, expert_actor, play, sampling_actor
from cartpole.cloning.experiment import Outcome, clone
from cartpole.cloning.options import CloneConfig
from cartpole.policy_gradient import networks
from cartpole.policy_gradient.env import MAX_STEPS, random_starts
from cartpole.policy_gradient.networks import Shape
from runcatalog import record
from runcatalog.model import statistics
from runcatalog.numbers import wilson

SEEDS = record.Seeds(3)
# Balances the pole from any start: pushes in the direction in which the pole falls.
STEADY = {
    "w0": np.array([[0, 0], [0, 0], [1, -1], [0.5, -0.5]], np.float32),
    "b0": np.zeros(2, np.float32),
    "w1": np.array([[0, 1], [1, 0]], np.float32),
    "b1": np.zeros(2, np.float32),
}


def policies(count):
    return networks.initial(Shape(HIDDEN), [np.random.default_rng(i) for i in range(count)])


def steady(count=1):
    return networks.stacked([STEADY] * count)


def as_torch(params, run, dtype=torch.float32):
    layers = []
    for layer in range(len(params) // 2):
        linear = torch.nn.Linear(*params[f"w{layer}"][run].shape, dtype=dtype)
        linear.weight.data = torch.tensor(params[f"w{layer}"][run].T, dtype=dtype)
        linear.bias.data = torch.tensor(params[f"b{layer}"][run], dtype=dtype)
        layers += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def plain_loop(model, observations, labels, config):
    """The source's loop: pair after pair, cross-entropy, Adam."""
    adam = torch.optim.Adam(model.parameters(), lr=config.lr)
    for update in range(config.updates):
        for group in adam.param_groups:
            group["lr"] = config.lr * (1 - update / config.updates if config.decay else 1)
        here = slice(update * config.batch_size, (update + 1) * config.batch_size)
        logits = model(torch.tensor(observations[here]))
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(labels[here]).long())
        adam.zero_grad()
        loss.backward()
        adam.step()


@pytest.mark.parametrize(("batch_size", "decay"), [(1, False), (20, True)])
def test_batched_training_equals_a_plain_loop_per_clone(batch_size, decay):
    config = CloneConfig(
        updates=60, batch_size=batch_size, lr=1e-3, decay=decay, shuffle=False, standardise=False
    )
    rng = np.random.default_rng(0)
    observations = rng.normal(0, 0.2, (2, 5000, 4)).astype(np.float32)
    labels = observations[..., 2] + 0.3 * observations[..., 3] > 0
    clones = Clones.product(2, 2)
    params = behaviour_cloning.new_clones(SEEDS, clones)
    models = [as_torch(params, run) for run in range(4)]
    indices = rng.permutation(5000)[:4000]
    orders = [
        PairOrder(np.sort(indices), SEEDS.generator("order", i), shuffle=False, episodes=(50, 100))
        for i in range(4)
    ]
    behaviour_cloning.fit(params, observations, labels, clones.experts, orders, config)
    for run, model in enumerate(models):
        own = clones.experts[run]
        used = orders[run].used[: config.updates * batch_size]
        plain_loop(model, observations[own, used], labels[own, used], config)
        for layer, linear in enumerate(model[::2]):
            np.testing.assert_allclose(
                params[f"w{layer}"][run], linear.weight.detach().numpy().T, atol=1e-5
            )
            np.testing.assert_allclose(
                params[f"b{layer}"][run], linear.bias.detach().numpy(), atol=1e-5
            )


def test_standardised_training_is_training_on_standardised_inputs():
    config = CloneConfig(updates=60, batch_size=10, lr=1e-2, decay=True)
    rng = np.random.default_rng(1)
    observations = rng.normal(0.3, [0.1, 1, 0.02, 2], (1, 600, 4)).astype(np.float32)
    labels = observations[..., 2] > 0.3
    mean, deviation = observations[0].mean(0), observations[0].std(0)
    params = behaviour_cloning.new_clones(SEEDS, Clones.product(1, 1))
    model = as_torch(params, 0)
    order, same = (
        PairOrder(np.arange(600), SEEDS.generator("order"), shuffle=True) for _ in range(2)
    )
    behaviour_cloning.fit(params, observations, labels, np.zeros(1, int), [order], config)
    used = same.take(600)
    plain_loop(model, (observations[0, used] - mean) / deviation, labels[0, used], config)
    expected = model(torch.tensor((observations[0] - mean) / deviation)).detach().numpy()
    np.testing.assert_allclose(networks.forward(params, observations)[0], expected, atol=2e-3)


def test_a_clone_does_not_depend_on_the_other_clones():
    config = CloneConfig(updates=30, batch_size=5)
    rng = np.random.default_rng(1)
    observations = rng.normal(size=(3, 100, 4)).astype(np.float32)
    labels = observations[..., 3] > 0
    clones = Clones.product(3, 2)

    def trained(rows):
        params = networks.take(behaviour_cloning.new_clones(SEEDS, clones), rows)
        orders = [PairOrder(np.arange(100), SEEDS.generator("o", i), shuffle=True) for i in rows]
        behaviour_cloning.fit(params, observations, labels, clones.experts[rows], orders, config)
        return params

    together, alone = trained(np.arange(6)), trained(np.array([4]))
    for name, value in alone.items():
        np.testing.assert_array_equal(together[name][4], value[0])


def test_unshuffled_pairs_keep_the_order_of_the_episodes():
    kept = np.flatnonzero(np.random.default_rng(0).random(20 * 30) < 0.4)
    order = PairOrder(kept, np.random.default_rng(5), shuffle=False, limit=150, episodes=(20, 30))
    rank = np.random.default_rng(5).permutation(20)
    naive = [i for e in np.argsort(rank) for i in range(30 * e, 30 * e + 30) if i in set(kept)]
    assert order.used.tolist() == naive[:150]
    assert order.take(400).tolist() == (naive[:150] * 3)[:400]


def test_every_pass_has_all_pairs_once_in_a_new_order():
    order = PairOrder(np.arange(10, 60), np.random.default_rng(2), shuffle=True, limit=40)
    taken = order.take(25), order.take(55)
    first, second = np.split(np.concatenate(taken), 2)
    assert sorted(first) == sorted(second) == sorted(order.used)
    assert len(set(order.used)) == 40
    assert first.tolist() != second.tolist()


def gymnasium_lifetime(model, start):
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    env.unwrapped.state = tuple(start)
    observed, steps, ended = np.array(start, np.float32), 0, False
    while not ended:
        with torch.no_grad():
            action = int(model(torch.tensor(observed)).argmax())
        observed, _, terminated, truncated, _ = env.step(action)
        steps, ended = steps + 1, terminated or truncated
    return steps


def test_lifetimes_are_those_of_gymnasium():
    starts = random_starts(np.random.default_rng(4), 12)
    params = policies(4)
    steps = survival.lifetimes(params, starts)
    for run in range(4):
        model = as_torch(params, run)
        assert steps[run].tolist() == [gymnasium_lifetime(model, start) for start in starts]
    kept = survival.lifetimes(steady(), starts[:3])
    assert kept.tolist() == [[gymnasium_lifetime(as_torch(steady(), 0), s) for s in starts[:3]]]
    assert (kept > 100).all()
    assert survival.survival_rate(np.array([[500, 499, 500, 9]])).tolist() == [0.5]


def test_pairs_equal_those_of_a_loop_over_one_environment():
    starts = random_starts(np.random.default_rng(4), 6).reshape(2, 3, 4)
    params = policies(2)
    pairs = play(params, starts, 40, expert_actor)
    for run in range(2):
        model = as_torch(params, run)
        for episode in range(3):
            env = gymnasium.make("CartPole-v1")
            env.reset(seed=0)
            env.unwrapped.state = tuple(starts[run, episode])
            observed, ended, step = np.array(starts[run, episode], np.float32), False, 0
            while not ended and step < 40:
                label = int(model(torch.tensor(observed)).argmax())
                np.testing.assert_array_equal(pairs.observations[run, episode, step], observed)
                assert pairs.labels[run, episode, step] == label
                assert pairs.valid[run, episode, step]
                observed, _, ended, _, _ = env.step(label)
                step += 1
            assert pairs.valid[run, episode].sum() == step


def test_sampled_actions_have_the_policys_probabilities_and_greedy_labels():
    params = policies(1)
    draws = np.random.default_rng(0).random((1, 20_000, 1))
    act = sampling_actor(params, draws)
    observed = np.tile(np.array([0.1, 1, -0.05, -1], np.float32), (1, 20_000, 1))
    logits = torch.tensor(networks.forward(params, observed)[0, 0])
    chance = float(torch.softmax(logits, 0)[1])
    assert act(observed, np.zeros((1, 20_000), bool), 0).mean() == pytest.approx(chance, abs=0.012)
    starts = random_starts(np.random.default_rng(0), 50)[None]
    draws = np.random.default_rng(1).random((1, 50, 20))
    pairs = play(params, starts, 20, sampling_actor(params, draws))
    flat, labels = pairs.flat()
    np.testing.assert_array_equal(labels, networks.forward(params, flat).argmax(-1))


def test_intervals_are_over_experts_and_orders_together():
    rng = np.random.default_rng(0)
    shares = rng.random((10, 1)) * np.ones((10, 3))
    by_name = {"a": shares, "b": shares - 0.05, "c": np.full((10, 3), 0.5)}
    groups = survival.Shares(by_name, 800)
    low, high = groups.interval("a")
    deviation = shares[:, 0].std() / np.sqrt(10)  # equal orders: experts alone vary
    assert high - low == pytest.approx(2 * 1.96 * deviation, rel=0.1)
    assert groups.probability_below("b", "a") == 1  # in every resample, since they are paired
    assert groups.probability_below("c", "c") == 0.5
    assert groups.probability_of_order(["b", "a"]) == 1
    order, probability = groups.most_frequent_order(["a", "b"])
    assert (order, probability) == (["b", "a"], 1)


def test_an_interval_is_never_narrower_than_that_of_the_starts():
    """One clone, and clones that survive equally often: they share their starts, which could have been others."""
    for shape, share in (((1, 1), 0.9), ((10, 3), 0.9), ((10, 3), 1.0)):
        groups = survival.Shares({"none": np.full(shape, share)}, 800)
        assert groups.interval("none") == pytest.approx(wilson(800 * share, 800))


def test_the_interval_of_a_result_is_over_experts_not_over_starts():
    steps = np.full((4, 2, 800), MAX_STEPS)
    steps[0] = 10  # the clones of one expert of four fail from all starts
    pairs = Pairs(np.zeros((4, 1, 1, 4)), np.zeros((4, 1, 1), bool), np.ones((4, 1, 1), bool))
    counts = {"none": np.ones(4)}
    outcome = Outcome({}, pairs, counts, counts, {"none": steps})
    objective = summary.result(outcome, CloneConfig(), "none")["objective"]
    assert objective["value"] == 0.75
    low, high = statistics.bounds([objective])
    assert (low, high) == outcome.shares.interval("none")
    assert (low, high) == (0.25, 1)
    steps = np.full((1, 1, 800), MAX_STEPS)
    steps[..., :80] = 10  # a single clone, which fails from a tenth of the starts
    alone = replace(outcome, lifetimes={"none": steps})
    objective = summary.result(alone, CloneConfig(), "none")["objective"]
    assert objective["interval"] == pytest.approx(wilson(720, 800))


def test_a_balancing_expert_is_cloned(tmp_path, monkeypatch):
    """A rule that balances the pole is cloned from its own episodes, from start to result."""
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "run"))
    config = CloneConfig(episodes=20, horizon=200, updates=300, orders=2, starts=50, lr=2e-2)
    with record.start(config, study="cartpole") as run:
        outcome = clone(steady(2), config, run, ["none"])
        run.finish({})
    assert outcome.lifetimes["none"].shape == (2, 2, 50)
    expert = survival.lifetimes(steady(), survival.held_out_starts(run.seeds, 50)).mean()
    assert outcome.lifetimes["none"].mean() > 0.8 * min(expert, MAX_STEPS)
    assert outcome.selected["none"].tolist() == outcome.used["none"].tolist()
