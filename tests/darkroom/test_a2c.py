"""The source agents beside torch's modules, autograd and optimizer, stepped through gymnasium's interface."""

import dataclasses

import numpy as np
import pytest
import torch

from darkroom.a2c import a2c
from darkroom.rooms import grid
from darkroom.rooms.env import DarkRoom, EpisodeLimit
from darkroom.train_sources import Config
from runcatalog.record import Seeds

GOALS = np.array([0, 3, 13])


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
        embedding, weight, bias = (torch.tensor(each) for each in parameters)
        self.config = config
        self.embedding = torch.nn.Embedding.from_pretrained(embedding, freeze=False)
        self.head = torch.nn.Linear(config.hidden, 6)
        self.head.weight.data, self.head.bias.data = weight.T.contiguous(), bias[0].clone()
        self.parameters = [*self.embedding.parameters(), *self.head.parameters()]
        self.adam = torch.optim.Adam(
            self.parameters, config.lr, (a2c.BETA1, a2c.BETA2), a2c.EPSILON
        )
        row_column = divmod(int(goal), config.size)
        self.rooms = [
            EpisodeLimit(
                DarkRoom(config.size, row_column, terminate_on_goal=config.terminating),
                config.limit,
            )
            for _ in range(config.envs)
        ]
        self.cells = [room.reset()[0] for room in self.rooms]

    def forward(self, cells):
        outputs = self.head(self.embedding(torch.tensor(cells)))
        return torch.distributions.Categorical(logits=outputs[..., :5]), outputs[..., 5]

    def update(self, actions):
        """With the actions [S, E] of the other; the cells that it sees."""
        seen, losses = [], []
        for e, room in enumerate(self.rooms):
            path = []
            for action in actions[:, e]:
                cell, reward, terminated, truncated, _ = room.step(int(action))
                path.append((self.cells[e], int(action), reward, terminated, truncated, cell))
                self.cells[e] = room.reset()[0] if terminated or truncated else cell
            seen.append([step[0] for step in path])
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
        return np.array(seen).T


@pytest.mark.parametrize("terminating", [False, True])
@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("max_grad_norm", [0.05, 100.0])
def test_the_agents_are_those_of_a_plain_implementation(terminating, bootstrap, max_grad_norm):
    config = settings(terminating=terminating, bootstrap=bootstrap, max_grad_norm=max_grad_norm)
    agents = a2c.SourceAgents(GOALS, config, Seeds(1))
    references = [
        Reference(goal, [each[i] for each in agents.parameters], config)
        for i, goal in enumerate(GOALS)
    ]
    rewarded = 0.0
    for _ in range(15):
        played = agents.update()
        rewarded += played.rewards.sum()
        for i, reference in enumerate(references):
            assert (reference.update(played.actions[:, i]) == played.cells[:, i]).all()
    assert rewarded > 0
    for i, reference in enumerate(references):
        theirs = [reference.embedding.weight, reference.head.weight.T, reference.head.bias[None]]
        for ours, each in zip(agents.parameters, theirs, strict=True):
            assert ours[i] == pytest.approx(each.detach().numpy(), abs=2e-5)


def test_actions_are_drawn_with_the_policys_probabilities():
    config = settings(
        envs=500, limit=1, lr=1e-12
    )  # each step begins in the centre, with one policy
    agents = a2c.SourceAgents(GOALS, config, Seeds(2))
    probabilities = agents.outputs().policy[:, :, 10]
    actions = np.stack([agents.update().actions for _ in range(40)])
    shares = np.stack([(actions == a).mean(axis=(0, 1, 3)) for a in range(5)])
    assert shares == pytest.approx(probabilities, abs=0.008)


def test_an_agent_depends_on_its_task_and_seed_alone():
    def after(goals, seed=1):
        agents = a2c.SourceAgents(np.array(goals), settings(), Seeds(seed))
        played = [agents.update() for _ in range(120)]
        return [[each.actions[:, i] for each in played] for i in range(len(goals))]

    together, alone = after([0, 3, 13]), after([3])
    assert np.array_equal(together[1], alone[0])
    assert not np.array_equal(together[1], together[0])
    assert not np.array_equal(after([3], seed=2)[0], alone[0])


@pytest.mark.parametrize("stop", [1, 100, 137])
def test_it_goes_on_to_the_bit(stop):
    def made():
        return a2c.SourceAgents(GOALS, settings(), Seeds(3))

    through, first, second = made(), made(), made()
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
    per_episode = np.stack([each.rewards for each in played]).mean(axis=(0, 1, 3)) * config.limit
    best = grid.optimal_return(5, goals, config.limit, terminating=False)
    assert (per_episode > 0.9 * best).all()
