"""Conversations read token by token, turn by turn: the logits of a model that reads each from its beginning."""

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

from textgames.models.kv_cache import KVCache

VOCABULARY = 40


def made(kind):
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
def from_the_beginning(model, tokens):
    return model(input_ids=torch.tensor([tokens])).logits[0, -1]


@pytest.mark.parametrize("kind", ["qwen", "llama", "gemma"])
def test_whatever_is_added_dropped_and_taken_back_the_logits_are_those_of_reading_anew(kind):
    model, rng = made(kind), np.random.default_rng(5)
    reading, told = KVCache(model, 6), [[] for _ in range(6)]
    for turn in range(5):
        chunks = [rng.integers(VOCABULARY, size=rng.integers(1, 12)).tolist() for _ in reading.rows]
        logits = reading.add(chunks)
        for row, chunk in zip(reading.rows, chunks, strict=True):
            told[row] += chunk
        columns, before = reading.columns, [list(each) for each in told]
        for _ in range(3):
            tokens = torch.from_numpy(rng.integers(VOCABULARY, size=len(reading.rows)))
            of = torch.from_numpy(rng.random(len(reading.rows)) < 0.7)
            logits = torch.where(of[:, None], reading.add_one(tokens, of), logits)
            for row, token, is_of in zip(reading.rows, tokens.tolist(), of.tolist(), strict=True):
                told[row] += [token] * is_of
        for row, found in zip(reading.rows, logits, strict=True):
            torch.testing.assert_close(
                found, from_the_beginning(model, told[row]), atol=2e-5, rtol=1e-4
            )
        if turn == 1:
            reading.cut(columns)
            told = before
        if turn in (1, 3):
            going = np.arange(len(reading.rows)) % 3 != 1
            reading.keep(going)
    assert reading.rows.tolist() == [0, 3, 5]


def test_a_conversation_does_not_depend_on_the_others_and_each_token_is_read_once():
    model, rng = made("qwen"), np.random.default_rng(8)
    chunks = [[rng.integers(VOCABULARY, size=n).tolist() for n in (9, 2, 5)] for _ in range(4)]
    together, alone = KVCache(model, 4), KVCache(model, 1)
    for turn in range(3):
        all_of = together.add([each[turn] for each in chunks])
        torch.testing.assert_close(alone.add([chunks[2][turn]])[0], all_of[2], atol=2e-5, rtol=1e-4)
    assert together.computed == 4 * 16
    assert alone.computed == 16


def test_conversations_that_begin_alike_are_read_once():
    model, rng = made("qwen"), np.random.default_rng(2)
    begun = [rng.integers(VOCABULARY, size=n).tolist() for n in (7, 4)]
    which, reading = [0, 1, 0, 0, 1], KVCache(model, 5)
    logits = reading.add([begun[i] for i in which])
    assert reading.computed == 11
    told = [list(begun[i]) for i in which]
    for _ in range(3):
        for row, found in enumerate(logits):
            wanted = from_the_beginning(model, told[row])
            torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-4)
        chunks = [rng.integers(VOCABULARY, size=rng.integers(1, 4)).tolist() for _ in which]
        logits = reading.add(chunks)
        told = [each + chunk for each, chunk in zip(told, chunks, strict=True)]


def test_the_cache_is_packed_when_much_of_it_is_empty():
    model = made("qwen")
    reading = KVCache(model, 3)
    reading.add([[1] * 40, [2] * 3, [3] * 4])
    assert reading.columns == 40
    reading.keep(np.array([False, True, True]))
    assert reading.columns == 4
    assert reading.lengths.tolist() == [3, 4]
    found = reading.add([[7], [8, 9]])
    torch.testing.assert_close(
        found[0], from_the_beginning(model, [2] * 3 + [7]), atol=2e-5, rtol=1e-4
    )
    torch.testing.assert_close(
        found[1], from_the_beginning(model, [3] * 4 + [8, 9]), atol=2e-5, rtol=1e-4
    )
