"""The source agents against torch's modules, autograd and optimizer, stepped through gymnasium's interface."""

import dataclasses

import numpy as np
import pytest
import torch

from darkroom.a2c import a2c
from darkroom.rooms import grid
from darkroom.rooms.env import DarkKeyToDoor, DarkRoom, EpisodeLimit
from darkroom.train_sources import Config
from runcatalog.record import Seeds

GOALS = np.array([0, 3, 13])
WITH_KEY = np.array([grid.task_with_key(key, door, 4) for key, door in ((9, 6), (11, 3), (6, 13))])


def settings(**changed):
    small = {
        "size": 4,
        "limit": 6,
        "hidden": 8,
        "envs": 3,
        "rollout": 5,
        "lr": 1e-2,
        "test_tasks": 0,
    }
    return Config(**small | changed).settings()


class Reference:
    """One agent, as a textbook writes it."""

    def __init__(self, goal, parameters, config):
        embedding, weight, bias = (torch.tensor(parameter) for parameter in parameters)
        self.config = config
        self.embedding = torch.nn.Embedding.from_pretrained(embedding, freeze=False)
        self.head = torch.nn.Linear(config.hidden, 6)
        self.head.weight.data, self.head.bias.data = weight.T.contiguous(), bias[0].clone()
        self.parameters = [*self.embedding.parameters(), *self.head.parameters()]
        self.adam = torch.optim.Adam(
            self.parameters, config.lr, (a2c.BETA1, a2c.BETA2), a2c.EPSILON
        )
        key, goal = (
            divmod(cell, config.size) for cell in grid.key_and_goal(int(goal), config.size)
        )
        if key < (0, 0):
            ends = config.terminating
            rooms = [
                DarkRoom(config.size, goal, terminate_on_goal=ends) for _ in range(config.envs)
            ]
        else:
            rooms = [DarkKeyToDoor(config.size, (goal, key)) for _ in range(config.envs)]
        self.rooms = [EpisodeLimit(room, config.limit) for room in rooms]
        self.cells = [self.state(*room.reset()) for room in self.rooms]

    def state(self, cell, info):
        """With the key in hand the agent is in another state."""
        return cell + self.config.size**2 * info.get("has_key", False)

    def forward(self, cells):
        outputs = self.head(self.embedding(torch.tensor(cells)))
        return torch.distributions.Categorical(logits=outputs[..., :5]), outputs[..., 5]

    def update(self, actions):
        """Update with the other implementation's actions [S, E]; return the visited cells."""
        cells, losses = [], []
        for e, room in enumerate(self.rooms):
            path = []
            for action in actions[:, e]:
                cell, reward, terminated, truncated, info = room.step(int(action))
                cell = self.state(cell, info)
                path.append((self.cells[e], int(action), reward, terminated, truncated, cell))
                ended = terminated or truncated
                self.cells[e] = self.state(*room.reset()) if ended else cell
            cells.append([step[0] for step in path])
            with torch.no_grad():
                target = float(self.forward(self.cells[e])[1])
            for cell, action, reward, terminated, truncated, after in reversed(path):
                with torch.no_grad():
                    last = float(self.forward(after)[1]) if self.config.bootstrap else 0.0
                if terminated:
                    target = 0.0
                elif truncated:
                    target = last
                target = reward + self.config.gamma * target
                policy, value = self.forward(cell)
                advantage = target - value
                losses.append(
                    -policy.log_prob(torch.tensor(action)) * advantage.detach()
                    - self.config.entropy_coef * policy.entropy()
                    + self.config.value_coef * advantage**2
                )
        self.adam.zero_grad()
        torch.stack(losses).mean().backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        self.adam.step()
        return np.array(cells).T


@pytest.mark.parametrize(
    ("tasks", "terminating", "bootstrap", "max_grad_norm"),
    [
        (GOALS, False, False, 0.05), (GOALS, False, True, 0.05), (GOALS, True, False, 0.05),
        (GOALS, True, True, 0.05), (GOALS, True, True, 100.0), (WITH_KEY, True, True, 100.0),
    ],
)  # fmt: skip
def test_the_agents_are_those_of_a_plain_implementation(
    tasks, terminating, bootstrap, max_grad_norm
):
    config = settings(terminating=terminating, bootstrap=bootstrap, max_grad_norm=max_grad_norm)
    agents = a2c.SourceAgents(tasks, config, Seeds(1))
    references = [
        Reference(goal, [parameter[i] for parameter in agents.parameters], config)
        for i, goal in enumerate(tasks)
    ]
    rewarded = terminated = 0
    for _ in range(10):
        played = agents.update()
        rewarded += played.rewards.sum()
        terminated += played.terminated.sum()
        for i, reference in enumerate(references):
            assert (reference.update(played.actions[:, i]) == played.states[:, i]).all()
            assert (played.cells == played.states % config.size**2).all()
    assert rewarded > 0
    assert (terminated > 0) == terminating
    for i, reference in enumerate(references):
        theirs = [reference.embedding.weight, reference.head.weight.T, reference.head.bias[None]]
        for ours, parameter in zip(agents.parameters, theirs, strict=True):
            assert ours[i] == pytest.approx(parameter.detach().numpy(), abs=5e-5)


def test_actions_are_drawn_with_the_policys_probabilities():
    # Every step begins in the centre, with the same policy.
    config = settings(envs=500, limit=1, tasks="1,2", lr=1e-12)
    agents = a2c.SourceAgents(GOALS, config, Seeds(2))
    probabilities = agents.outputs().policy[:, :, 10]
    actions = np.stack([agents.update().actions for _ in range(40)])
    shares = np.stack([(actions == a).mean(axis=(0, 1, 3)) for a in range(5)])
    assert shares == pytest.approx(probabilities, abs=0.008)


def test_an_agent_depends_on_its_task_and_seed_alone():
    def after(goals, seed=1):
        agents = a2c.SourceAgents(np.array(goals), settings(), Seeds(seed))
        played = [agents.update() for _ in range(120)]
        return [[rollout.actions[:, i] for rollout in played] for i in range(len(goals))]

    together, alone = after([0, 3, 13]), after([3])
    assert np.array_equal(together[1], alone[0])
    assert not np.array_equal(together[1], together[0])
    assert not np.array_equal(after([3], seed=2)[0], alone[0])


@pytest.mark.parametrize("stop", [1, 100, 137])
def test_restored_agents_continue_bit_equal(stop):
    def new_agents():
        return a2c.SourceAgents(GOALS, settings(), Seeds(3))

    through, first, second = new_agents(), new_agents(), new_agents()
    for _ in range(220):
        last = through.update()
    for _ in range(stop):
        first.update()
    second.restore(first.parameters, first.state())
    for _ in range(220 - stop):
        again = second.update()
    for field in dataclasses.fields(last):
        assert np.array_equal(getattr(last, field.name), getattr(again, field.name))
    for one, other in zip(through.parameters, second.parameters, strict=True):
        assert np.array_equal(one, other)


def test_it_learns_the_way_to_its_goal():
    config = settings(size=5, limit=10, hidden=32, envs=10, rollout=10, lr=3e-3, terminating=False)
    goals = np.array([0, 4, 11, 24])
    agents = a2c.SourceAgents(goals, config, Seeds(0))
    for _ in range(1500):
        agents.update()
    played = [agents.update() for _ in range(50)]
    per_episode = (
        np.stack([rollout.rewards for rollout in played]).mean(axis=(0, 1, 3)) * config.limit
    )
    best = grid.optimal_return(5, goals, config.limit, terminating=False)
    assert (per_episode > 0.9 * best).all()


def test_kernels_equal_their_plain_lines():
    rng = np.random.default_rng(0)
    gradient, parameter, m, v = rng.normal(size=(4, 3, 21)).astype(np.float32)
    v, clip = v**2, np.float32([1, 0.5, 0.1])
    assert a2c.squared_norms(gradient) == pytest.approx((gradient.astype(float) ** 2).sum(axis=1))
    g = gradient * clip[:, None]
    expected_m, expected_v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    expected = parameter - 0.01 * expected_m / (np.sqrt(expected_v) / 0.3 + 1e-6)
    numbers = (0.01, 0.3, 0.9, 0.999, 1e-6)
    a2c.adam(parameter, gradient, m, v, clip, *map(np.float32, numbers))
    for ours, theirs in ((parameter, expected), (m, expected_m), (v, expected_v)):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)
