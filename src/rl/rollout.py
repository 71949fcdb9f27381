"""Collection of rollouts: T steps of N environments that step together and reset themselves."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from rl.policy import Policy


class NonFiniteError(ArithmeticError):
    """A value is not finite; `tensor` is the name of the array that contains it."""

    def __init__(self, tensor: str) -> None:
        super().__init__(f"{tensor} is not finite")
        self.tensor = tensor


class VectorEnv(Protocol):
    """Vector environment of gymnasium with same-step autoreset, as far as `collect` uses it.

    An environment that never terminates may omit `terminated`.
    """

    num_envs: int

    def step(self, action: NDArray[np.floating]) -> tuple[Any, ...]:
        """Return (observations, rewards, [terminated,] truncated, info)."""


@dataclass
class Rollout:
    """T steps of N environments, arrays [T, N, ...].

    Attributes:
        raw_observations, observations: [T + 1, N, O], raw and normalised; the last row follows the last step.
        actions: [T, N, A].
        log_probs, rewards: [T, N].
        terminated, truncated: [T, N], whether the episode ended by itself, or by its time limit.
        final_observations: [T, N, O], normalised last observations of the episodes that ended; None if not requested.
        episodes: The requested values of the finished episodes, one entry per episode, in order of time.
    """

    raw_observations: NDArray[np.float32]
    observations: NDArray[np.float32]
    actions: NDArray[np.float32]
    log_probs: NDArray[np.float32]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_observations: NDArray[np.float32] | None
    episodes: dict[str, NDArray[Any]]

    @classmethod
    def empty(cls, steps: int, envs: int, observation_size: int, action_size: int) -> Rollout:
        """Allocate a rollout."""
        return cls(
            raw_observations=np.empty((steps + 1, envs, observation_size), np.float32),
            observations=np.empty((steps + 1, envs, observation_size), np.float32),
            actions=np.empty((steps, envs, action_size), np.float32),
            log_probs=np.empty((steps, envs), np.float32),
            rewards=np.empty((steps, envs), np.float64),
            terminated=np.zeros((steps, envs), np.bool_),
            truncated=np.zeros((steps, envs), np.bool_),
            final_observations=None,
            episodes={},
        )

    @property
    def ends(self) -> NDArray[np.bool_]:
        """[T, N], true at the last steps of episodes."""
        return self.terminated | self.truncated

    def check_finite(self) -> None:
        """Raise NonFiniteError with the name of the first array that is not finite."""
        for name in ("raw_observations", "actions", "log_probs", "rewards"):
            if not np.isfinite(getattr(self, name)).all():
                raise NonFiniteError(name.removeprefix("raw_"))


def collect(
    groups: Sequence[VectorEnv],
    policy: Policy,
    observations: NDArray[np.floating],
    num_steps: int,
    noise: np.random.Generator,
    *,
    keep_final: bool = False,
    episode_info: tuple[str, ...] = (),
    parallel: bool = False,
) -> Rollout:
    """Collect a rollout of T steps with exploration noise.

    Args:
        groups: Vector environments with N environments in total.
        policy: The acting policy; its normaliser is not updated.
        observations: [N, O], current raw observations.
        num_steps: T.
        noise: Source of the exploration noise, drawn at once for the whole rollout.
        keep_final: Fill `final_observations`, from `info["final_obs"]`.
        episode_info: Names of arrays in `info` whose entries at the ends of episodes go to `episodes`.
        parallel: Run every group in a thread; the result is the same.

    Raises:
        NonFiniteError: An observation, action, log-probability or reward is not finite.
    """
    envs = sum(group.num_envs for group in groups)
    rollout = Rollout.empty(num_steps, envs, observations.shape[-1], policy.action_size)
    rollout.raw_observations[0] = observations
    if keep_final:
        rollout.final_observations = np.zeros_like(rollout.observations[1:])
    scaled_noise, rollout.log_probs = policy.scale_noise(
        noise.standard_normal(rollout.actions.shape, np.float32)
    )
    ends = np.cumsum([group.num_envs for group in groups]).tolist()
    columns = [slice(end - group.num_envs, end) for group, end in zip(groups, ends, strict=True)]
    finished: list[_Finished] = []
    # torch's number of threads belongs to the thread that set it; a new thread would use all cores.
    with ThreadPoolExecutor(
        len(groups) if parallel else 1,
        initializer=torch.set_num_threads,
        initargs=(torch.get_num_threads(),),
    ) as threads:
        results = [
            threads.submit(_run_group, env, part, policy, scaled_noise, rollout, episode_info)
            for env, part in zip(groups, columns, strict=True)
        ]
        for result in results:
            finished += result.result()
    finished.sort(key=lambda entry: entry[:2])  # by time, then by environment
    rollout.episodes = {
        name: np.concatenate([info[name] for _, _, info in finished]) if finished else np.empty(0)
        for name in episode_info
    }
    rollout.check_finite()
    return rollout


# Step, first column of the group, arrays of the ended episodes
_Finished = tuple[int, int, dict[str, NDArray[Any]]]


def _run_group(
    env: VectorEnv,
    columns: slice,
    policy: Policy,
    scaled_noise: NDArray[np.float32],
    rollout: Rollout,
    episode_info: tuple[str, ...],
) -> list[_Finished]:
    """Fill the group's columns of the rollout; return the episodes that ended."""
    finished: list[_Finished] = []
    raw, scaled = rollout.raw_observations[:, columns], rollout.observations[:, columns]
    actions, rewards = rollout.actions[:, columns], rollout.rewards[:, columns]
    terminated, truncated = rollout.terminated[:, columns], rollout.truncated[:, columns]
    noise = scaled_noise[:, columns]
    for t in range(len(actions)):
        scaled[t] = policy.normaliser(raw[t])
        actions[t] = policy.act(scaled[t], noise[t])
        raw[t + 1], rewards[t], *ends, info = env.step(actions[t])
        truncated[t] = ended = ends[-1]
        if len(ends) == 2:
            terminated[t] = ends[0]
            ended = ends[0] | ends[1]
        if ended.any():
            if rollout.final_observations is not None:
                final = np.stack(list(info["final_obs"][ended]))
                rollout.final_observations[t, columns][ended] = policy.normaliser(final)
            values = {name: np.asarray(info[name])[ended] for name in episode_info}
            finished.append((t, columns.start, values))
    scaled[-1] = policy.normaliser(raw[-1])
    return finished
