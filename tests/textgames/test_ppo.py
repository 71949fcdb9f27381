"""Log-probabilities and PPO updates against naive formulas, one token at a time."""

import copy
from itertools import chain

import numpy as np
import pytest
import torch
from tests.textgames.learners import (
    GROUPS,
    SIZES,
    VOCABULARY,
    Trainer,
    small_model,
    trajectories,
    weights,
)
from transformers import Gemma2Config, Gemma2ForCausalLM

from textgames.learning.ppo import kl_divergence, policy_losses, shuffled_by_group
from textgames.models import branch_attention, prefix_sharing, scoring
from textgames.models.prefix_sharing import pack
from textgames.models.scoring import Batch, Critic, log_probs
from textgames.models.trajectories import Text


@torch.no_grad()
def naive(model, text, temperature):
    logits = model(input_ids=torch.from_numpy(text.tokens)[None]).logits[0].double() / temperature
    logs = logits.log_softmax(-1)
    at = [t for t in range(1, len(text.tokens)) if text.turns[t] >= 0]
    chosen = [float(logs[t - 1, text.tokens[t]]) for t in at]
    entropy = [-sum(float(p.exp() * p) for p in logs[t - 1]) for t in at]
    return chosen, entropy


@pytest.mark.parametrize("kind", ["qwen", "gemma"])
@pytest.mark.parametrize("pieces", [False, True])
def test_log_probabilities_and_entropies_are_those_of_each_text_alone(kind, pieces, monkeypatch):
    torch.manual_seed(1)
    model = (
        small_model() if kind == "qwen" else Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8))
    )
    if pieces:
        monkeypatch.setattr(scoring, "LOGITS_AT_ONCE", 3 * VOCABULARY)
    texts = [trajectory.texts[0] for trajectory in trajectories(np.random.default_rng(2))]
    batch = Batch.of(texts, torch.device("cpu"))
    logs, entropy = log_probs(model.eval(), batch, 0.7, entropies=True)
    assert torch.equal(log_probs(model, batch, 0.7)[0], logs)  # the same without entropies
    expected = [naive(model, text, 0.7) for text in texts]
    np.testing.assert_allclose(
        logs.detach(), list(chain.from_iterable(log_probs for log_probs, _ in expected)), atol=1e-4
    )
    np.testing.assert_allclose(
        entropy.detach(),
        list(chain.from_iterable(entropies for _, entropies in expected)),
        atol=1e-4,
    )
    logs.sum().backward()  # also across micro-batches
    assert all(weight.grad is not None for weight in model.parameters())


def test_observations_are_learned_from_only_by_flag_and_the_prompt_never():
    text = Text(np.arange(9), np.array([-1, -1, 0, 0, -1, -1, 1, 1, -1]))
    assert text.trained_turns().tolist() == [-1, -1, 0, 0, -1, -1, 1, 1, -1]
    assert text.trained_turns(all_tokens=True).tolist() == [-1, -1, 0, 0, 0, 0, 1, 1, 1]


def branches(rng, count=8):
    """Trajectories of two games, which begin alike within a game, some to their end."""
    played = trajectories(rng, count)
    for b, trajectory in enumerate(played):
        text, like = trajectory.texts[0], played[b % 2].texts[0]
        keep = min(len(text.tokens), len(like.tokens), int(rng.integers(2, 14)))
        tokens = np.concatenate([like.tokens[:keep], text.tokens[keep:]])
        turns = np.concatenate([like.turns[:keep], text.turns[keep:]])
        turns[-1] = max(turns.max(), 0)  # every trajectory has a token to learn from
        trajectory.texts[0] = Text(tokens, turns)
    played[4], played[5] = copy.deepcopy(played[0]), copy.deepcopy(played[3])
    for trajectory in played:
        turns = max(text.turns.max() for text in trajectory.texts) + 1
        trajectory.rewards = rng.normal(size=turns).tolist()
    return played


@pytest.mark.parametrize("all_tokens", [False, True])
@pytest.mark.parametrize("branching", [False, True])
def test_shared_prefixes_are_computed_once_with_equal_results(all_tokens, branching, monkeypatch):
    monkeypatch.setattr(prefix_sharing, "GATHERING", 0)  # so that short texts are worth groups
    rng, shared, grouped = np.random.default_rng(7), 0, 0
    for _ in range(10):
        model, texts = small_model().eval(), [trajectory.texts[0] for trajectory in branches(rng)]
        if branching:
            branch_attention.enable(model)
        rng.shuffle(texts)
        plain, tree = (
            Batch.of(
                texts, torch.device("cpu"), all_tokens=all_tokens, sharing_cost=cost,
                branching=branch_attention.is_enabled(model),
            )
            for cost in (0, int(rng.integers(1, 200)))
        )  # fmt: skip
        assert tree.inputs["input_ids"].numel() <= plain.inputs["input_ids"].numel()
        shared += len(tree.inputs) > 1
        grouped += "branches" in tree.inputs
        gradients = []
        for batch in (plain, tree):
            model.zero_grad()
            (logs,) = log_probs(model, batch, 0.7)
            (logs * torch.arange(len(logs))).mean().backward()
            gradients.append(
                [logs.detach(), *(weight.grad.clone() for weight in model.parameters())]
            )
        for actual, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-3)
    assert shared > 5
    assert (grouped > 3) == branching


def test_long_replies_to_a_prompt_look_at_it_and_themselves_alone():
    rng = np.random.default_rng(3)
    prompt, replies = rng.integers(VOCABULARY, size=60), rng.integers(VOCABULARY, size=(12, 30))
    replies[:, 0] = np.arange(12)
    texts = [np.concatenate([prompt, reply]) for reply in replies]
    dense, grouped = (pack(texts, 1000, branching=branching) for branching in (False, True))
    assert dense.visible.shape == (1, 420, 420)
    assert grouped.visible is None
    assert (grouped.tokens == dense.tokens).all()
    pairs = sum(group.queries.size * group.keys.shape[1] for group in grouped.groups)
    assert pairs == 90 * 90 + 11 * 30 * 90
    assert pairs < dense.visible.size / 4
    seen = {q: set() for q in range(420)}
    for queries, keys, first in grouped.groups:
        for row, at in enumerate(queries):
            for number, place in enumerate(at):
                seen[place] |= set(keys[row, : first[row] + number + 1])
    assert [sorted(seen[q]) for q in range(420)] == [list(np.flatnonzero(row)) for row in dense.visible[0]]  # fmt: skip


def test_a_model_that_can_branch_answers_as_before():
    model = small_model().eval()
    tokens = torch.from_numpy(np.random.default_rng(1).integers(VOCABULARY, size=(3, 9)))
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0
    expected = model(input_ids=tokens, attention_mask=mask).logits
    branch_attention.enable(model)
    assert branch_attention.is_enabled(model)
    assert torch.equal(model(input_ids=tokens, attention_mask=mask).logits, expected)
    other = Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8, attn_implementation="eager"))
    branch_attention.enable(other)
    assert not branch_attention.is_enabled(other)


def test_equal_trajectories_of_a_game_are_computed_once():
    text = trajectories(np.random.default_rng(1), 1)[0].texts[0]
    one = Batch.of([text], torch.device("cpu"))
    many = Batch.of([text] * 16, torch.device("cpu"), sharing_cost=64)
    assert many.inputs["input_ids"].tolist() == one.inputs["input_ids"].tolist()
    assert many.counts == 16 * one.counts


@pytest.mark.parametrize("minibatch", [3, 8])
def test_an_update_does_not_depend_on_prefix_sharing(minibatch):
    results = []
    for micro in (1, 8):
        model = small_model()
        before, critic = model.config._attn_implementation, Critic(model)
        trainer = Trainer(
            model,
            critic,
            micro_batch_size=micro,
            estimator="gae",
            minibatch_size=minibatch,
            epochs=2,
            kl_coef=0.1,
        )
        assert before == "sdpa"
        played = branches(np.random.default_rng(4))
        metrics = trainer.update(played, np.arange(8) % 2, np.random.default_rng(1))
        results.append((weights(model), weights(critic), metrics))
    torch.testing.assert_close(results[1][0], results[0][0], atol=2e-4, rtol=1e-3)
    torch.testing.assert_close(results[1][1], results[0][1], atol=2e-4, rtol=1e-3)
    assert results[1][2] == pytest.approx(results[0][2], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("texts", [1, 3])
def test_an_update_does_not_depend_on_the_micro_batch_size(texts):
    results = []
    for micro in (1, 2, 3, 6):
        model = small_model()
        critic = Critic(model)
        trainer = Trainer(
            model, critic, micro_batch_size=micro, estimator="gae", minibatch_size=6, epochs=2
        )
        metrics = trainer.update(
            trajectories(np.random.default_rng(4), texts=texts), GROUPS, np.random.default_rng(1)
        )
        results.append((weights(model), weights(critic), metrics))
    for other in results[1:]:
        torch.testing.assert_close(other[0], results[0][0], atol=2e-4, rtol=1e-3)
        torch.testing.assert_close(other[1], results[0][1], atol=2e-4, rtol=1e-3)
        assert other[2] == pytest.approx(results[0][2], rel=1e-3, abs=1e-5)


def test_the_first_step_follows_the_policy_gradient_of_the_definition():
    model, played = small_model(), trajectories(np.random.default_rng(6))
    trainer = Trainer(model, estimator="brpo", entropy_coef=0.3, kl_coef=0.0, temperature=0.7)
    other = copy.deepcopy(model)
    trainer.update(played, GROUPS, np.random.default_rng(1))
    scores = np.array([sum(trajectory.rewards) for trajectory in played])
    advantages = (scores - scores.mean()) / (scores.std(ddof=1) + 1e-6)
    total, count = 0.0, 0
    for trajectory, advantage in zip(played, advantages, strict=True):
        tokens = torch.from_numpy(trajectory.texts[0].tokens)
        logs = (other(input_ids=tokens[None]).logits[0] / 0.7).log_softmax(-1)
        for t in range(1, len(tokens)):
            if trajectory.texts[0].turns[t] >= 0:
                total = total - advantage * logs[t - 1, tokens[t]]
                total = total + 0.3 * (logs[t - 1].exp() * logs[t - 1]).sum()
                count += 1
    (total / count).backward()
    for actual, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, expected.grad, atol=1e-5, rtol=1e-3)


def test_the_divergence_penalty_reduces_the_divergence_from_the_reference():
    played, model = trajectories(np.random.default_rng(6)), small_model()
    for trajectory in played:
        trajectory.rewards = [0.0]  # nothing to win
    trainer = Trainer(model, estimator="brpo", entropy_coef=0.0, kl_coef=1.0)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    divergences = [
        trainer.update(played, GROUPS, np.random.default_rng(i))["kl/reference"] for i in range(15)
    ]
    assert divergences[-1] < 0.5 * divergences[0]


def test_the_divergence_is_non_negative_and_of_second_order_near_zero():
    logs = torch.linspace(-5, 0, 11)
    assert kl_divergence(logs, logs).abs().max() == 0
    assert (kl_divergence(logs, logs.flip(0)) >= 0).all()
    torch.testing.assert_close(
        kl_divergence(logs, logs + 0.01), torch.full((11,), 0.01**2 / 2), rtol=0.01, atol=0
    )
    assert kl_divergence(torch.tensor([-50.0]), torch.tensor([0.0])) == 10


def test_the_divergence_is_unbiased_for_tokens_of_the_first_policy():
    generator = torch.Generator().manual_seed(1)
    p, q = (torch.randn(2, 9, generator=generator, dtype=torch.float64) / 2).log_softmax(-1)
    exact = torch.nn.functional.kl_div(q, p, reduction="sum", log_target=True)
    torch.testing.assert_close((p.exp() * kl_divergence(p, q)).sum(), exact)


@pytest.mark.parametrize(
    ("advantage", "ratio", "expected", "clipped"),
    [(1, 1.1, -1.1, False), (1, 1.5, -1.3, True), (1, 0.5, -0.5, False), (-1, 1.5, 1.5, False), (-2, 0.5, 1.6, True)],
)  # fmt: skip
def test_a_ratio_is_clipped_at_separate_limits_below_and_above(advantage, ratio, expected, clipped):
    logs = torch.tensor([ratio]).log()
    loss, was = policy_losses(logs, torch.zeros(1), torch.tensor([float(advantage)]), 0.2, 0.3)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert was.item() is clipped


def test_a_critic_learns_the_score_while_the_model_stays():
    model, played = small_model(), trajectories(np.random.default_rng(9))
    for trajectory in played:
        trajectory.rewards = [3.0]
    critic = Critic(model)
    trainer, before = (
        Trainer(model, critic, estimator="gae", minibatch_size=3),
        weights(model).clone(),
    )
    losses = [
        trainer.update(played, GROUPS, np.random.default_rng(i), critic_only=True)["loss/value"]
        for i in range(40)
    ]
    assert losses[0] == pytest.approx(9.0, rel=0.2)
    assert losses[-1] < 0.5
    torch.testing.assert_close(weights(model), before, rtol=0, atol=0)


def test_a_critic_of_a_model_in_bf16_rounds_no_small_step_away():
    model, played = small_model().bfloat16(), trajectories(np.random.default_rng(9))
    critic = Critic(model)
    body = torch.nn.utils.parameters_to_vector(critic.body.parameters()).detach().clone()
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    torch.nn.init.normal_(critic.head.weight)
    trainer = Trainer(
        model, critic, None, estimator="gae", kl_coef=0.0, actor_lr=1e-6, critic_lr=1e-6,
        autocast=lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    )  # fmt: skip
    trainer.update(played, GROUPS, np.random.default_rng(1), critic_only=True)
    moved = torch.nn.utils.parameters_to_vector(critic.body.parameters()).detach() - body
    assert (moved != 0).float().mean() > 0.5  # a unit of bf16 is a thousand times such a step


def test_a_restored_learner_continues_bit_equal():
    played = trajectories(np.random.default_rng(9))
    model = small_model()
    trainer = Trainer(model, kl_coef=0.0)
    trainer.update(played, GROUPS, np.random.default_rng(1))
    stored, state = copy.deepcopy(model.state_dict()), copy.deepcopy(trainer.learner.state())
    trainer.update(played, GROUPS, np.random.default_rng(2))
    other = small_model(seed=8)
    other.load_state_dict(stored)
    again = Trainer(other, kl_coef=0.0)
    again.learner.restore(state)
    again.update(played, GROUPS, np.random.default_rng(2))
    torch.testing.assert_close(weights(other), weights(model), rtol=0, atol=0)


def test_a_step_is_as_large_as_its_share_of_the_step_size():
    """AdamW's first step, without its decay of weights."""
    moved = []
    for step in (1.0, 0.25, 0.0):
        model = small_model()
        trainer, before = Trainer(model, kl_coef=0.0, minibatch_size=len(GROUPS)), weights(model)
        trainer.learner.optimizer.param_groups[0]["weight_decay"] = 0.0
        trainer.update(
            trajectories(np.random.default_rng(9)), GROUPS, np.random.default_rng(1), lr_scale=step
        )
        moved.append(weights(model) - before)
    torch.testing.assert_close(moved[1], moved[0] / 4, rtol=1e-3, atol=1e-6)
    assert moved[0].abs().max() > 1e-4
    assert (moved[2] == 0).all()


def test_an_order_has_all_trajectories_once_and_those_of_a_game_together():
    groups, rng, firsts = np.array([4, 2, 4, 9, 2, 4, 9]), np.random.default_rng(3), set()
    for _ in range(60):
        order = shuffled_by_group(groups, rng)
        assert sorted(order) == list(range(7))
        names = groups[order]
        assert (names[1:] != names[:-1]).sum() == 2
        firsts.add(int(order[0]))
    assert firsts == set(range(7))
