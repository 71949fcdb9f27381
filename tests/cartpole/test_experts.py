"""Experts: loaded from checkpoints, refused with one line, trained and resumed."""

import json

import numpy as np
import pytest

from cartpole import experts
from cartpole.cloning import expert_policies
from cartpole.policy_gradient import networks
from cartpole.policy_gradient.networks import Shape
from runcatalog import record
from runcatalog.numbers import wilson
from runcatalog.record.training.checkpoint import save_checkpoint


def policies(count, hidden=(8, 4)):
    return networks.initial(Shape(hidden), [np.random.default_rng(i) for i in range(count)])


def saved(folder, params, prefix="policy", flags=None):
    tensors = {f"{prefix}.{name}": value for name, value in params.items()}
    save_checkpoint(folder / "checkpoints", 10, tensors, {}, run_id="ab" * 16)
    if flags is not None:
        (folder / "journal").mkdir()
        (folder / "journal" / "run.json").write_text(json.dumps({"flags": flags}))
    return str(folder)


def test_single_and_stacked_checkpoints_give_one_stack(tmp_path):
    both = policies(3)
    one = saved(tmp_path / "one", networks.take(both, 0), flags={"algo": "rloo"})
    two = saved(tmp_path / "two", networks.take(both, slice(1, 3)))
    loaded = expert_policies.load(f"{one}, {two}/checkpoints")
    assert len(loaded) == 3
    assert loaded.parents == ("ab" * 16,)
    for name, value in both.items():
        np.testing.assert_array_equal(loaded.policies[name], value)


def test_a_run_is_loaded_by_its_id(tmp_path, monkeypatch):
    monkeypatch.setenv("GUILD_HOME", str(tmp_path))
    for name in ("ab" * 16, "cd" * 16):
        saved(tmp_path / "runs" / name, policies(2), flags={"algo": "rloo"})
    assert len(expert_policies.load("abababab, " + "cd" * 16)) == 4
    with pytest.raises(record.UserError, match="efefefef: no such directory"):
        expert_policies.load("efefefef")
    saved(tmp_path / "runs" / ("77" * 16), policies(1), flags={"algo": "vpg"})
    with pytest.raises(record.UserError, match="--experts: 77777777 was trained with algo=vpg"):
        expert_policies.load("77777777")


def test_the_best_validated_policy_is_preferred_to_the_last_one(tmp_path):
    last, best = policies(2), policies(4)
    tensors = {f"policy.{n}": v for n, v in last.items()}
    tensors |= {f"expert.{n}": v for n, v in best.items()}
    save_checkpoint(tmp_path / "checkpoints", 1, tensors, {})
    assert len(expert_policies.load(str(tmp_path))) == 4


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: "", "no run is given"),
        (lambda folder: str(folder / "nowhere"), "no such directory"),
        (lambda folder: saved(folder, policies(1), flags={"algo": "vpg"}), "algo=vpg"),
        (lambda folder: saved(folder, policies(1), prefix="value"), "no policy"),
        (
            lambda folder: (
                f"{saved(folder / 'a', policies(1))},{saved(folder / 'b', policies(1, (16,)))}"
            ),
            "has layers",
        ),
    ],
)
def test_unusable_experts_are_one_line_errors(tmp_path, make, words):
    with pytest.raises(record.UserError, match=words) as error:
        expert_policies.load(make(tmp_path))
    assert "--experts" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_best_policy_is_selected_and_the_later_of_equals():
    first, second, third = (policies(2) for _ in range(3))
    for index, params in enumerate((first, second, third)):
        params["b0"][:] = index
    best = experts.BestPolicies(first)
    best.update(first, np.array([100.0, 500.0]), 10)
    best.update(second, np.array([100.0, 499.0]), 20)
    best.update(third, np.array([99.0, 500.0]), 30)
    assert best.policies["b0"][:, 0].tolist() == [1, 2]
    assert best.updates.tolist() == [20, 30]


def test_the_interval_of_a_result_is_over_experts():
    """Eight of ten experts always survive; a single one is tested on 800 starts."""
    config = experts.Config(starts=800)
    shares = np.array([1.0] * 8 + [0.0] * 2)
    objective = experts.result_of(config, shares, 0)["objective"]
    assert (objective["value"], objective["count"]) == (0.8, 8000)
    low, high = objective["interval"]
    assert low == pytest.approx(0.8 - 1.96 * np.sqrt(0.8 * 0.2 / 10), abs=0.06)
    assert high == 1
    alone = experts.result_of(experts.Config(count=1, starts=800), np.array([0.9]), 0)["objective"]
    assert alone["interval"] == pytest.approx(wilson(720, 800))


def test_a_killed_training_of_experts_ends_with_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setenv("RECORD_MLFLOW", "off")

    def run(folder, updates, **more):
        monkeypatch.setenv("RUN_DIR", str(tmp_path / folder))
        config = experts.Config(
            count=2, updates=updates, validate=2, starts=20, save_interval=2, **more
        )
        return experts.main(config)

    whole = run("whole", 6)
    assert whole["result"]["objective"]["name"] == "survival"

    class Killed(Exception):
        pass

    update = experts.Learner.update

    def dies(learner, rollout):
        if learner.updates == 5:
            raise Killed
        update(learner, rollout)

    monkeypatch.setattr(experts.Learner, "update", dies)
    with pytest.raises(Killed):
        run("broken", 6)
    monkeypatch.setattr(experts.Learner, "update", update)
    continued = run("broken", 6)
    assert continued["digest"] == whole["digest"]
    assert continued["resume_mismatch"] == 0
    assert len(expert_policies.load(str(tmp_path / "whole"))) == 2
