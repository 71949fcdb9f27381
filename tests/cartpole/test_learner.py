"""The lockstep learner against the source's loop, and against itself alone."""

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from cartpole.policy_gradient import algorithms
from cartpole.policy_gradient.reinforce import Learner, Setting
from runcatalog.record import Seeds

# Different in everything a run may differ in, so that nothing can be mixed up between runs.
SINGLE = [
    Setting("vpg", 1, lr=3e-3, reset="random"),
    Setting("mean", 2, gamma=0.9),
    Setting("value", 3, lr=1e-2, reset="random"),
    Setting("value", 4, gamma=0.999, entropy=0.1),
    Setting("vpg", 5, normalise=True, entropy=0.001, lr=2e-2),
]
BATCHED = [
    Setting("rloo", 1, lr=1e-2),
    Setting("rloo_step", 2, reset="random", entropy=0.01),
    Setting("rloo", 3, normalise=True, reset="random"),
    Setting("value", 4, lr=1e-2),
    Setting("mean", 5, gamma=1.0),
]


@pytest.mark.parametrize(("settings", "episodes", "updates"), [(SINGLE, 1, 40), (BATCHED, 4, 8)])
def test_weights_are_those_of_the_loop_of_the_source(settings, episodes, updates):
    torch.set_num_threads(1)
    learner = Learner(settings, episodes=episodes)
    policies = [network_of(learner.policy, run) for run in range(len(settings))]
    order = learner.value_rows.tolist()
    values = {run: network_of(learner.value, place) for place, run in enumerate(order)}
    lengths = np.stack([learner.update() for _ in range(updates)], axis=1)
    for run, setting in enumerate(settings):
        expected = train_as_the_source(setting, policies[run], values.get(run), updates, episodes)
        assert (lengths[run] == expected).all(), setting
        for name, value in weights_of(policies[run]).items():
            np.testing.assert_allclose(learner.policy[name][run], value, atol=1e-5)
    for place, run in enumerate(order):
        for name, value in weights_of(values[run]).items():
            np.testing.assert_allclose(learner.value[name][place], value, atol=1e-5)


@pytest.mark.parametrize(("settings", "episodes", "updates"), [(SINGLE, 1, 200), (BATCHED, 4, 60)])
def test_a_run_has_the_same_bits_alone_and_beside_others(settings, episodes, updates):
    together = Learner(settings, episodes=episodes)
    lengths = [together.update() for _ in range(updates)]
    assert np.max(lengths) > 100  # rounds in which runs end at different times
    for run, setting in enumerate(settings):
        alone = Learner([setting], episodes=episodes)
        own = [alone.update()[0] for _ in range(updates)]
        assert (np.array(own) == np.array(lengths)[:, run]).all(), setting
        for name, value in alone.policy.items():
            assert (value[0] == together.policy[name][run]).all(), (setting, name)


def test_a_learner_goes_on_from_its_state():
    settings = [Setting("value", 1, reset="random", lr=1e-2), Setting("vpg", 2)]
    whole, begun, resumed = (Learner(settings, hidden=(16,)) for _ in range(3))
    lengths = [whole.update() for _ in range(20)]
    for _ in range(9):
        begun.update()
    tensors = {name: torch.tensor(value) for name, value in begun.tensors().items()}
    resumed.restore(tensors, begun.state())
    assert (np.array([resumed.update() for _ in range(11)]) == lengths[9:]).all()
    again = resumed.tensors()
    assert all((again[name] == value).all() for name, value in whole.tensors().items())


def test_the_slope_is_the_gradient_of_the_loss():
    rng = np.random.default_rng(0)
    logits = torch.tensor(rng.normal(size=(3, 7, 2)), dtype=torch.float32, requires_grad=True)
    actions, advantage = rng.integers(2, size=(3, 7)), rng.normal(size=(3, 7))
    weights, coef = rng.random((3, 7)), rng.random(3)
    slope = algorithms.policy_slope(
        logits.detach().numpy(), actions.astype(bool), advantage, weights, coef
    )
    of = torch.distributions.Categorical(logits=logits)
    bonus = torch.tensor(coef)[:, None] * of.entropy()
    terms = torch.tensor(advantage) * of.log_prob(torch.tensor(actions)) + bonus
    (-torch.tensor(weights) * terms).sum().backward()
    np.testing.assert_allclose(slope, logits.grad, atol=1e-6)


def test_returns_and_baselines_are_those_of_a_loop():
    lengths, gammas = np.array([[3, 5], [2, 6]]), np.array([0.9, 1.0])
    returns = algorithms.returns_to_go(algorithms.return_table(gammas, 6), lengths, 6)
    for r in range(2):
        for e in range(2):
            length = lengths[r, e]
            expected = [sum(gammas[r] ** k for k in range(length - t)) for t in range(length)]
            np.testing.assert_allclose(returns[r, e, :length], expected)
            assert not returns[r, e, length:].any()
            rloo = algorithms.advantages("rloo", returns, lengths)[r, e]
            np.testing.assert_allclose(rloo[:length], np.array(expected) - lengths[r, 1 - e])
            assert not rloo[length:].any()
            step = algorithms.advantages("rloo_step", returns, lengths)[r, e]
            mean = algorithms.advantages("mean", returns, lengths)[r, e]
            # Leaving one step out of an episode's mean is the mean baseline, stretched.
            np.testing.assert_allclose(step, mean * length / (length - 1))
            assert abs(mean.sum()) < 1e-9
    flat = algorithms.normalised(returns, lengths)
    for r in range(2):
        steps = flat[r][algorithms.mask(lengths, 6)[r]]
        assert steps.mean() == pytest.approx(0, abs=1e-9)
        assert steps.std() == pytest.approx(1)


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(ValueError, match="vpg, mean, value, rloo"):
        algorithms.advantages("ppo", np.zeros((1, 1, 1)), np.ones((1, 1), int))


# The source's loop: torch, one gymnasium environment, one step at a time, autograd of the loss.


def network_of(params, run=0):
    """A torch network with stacked parameters' values of one run."""
    layers = []
    for layer in range(len(params) // 2):
        weight, bias = params[f"w{layer}"][run], params[f"b{layer}"][run]
        linear = nn.Linear(*weight.shape)
        linear.weight.data = torch.tensor(weight.T.copy())
        linear.bias.data = torch.tensor(bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def weights_of(model):
    """The parameters by our names."""
    linear = [layer for layer in model if isinstance(layer, nn.Linear)]
    found = {f"w{i}": each.weight.detach().numpy().T for i, each in enumerate(linear)}
    return found | {f"b{i}": each.bias.detach().numpy() for i, each in enumerate(linear)}


def play(env, policy, start, draws):
    """States and actions of one episode, action 1 where the draw is below its probability."""
    env.reset()
    env.unwrapped.state = np.array(start)
    state, states, actions = np.array(start, np.float32), [], []
    while True:
        with torch.no_grad():
            probability = torch.softmax(policy(torch.tensor(state)), -1)[1].item()
        action = int(draws[len(actions)] < probability)
        states.append(state)
        actions.append(action)
        state, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            return np.array(states), actions


def discounted(count, gamma):
    """G_t = r_t + gamma G_{t+1} with reward 1."""
    returns = [0.0]
    for _ in range(count):
        returns.insert(0, 1 + gamma * returns[0])
    return torch.tensor(returns[:-1], dtype=torch.float32)


def train_as_the_source(setting, policy, value, updates, episodes):
    """Trains the two networks in place, with the streams of the setting's seed; lengths [U, E]."""
    seeds = Seeds(setting.seed)
    starts, draws = seeds.generator("starts"), seeds.generator("actions")
    env = gymnasium.make("CartPole-v1")
    fixed = starts.uniform(-0.05, 0.05, 4)
    adam = torch.optim.Adam(policy.parameters(), lr=setting.lr)
    value_adam = torch.optim.Adam(value.parameters(), lr=setting.lr) if value else None
    lengths = []
    for _ in range(updates):
        played = []
        uniform = draws.random((episodes, 500))
        for row in uniform:
            start = starts.uniform(-0.05, 0.05, 4) if setting.reset == "random" else fixed
            played.append(play(env, policy, start, row))
        lengths.append([len(actions) for _, actions in played])
        step(setting, played, policy, adam, value, value_adam)
    return np.array(lengths)


def step(setting, played, policy, adam, value, value_adam):
    returns = [discounted(len(actions), setting.gamma) for _, actions in played]
    advantages = []
    for i, of in enumerate(returns):
        others = [len(a) for j, (_, a) in enumerate(played) if j != i]
        if setting.algo == "vpg":
            baseline = torch.zeros_like(of)
        elif setting.algo == "mean":
            baseline = of.mean()
        elif setting.algo == "value":
            baseline = value(torch.tensor(played[i][0]))[:, 0].detach()
        elif setting.algo == "rloo":
            baseline = sum(others) / len(others)
        else:
            baseline = torch.stack(
                [torch.cat((of[:t], of[t + 1 :])).mean() for t in range(len(of))]
            )
        advantages.append(of - baseline)
    if setting.normalise:
        everything = torch.cat(advantages)
        mean, std = everything.mean(), everything.std(correction=0)
        advantages = [(each - mean) / (std + 1e-8) for each in advantages]
    losses = []
    for (states, actions), advantage in zip(played, advantages, strict=True):
        of = torch.distributions.Categorical(logits=policy(torch.tensor(states)))
        log_prob = of.log_prob(torch.tensor(actions))
        losses.append(-(advantage * log_prob).mean() - setting.entropy * of.entropy().mean())
    adam.zero_grad()
    torch.stack(losses).mean().backward()
    adam.step()
    if setting.algo == "value":
        errors = [
            nn.functional.mse_loss(value(torch.tensor(states))[:, 0], of)
            for (states, _), of in zip(played, returns, strict=True)
        ]
        value_adam.zero_grad()
        torch.stack(errors).mean().backward()
        value_adam.step()
