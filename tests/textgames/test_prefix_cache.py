"""The prefix cache against logits computed without it."""

import numpy as np
import pytest
import torch
from tests.textgames.test_kv_cache import VOCABULARY, logits_without_cache, small_model

from textgames.models import prefix_cache
from textgames.models.prefix_cache import DEPTH, PrefixCache


def check_conversations(memory, model, rng, prompts, length, few=3):
    """Continue prompts with random tokens, some ending early; compare all logits with those without a cache."""
    logits = memory.begin(prompts)
    conversations = [list(prompt) for prompt in prompts]
    going = np.ones(len(prompts), bool)
    for _ in range(length):
        for row in np.flatnonzero(going):
            torch.testing.assert_close(
                logits[row], logits_without_cache(model, conversations[row]), atol=2e-5, rtol=1e-4
            )
        going &= rng.random(len(prompts)) < 0.85
        if not going.any():
            return
        tokens = rng.integers(few, size=len(prompts))  # few: the same prefixes occur often
        for row in np.flatnonzero(going):
            conversations[row].append(int(tokens[row]))
        logits = memory.add_one(torch.from_numpy(tokens), torch.from_numpy(going))


@pytest.mark.parametrize("kind", ["qwen", "llama", "gemma"])
def test_logits_equal_those_without_a_cache(kind):
    model, rng = small_model(kind), np.random.default_rng(8)
    memory = PrefixCache(model)
    prompts = [rng.integers(VOCABULARY, size=rng.integers(1, 9)).tolist() for _ in range(5)]
    for _ in range(6):
        chosen = [prompts[i] for i in rng.integers(len(prompts), size=rng.integers(1, 12))]
        check_conversations(memory, model, rng, chosen, DEPTH + 4)


def test_no_prefix_is_computed_twice():
    model, rng = small_model("qwen"), np.random.default_rng(2)
    memory, prompts = PrefixCache(model), [[1, 2, 3], [4, 5], [1, 2, 3], [1, 2, 6]]
    memory.begin(prompts)
    assert memory.computed == 3 + 2 + 3
    memory.add_one(torch.tensor([7, 7, 7, 8]), torch.ones(4, dtype=torch.bool))
    assert memory.computed == 8 + 3
    for _ in range(3):
        memory.begin(prompts)
        memory.add_one(torch.tensor([7, 7, 7, 8]), torch.ones(4, dtype=torch.bool))
    assert memory.computed == 11
    memory.begin(prompts)
    memory.add_one(torch.tensor([9, 7, 7, 8]), torch.ones(4, dtype=torch.bool))
    assert memory.computed == 12
    check_conversations(memory, model, rng, prompts, DEPTH + 2, few=1)


def test_a_full_cache_drops_prefixes(monkeypatch):
    model, rng = small_model("qwen"), np.random.default_rng(2)
    monkeypatch.setattr(prefix_cache, "MAX_SIZE", 5000)
    memory, kept = PrefixCache(model), []
    for _ in range(20):
        prompts = [rng.integers(VOCABULARY, size=6).tolist() for _ in range(4)]
        check_conversations(memory, model, rng, prompts, DEPTH + 1)
        kept.append(memory.size)
    assert min(np.diff(kept)) < 0 < max(np.diff(kept))
    assert max(kept) < 15_000
