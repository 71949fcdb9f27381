"""Seconds until a policy opens 97 % of the lever's validation doors, ours and stable-baselines3's PPO.

Same reward, doors, network, rollout (32 x 64 decisions), minibatch, epochs and optimiser's settings, and in both the
same 100 validation doors after every ten updates, whose time counts. What differs: ours begins every rollout with new
doors and clips the critic's loss; the peer plays whole episodes, and its critic's loss is not clipped. The peer
normalises observations and rewards as its zoo does (VecNormalize), and has its quickest vector of environments here
(DummyVecEnv). A turn is one seed. A training that does not get there within the budget counts with all of its time.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

# The project's root instead of this folder, whose scripts are called as the packages are.
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from benchmarks import _report  # noqa: E402
from benchmarks.door import train  # noqa: E402

import door  # noqa: E402, F401 - registers the environment
from door.train_ppo import Config  # noqa: E402
from door.training.evaluation import VALIDATION, evaluate  # noqa: E402
from runcatalog import record  # noqa: E402
from runcatalog.record.journal.metrics import read_points  # noqa: E402

TASK = "lever"
OPENED = 0.97  # of the validation doors
BUDGET = 1_000_000  # decisions
TARGET = 1 / 3  # of the peer's time
OURS = Config(task=TASK, env_steps=BUDGET)  # the defaults of `ppo:train`


def ours(seed: int) -> tuple[float, bool]:
    """Train with `ppo:train`'s script; return seconds and whether the doors opened."""
    flags = {"task": TASK, "seed": seed, "env-steps": BUDGET, "stop-at": OPENED, "video": "no"}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    with tempfile.TemporaryDirectory() as folder:
        train([sys.executable, str(ROOT / "src/door/train_ppo.py"), *words], f"{folder}/run")
        journal = Path(folder) / "run" / "journal"
        begin = json.loads((journal / "run.json").read_text())["started"]
        points = list(read_points(journal / "metrics.jsonl"))
    rates = [p for p in points if p.name == "validation_opening_rate"]
    reached = [p.time for p in rates if p.value >= OPENED]
    return ((reached or [points[-1].time])[0] - begin) / 1000, bool(reached)


def stable_baselines(seed: int, lr: float) -> tuple[float, bool]:
    """Train with stable-baselines3; return seconds and whether the doors opened."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    class Validation(BaseCallback):
        """Validates after every `eval_interval` updates and ends the training when enough doors open."""

        def __init__(self) -> None:
            super().__init__()
            self.updates, self.is_reached = 0, False

        def _on_rollout_start(self) -> None:
            if self.updates and self.updates % OURS.eval_interval == 0:
                rate = evaluate(
                    act, TASK, OURS.robot, seeds=seeds, start=OURS.start, index=VALIDATION
                ).opening_rate
                print(f"seed {seed}, {self.num_timesteps} decisions: {rate:.0%}", file=sys.stderr)
                self.is_reached = rate >= OPENED
            self.updates += 1

        def _on_step(self) -> bool:
            return not self.is_reached

    def act(observations: np.ndarray) -> np.ndarray:
        return agent.predict(env.normalize_obs(observations), deterministic=True)[0]

    torch.set_num_threads(1)  # the quickest for small networks, as in ours
    seeds, begin = record.Seeds(seed), time.perf_counter()
    vector = DummyVecEnv([lambda: gymnasium.make("catalog/Door-v0", task=TASK)] * OURS.num_envs)
    vector.seed(seed)
    env = VecNormalize(vector, gamma=OURS.gamma)
    agent = PPO(
        "MlpPolicy",
        env,
        learning_rate=lr,
        n_steps=OURS.num_steps,
        batch_size=OURS.minibatch_size,
        n_epochs=OURS.epochs,
        gamma=OURS.gamma,
        gae_lambda=OURS.gae_lambda,
        clip_range=OURS.clip_coef,
        ent_coef=OURS.entropy_coef,
        vf_coef=OURS.value_coef,
        max_grad_norm=OURS.max_grad_norm,
        target_kl=OURS.target_kl / 1.5,  # stable-baselines3 multiplies it by 1.5
        policy_kwargs={"net_arch": [64, 64], "activation_fn": torch.nn.Tanh},
        device="cpu",
        seed=seed,
    )
    validation = Validation()
    agent.learn(BUDGET, callback=validation)
    seconds = time.perf_counter() - begin
    env.close()
    return seconds, validation.is_reached


def main() -> None:
    """Measure in turns, a seed each, and write the result."""
    parser = _report.parser(__doc__)
    parser.add_argument("--lr", type=float, default=OURS.lr, help="of the peer; default: ours")
    options = parser.parse_args()
    trainings = {"ours": ours, "peer": lambda seed: stable_baselines(seed, options.lr)}
    turns, missed = dict.fromkeys(trainings, 0), dict.fromkeys(trainings, 0)

    def measure(name: str) -> float:
        turns[name] += 1
        seconds, reached = trainings[name](turns[name])
        missed[name] += not reached
        print(f"{name}, seed {turns[name]}: {seconds:.1f} s, {reached}", file=sys.stderr)
        return seconds

    seconds = _report.alternate(
        {name: lambda name=name: measure(name) for name in trainings}, options.repeats
    )
    late = f", {missed['peer']} seeds not within {BUDGET:,} decisions" if missed["peer"] else ""
    row = _report.row(
        f"{OPENED:.0%} of {TASK}'s validation doors open, {options.repeats} seeds",
        seconds["ours"],
        seconds["peer"],
        peer_name=f"stable-baselines3 PPO{late}",
        unit="s",
        target=TARGET,
        target_is="at most",
        missed=missed,
    )
    _report.report("door_success", [row], dry_run=options.dry_run)


if __name__ == "__main__":
    main()
