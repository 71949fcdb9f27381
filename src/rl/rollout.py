"""Collects T steps from N environments that step together and reset themselves."""

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
    """A number stopped being finite; `tensor` says in which one."""

    def __init__(self, tensor: str) -> None:
        super().__init__(f"{tensor} is not finite")
        self.tensor = tensor


class VectorEnv(Protocol):
    """What `collect` needs: gymnasium's vector interface with same-step autoreset.

    An environment that never terminates may leave `terminated` out.
    """

    num_envs: int

    def step(self, action: NDArray[np.floating]) -> tuple[Any, ...]:
        """(observations, rewards, [terminated,] truncated, info)."""


@dataclass
class Rollout:
    """T steps of N environments, arrays [T, N, ...].

    Observations come raw and normalised, with a row more for what follows the last step
    ([T + 1, N, O]). `final_observations` (normalised) and `episodes` are only filled on request.
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
        """Room for a rollout."""
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
        """[T, N], true at the last step of an episode."""
        return self.terminated | self.truncated

    def check_finite(self) -> None:
        """Raises NonFiniteError naming the first array that is not finite."""
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
    at_end: tuple[str, ...] = (),
    beside: bool = False,
) -> Rollout:
    """Plays `num_steps` steps from `observations` [N, O] with exploration noise.

    Args:
        groups: vector environments, one or more, N in all; see `VectorEnv`.
        policy: the acting policy; its normaliser stays as it is.
        observations: where the environments stand now, raw.
        num_steps: T.
        noise: source of the exploration noise, drawn at once for the whole rollout.
        keep_final: keep the last observation of every truncated episode (`info["final_obs"]`).
        at_end: names of per-environment arrays in `info` to keep where an episode ends;
            they come back in `episodes`, one entry per finished episode, in order of time.
        beside: play each group in a thread of its own; the result is the same.

    Raises:
        NonFiniteError: an observation, action, log-probability or reward was not finite.
    """
    envs = sum(group.num_envs for group in groups)
    rollout = Rollout.empty(num_steps, envs, observations.shape[-1], policy.action_size)
    rollout.raw_observations[0] = observations
    if keep_final:
        rollout.final_observations = np.zeros_like(rollout.observations[1:])
    disturbances, rollout.log_probs = policy.disturbances(
        noise.standard_normal(rollout.actions.shape, np.float32)
    )
    ends = np.cumsum([group.num_envs for group in groups]).tolist()
    columns = [slice(end - group.num_envs, end) for group, end in zip(groups, ends, strict=True)]
    finished: list[_Finished] = []
    # Torch's number of threads is that of the thread which set it; a new one takes all cores.
    with ThreadPoolExecutor(
        len(groups) if beside else 1,
        initializer=torch.set_num_threads,
        initargs=(torch.get_num_threads(),),
    ) as threads:
        playing = [
            threads.submit(_play, *each, policy, disturbances, rollout, at_end)
            for each in zip(groups, columns, strict=True)
        ]
        for each in playing:
            finished += each.result()
    finished.sort(key=lambda each: each[:2])
    rollout.episodes = {
        name: np.concatenate([kept[name] for _, _, kept in finished]) if finished else np.empty(0)
        for name in at_end
    }
    rollout.check_finite()
    return rollout


_Finished = tuple[int, int, dict[str, NDArray[Any]]]  # step, first column, arrays at the end


def _play(
    env: VectorEnv,
    columns: slice,
    policy: Policy,
    disturbances: NDArray[np.float32],
    rollout: Rollout,
    at_end: tuple[str, ...],
) -> list[_Finished]:
    """Fills the group's columns of the rollout; returns what ended."""
    finished: list[_Finished] = []
    raw, scaled = rollout.raw_observations[:, columns], rollout.observations[:, columns]
    actions, rewards = rollout.actions[:, columns], rollout.rewards[:, columns]
    terminated, truncated = rollout.terminated[:, columns], rollout.truncated[:, columns]
    disturbances = disturbances[:, columns]
    for t in range(len(actions)):
        scaled[t] = policy.normaliser(raw[t])
        actions[t] = policy.act(scaled[t], disturbances[t])
        raw[t + 1], rewards[t], *ends, info = env.step(actions[t])
        truncated[t] = over = ends[-1]
        if len(ends) == 2:
            terminated[t] = ends[0]
            over = ends[0] | ends[1]
        if over.any():
            if rollout.final_observations is not None:
                final = np.stack(list(info["final_obs"][over]))
                rollout.final_observations[t, columns][over] = policy.normaliser(final)
            kept = {name: np.asarray(info[name])[over] for name in at_end}
            finished.append((t, columns.start, kept))
    scaled[-1] = policy.normaliser(raw[-1])
    return finished
