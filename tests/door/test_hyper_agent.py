"""The HN-PPO agent: its gradient step against a naive version of the thesis' algorithm, and series of tasks."""

import copy
import math

import numpy as np
import pytest
import torch

from door.hypernet import agent as agent_module
from door.hypernet.agent import NEUTRAL_CANDIDATES, HyperAgent
from door.hypernet.fused_step import FusedHyperUpdate, step_last_layer
from door.hypernet.update import HyperUpdate
from hyper_settings import hyper_settings
from rl.actor_critic import NetworkShape, count, unflatten
from rl.ppo import Loss

SHAPE = NetworkShape(5, 2, (8, 8))


def _agent(tasks: int = 1, seed: int = 0, **settings) -> HyperAgent:
    small = hyper_settings(**({"te_dim": 3, "hyper_width": 12, "lr": 0.02} | settings))
    generator = torch.Generator().manual_seed(seed)
    agent = HyperAgent(SHAPE, small, generator, "task 0")
    for task in range(1, tasks):
        agent.begin_task(f"task {task}", generator)
    return agent


def _samples(seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator) for shape in ((16, 5), (16, 2), (16,)))


def _loss(log_probs, entropy_, values, targets) -> torch.Tensor:
    """Return a loss that depends on all outputs of an agent."""
    return -(log_probs * targets).mean() + (values - targets).square().mean() - 0.1 * entropy_


def _step(agent: HyperAgent, seed: int = 0) -> float:
    observations, actions, targets = _samples(seed)
    forward = agent.forward(observations, actions)
    outputs = [o.requires_grad_() for o in (forward.log_probs, forward.entropy, forward.values)]
    d_log_probs, d_entropy, d_values = torch.autograd.grad(_loss(*outputs, targets), outputs)
    loss = Loss(torch.zeros(5), d_log_probs, d_entropy.item(), d_values)
    return agent.gradient_step(forward, loss)


def _perceptron(tensors, inputs) -> torch.Tensor:
    for weight, bias in zip(tensors[0:-2:2], tensors[1:-2:2], strict=True):
        inputs = torch.tanh(torch.nn.functional.linear(inputs, weight, bias))
    return torch.nn.functional.linear(inputs, *tensors[-2:])


class _Naive:
    """Algorithm 1 of the thesis with torch modules, autograd and a textbook Adam."""

    def __init__(self, agent: HyperAgent) -> None:
        self.settings, self.freshcritic = agent.settings.update, agent.settings.freshcritic
        names = [tensor.clone() for tensor in agent.hypernetwork.theta]
        self.theta = [tensor.requires_grad_() for tensor in names]
        self.embeddings = [row.clone().requires_grad_() for row in agent.embeddings]
        self.critic = agent.critic.clone().requires_grad_()
        self.targets = [self.generate(row).detach() for row in self.embeddings[:-1]]
        self.moments = {}
        self.steps = 0

    def generate(self, embedding, theta=None):
        theta = theta or self.theta
        hidden = embedding
        for weight, bias in zip(theta[0:4:2], theta[1:4:2], strict=True):
            hidden = torch.relu(weight @ hidden + bias)
        return theta[4] @ hidden + theta[5]

    def _adam(self, tensor, gradient, commit=True):
        """Adam's update (Kingma and Ba 2015, algorithm 1)."""
        first, second = self.moments.get(id(tensor), (0.0, 0.0))
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        if commit:
            self.moments[id(tensor)] = (first, second)
        mean, square = first / (1 - 0.9**self.steps), second / (1 - 0.999**self.steps)
        return -self.settings.lr * mean / (square.sqrt() + self.settings.adam_eps)

    def step(self, seed: int = 0) -> None:
        observations, actions, targets = _samples(seed)
        self.steps += 1
        shapes = SHAPE.actor + ([] if self.freshcritic else SHAPE.critic)
        tensors = unflatten(self.generate(self.embeddings[-1]), shapes)
        actor = tensors[: len(SHAPE.actor)]
        critic = tensors[len(SHAPE.actor) :] or unflatten(self.critic, SHAPE.critic)
        normal = torch.distributions.Normal(_perceptron(actor[:-1], observations), actor[-1].exp())
        loss = _loss(
            normal.log_prob(actions).sum(-1),
            normal.entropy()[0].sum(),
            _perceptron(critic, observations)[:, 0],
            targets,
        )
        leaves = [*self.theta, self.embeddings[-1]]
        if self.freshcritic:
            leaves.append(self.critic)
        gradients = list(torch.autograd.grad(loss, leaves))
        norm = math.sqrt(sum(gradient.square().sum().item() for gradient in gradients))
        scale = min(1.0, self.settings.max_grad_norm / (norm + 1e-6))
        gradients = [scale * gradient for gradient in gradients]
        of_theta = gradients[: len(self.theta)]
        self.embeddings[-1].data += self._adam(self.embeddings[-1], gradients[len(self.theta)])
        if self.targets and self.settings.beta:
            ahead = [
                (tensor.detach() + self._adam(tensor, gradient, commit=False)).requires_grad_()
                for tensor, gradient in zip(self.theta, of_theta, strict=True)
            ]
            if not self.settings.look_ahead:
                ahead = self.theta
            terms = [
                (self.generate(row, ahead) - target).square().sum()
                for row, target in zip(self.embeddings[:-1], self.targets, strict=True)
            ]
            penalty = self.settings.beta * torch.stack(terms).mean()
            more = torch.autograd.grad(penalty, ahead)
            of_theta = [a + b for a, b in zip(of_theta, more, strict=True)]
        for tensor, gradient in zip(self.theta, of_theta, strict=True):
            tensor.data += self._adam(tensor, gradient)
        if self.freshcritic:
            self.critic.data += self._adam(self.critic, gradients[-1])


@pytest.mark.parametrize("freshcritic", [True, False])
@pytest.mark.parametrize(
    "settings",
    [{"beta": 0.05}, {"beta": 0.05, "look_ahead": False}, {"beta": 0.0}],
    ids=["look-ahead", "in place", "no regulariser"],
)
@pytest.mark.parametrize("fused", [False, True])
def test_steps_equal_the_algorithm_of_the_thesis(fused, settings, freshcritic, monkeypatch):
    monkeypatch.setattr(agent_module, "FUSED_MIN_WEIGHTS", 0 if fused else math.inf)
    settings = settings | {"max_grad_norm": 0.05, "adam_eps": 1e-3, "neutral_start": False}
    agent = _agent(3, freshcritic=freshcritic, **settings)
    naive = _Naive(agent)
    for seed in range(6):
        _step(agent, seed)
        naive.step(seed)
    for ours, theirs in zip(agent.hypernetwork.theta, naive.theta, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(agent.embeddings[-1], naive.embeddings[-1], atol=2e-5, rtol=1e-4)
    if freshcritic:
        torch.testing.assert_close(agent.critic, naive.critic, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("look_ahead", [True, False])
@pytest.mark.parametrize("tasks", [0, 2])
def test_the_kernel_equals_the_lines_of_its_docstring(tasks, look_ahead):
    rng = np.random.default_rng(tasks)
    outputs, size, beta, lr, t, eps = 7, 5, np.float32(0.3), 0.02, 4, 1e-3

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    weight, mean, bias, bias_mean = (
        draw(outputs, size),
        draw(outputs, size),
        draw(outputs),
        draw(outputs),
    )
    square, bias_square = draw(outputs, size) ** 2, draw(outputs) ** 2
    factor, inputs = draw(outputs), draw(size)
    old, targets, d_old = draw(tasks, size), draw(tasks, outputs), draw(tasks, size)

    def adam(tensor, mean, square, gradient):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        step = lr * (mean / (1 - 0.9**t)) / (np.sqrt(square / (1 - 0.999**t)) + eps)
        return tensor - step, mean, square

    ahead_weight, ahead_bias = weight, bias
    if look_ahead:
        ahead_weight = adam(weight, mean, square, np.outer(factor, inputs))[0]
        ahead_bias = adam(bias, bias_mean, bias_square, factor)[0]
    slopes = beta * (old @ ahead_weight.T + ahead_bias - targets)
    expected = [
        d_old + slopes @ ahead_weight,
        *adam(weight, mean, square, np.outer(factor, inputs) + slopes.T @ old),
        *adam(bias, bias_mean, bias_square, factor + slopes.sum(0)),
    ]
    step_last_layer(
        weight, mean, square, bias, bias_mean, bias_square, factor, inputs, old, targets, d_old,
        beta, look_ahead, np.float32(lr / (1 - 0.9**t)), np.float32(1 / math.sqrt(1 - 0.999**t)), np.float32(eps),
    )  # fmt: skip
    results = [d_old, weight, mean, square, bias, bias_mean, bias_square]
    for ours, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, FusedHyperUpdate),  # the source's sizes
        ({"hyper_width": 32}, HyperUpdate),
        ({"chunked": True}, HyperUpdate),
        ({"clip_regulariser": True}, HyperUpdate),
    ],
)
def test_only_large_hypernetworks_use_the_fused_step(settings, kind):
    shape, generator = NetworkShape(15, 6, (64, 64)), torch.Generator().manual_seed(0)
    assert type(HyperAgent(shape, hyper_settings(**settings), generator)._update) is kind


def test_values_are_those_of_a_fresh_critic_or_of_the_generated_one(monkeypatch):
    observations = _samples()[0]
    generated = _agent(tasks=2, freshcritic=False)
    critic = generated.weights()[count(SHAPE.actor) :]
    expected = _perceptron(unflatten(critic, SHAPE.critic), observations)[:, 0]
    torch.testing.assert_close(generated.values(observations), expected)
    fresh = _agent(tasks=2)
    expected = _perceptron(unflatten(fresh.critic, SHAPE.critic), observations)[:, 0]
    monkeypatch.delattr(type(fresh.hypernetwork), "generate")  # a fresh critic needs no actor
    torch.testing.assert_close(fresh.values(observations), expected)


def test_sizes_of_the_source():
    door = NetworkShape(15, 6, (64, 64))
    generator = torch.Generator().manual_seed(0)
    sizes = {}
    for fresh in (True, False):
        agent = HyperAgent(door, hyper_settings(freshcritic=fresh), generator, "pull")
        sizes[fresh] = sum(tensor.numel() for tensor in agent.hypernetwork.theta)
        assert agent.weights().numel() == (5580 if fresh else 5580 + 5249)
        assert agent.critic.numel() == (5249 if fresh else 0)
    assert sizes[True] == pytest.approx(4.0e6, rel=0.01)
    assert sizes[False] == pytest.approx(7.4e6, rel=0.01)


def _train_second_task(beta: float, **settings) -> tuple[HyperAgent, torch.Tensor, torch.Tensor]:
    agent = _agent(2, beta=beta, max_grad_norm=0.01, adam_eps=1e-3, **settings)
    before, old = agent.weights(0), agent.embeddings[0].clone()
    for step in range(150):
        _step(agent, step % 4)
    assert torch.equal(agent.embeddings[0], old)
    return agent, before, agent.weights(0)


@pytest.mark.parametrize("settings", [{}, {"clip_regulariser": True}, {"chunked": True}])
def test_beta_protects_the_old_task(settings):
    moved = {}
    for beta in (0.0, 5.0):
        agent, before, after = _train_second_task(beta, **settings)
        moved[beta] = float((after - before).square().sum())
        assert agent.regularisation() == pytest.approx(moved[beta], rel=1e-3)
        assert not torch.equal(agent.embeddings[1], _agent(2).embeddings[1])
    assert moved[0.0] > 0.01
    assert moved[5.0] < 0.1 * moved[0.0]


def test_a_new_task_gets_its_own_embedding_critic_normaliser_and_optimisers():
    agent = _agent(1)
    for seed in range(3):
        _step(agent, seed)
    agent.normaliser.update(torch.randn(20, 5).numpy())
    before = copy.deepcopy(agent)
    agent.begin_task("next", torch.Generator().manual_seed(9))
    assert agent.tasks == ["task 0", "next"]
    torch.testing.assert_close(agent.targets, before.weights(0)[None])
    assert torch.equal(agent.weights(0), before.weights())
    assert not torch.equal(agent.critic, before.critic)
    assert not torch.equal(agent.embeddings[0], agent.embeddings[1])
    assert agent.normaliser.moments.count < before.normaliser.moments.count
    assert agent.normalisers[0] is not agent.normaliser
    state = agent.state()["adams"][0]["state"]
    assert all(float(moments["step"]) == 0 for moments in state.values())


@pytest.mark.parametrize("neutral", [True, False])
def test_a_neutral_start_explores_like_a_new_network(neutral):
    agent = _agent(1, log_std=-0.5, neutral_start=neutral, max_grad_norm=1.0)
    for seed in range(3):
        _step(agent, seed)
    first = agent.policy().tensors[-1].clone()
    agent.begin_task("next", torch.Generator().manual_seed(9))
    count = NEUTRAL_CANDIDATES if neutral else 1
    draws = torch.randn(count, 3, generator=torch.Generator().manual_seed(9))
    norms = [
        sum(t.square().sum() for t in agent._actor(h)) for h in agent.hypernetwork.generate(draws)
    ]
    assert torch.equal(agent.embeddings[1], draws[min(range(len(draws)), key=norms.__getitem__)])
    started = agent.policy().tensors[-1]
    assert torch.allclose(started, torch.tensor(-0.5), atol=1e-6) == neutral
    assert torch.equal(agent.policy(0).tensors[-1], first)  # the old task's is as it was

    observations, zero = torch.zeros(1, 5), torch.zeros(1, len(started))
    forward = agent.forward(observations, zero)
    mean = torch.from_numpy(agent.policy()(observations.numpy()))
    acting = torch.distributions.Normal(mean, started.exp())  # the trained policy is the acting one
    torch.testing.assert_close(forward.log_probs, acting.log_prob(zero).sum(-1))
    torch.testing.assert_close(forward.entropy, acting.entropy().sum())
    _step(agent, 5)
    assert not torch.equal(agent.policy().tensors[-1], started)  # and it is learned


@pytest.mark.parametrize("place", [0, 1])
def test_a_task_may_start_with_the_policy_of_an_old_one(place):
    agent = _agent(2, log_std=-0.5)
    for seed in range(3):
        agent.normaliser.update(torch.randn(20, 5).numpy() + seed)
        _step(agent, seed)
    old = agent.policies()
    agent.begin_task("next", torch.Generator().manual_seed(9), like=place)
    observations = torch.randn(7, 5).numpy() * 3
    started = agent.policy()
    assert np.array_equal(started(observations), old[place](observations))
    assert not np.array_equal(started(observations), old[1 - place](observations))
    # It acts like the old one, and explores like a new network.
    assert torch.allclose(started.tensors[-1], torch.tensor(-0.5), atol=1e-6)
    assert not torch.allclose(old[place].tensors[-1], torch.tensor(-0.5), atol=1e-3)
    # Learning moves the new task alone: the old one keeps its embedding, statistics and exploration.
    embedding, log_std = agent.embeddings[place].clone(), agent.log_stds[place].clone()
    mean = agent.normalisers[place].moments.mean.copy()
    agent.normaliser.update(observations)
    _step(agent, 5)
    assert torch.equal(agent.embeddings[place], embedding)
    assert torch.equal(agent.log_stds[place], log_std)
    assert np.array_equal(agent.normalisers[place].moments.mean, mean)
    assert not torch.equal(agent.embeddings[2], embedding)
    assert not np.array_equal(agent.normaliser.moments.mean, mean)


@pytest.mark.parametrize("settings", [{}, {"freshcritic": False}, {"chunked": True}])
@pytest.mark.parametrize("fused", [False, True])
def test_a_restored_state_continues_to_the_bit(fused, settings, monkeypatch):
    monkeypatch.setattr(agent_module, "FUSED_MIN_WEIGHTS", 0 if fused else math.inf)
    agent = _agent(2, beta=0.1, **settings)
    for seed in range(3):
        _step(agent, seed)
    other = _agent(1, seed=7, beta=0.1, **settings)
    other.load({k: v.clone() for k, v in agent.tensors().items()}, copy.deepcopy(agent.state()))
    for seed in range(3, 6):
        assert _step(agent, seed) == _step(other, seed)
    for name, tensor in agent.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name
    assert other.tasks == agent.tasks


def test_another_architecture_is_refused():
    agent = _agent(1)
    tensors, state = agent.tensors(), agent.state()
    with pytest.raises(ValueError, match="theta"):
        _agent(1, freshcritic=False).load(tensors, state)
    with pytest.raises(ValueError, match="theta"):
        _agent(1, te_dim=4).load(tensors, state)
    with pytest.raises(ValueError, match="squash-mean"):
        _agent(1, squash_mean=True).load(tensors, state)


def test_the_critic_may_be_clipped_apart():
    joint, apart = _agent(1), _agent(1, clip_critic_apart=True, critic_grad_norm=0.5)
    start = joint.critic.clone()
    for agent in (joint, apart):
        _step(agent)
    # Under the joint limit of 1e-4 the critic hardly moves: its share of the norm meets Adam's eps.
    assert (apart.critic - start).norm() > 3 * (joint.critic - start).norm()
