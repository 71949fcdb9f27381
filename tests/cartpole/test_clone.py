"""Batched cloning against a plain loop in torch; survival against gymnasium's own environment."""

import gymnasium
import numpy as np
import pytest
import torch

from cartpole.cloning import behaviour_cloning as cloning
from cartpole.cloning import survival
from cartpole.cloning.behaviour_cloning import CloneConfig, Clones, PairOrder
from cartpole.cloning.demonstrations import as_labelled, play, sampling
from cartpole.policy_gradient import networks
from cartpole.policy_gradient.env import MAX_STEPS, random_starts
from cartpole.policy_gradient.networks import Shape
from runcatalog import record

SEEDS = record.Seeds(3)
# Balances the pole from any start: pushes to where the pole falls.
STEADY = {
    "w0": np.array([[0, 0], [0, 0], [1, -1], [0.5, -0.5]], np.float32),
    "b0": np.zeros(2, np.float32),
    "w1": np.array([[0, 1], [1, 0]], np.float32),
    "b1": np.zeros(2, np.float32),
}


def policies(count):
    return networks.initial(Shape(), [np.random.default_rng(i) for i in range(count)])


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
def test_batched_training_is_a_plain_loop_for_each_clone(batch_size, decay):
    config = CloneConfig(
        updates=200, batch_size=batch_size, lr=1e-3, decay=decay, shuffle=False, standardise=False
    )
    rng = np.random.default_rng(0)
    observations = rng.normal(0, 0.2, (2, 5000, 4)).astype(np.float32)
    labels = observations[..., 2] + 0.3 * observations[..., 3] > 0
    clones = Clones.of(2, 2)
    params = cloning.new_clones(SEEDS, clones)
    models = [as_torch(params, run) for run in range(4)]
    indices = rng.permutation(5000)[:4000]
    orders = [
        PairOrder(np.sort(indices), SEEDS.generator("order", i), shuffle=False, episodes=(50, 100))
        for i in range(4)
    ]
    cloning.fit(params, observations, labels, clones.experts, orders, config)
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
    params = cloning.new_clones(SEEDS, Clones.of(1, 1))
    model = as_torch(params, 0)
    order, same = (
        PairOrder(np.arange(600), SEEDS.generator("order"), shuffle=True) for _ in range(2)
    )
    cloning.fit(params, observations, labels, np.zeros(1, int), [order], config)
    used = same.take(600)
    plain_loop(model, (observations[0, used] - mean) / deviation, labels[0, used], config)
    expected = model(torch.tensor((observations[0] - mean) / deviation)).detach().numpy()
    np.testing.assert_allclose(networks.forward(params, observations)[0], expected, atol=2e-3)


def test_a_clone_does_not_depend_on_the_clones_beside_it():
    config = CloneConfig(updates=30, batch_size=5)
    rng = np.random.default_rng(1)
    observations = rng.normal(size=(3, 100, 4)).astype(np.float32)
    labels = observations[..., 3] > 0
    clones = Clones.of(3, 2)

    def trained(rows):
        params = networks.take(cloning.new_clones(SEEDS, clones), rows)
        orders = [PairOrder(np.arange(100), SEEDS.generator("o", i), shuffle=True) for i in rows]
        cloning.fit(params, observations, labels, clones.experts[rows], orders, config)
        return params

    together, alone = trained(np.arange(6)), trained(np.array([4]))
    for name, value in alone.items():
        np.testing.assert_array_equal(together[name][4], value[0])


def test_unshuffled_pairs_come_episode_by_episode_as_played():
    kept = np.flatnonzero(np.random.default_rng(0).random(20 * 30) < 0.4)
    order = PairOrder(kept, np.random.default_rng(5), shuffle=False, limit=150, episodes=(20, 30))
    rank = np.random.default_rng(5).permutation(20)
    naive = [i for e in np.argsort(rank) for i in range(30 * e, 30 * e + 30) if i in set(kept)]
    assert order.used.tolist() == naive[:150]
    assert order.take(400).tolist() == (naive[:150] * 3)[:400]


def test_shuffled_pairs_come_once_a_pass_in_a_new_order():
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
    seen, steps, ended = np.array(start, np.float32), 0, False
    while not ended:
        with torch.no_grad():
            action = int(model(torch.tensor(seen)).argmax())
        seen, _, terminated, truncated, _ = env.step(action)
        steps, ended = steps + 1, terminated or truncated
    return steps


def test_lifetimes_are_those_of_gymnasium():
    starts = random_starts(np.random.default_rng(4), 12)
    params = policies(4)
    found = survival.lifetimes(params, starts)
    for run in range(4):
        model = as_torch(params, run)
        assert found[run].tolist() == [gymnasium_lifetime(model, start) for start in starts]
    kept = survival.lifetimes(steady(), starts[:3])
    assert kept.tolist() == [[gymnasium_lifetime(as_torch(steady(), 0), s) for s in starts[:3]]]
    assert (kept > 100).all()
    assert survival.whole(np.array([[500, 499, 500, 9]])).tolist() == [0.5]


def test_pairs_are_what_a_loop_over_one_pole_records():
    starts = random_starts(np.random.default_rng(4), 6).reshape(2, 3, 4)
    params = policies(2)
    pairs = play(params, starts, 40, as_labelled)
    for run in range(2):
        model = as_torch(params, run)
        for episode in range(3):
            env = gymnasium.make("CartPole-v1")
            env.reset(seed=0)
            env.unwrapped.state = tuple(starts[run, episode])
            seen, ended, step = np.array(starts[run, episode], np.float32), False, 0
            while not ended and step < 40:
                label = int(model(torch.tensor(seen)).argmax())
                np.testing.assert_array_equal(pairs.observations[run, episode, step], seen)
                assert pairs.labels[run, episode, step] == label
                assert pairs.happened[run, episode, step]
                seen, _, ended, _, _ = env.step(label)
                step += 1
            assert pairs.happened[run, episode].sum() == step


def test_sampled_actions_have_the_policys_probabilities_and_greedy_labels():
    params = policies(1)
    draws = np.random.default_rng(0).random((1, 20_000, 1))
    act = sampling(params, draws)
    seen = np.tile(np.array([0.1, 1, -0.05, -1], np.float32), (1, 20_000, 1))
    logits = torch.tensor(networks.forward(params, seen)[0, 0])
    chance = float(torch.softmax(logits, 0)[1])
    assert act(seen, np.zeros((1, 20_000), bool), 0).mean() == pytest.approx(chance, abs=0.012)
    starts = random_starts(np.random.default_rng(0), 50)[None]
    pairs = play(params, starts, 20, sampling(params, np.random.default_rng(1).random((1, 50, 20))))
    flat, labels = pairs.flat()
    np.testing.assert_array_equal(labels, networks.forward(params, flat).argmax(-1))


def test_intervals_are_over_experts_and_orders_together():
    rng = np.random.default_rng(0)
    shares = rng.random((10, 1)) * np.ones((10, 3))
    found = survival.Shares({"a": shares, "b": shares - 0.05, "c": np.full((10, 3), 0.5)})
    low, high = found.interval("a")
    deviation = shares[:, 0].std() / np.sqrt(10)  # equal orders: experts alone vary
    assert high - low == pytest.approx(2 * 1.96 * deviation, rel=0.1)
    assert found.interval("c") == (0.5, 0.5)
    assert found.less("b", "a") == 1  # never the other way round in pairs
    assert found.less("c", "c") == 0.5
    assert found.ordered(["b", "a"]) == 1
    order, probability = found.order(["a", "b"])
    assert (order, probability) == (["b", "a"], 1)


def test_an_expert_with_room_is_cloned_whole(tmp_path, monkeypatch):
    """A rule that balances for 500 steps is cloned from its own episodes, from start to result."""
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "run"))
    config = CloneConfig(episodes=20, horizon=200, updates=300, orders=2, starts=50, lr=2e-2)
    with record.start(config, study="cartpole") as run:
        outcome = cloning.clone(steady(2), config, run, ["none"])
        run.finish({})
    assert outcome.lived["none"].shape == (2, 2, 50)
    expert = survival.lifetimes(steady(), survival.held_out_starts(run.seeds, 50)).mean()
    assert outcome.lived["none"].mean() > 0.8 * min(expert, MAX_STEPS)
    assert outcome.left["none"].tolist() == outcome.used["none"].tolist()
