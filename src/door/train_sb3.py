"""Train stable-baselines3's PPO on one door task: the peer of `ppo:train` (Raffin et al. 2021, JMLR 22, 268).

Observations and rewards are normalised as in its zoo (VecNormalize). A run that is restarted begins again.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from door.env.tasks import TASKS
from door.training import tuned_flags
from door.training.flags import ROBOTS, STARTS, stop_option
from runcatalog import record
from runcatalog.record import option


@dataclass(frozen=True)
class Config(record.Config):
    """Flags of `ppo:sb3`. Those of the algorithm have the names of `stable_baselines3.PPO`."""

    task: str = option("lever", "kind of door", choices=tuple(TASKS))
    robot: str = option("floatinghook", "robot", choices=ROBOTS)
    start: str = option("near", "near: 0.46 m from the handle; original: 1 m", choices=STARTS)
    env_steps: int = option(1_000_000, "budget [decisions of 0.08 s]", low=1)
    num_envs: int = option(32, "environments, one after the other", low=1, high=4096)
    n_steps: int = option(64, "decisions per environment in a rollout", low=2)
    batch_size: int = option(512, "samples per gradient step", low=2)
    n_epochs: int = option(6, "passes over a rollout", low=1)
    learning_rate: float = option(1e-3, "Adam's step size [1]", low=0, low_open=True, high=1)
    gamma: float = option(0.99, "discount per decision", low=0, high=1)
    gae_lambda: float = option(0.95, "trace decay per decision", low=0, high=1)
    clip_range: float = option(
        0.3, "half-width of the trust region of the ratio [1]", low=0, low_open=True, high=1
    )
    ent_coef: float = option(0.02, "weight of the entropy bonus", low=0, high=1)
    vf_coef: float = option(0.5, "weight of the value loss", low=0)
    max_grad_norm: float = option(0.5, "limit of the gradient's norm", low=0, low_open=True)
    target_kl: float = option(
        0.02, "ends an update at 1.5 times this KL divergence [nat]; 0: never", low=0
    )
    tuned: str = option(
        "",
        "a search, such as ppo:sb3_search, whose best trial gives the searched flags; flags that are typed stay",
    )
    stop_at: float = stop_option(0.99)
    eval_interval: int = option(20_480, "decisions between validations, in whole updates", low=1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tuned", tuned_flags.fill(self, self.tuned))
        super().__post_init__()
        if self.env_steps < self.rollout:
            raise record.UserError(
                f"--env-steps: {self.env_steps} is less than an update ({self.rollout})"
            )

    @property
    def rollout(self) -> int:
        """Decisions of an update."""
        return self.num_envs * self.n_steps


def main(config: Config) -> dict[str, Any]:
    """Train, evaluate on the 100 test doors, and return the content of `result.json`."""
    import gymnasium
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    import door  # noqa: F401 - registers the environment
    from door.training.evaluation import (
        FIRST_WORLDS,
        VALIDATION,
        HeldOutWorlds,
        evaluate,
        validation_area,
    )

    def make() -> gymnasium.Env[Any, Any]:
        return gymnasium.make(
            "catalog/Door-v0", task=config.task, robot=config.robot, start=config.start
        )

    def act(observations: np.ndarray) -> np.ndarray:
        return agent.predict(env.normalize_obs(observations), deterministic=True)[0]

    torch.set_num_threads(1)  # for small networks one thread is the fastest
    with (
        record.start(config, study="door") as run,
        HeldOutWorlds(
            config.robot,
            seeds=run.seeds,
            start=config.start,
            index=VALIDATION,
            first=FIRST_WORLDS,
        ) as validation_worlds,
    ):
        tuned_flags.note(run, getattr(config, "_tuned", None))
        vector = DummyVecEnv([make] * config.num_envs)
        env = VecNormalize(vector, gamma=config.gamma)
        agent = PPO(
            "MlpPolicy",
            env,
            learning_rate=config.learning_rate,
            n_steps=config.n_steps,
            batch_size=config.batch_size,
            n_epochs=config.n_epochs,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            clip_range=config.clip_range,
            ent_coef=config.ent_coef,
            vf_coef=config.vf_coef,
            max_grad_norm=config.max_grad_norm,
            target_kl=config.target_kl or None,
            policy_kwargs={"net_arch": [64, 64], "activation_fn": torch.nn.Tanh},
            device="cpu",
            # It seeds the environments with this number and those that follow, so neighbouring seeds of runs would
            # share worlds.
            seed=run.seeds.integer("stable-baselines3"),
        )
        total, update = config.env_steps // config.rollout, 0
        interval = max(1, config.eval_interval // config.rollout)
        rates: list[float] = []
        while update < total and not record.reached_target(rates, config.stop_at):
            count = min(interval, total - update)
            agent.learn(count * config.rollout, reset_num_timesteps=False)
            update += count
            rates.append(validation_worlds.opening_rate(act, config.task))
            steps = float(agent.num_timesteps)
            run.log({"validation_opening_rate": rates[-1], "env_steps": steps}, update)
            run.progress(update, total, "update")
        evaluation = evaluate(act, config.task, config.robot, seeds=run.seeds, start=config.start)
        env.close()
        run.declare_evaluation("test", f"test worlds of {config.task}", contents=evaluation.worlds)
        run.digest_weights(agent.policy.state_dict())
        metrics = {
            "opening_rate": evaluation.opening_rate,
            "validation_area": validation_area(rates, math.ceil(total / interval)),
            "eval_episode_return": evaluation.episode_return,
            "max_penetration": evaluation.max_penetration,
        }
        run.log(metrics, update)
        return run.finish(
            {
                "objective": evaluation.objective(update),
                "metrics": metrics,
                "env_steps": agent.num_timesteps,
                "variant": {
                    "method": "stable-baselines3 PPO",
                    "start": config.start,
                    "robot": config.robot,
                    "tuned": config.tuned,
                },
            }
        )


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
