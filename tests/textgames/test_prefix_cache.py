"""What was read is recalled: the logits of a model that reads each conversation from its beginning."""

import numpy as np
import pytest
import torch
from tests.textgames.test_kv_cache import VOCABULARY, from_the_beginning, made

from textgames.models import prefix_cache
from textgames.models.prefix_cache import DEPTH, PrefixCache


def talk(memory, model, rng, prompts, length, few=3):
    """Conversations of which some end early; holds all logits to those from the beginning."""
    logits = memory.begin(prompts)
    told = [list(each) for each in prompts]
    going = np.ones(len(prompts), bool)
    for _ in range(length):
        for row in np.flatnonzero(going):
            torch.testing.assert_close(
                logits[row], from_the_beginning(model, told[row]), atol=2e-5, rtol=1e-4
            )
        going &= rng.random(len(prompts)) < 0.85
        if not going.any():
            return
        tokens = rng.integers(few, size=len(prompts))  # few: what was said is often said again
        for row in np.flatnonzero(going):
            told[row].append(int(tokens[row]))
        logits = memory.add_one(torch.from_numpy(tokens), torch.from_numpy(going))


@pytest.mark.parametrize("kind", ["qwen", "llama", "gemma"])
def test_whatever_was_said_before_the_logits_are_those_of_reading_anew(kind):
    model, rng = made(kind), np.random.default_rng(8)
    memory = PrefixCache(model)
    prompts = [rng.integers(VOCABULARY, size=rng.integers(1, 9)).tolist() for _ in range(5)]
    for _ in range(6):
        chosen = [prompts[i] for i in rng.integers(len(prompts), size=rng.integers(1, 12))]
        talk(memory, model, rng, chosen, DEPTH + 4)


def test_nothing_is_read_twice():
    model, rng = made("qwen"), np.random.default_rng(2)
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
    talk(memory, model, rng, prompts, DEPTH + 2, few=1)


def test_it_forgets_when_it_holds_too_much(monkeypatch):
    model, rng = made("qwen"), np.random.default_rng(2)
    monkeypatch.setattr(prefix_cache, "MAX_SIZE", 5000)
    memory, kept = PrefixCache(model), []
    for _ in range(20):
        prompts = [rng.integers(VOCABULARY, size=6).tolist() for _ in range(4)]
        talk(memory, model, rng, prompts, DEPTH + 1)
        kept.append(memory.size)
    assert min(np.diff(kept)) < 0 < max(np.diff(kept))
    assert max(kept) < 15_000
