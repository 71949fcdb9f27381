"""The lockstep learner against the source's loop in torch, and against runs trained alone."""

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from cartpole.policy_gradient import reinforce
from cartpole.policy_gradient.reinforce import Learner, RunSettings
from cartpole.policy_gradient.rollout import step_mask
from runcatalog.record import Seeds


def settings_of(algo, seed, **changed):
    """Settings of a run; the defaults are those of the source."""
    source = {"lr": 1e-3, "gamma": 0.99, "entropy": 0.0, "normalise": False, "reset": "fixed"}
    return RunSettings(algo, seed, **(source | changed))


# The runs differ in every setting, so that nothing can be mixed up between them.
SINGLE = [
    settings_of("vpg", 1, lr=3e-3, reset="random"),
    settings_of("mean", 2, gamma=0.9),
    settings_of("value", 3, lr=1e-2, reset="random"),
    settings_of("value", 4, gamma=0.999, entropy=0.1),
    settings_of("vpg", 5, normalise=True, entropy=0.001, lr=2e-2),
]
BATCHED = [
    settings_of("rloo", 1, lr=1e-2),
    settings_of("rloo_step", 2, reset="random", entropy=0.01),
    settings_of("rloo", 3, normalise=True, reset="random"),
    settings_of("value", 4, lr=1e-2),
    settings_of("mean", 5, gamma=1.0),
]


def train(learner, updates):
    """Episode lengths [updates, R, E]."""
    lengths = []
    for _ in range(updates):
        rollout = learner.collect()
        learner.update(rollout)
        lengths.append(rollout.lengths)
    return np.array(lengths)


@pytest.mark.parametrize(("settings", "episodes", "updates"), [(SINGLE, 1, 25), (BATCHED, 4, 6)])
def test_weights_are_those_of_the_loop_of_the_source(settings, episodes, updates):
    torch.set_num_threads(1)
    learner = Learner(settings, (8, 4), episodes)
    policies = [network_of(learner.policy, run) for run in range(len(settings))]
    order = learner.value_rows.tolist()
    values = {run: network_of(learner.value, place) for place, run in enumerate(order)}
    lengths = train(learner, updates).swapaxes(0, 1)
    for run, setting in enumerate(settings):
        expected = train_as_the_source(setting, policies[run], values.get(run), updates, episodes)
        assert (lengths[run] == expected).all(), setting
        for name, value in weights_of(policies[run]).items():
            np.testing.assert_allclose(learner.policy[name][run], value, atol=1e-5)
    for place, run in enumerate(order):
        for name, value in weights_of(values[run]).items():
            np.testing.assert_allclose(learner.value[name][place], value, atol=1e-5)


@pytest.mark.parametrize(("settings", "episodes", "updates"), [(SINGLE, 1, 80), (BATCHED, 4, 25)])
def test_a_run_has_the_same_bits_alone_and_in_a_batch(settings, episodes, updates):
    together = Learner(settings, (8, 4), episodes)
    lengths = train(together, updates)
    assert lengths.max() > 80  # runs leave the batch at different times
    for run, setting in enumerate(settings):
        alone = Learner([setting], (8, 4), episodes)
        assert (train(alone, updates)[:, 0] == lengths[:, run]).all(), setting
        for name, value in alone.policy.items():
            assert (value[0] == together.policy[name][run]).all(), (setting, name)


def test_a_restored_learner_continues_with_the_same_bits():
    settings = [settings_of("value", 1, reset="random", lr=1e-2), settings_of("vpg", 2)]
    whole, begun, resumed = (Learner(settings, (16,), 1) for _ in range(3))
    lengths = train(whole, 20)
    train(begun, 9)
    tensors = {name: torch.tensor(value) for name, value in begun.tensors().items()}
    resumed.restore(tensors, begun.state())
    assert (train(resumed, 11) == lengths[9:]).all()
    tensors = resumed.tensors()
    assert all((tensors[name] == value).all() for name, value in whole.tensors().items())


def test_the_loss_gradient_is_that_of_autograd():
    rng = np.random.default_rng(0)
    logits = torch.tensor(rng.normal(size=(3, 7, 2)), dtype=torch.float32, requires_grad=True)
    actions, advantage = rng.integers(2, size=(3, 7)), rng.normal(size=(3, 7))
    weights, coef = rng.random((3, 7)), rng.random(3)
    gradient = reinforce.loss_gradient(
        logits.detach().numpy(), actions.astype(bool), advantage, weights, coef
    )
    pi = torch.distributions.Categorical(logits=logits)
    bonus = torch.tensor(coef)[:, None] * pi.entropy()
    terms = torch.tensor(advantage) * pi.log_prob(torch.tensor(actions)) + bonus
    (-torch.tensor(weights) * terms).sum().backward()
    np.testing.assert_allclose(gradient, logits.grad, atol=1e-6)


def test_returns_and_baselines_are_those_of_a_loop():
    lengths, gammas = np.array([[3, 5], [2, 6]]), np.array([0.9, 1.0])
    returns = reinforce.returns_to_go(reinforce.return_table(gammas, 6), lengths, 6)
    for r in range(2):
        for e in range(2):
            length = lengths[r, e]
            expected = [sum(gammas[r] ** k for k in range(length - t)) for t in range(length)]
            np.testing.assert_allclose(returns[r, e, :length], expected)
            assert not returns[r, e, length:].any()
            rloo = reinforce.advantages("rloo", returns, lengths)[r, e]
            np.testing.assert_allclose(rloo[:length], np.array(expected) - lengths[r, 1 - e])
            assert not rloo[length:].any()
            step = reinforce.advantages("rloo_step", returns, lengths)[r, e]
            mean = reinforce.advantages("mean", returns, lengths)[r, e]
            # Leaving one step out of an episode's mean is the mean baseline, stretched.
            np.testing.assert_allclose(step, mean * length / (length - 1))
            assert abs(mean.sum()) < 1e-9
    flat = reinforce.normalised(returns, lengths)
    for r in range(2):
        steps = flat[r][step_mask(lengths, 6)[r]]
        assert steps.mean() == pytest.approx(0, abs=1e-9)
        assert steps.std() == pytest.approx(1)


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(ValueError, match="vpg, mean, value, rloo"):
        reinforce.advantages("ppo", np.zeros((1, 1, 1)), np.ones((1, 1), int))


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
    """The parameters by the names of `networks`."""
    linear = [layer for layer in model if isinstance(layer, nn.Linear)]
    weights = {f"w{i}": layer.weight.detach().numpy().T for i, layer in enumerate(linear)}
    return weights | {f"b{i}": layer.bias.detach().numpy() for i, layer in enumerate(linear)}


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
    """Train the two networks in place, with the streams of the setting's seed; lengths [U, E]."""
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
    for i, g in enumerate(returns):
        others = [len(a) for j, (_, a) in enumerate(played) if j != i]
        if setting.algo == "vpg":
            baseline = torch.zeros_like(g)
        elif setting.algo == "mean":
            baseline = g.mean()
        elif setting.algo == "value":
            baseline = value(torch.tensor(played[i][0]))[:, 0].detach()
        elif setting.algo == "rloo":
            baseline = sum(others) / len(others)
        else:
            baseline = torch.stack([torch.cat((g[:t], g[t + 1 :])).mean() for t in range(len(g))])
        advantages.append(g - baseline)
    if setting.normalise:
        everything = torch.cat(advantages)
        mean, std = everything.mean(), everything.std(correction=0)
        advantages = [(advantage - mean) / (std + 1e-8) for advantage in advantages]
    losses = []
    for (states, actions), advantage in zip(played, advantages, strict=True):
        pi = torch.distributions.Categorical(logits=policy(torch.tensor(states)))
        log_prob = pi.log_prob(torch.tensor(actions))
        losses.append(-(advantage * log_prob).mean() - setting.entropy * pi.entropy().mean())
    adam.zero_grad()
    torch.stack(losses).mean().backward()
    adam.step()
    if setting.algo == "value":
        errors = [
            nn.functional.mse_loss(value(torch.tensor(states))[:, 0], g)
            for (states, _), g in zip(played, returns, strict=True)
        ]
        value_adam.zero_grad()
        torch.stack(errors).mean().backward()
        value_adam.step()
