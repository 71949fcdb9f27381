"""Students and mixtures: kernels against autograd, mixtures against their experts, runs that are killed."""

import numpy as np
import pytest
import torch

from ppo_settings import ppo_settings
from runcatalog import record
from runcatalog.record.training.checkpoint import save_checkpoint
from skills.agents import checkpoints, mixture_kernels
from skills.agents.evaluation import play
from skills.agents.mixture import Mixture, Switch
from skills.agents.network import Network, Sequences, Shape, initial_weights, named_views
from skills.agents.policy import NetworkAgent
from skills.learning.distillation import STATISTICS, Distillation
from skills.learning.mixture import GatePPO, GateStatistics
from skills.learning.ppo import LearnerSettings
from skills.levels.codes import ACTIONS, VERBS
from skills.levels.engine import Engine
from skills.levels.stages import stages_by_verb

TINY = Shape(channels=4, hidden=24, memory=16)
LOSS = ppo_settings(entropy_coef=0.01, time_limit="bootstrap")


def _settings(shape: Shape, envs: int, workers: int) -> LearnerSettings:
    return LearnerSettings(
        shape=shape, envs=envs, workers=workers, rollout=32, passes=2, minibatch_size=8, max_grad_norm=2,
        frozen="nothing",
    )  # fmt: skip


def _agent(number: int, shape: Shape = TINY, stage: str = "all0") -> NetworkAgent:
    flat = initial_weights(shape, torch.Generator().manual_seed(number))
    named_views(flat, shape)["head"][:-1] *= 300  # clear preferences, different per agent
    return NetworkAgent(Network(shape, flat), stage, f"{number:032x}")


def _gate(experts: int, weights: list[float] | None = None) -> NetworkAgent:
    """A gate, with constant mixture weights if `weights` is given."""
    agent = _agent(9, Shape(4, 24, 16, choices=experts))
    if weights is not None:
        agent.network.flat[:] = 0
        agent.network.weights["head_bias"][:experts] = np.log(weights)
    return agent


def test_the_divergence_and_its_gradient_are_autograds() -> None:
    rng = np.random.default_rng(1)
    outputs = rng.standard_normal((4, 3, ACTIONS + 1)).astype(np.float32)
    labels = 2 * rng.standard_normal((4, 6, ACTIONS + 1)).astype(np.float32)
    which = np.array([5, 1, 2])
    mine = torch.from_numpy(outputs.copy()).double().requires_grad_()
    theirs = torch.from_numpy(labels[:, which]).double()
    log_p, log_q = (torch.log_softmax(logits[..., :ACTIONS], -1) for logits in (theirs, mine))
    kl = torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1).mean()
    error = 0.5 * (mine[..., -1] - theirs[..., -1]).square().mean()
    (kl + 0.3 * error).backward()
    same = (log_p.argmax(-1) == log_q.argmax(-1)).double().mean()
    statistics = np.zeros(len(STATISTICS), np.float32)
    mixture_kernels.distillation_loss(outputs, labels, which, 0.3, statistics)
    np.testing.assert_allclose(statistics, [kl.item(), error.item(), same], rtol=1e-5)
    np.testing.assert_allclose(outputs, mine.grad, rtol=0, atol=1e-7)


def test_gradients_of_a_mixture_are_autograds() -> None:
    rng, experts = np.random.default_rng(2), 3
    outputs = rng.standard_normal((4, 3, experts + 1)).astype(np.float32)
    opinions = rng.dirichlet(np.ones(ACTIONS), (4, 6, experts)).astype(np.float32)
    actions, which = rng.integers(0, ACTIONS, (4, 6)), np.array([5, 1, 2])
    grad_log_probs, grad_values = rng.standard_normal((2, 4, 3)).astype(np.float32)
    leaf = torch.from_numpy(outputs.copy()).double().requires_grad_()
    gate = torch.softmax(leaf[..., :experts], -1)
    p = (gate[..., None] * torch.from_numpy(opinions[:, which]).double()).sum(-2)
    taken = p.gather(-1, torch.from_numpy(actions[:, which])[..., None])[..., 0].log()
    entropy = -(p * p.log()).sum(-1)
    ((taken * torch.from_numpy(grad_log_probs)).sum() + 0.3 * entropy.sum()
     + (leaf[..., experts] * torch.from_numpy(grad_values)).sum()).backward()  # fmt: skip
    log_probs, entropies = np.zeros((2, 4, 3), np.float32)
    mixture_kernels.log_probs_and_entropies(outputs, opinions, actions, which, log_probs, entropies)
    np.testing.assert_allclose(log_probs, taken.detach(), atol=1e-5)
    np.testing.assert_allclose(entropies, entropy.detach(), atol=1e-5)
    mixture_kernels.log_probs_and_entropies_backward(
        outputs, opinions, actions, which, grad_log_probs, np.float32(0.3), grad_values
    )
    np.testing.assert_allclose(outputs, leaf.grad, atol=1e-5)


def test_a_mixture_is_the_weighted_mean_of_its_experts() -> None:
    experts, weights = {"a": _agent(1), "b": _agent(2), "c": _agent(3)}, [0.5, 0.2, 0.3]
    mixture = Mixture(_gate(3, weights), experts)
    engine, rng = Engine("all0", 50), np.random.default_rng(3)
    step = engine.reset(np.arange(50))
    memory, memories = mixture.start(50), [expert.start(50) for expert in experts.values()]
    for _ in range(10):
        outputs, memory = mixture.policy(step, memory)
        p = np.zeros((50, ACTIONS))
        for k, expert in enumerate(experts.values()):
            logits, memories[k] = expert.policy(step, memories[k])
            p += weights[k] * torch.softmax(torch.from_numpy(logits[:, :ACTIONS]), 1).numpy()
        np.testing.assert_allclose(np.exp(outputs[:, :ACTIONS]), p, rtol=0, atol=1e-5)
        np.testing.assert_allclose(mixture.weights, np.tile(weights, (50, 1)), atol=1e-6)
        step = engine.step(rng.integers(0, ACTIONS, 50))


def test_a_switch_plays_as_the_expert_of_the_mission_does() -> None:
    experts = {verb: _agent(i) for i, verb in enumerate(VERBS[:4])}
    switch = Switch(_gate(4), experts)
    for verb, expert in experts.items():
        stage = stages_by_verb("all0")[verb]
        actual, reference = (play(agent, stage, range(60), None) for agent in (switch, expert))
        np.testing.assert_array_equal(actual.steps, reference.steps)
        np.testing.assert_array_equal(actual.reward, reference.reward)


def test_gate_statistics_are_means_over_the_steps_of_running_episodes() -> None:
    mixture = Mixture(_gate(2, [0.75, 0.25]), {"a": _agent(1), "b": _agent(2)})
    looks = GateStatistics(mixture)
    played = play(mixture, "all0", range(300), np.random.default_rng(1), watch=looks)
    assert looks.steps.sum() == played.steps.sum()
    metrics = looks.metrics()
    for verb in VERBS[:4]:
        assert metrics[f"gate/{verb}/a"] == pytest.approx(0.75, abs=1e-6)
        assert metrics[f"highest/{verb}/a"] == 1
        assert metrics[f"gate_entropy/{verb}"] == pytest.approx(0.5623, abs=1e-4)  # by hand


def test_labels_are_what_the_teacher_gives_for_the_whole_episode() -> None:
    """In the student's states, from the beginning of an episode."""
    student = _student({verb: _agent(i) for i, verb in enumerate(VERBS[:4])})
    compared = 0
    for number in (1, 2, 3, 4):  # 128 steps: every episode has ended once
        student.collect(number)
        for worker, verb in zip(student.workers, VERBS, strict=False):
            pupil = worker.rollout
            steps, count = pupil.actions.shape
            begins, teacher = pupil.begins[:steps], pupil.teacher.network
            sequences = Sequences(
                pupil.images[:steps], pupil.steps.direction[:steps], pupil.rows[:steps], begins,
                np.zeros((count, teacher.shape.kept), np.float32), np.arange(count),
            )  # fmt: skip
            whole = Network(teacher.shape, teacher.flat).forward(
                sequences, teacher.film_tables(pupil.missions)
            )
            known = np.logical_or.accumulate(begins, 0)  # since when the memory was empty
            np.testing.assert_allclose(pupil.labels[known], whole[known], rtol=0, atol=2e-5)
            compared += known.sum()
            assert (pupil.steps.mission[..., 0] == VERBS.index(verb)).all()
    assert compared > 64 * 32 + 64


def test_environments_of_the_teacher_share_take_the_teachers_actions() -> None:
    teachers = {verb: _agent(i) for i, verb in enumerate(VERBS[:4])}
    for teacher in teachers.values():
        weights = teacher.network.weights
        weights["head"][:] = weights["skip"][:] = 0
        weights["head_bias"][:ACTIONS] = 50 * (np.arange(ACTIONS) == 2)  # always forward
    student = _student(teachers)
    student.set_teacher_share(0.25)
    student.collect(1)
    for worker in student.workers:
        actions = worker.rollout.actions
        led = round(0.25 * actions.shape[1])
        assert (actions[:, :led] == 2).all()
        assert (actions[:, led:] != 2).any(0).all()


def _student(teachers: dict[str, NetworkAgent]) -> Distillation:
    return Distillation(
        teachers, stages_by_verb("all0"), 0.5, _settings(TINY, 64, 4), record.Seeds(1)
    )


def test_a_student_learns_the_policies_of_its_teachers() -> None:
    student = _student({verb: _agent(i) for i, verb in enumerate(VERBS[:4])})
    history = []
    for number in range(1, 41):
        student.collect(number)
        history.append(student.optimise(number, 3e-3))
    first, last = history[0], history[-1]
    assert last["kl"] < 0.5 * first["kl"], (first, last)
    assert last["agreement"] > first["agreement"] + 0.1


def _gate_learner(experts: dict[str, NetworkAgent]) -> GatePPO:
    settings = _settings(Shape(4, 24, 16, choices=len(experts)), 128, 2)
    return GatePPO(experts, settings, LOSS, 0.0, "gto0", record.Seeds(1))


def test_a_gate_learns_which_expert_to_choose() -> None:
    """One expert acts at random, the other always turns, which is right only next to the object."""
    wanders, turns = _agent(1), _agent(2)
    for agent in (wanders, turns):
        for name in ("head", "skip", "head_bias"):
            agent.network.weights[name][:] = 0
    turns.network.weights["head_bias"][0] = 20
    learner = _gate_learner({"turns": turns, "wanders": wanders})
    kept = [expert.network.flat.copy() for expert in (turns, wanders)]
    for number in range(1, 21):
        learner.collect(number)
        learner.compute_advantages()
        metrics = learner.optimise(number, 1e-2)
    weights = learner.workers[0].rollout.weights.mean((0, 1))
    assert weights[1] > 0.65, weights
    assert metrics["gate_entropy"] < np.log(2)
    for before, agent in zip(kept, (turns, wanders), strict=True):
        np.testing.assert_array_equal(before, agent.network.flat)


def test_a_mixture_is_loaded_from_its_checkpoint_alone(tmp_path) -> None:
    experts = {"gtg": _agent(1), "gto": _agent(2, Shape(8, 16, 8))}
    mixture = Mixture(_gate(2), experts, "all0")
    tensors = checkpoints.named_tensors(mixture.gate.network, checkpoints.GATE)
    for name, expert in experts.items():
        tensors |= checkpoints.named_tensors(expert.network, name)
    about = checkpoints.description(mixture.gate.network.shape, "all0")
    about["experts"] = checkpoints.expert_descriptions(experts)
    save_checkpoint(tmp_path / "checkpoints", 1, tensors, about, run_id="ab")
    loaded = checkpoints.load(tmp_path)
    assert (loaded.stage, loaded.run_id, list(loaded.experts)) == ("all0", "ab", ["gtg", "gto"])
    assert [expert.run_id for expert in loaded.experts.values()] == [f"{i:032x}" for i in (1, 2)]
    actual, reference = (play(agent, "all0", range(50), None) for agent in (mixture, loaded))
    np.testing.assert_array_equal(actual.steps, reference.steps)
    with pytest.raises(record.UserError, match="--gto"):
        checkpoints.load_specialists({"gto": tmp_path})
