"""Alternatives to the CartPole study: the source's loop, PPO as in CleanRL, stable-baselines3.

Functions that train to a return give (seconds, whether it was reached within the budget of environment steps).
"""

from __future__ import annotations

import time
from collections import deque
from itertools import pairwise

import gymnasium
import numpy as np
import torch
from torch import nn

REACHED = 475.0  # target return: mean length of the last 100 episodes
WINDOW = 100
# Weights of the state variables with which a linear policy balances the pole for whole episodes.
BALANCE = (0.1, 0.5, 3.0, 1.0)


def _network(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for pair in pairwise(widths):
        layers += [nn.Linear(*pair), activation()]
    return nn.Sequential(*layers[:-1])


def _balancing() -> nn.Sequential:
    """The source's 4-8-4-2 policy with weights that balance the pole."""
    policy = _network(4, 8, 4, 2)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter *= 0.01
        towards = 10 * torch.tensor(BALANCE)
        policy[0].weight[:2] = torch.stack([-towards, towards])
        for layer in (policy[2], policy[4]):
            layer.weight[:2, :2] = torch.eye(2)
    return policy


def source_loop(algo: str, seconds: float, lr: float = 1e-3, gamma: float = 0.99) -> float:
    """Environment steps per second of the source's loop: one environment, one step at a time.

    It plays long episodes from the start, where its rate is highest: updates are rare.
    """
    torch.set_num_threads(1)
    env = gymnasium.make("CartPole-v1")
    policy, value = _balancing(), _network(4, 8, 4, 1)
    adam = torch.optim.Adam(policy.parameters(), lr=lr)
    value_adam = torch.optim.Adam(value.parameters(), lr=lr)
    batch = 10 if algo == "rloo" else 1
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        played = [_episode(env, policy) for _ in range(batch)]
        steps += sum(len(rewards) for _, _, rewards in played)
        losses, total = [], sum(sum(rewards) for _, _, rewards in played)
        for states, log_probs, rewards in played:
            returns = _returns(rewards, gamma)
            if algo == "mean":
                advantage = returns - returns.mean()
            elif algo == "value":
                predicted = value(torch.tensor(np.array(states)))[:, 0]
                advantage = returns - predicted.detach()
                loss = nn.functional.mse_loss(predicted, returns)
                value_adam.zero_grad()
                loss.backward()
                value_adam.step()
            elif algo == "rloo":
                advantage = returns - (total - sum(rewards)) / (batch - 1)
            else:
                advantage = returns
            losses.append(-(advantage * torch.stack(log_probs)).mean())
        adam.zero_grad()
        torch.stack(losses).mean().backward()
        adam.step()
    return steps / (time.perf_counter() - begin)


def _episode(env, policy):
    state, _ = env.reset(seed=1)
    states, log_probs, rewards = [], [], []
    while True:
        of = torch.distributions.Categorical(logits=policy(torch.tensor(state)))
        action = of.sample()
        states.append(state)
        log_probs.append(of.log_prob(action))
        state, reward, terminated, truncated, _ = env.step(action.item())
        rewards.append(reward)
        if terminated or truncated:
            return states, log_probs, rewards


def _returns(rewards: list[float], gamma: float) -> torch.Tensor:
    returns = []
    following = 0.0
    for reward in reversed(rewards):
        following = reward + gamma * following
        returns.insert(0, following)
    return torch.tensor(returns)


def cleanrl_ppo(seed: int, budget: int) -> tuple[float, bool]:
    """Seconds until the last 100 episodes' mean is 475, PPO as in CleanRL's `ppo.py` with its defaults.

    (Huang et al., "CleanRL", JMLR 2022: 4 environments, 128 steps, 4 epochs of 4 minibatches, lr 2.5e-4
    annealed over 500,000 steps, tanh networks of 64 64.)
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    envs = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))] * 4,
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )
    actor = _network(4, 64, 64, 2, activation=nn.Tanh)
    critic = _network(4, 64, 64, 1, activation=nn.Tanh)
    for network, last in ((actor, 0.01), (critic, 1.0)):
        for layer in network[::2]:
            nn.init.orthogonal_(layer.weight, last if layer is network[-1] else 2**0.5)
            nn.init.zeros_(layer.bias)
    parameters = [*actor.parameters(), *critic.parameters()]
    adam = torch.optim.Adam(parameters, lr=2.5e-4, eps=1e-5)
    begin, lengths, played = time.perf_counter(), deque(maxlen=WINDOW), 0
    state = torch.tensor(envs.reset(seed=seed)[0])
    done = torch.zeros(4)
    while played < budget:
        adam.param_groups[0]["lr"] = 2.5e-4 * max(0.0, 1 - played / 500_000)
        rows = []
        for _ in range(128):
            with torch.no_grad():
                of = torch.distributions.Categorical(logits=actor(state))
                action, value = of.sample(), critic(state)[:, 0]
            following, reward, terminated, truncated, info = envs.step(action.numpy())
            rows.append((state, action, of.log_prob(action), value, torch.tensor(reward), done))
            state = torch.tensor(following)
            done = torch.tensor(terminated | truncated, dtype=torch.float32)
            if "final_info" in info:
                episode = info["final_info"]["episode"]
                lengths.extend(episode["l"][info["final_info"]["_episode"]].tolist())
            played += 4
            if len(lengths) == WINDOW and sum(lengths) / WINDOW >= REACHED:
                envs.close()
                return time.perf_counter() - begin, True
        _ppo_update(actor, critic, adam, parameters, rows, state, done)
    envs.close()
    return time.perf_counter() - begin, False


def _ppo_update(actor, critic, adam, parameters, rows, state, done) -> None:
    states, actions, log_probs, values, rewards, dones = (
        torch.stack(column) for column in zip(*rows, strict=True)
    )
    advantages = torch.zeros_like(values)
    with torch.no_grad():
        next_value, next_done, last = critic(state)[:, 0], done, torch.zeros(4)
        for t in reversed(range(len(rows))):
            delta = rewards[t] + 0.99 * next_value * (1 - next_done) - values[t]
            advantages[t] = last = delta + 0.99 * 0.95 * (1 - next_done) * last
            next_value, next_done = values[t], dones[t]
    flat = [x.flatten(0, 1).float() for x in (states, actions, log_probs, values, advantages)]
    returns = flat[4] + flat[3]
    for _ in range(4):
        for index in torch.randperm(512).split(128):
            chosen, action, old, before, advantage = (x[index] for x in flat)
            of = torch.distributions.Categorical(logits=actor(chosen))
            ratio = (of.log_prob(action) - old).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
            value = critic(chosen)[:, 0]
            clipped = before + (value - before).clamp(-0.2, 0.2)
            errors = torch.max((value - returns[index]) ** 2, (clipped - returns[index]) ** 2)
            loss = loss - 0.01 * of.entropy().mean() + 0.25 * errors.mean()
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            adam.step()


def stable_baselines(kind: str, seed: int, budget: int) -> tuple[float, bool]:
    """Seconds until the last 100 episodes' mean is 475, with rl-baselines3-zoo's settings for CartPole-v1."""
    from stable_baselines3 import A2C, PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class Stop(BaseCallback):
        reached = False

        def _on_step(self) -> bool:
            episodes = self.model.ep_info_buffer
            self.reached = (
                len(episodes) == WINDOW and sum(e["l"] for e in episodes) / WINDOW >= REACHED
            )
            return not self.reached

    torch.set_num_threads(1)
    env = make_vec_env("CartPole-v1", n_envs=8, seed=seed)
    if kind == "PPO":
        agent = PPO(
            "MlpPolicy", env, n_steps=32, batch_size=256, gae_lambda=0.8, gamma=0.98, n_epochs=20,
            ent_coef=0.0, learning_rate=lambda left: 1e-3 * left, clip_range=lambda left: 0.2 * left,
            device="cpu", seed=seed,
        )  # fmt: skip
    else:
        agent = A2C("MlpPolicy", env, ent_coef=0.0, device="cpu", seed=seed)
    stop, begin = Stop(), time.perf_counter()
    agent.learn(budget, callback=stop)
    seconds = time.perf_counter() - begin
    env.close()
    return seconds, stop.reached
