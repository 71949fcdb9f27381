"""The KV cache, token by token and turn by turn, against logits computed without it."""

import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from textgames.models import branch_attention, kv_cache
from textgames.models.kv_cache import KVCache

VOCABULARY = 40


def small_model(kind):
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    }  # fmt: skip
    torch.manual_seed(3)
    if kind == "qwen":
        return Qwen2ForCausalLM(Qwen2Config(**sizes)).eval()
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    return Gemma2ForCausalLM(Gemma2Config(**sizes, head_dim=8)).eval()


@torch.no_grad()
def logits_without_cache(model, tokens):
    return model(input_ids=torch.tensor([tokens])).logits[0, -1]


@pytest.mark.parametrize("kind", ["qwen", "llama", "gemma"])
def test_logits_after_adding_dropping_and_cutting_equal_those_without_a_cache(kind):
    model, rng = small_model(kind), np.random.default_rng(5)
    cache, conversations = KVCache(model, 6), [[] for _ in range(6)]
    for turn in range(5):
        chunks = [rng.integers(VOCABULARY, size=rng.integers(1, 12)).tolist() for _ in cache.rows]
        logits = cache.add(chunks)
        for row, chunk in zip(cache.rows, chunks, strict=True):
            conversations[row] += chunk
        columns, before = cache.columns, [list(row) for row in conversations]
        for _ in range(3):
            tokens = torch.from_numpy(rng.integers(VOCABULARY, size=len(cache.rows)))
            going_on = torch.from_numpy(rng.random(len(cache.rows)) < 0.7)
            logits = torch.where(going_on[:, None], cache.add_one(tokens, going_on), logits)
            for row, token, goes_on in zip(
                cache.rows, tokens.tolist(), going_on.tolist(), strict=True
            ):
                conversations[row] += [token] * goes_on
        for row, actual in zip(cache.rows, logits, strict=True):
            torch.testing.assert_close(
                actual, logits_without_cache(model, conversations[row]), atol=2e-5, rtol=1e-4
            )
        if turn == 1:
            cache.cut(columns)
            conversations = before
        if turn in (1, 3):
            going = np.arange(len(cache.rows)) % 3 != 1
            cache.keep(going)
    assert cache.rows.tolist() == [0, 3, 5]


def test_a_conversation_does_not_depend_on_the_others_and_no_token_is_computed_twice():
    model, rng = small_model("qwen"), np.random.default_rng(8)
    chunks = [[rng.integers(VOCABULARY, size=n).tolist() for n in (9, 2, 5)] for _ in range(4)]
    together, alone = KVCache(model, 4), KVCache(model, 1)
    for turn in range(3):
        logits = together.add([conversation[turn] for conversation in chunks])
        torch.testing.assert_close(alone.add([chunks[2][turn]])[0], logits[2], atol=2e-5, rtol=1e-4)
    assert together.computed == 4 * 16
    assert alone.computed == 16


def test_equal_prompts_are_computed_once():
    model, rng = small_model("qwen"), np.random.default_rng(2)
    prompts = [rng.integers(VOCABULARY, size=n).tolist() for n in (7, 4)]
    which, cache = [0, 1, 0, 0, 1], KVCache(model, 5)
    logits = cache.add([prompts[i] for i in which])
    assert cache.computed == 11
    conversations = [list(prompts[i]) for i in which]
    for _ in range(3):
        for row, actual in enumerate(logits):
            expected = logits_without_cache(model, conversations[row])
            torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4)
        chunks = [rng.integers(VOCABULARY, size=rng.integers(1, 4)).tolist() for _ in which]
        logits = cache.add(chunks)
        conversations = [
            conversation + chunk for conversation, chunk in zip(conversations, chunks, strict=True)
        ]


@pytest.mark.parametrize("kind", ["qwen", "llama"])
@pytest.mark.parametrize(
    "equal", [0, 2], ids=["from the first token on", "from the third token on"]
)
def test_a_long_beginning_of_conversations_that_part_is_kept_once(kind, equal, monkeypatch):
    """Turns, dropped conversations and a cut into the shared beginning give the logits of no cache."""
    monkeypatch.setattr(kv_cache, "SHARED", 20)
    model, rng = small_model(kind), np.random.default_rng(4)
    branch_attention.enable(model)
    prompts = [rng.integers(VOCABULARY, size=n).tolist() for n in (30, 21, 25)]
    which = [0, 2, 0, 1, 0, 2, 2, 0]
    cache, conversations = KVCache(model, 8), [list(prompts[i]) for i in which]

    def check(logits):
        assert cache.lengths.tolist() == [len(conversations[row]) for row in cache.rows]
        for row, actual in zip(cache.rows, logits, strict=True):
            expected = logits_without_cache(model, conversations[row])
            torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4)

    def reply(length):
        for step in range(length):
            tokens = rng.integers(VOCABULARY, size=len(cache.rows))
            if step < equal:
                tokens[:] = 7
            logits = cache.add_one(torch.from_numpy(tokens), torch.ones(len(tokens), dtype=bool))
            for row, token in zip(cache.rows, tokens.tolist(), strict=True):
                conversations[row].append(token)
        check(logits)

    check(cache.add(conversations))
    columns, before = cache.columns, [list(each) for each in conversations]
    reply(4)
    # Three prompts and at most eight replies, instead of eight conversations.
    assert cache.size <= (3 * (30 + equal) + 8 * 4) * 2 * 2 * 16
    cache.cut(columns)
    conversations = before
    for turn in range(3):
        chunks = [rng.integers(VOCABULARY, size=rng.integers(1, 9)).tolist() for _ in cache.rows]
        logits = cache.add(chunks)
        for row, chunk in zip(cache.rows, chunks, strict=True):
            conversations[row] += chunk
        check(logits)
        reply(3)
        cache.keep(np.arange(len(cache.rows)) % 4 != turn)
    assert len(cache.rows) == 3


def test_a_model_with_attention_windows_computes_as_before():
    model = small_model("gemma")
    branch_attention.enable(model)
    assert not branch_attention.is_enabled(model)


def test_the_cache_is_packed_when_much_of_it_is_empty():
    model = small_model("qwen")
    cache = KVCache(model, 3)
    cache.add([[1] * 40, [2] * 3, [3] * 4])
    assert cache.columns == 40
    cache.keep(np.array([False, True, True]))
    assert cache.columns == 4
    assert cache.lengths.tolist() == [3, 4]
    logits = cache.add([[7], [8, 9]])
    torch.testing.assert_close(
        logits[0], logits_without_cache(model, [2] * 3 + [7]), atol=2e-5, rtol=1e-4
    )
    torch.testing.assert_close(
        logits[1], logits_without_cache(model, [3] * 4 + [8, 9]), atol=2e-5, rtol=1e-4
    )
