"""The training scripts at a very small size."""

import json
import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from door import determinism, train_hnppo, train_multitask, train_ppo
from door.continual import steps
from door.env.scripted import ScriptedHook
from door.training import evaluation, snapshots, summary, trainer
from door.training import flags as door_flags
from runcatalog import record
from runcatalog.record.config import parse, without_effect
from runcatalog.record.digest import weights_digest

RUN_VARIABLES = (
    "RUN_DIR",
    "RUN_ID",
    "GUILD_OP",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_RUN_ID",
    "RECORD",
    "OMP_NUM_THREADS",
)
SMALL = {
    "num_envs": 8, "num_steps": 16, "minibatch_size": 64, "epochs": 2, "env_steps": 4 * 128,
    "eval_interval": 0, "video": False, "network_size": "16 16",
}  # fmt: skip
SCRIPTS = {"ppo": train_ppo, "hnppo": train_hnppo, "multitask": train_multitask}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A separate project, without MLflow."""
    for name in RUN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "guild.yml").write_text("")
    monkeypatch.setenv("PROJECT_DIR", str(tmp_path))
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    return tmp_path


@pytest.fixture
def few_worlds(monkeypatch):
    """Evaluate in ten worlds instead of a hundred, and draw no learning curve, for tests that need neither."""
    monkeypatch.setattr(trainer, "WORLDS", 10)
    monkeypatch.setattr(summary, "learning_curve", lambda *arguments: None)


def _train(kind: str, directory: Path, monkeypatch, **flags) -> dict:
    monkeypatch.setenv("RUN_DIR", str(directory))
    script = SCRIPTS[kind]
    return script.main(script.Config(**(SMALL | flags)))


def _points(directory: Path) -> dict[str, dict[int, float]]:
    points: dict[str, dict[int, float]] = {}
    for line in (directory / "journal" / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        for name, value in entry["m"].items():
            points.setdefault(name, {})[entry["step"]] = value
    return points


@pytest.mark.parametrize("kind", ["ppo", "hnppo"])
def test_a_run_writes_metrics_figure_and_checkpoint(kind, project, monkeypatch):
    directory = project / "run"
    monkeypatch.setattr(trainer, "WORLDS", 10)
    written = _train(kind, directory, monkeypatch, eval_interval=2)
    assert written["status"] == "FINISHED"
    result = written["result"]
    assert result["objective"]["name"] == "opening_rate"
    assert result["objective"]["count"] == 10
    assert result["env_steps"] == 4 * 128
    points = _points(directory)
    for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction",
                 "grad_norm", "env_steps", "reward", "time/steps_per_second"):  # fmt: skip
        assert sorted(points[name]) == [1, 2, 3, 4], name
        assert all(math.isfinite(value) for value in points[name].values())
    assert sorted(points["validation_opening_rate"]) == [2, 4]
    assert sorted(points["opening_rate"]) == [4]
    assert "episode_return" not in points  # of parts of episodes
    figure = directory / "artifacts" / "learning_curve.svg"
    assert figure.read_text().lstrip().startswith("<?xml")
    assert record.load_checkpoint(directory).step == 4


def test_only_complete_episodes_are_logged(project, few_worlds, monkeypatch):
    """Eight worlds begin at times that are spread over an episode: in 136 decisions one plays a whole one."""
    _train("ppo", project / "run", monkeypatch, num_steps=136, env_steps=8 * 136)
    points = _points(project / "run")
    assert list(points["episode_return"]) == list(points["train_opening_rate"]) == [1]
    # Its mean reward a decision is of the size of everybody's: a part of an episode would have a smaller sum.
    assert points["episode_return"][1] / 128 == pytest.approx(points["reward"][1], rel=0.5)
    assert points["train_opening_rate"][1] in (0, 1)


def test_without_a_renderer_the_run_goes_on_and_says_so(project, few_worlds, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "glx")  # needs a screen
    monkeypatch.delenv("DISPLAY", raising=False)
    written = _train("ppo", project / "run", monkeypatch, video=True)
    assert written["status"] == "FINISHED"
    events = (project / "run" / "journal" / "events.jsonl").read_text()
    assert "no video: " in events
    assert not (project / "run" / "artifacts" / "policy.mp4").exists()


@pytest.mark.parametrize(
    ("kind", "start"),
    [("ppo", ""), ("hnppo", ""), ("hnppo", "warm"), ("multitask", "")],
    ids=str.strip,
)
def test_threads_kills_and_resumes_change_no_bit(kind, start, project, few_worlds, monkeypatch):
    own = {"save_interval": 3}
    if kind == "multitask":
        own |= {"task": "pull lever"}
    if start:
        _train(kind, project / "first", monkeypatch, task="pull")
        own |= {"task": "pull_left", "pretrained": str(project / "first"), "embedding_start": start}
    whole = _train(kind, project / "whole", monkeypatch, **own)
    broken = project / "broken"
    script = SCRIPTS[kind]

    class Killed(BaseException):
        pass

    log, calls = trainer.Trainer.log, []

    def log_and_die(self, rollout, statistics):
        log(self, rollout, statistics)
        calls.append(self.update)
        if len(calls) == 4:  # after the checkpoint at update 3
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "log", log_and_die)
        with pytest.raises(Killed):
            _train(kind, broken, monkeypatch, **own, threads=1, envs_per_call=3)
    flags = SMALL | own | {"resume": str(broken), "threads": 3}
    resumed = script.main(script.Config(**flags))
    assert resumed["digest"] == whole["digest"]
    assert resumed["resume_mismatch"] == 0
    assert resumed["result"]["metrics"] == whole["result"]["metrics"]


def test_a_restart_that_ends_earlier_leaves_no_policy_of_the_abandoned_updates(
    project, few_worlds, monkeypatch
):
    """As on another kind of CPU, where the updates after the checkpoint have other results."""
    directory, rates = project / "run", iter([0.9, 0.9, 0.9, 0.9, 0.9, 1.0])

    class Killed(BaseException):
        pass

    log = trainer.Trainer.log

    def log_and_die(self, rollout, statistics):
        log(self, rollout, statistics)
        if self.update == 6:  # the checkpoint is of update 3, the newest policies are of update 5
            raise Killed

    monkeypatch.setattr(evaluation.HeldOutWorlds, "opening_rate", lambda *args: next(rates))
    own = {"eval_interval": 1, "save_interval": 3, "stop_at": 0.93, "env_steps": 9 * 128}
    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "log", log_and_die)
        with pytest.raises(Killed):
            _train("ppo", directory, monkeypatch, **own)
    written = _train("ppo", directory, monkeypatch, resume=str(directory), **own)
    assert written["result"]["objective"]["at"] == 4
    step = steps.read_one(directory)
    assert [update for update, _ in step.snapshots] == [0, 1, 2, 3, 4]
    assert sorted(step.validation) == [1, 2, 3, 4]
    assert step.updates == 4


def test_worlds_without_a_seed_differ_every_time(project, few_worlds, monkeypatch):
    digests = []
    for name, start in (("a", "none"), ("b", "none"), ("c", "run"), ("d", "run")):
        written = _train("ppo", project / name, monkeypatch, env_steps=256, world_seed=start)
        digests.append(written["digest"]["weights"])
    assert len(set(digests[:2])) == 2
    assert digests[2] == digests[3]


def test_a_series_of_tasks(project, few_worlds, monkeypatch):
    first, second = project / "first", project / "second"
    _train("hnppo", first, monkeypatch, task="pull")
    written = _train(
        "hnppo", second, monkeypatch, task="pull_left", pretrained=str(first), beta=10.0,
        eval_interval=3,
    )  # fmt: skip
    # What the first task is worth on the second, before and while that is learned.
    assert sorted(_points(second)["validation_opening_rate"]) == [0, 3, 4]
    assert [update for update, _ in snapshots.paths(second)] == [0, 3, 4]
    assert [update for update, _ in snapshots.paths(first)] == [0, 4]
    kept = [snapshots.load(path) for _, path in snapshots.paths(second)]
    assert [[task for task, _ in policies] for policies in kept] == [["pull", "pull_left"]] * 3
    assert written["result"]["task_id"] == 1
    assert "opening_rate/0_pull" in written["result"]["metrics"]
    before, after = record.load_checkpoint(first), record.load_checkpoint(second)
    assert after.step == 4
    assert after.state["agent"]["tasks"] == ["pull", "pull_left"]
    assert torch.equal(before.tensors["embeddings"][0], after.tensors["embeddings"][0])
    assert _points(second)["regulariser"][4] > 0
    assert _points(first)["regulariser"][4] == 0
    parents = json.loads((second / "journal" / "parents.json").read_text())["parents"]
    assert parents == [before.run_id]
    with pytest.raises(record.UserError, match="--task-id: 4 cannot follow pull; use 1"):
        _train("hnppo", project / "third", monkeypatch, pretrained=str(first), task_id=4)
    with pytest.raises(record.UserError, match=r"pretrained.*there.*here"):
        _train("hnppo", project / "4", monkeypatch, pretrained=str(first), freshcritic=False)
    with pytest.raises(record.UserError, match=r"pretrained.*missing there"):
        _train("ppo", project / "5", monkeypatch, pretrained=str(first))
    # Every task has its own normaliser, by its flag.
    _train("hnppo", project / "6", monkeypatch, pretrained=str(first), normalise_obs=False)
    third = project / "7"
    _train("hnppo", third, monkeypatch, pretrained=str(project / "6"), task="lever")
    normalisers = record.load_checkpoint(third).state["agent"]["normalisers"]
    assert [state["enabled"] for state in normalisers] == [True, False, True]


def test_a_warm_start_takes_the_policy_that_opens_most_doors(project, monkeypatch):
    monkeypatch.setenv("RUN_DIR", str(project / "run"))
    config = train_hnppo.Config(**(SMALL | {"task": "lever"}))
    with record.start(config, study="door") as run, trainer.Trainer(run, config) as training:
        rest = partial(np.zeros, (trainer.TRIALS, 6))
        policies = [lambda obs: rest(), ScriptedHook("pull"), ScriptedHook("lever")]
        names = ["at rest", "pull", "lever"]
        assert training.best_policy(policies, names) == 2
        assert training.steps == 3 * trainer.TRIALS * evaluation.DECISIONS
        assert training.best_policy(policies[:1], names[:1]) is None
    tried = _points(project / "run")
    assert tried["trial_opening_rate/0_at rest"][0] == 0
    assert tried["trial_opening_rate/2_lever"][0] > 0.9


def test_without_such_a_policy_a_warm_start_is_a_neutral_one(project, few_worlds, monkeypatch):
    """Trained this little, no policy opens half of the doors."""
    _train("hnppo", project / "first", monkeypatch, task="pull")
    own = {"task": "lever", "pretrained": str(project / "first"), "save_interval": 4}
    written = {
        start: _train("hnppo", project / start, monkeypatch, embedding_start=start, **own)
        for start in ("neutral", "warm")
    }
    digests = [written[start]["digest"]["weights"] for start in written]
    assert digests[0] == digests[1]
    # The decisions of the trial come before the first update.
    trial = trainer.TRIALS * evaluation.DECISIONS
    assert written["warm"]["env_steps"] == written["neutral"]["env_steps"] + trial
    assert _points(project / "warm")["env_steps"][1] == trial + 128
    assert steps.read_one(project / "warm").decisions_before == trial
    assert steps.read_one(project / "neutral").decisions_before == 0


def test_fine_tuning_starts_from_the_weights_and_a_new_optimiser(project, few_worlds, monkeypatch):
    first = project / "first"
    _train("ppo", first, monkeypatch)
    weights = record.load_checkpoint(first).tensors
    tuned = _train(
        "ppo", project / "second", monkeypatch, pretrained=str(first), lr=1e-12, task="pull_left"
    )
    after = record.load_checkpoint(project / "second").tensors
    for name, tensor in weights.items():
        torch.testing.assert_close(after[name], tensor, atol=1e-8, rtol=0)
    assert tuned["digest"]["weights"] == weights_digest(after)
    with pytest.raises(record.UserError, match=r"--normalise-obs: .* use yes"):
        _train("ppo", project / "third", monkeypatch, pretrained=str(first), normalise_obs=False)
    for flag, name in (("mean_gain", "--mean-gain"), ("log_std", "--log-std")):
        with pytest.raises(record.UserError, match=f"{name}: for new weights alone"):
            _train("ppo", project / "third", monkeypatch, pretrained=str(first), **{flag: 0.5})


def test_values_that_are_not_finite_end_the_run_with_their_update(project, monkeypatch):
    directory = project / "run"
    with pytest.raises(record.NumericalError, match="at update 1: "):
        _train("ppo", directory, monkeypatch, lr=1.0, max_grad_norm=1e30, network_size="8 8 8 8",
               epochs=200, minibatch_size=16, clip_coef=1.0, log_std=2.0, value_coef=1e30)  # fmt: skip
    result = json.loads((directory / "result.json").read_text())
    assert result["status"] == "FAILED"
    assert result["failed_at"]["update"] == 1


def test_an_explosion_is_named_with_its_update(project, few_worlds, monkeypatch):
    wild = {"lr": 0.3, "max_grad_norm": 1e3, "minibatch_size": 16, "epochs": 8, "save_interval": 1}
    exploded = _train("ppo", project / "wild", monkeypatch, **wild)["result"]["variant"]["exploded"]
    kls = _points(project / "wild")["approx_kl"]
    first = min(update for update, kl in kls.items() if kl > trainer.EXPLODED)
    assert exploded == f"at update {first} (KL {kls[first]:.0f})"
    assert f"exploded {exploded}" in (project / "wild/journal/events.jsonl").read_text()
    calm = _train("ppo", project / "calm", monkeypatch)
    assert not calm["result"]["variant"]["exploded"]
    assert max(_points(project / "calm")["approx_kl"].values()) < trainer.EXPLODED


def test_early_stopping_uses_the_validation_worlds_only(project, monkeypatch):
    from door.training.evaluation import Evaluation

    asked, rates = [], iter([0.99, 0.9, 0.95, 0.96, 0.97])

    def opening_rate(worlds, policy, task):
        assert worlds._worlds == evaluation.WORLDS
        asked.append(worlds._index)
        return next(rates)

    def evaluate(worlds, policy, task):
        assert worlds._worlds == evaluation.WORLDS
        asked.append(worlds._index)
        opened = np.arange(100) < 50
        return Evaluation(0.5, opened, opened, 1.0, 10.0 * worlds._index, 0.0, 1.0)

    monkeypatch.setattr(evaluation.HeldOutWorlds, "opening_rate", opening_rate)
    monkeypatch.setattr(evaluation.HeldOutWorlds, "evaluate", evaluate)
    written = _train("ppo", project / "run", monkeypatch, eval_interval=1, stop_at=0.95,
                     env_steps=10 * 128)  # fmt: skip
    assert asked == [evaluation.VALIDATION] * 5 + [evaluation.TEST, evaluation.VALIDATION]
    assert written["result"]["objective"]["value"] == 0.5
    assert written["result"]["objective"]["at"] == 5
    area = [0.99, 0.9, 0.95, 0.96, 0.97] + 5 * [0.97]  # of the ten validations of the budget
    metrics = written["result"]["metrics"]
    assert metrics["validation_area"] == pytest.approx(np.mean(area))
    assert metrics["validation_episode_return"] == 10.0 * evaluation.VALIDATION


def test_the_success_schedule_reduces_the_learning_rate(project, monkeypatch):
    rates, sizes = iter([0.5, 0.9, 0.99, 0.0]), []
    monkeypatch.setattr(evaluation.HeldOutWorlds, "opening_rate", lambda *args: next(rates))
    monkeypatch.setattr("rl.agent.PPOAgent.set_lr", lambda agent, fraction: sizes.append(fraction))
    _train("ppo", project / "run", monkeypatch, eval_interval=1, lr_schedule="success")
    assert sizes == pytest.approx([1.0, 0.5, 0.1])  # after the first three validations


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"network_size": "64 x"}, "--network-size: '64 x' is not a list of widths"),
        ({"network_width": 64}, "--network-width and --network-depth go together"),
        ({"env_steps": 100}, "--env-steps: 100 is less than an update"),
        ({"num_envs": 1, "num_steps": 1}, "--num-steps: a single sample has no spread"),
        ({"lr": -1.0}, "--lr: -1.0 is not in"),
        ({"task": "window"}, "--task: 'window' is not one of pull"),
        ({"pretrained": "nowhere"}, "--pretrained: nowhere is neither a directory"),
    ],
)
def test_wrong_flags_are_one_line_errors(flags, message, project, monkeypatch):
    with pytest.raises(record.UserError, match=message):
        _train("hnppo", project / "run", monkeypatch, **flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"task": "pull window"}, "--task: 'pull window' is not a list of different tasks of pull"),
        ({"task": "pull pull"}, "--task: 'pull pull' is not a list of different tasks of pull"),
        ({"task": "pull lever round"}, "--num-envs: 8 is not a multiple of the number of tasks, 3"),
    ],
)
def test_wrong_tasks_are_one_line_errors(flags, message, project, monkeypatch):
    with pytest.raises(record.UserError, match=message):
        _train("multitask", project / "run", monkeypatch, **flags)


@pytest.mark.parametrize("script", SCRIPTS.values())
def test_without_validations_no_run_stops_early(script):
    config = parse(script.Config, ["--eval-interval", "0", "--stop-at", "0.9"])
    assert without_effect(config) == ["--stop-at has no effect with eval-interval=0"]


def test_network_sizes():
    config = train_ppo.Config
    assert config().hidden() == (64, 64)
    assert config(network_size="128 128").hidden() == (128, 128)
    assert config(network_width=80, network_depth=3).hidden() == (80, 80, 80)


def test_choices_are_those_of_the_code():
    from door.env.reward import RewardConfig
    from door.env.robots import ROBOTS
    from door.env.worlds import STARTS

    assert set(door_flags.STARTS) == set(STARTS)
    assert set(door_flags.ROBOTS) == set(ROBOTS)
    assert {RewardConfig.of(kind).kind for kind in door_flags.REWARDS} == set(door_flags.REWARDS)
    assert all(RewardConfig.of("shaped", handle) for handle in door_flags.HANDLE_REWARDS)


def test_help_names_every_flag_without_loading_torch():
    code = """
import contextlib, runpy, sys
sys.argv = ["x", "--help"]
for script in SCRIPTS:
    with contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
    assert "torch" not in sys.modules and "mujoco" not in sys.modules, script
"""
    folder = Path(train_ppo.__file__).parent
    names = (
        "train_ppo", "train_hnppo", "train_multitask", "train_sb3", "determinism", "series", "metrics", "shift",
    )  # fmt: skip
    scripts = [str(folder / f"{name}.py") for name in names]
    done = subprocess.run(
        [sys.executable, "-c", code.replace("SCRIPTS", repr(scripts))],
        capture_output=True, text=True, env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("--seed") >= len(scripts)


def _outcomes(*changes: dict) -> list[dict]:
    """Three runs with 1, 2, 4 threads and a killed one, equal but for the changes."""
    equal = {"weights": "a", "metrics": "b", "resume_mismatch": 0, "env_steps": 5}
    outcomes = [equal | {"threads": threads} for threads in (1, 2, 4, 4)]
    for index, change in enumerate(changes):
        outcomes[index] |= change
    return outcomes


def test_the_determinism_result_compares_all_digests():
    result = determinism.judge(_outcomes(), 7)
    assert result["summary"] == (
        "deterministic: 3 of 3 runs equal with 1, 2, 4 threads; killed at update 7 and resumed: equal"
    )
    assert result["objective"]["value"] == 1.0
    result = determinism.judge(_outcomes({}, {"weights": "c"}, {}, {"metrics": "d"}), 2)
    assert result["summary"] == (
        "not deterministic: 2 of 3 runs equal with 1, 2, 4 threads; "
        "killed at update 2 and resumed: different"
    )
    resumed = _outcomes({}, {}, {}, {"resume_mismatch": 1})
    assert "different" in determinism.judge(resumed, 2)["summary"]


STUB = """
import json, os, sys, time
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder = flags.get("--resume") or os.environ["RUN_DIR"]
os.makedirs(folder + "/journal", exist_ok=True)
path = folder + "/journal/metrics.jsonl"
lines = open(path).read().splitlines() if os.path.exists(path) else []
with open(path, "a") as file:
    for update in range(len(lines) + 1, int(flags["--env-steps"]) // 2048 + 1):
        time.sleep(0.1)
        print(json.dumps({"t": 0, "step": update, "m": {"loss": 0}}), file=file, flush=True)
if folder.endswith("/killed") and "--resume" not in flags:
    time.sleep(600)  # it is killed; on a busy machine the last updates could be over before
weights = WEIGHTS
digest = {"weights": weights, "metrics": flags["--seed"]}
result = {"digest": digest, "resume_mismatch": 0, "env_steps": int(flags["--env-steps"])}
json.dump(result, open(folder + "/result.json", "w"))
"""


@pytest.mark.parametrize(
    ("weights", "verdict"),
    [
        ('"same"', "deterministic: 2 of 2 runs equal with 1, 2 threads"),
        ('flags["--threads"]', "not deterministic: 1 of 2 runs equal with 1, 2 threads"),
    ],
)
def test_the_determinism_test_runs_kills_resumes_and_compares(
    weights, verdict, project, monkeypatch
):
    """With a script that trains nothing; real trainings are killed and resumed above."""
    (project / "train_ppo.py").write_text(STUB.replace("WEIGHTS", weights))
    monkeypatch.setattr(determinism, "__file__", str(project / "determinism.py"))
    monkeypatch.setenv("RUN_DIR", str(project / "run"))
    config = determinism.Config(agent="ppo", task="pull", updates=6, threads="1 2")
    assert config.variants() == [(1, 0), (2, 8)]
    written = determinism.main(config)
    assert written["result"]["summary"].startswith(verdict)
    outcomes = json.loads((project / "run" / "artifacts" / "outcomes.json").read_text())
    assert len(outcomes) == 3
    assert "killed at update" in (project / "run/journal/events.jsonl").read_text()
