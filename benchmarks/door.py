"""Decisions per second of the door study's training loop, compared with its alternatives.

Peers: stable-baselines3's PPO on the same environment, network, rollout (2,048 decisions), minibatch and
epochs, with DummyVecEnv and SubprocVecEnv; and the bare simulator, ``mujoco.rollout`` with random actions,
which bounds all of them: the target is a share of its speed. Ours is the whole loop as users run it, new worlds,
journal, checkpoints and MLflow included. Hypernetwork PPO runs the same rollouts, as a first task and with five
earlier tasks whose policies the regulariser keeps. The last rows are what recording costs: the same training
with RECORD=off, process start to process end, and the time that the training spends in record's calls.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The project's root instead of this folder, whose scripts are called as the packages are.
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

import mujoco  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from benchmarks import _report, recording  # noqa: E402
from mujoco import rollout  # noqa: E402

from door.env.door_env import DoorVecEnv  # noqa: E402
from runcatalog import record  # noqa: E402

ENVS, STEPS, EPOCHS, MINIBATCH, LR = 32, 64, 6, 512, 1e-3
WARM_UP = 5  # updates
UPDATES = 60
PEER_UPDATES = 8
RECORDED = 60  # updates of the runs with and without recording
SHARE = 0.8  # of the bare simulator's speed
# Tasks before the measured one
EARLIER = ("pull", "pull_left", "lever_left", "lever_push", "lever_push_left")
PARTS = ("loop", "recording")
PAIRS = 9  # of those runs: they differ by less than the machine's noise


def _training(
    task: str, updates: int, script: str = "train_ppo", pretrained: str = ""
) -> list[str]:
    """The command line of a training without validations and video.

    Args:
        task: The door task.
        updates: Number of updates.
        script: Name in src/door.
        pretrained: Run directory of the task before; "" for the first task.
    """
    flags = {
        "task": task,
        "env-steps": updates * ENVS * STEPS,
        "num-envs": ENVS,
        "num-steps": STEPS,
        "epochs": EPOCHS,
        "minibatch-size": MINIBATCH,
        "lr": LR,
        "target-kl": 0,  # all epochs, as its peers do
        "eval-interval": 0,
        "video": "no",
        "threads": len(os.sched_getaffinity(0)),
    }
    if pretrained:
        flags["pretrained"] = pretrained
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return [sys.executable, str(ROOT / f"src/door/{script}.py"), *words]


def timed_training(words: list[str]) -> None:
    """``train_ppo`` with these words; prints ``recording: S``, the seconds in record's calls."""
    from door import train_ppo

    spent, depth = 0.0, 0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            nonlocal spent, depth
            depth, begin = depth + 1, time.perf_counter()
            try:
                return function(*args, **more)
            finally:
                depth -= 1
                if not depth:  # calls within calls are counted once
                    spent += time.perf_counter() - begin

        return call

    for name in ("log", "progress", "event", "checkpoint", "artifact", "digest_weights", "finish",
                 "restore", "__exit__"):  # fmt: skip
        setattr(record.Run, name, timed(getattr(record.Run, name)))
    record.start = timed(record.start)
    sys.argv[1:] = words
    record.run_script(train_ppo.main, train_ppo.Config, argparse.ArgumentParser())
    print(f"recording: {spent:.6f}")


def ours(task: str, script: str = "train_ppo", pretrained: str = "") -> float:
    """Decisions per second of a training, from its own journal, after the first updates."""
    with tempfile.TemporaryDirectory() as folder:
        train(_training(task, WARM_UP + UPDATES, script, pretrained), f"{folder}/run")
        lines = (Path(folder) / "run/journal/metrics.jsonl").read_text().splitlines()
    points = [json.loads(line) for line in lines]
    at = {point["step"]: point["t"] / 1000 for point in points if "env_steps" in point["m"]}
    seconds = at[WARM_UP + UPDATES] - at[WARM_UP]
    return UPDATES * ENVS * STEPS / seconds


def train(command: list[str], directory: str) -> None:
    """Run a training script with its own run directory and MLflow database."""
    environment = os.environ | {
        "RUN_DIR": directory,
        "MLFLOW_TRACKING_URI": f"sqlite:///{Path(directory).parent}/mlflow.db",
    }
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def learn_earlier_tasks(folder: str) -> str:
    """Train one update of hypernetwork PPO on each earlier task in turn; return the last run's directory."""
    last = ""
    for task in EARLIER:
        directory = f"{folder}/{task}"
        train(_training(task, 1, "train_hnppo", last), directory)
        last = directory
    return last


def bare(task: str) -> float:
    """Decisions per second of ``mujoco.rollout`` alone, one call a decision, random actions."""
    threads = len(os.sched_getaffinity(0))
    env = DoorVecEnv(task, num_envs=ENVS, seeds=record.Seeds(1), threads=threads)
    models = [env.models[index] for index in range(ENVS)]
    data = [mujoco.MjData(models[0]) for _ in range(threads)]
    decision = round(0.08 / models[0].opt.timestep)
    rng = np.random.default_rng(1)
    size = mujoco.mj_stateSize(models[0], mujoco.mjtState.mjSTATE_FULLPHYSICS.value)
    with rollout.Rollout(nthread=threads) as pool:
        state, begin = np.zeros((ENVS, size)), 0.0
        for number in range(-WARM_UP, 4 * STEPS):
            if number == 0:
                begin = time.perf_counter()
            action = rng.uniform(-1, 1, (ENVS, 1, models[0].nu)).repeat(decision, 1)
            states, _ = pool.rollout(models, data, state, action)
            state = states[:, -1]
    env.close()
    return 4 * STEPS * ENVS / (time.perf_counter() - begin)


def _make(task: str):
    import gymnasium

    import door  # noqa: F401 - registers the environment

    torch.set_num_threads(1)
    return gymnasium.make("catalog/Door-v0", task=task)


def stable_baselines(task: str, kind: str, envs: int) -> float:
    """Decisions per second of stable-baselines3's PPO, torch on one thread as with ours."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    torch.set_num_threads(1)
    vector = {"DummyVecEnv": DummyVecEnv, "SubprocVecEnv": SubprocVecEnv}[kind]
    more = {"start_method": "fork"} if kind == "SubprocVecEnv" else {}  # quicker to start
    env = vector([lambda: _make(task)] * envs, **more)
    agent = PPO(
        "MlpPolicy",
        env,
        learning_rate=LR,
        n_steps=ENVS * STEPS // envs,
        batch_size=MINIBATCH,
        n_epochs=EPOCHS,
        policy_kwargs={"net_arch": [64, 64], "activation_fn": torch.nn.Tanh},
        device="cpu",
        seed=1,
    )
    agent.learn(2 * ENVS * STEPS)
    begin = time.perf_counter()
    agent.learn(PEER_UPDATES * ENVS * STEPS, reset_num_timesteps=False)
    seconds = time.perf_counter() - begin
    env.close()
    return PEER_UPDATES * ENVS * STEPS / seconds


def main() -> None:
    """Measure the chosen parts in turn and write the result."""
    parser = _report.parser(__doc__)
    parser.add_argument("--task", default="lever")
    _report.add_parts(parser, PARTS)
    options = parser.parse_args()
    measures = {"loop": loop_rows, "recording": recording_rows}
    for part in options.parts:
        rows = measures[part](options.task, options.repeats)
        _report.report_part("door", part, PARTS, rows, dry_run=options.dry_run)


def loop_rows(task: str, repeats: int) -> list[dict[str, Any]]:
    """Return the rows of the training loops."""
    cores = len(os.sched_getaffinity(0))
    peers = {
        f"stable-baselines3, DummyVecEnv, {ENVS} envs": ("DummyVecEnv", ENVS),
        f"stable-baselines3, SubprocVecEnv, {ENVS} envs": ("SubprocVecEnv", ENVS),
        f"stable-baselines3, SubprocVecEnv, {cores} envs": ("SubprocVecEnv", cores),
    }
    earlier = tempfile.TemporaryDirectory()
    last = learn_earlier_tasks(earlier.name)
    measures = {
        "ours": lambda: ours(task),
        "first task": lambda: ours(task, "train_hnppo"),
        "sixth task": lambda: ours(task, "train_hnppo", last),
        "bare": lambda: bare(task),
        **{
            name: lambda kind=kind, envs=envs: stable_baselines(task, kind, envs)
            for name, (kind, envs) in peers.items()
        },
    }
    rates = _report.alternate(measures, repeats)
    earlier.cleanup()
    what = f"training loop, ppo on {task}, [64, 64], {ENVS} x {STEPS}, {EPOCHS} epochs"
    rows = [
        _report.row(
            what,
            rates["ours"],
            rates[name],
            peer_name=name,
            unit="decisions/s",
            target=None,
        )
        for name in peers
    ]
    rows.append(
        _report.row(
            what,
            rates["ours"],
            rates["bare"],
            peer_name="mujoco.rollout, random actions",
            unit="decisions/s",
            target=SHARE,
        )
    )
    for key, peer, name in (
        ("first task", "ours", "ppo:train, the same rollouts"),
        ("sixth task", "first task", "the same as a first task"),
    ):
        rows.append(
            _report.row(
                f"{what.replace('ppo', 'hnppo')}, {key}",
                rates[key],
                rates[peer],
                peer_name=name,
                unit="decisions/s",
                target=None,
            )
        )
    return rows


def recording_rows(task: str, repeats: int) -> list[dict[str, Any]]:
    """Return the rows of the same training with and without recording."""
    name = f"ppo on {task}, {RECORDED} updates, from start to end"
    words = _training(task, RECORDED)[2:]
    command = [sys.executable, __file__, "--timed-training", *words]
    return recording.measure(command, name, max(PAIRS, repeats))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--timed-training"]:
        timed_training(sys.argv[2:])
    else:
        main()
