"""Folders of models with Qwen2.5's architecture: random weights, a small tokenizer, ChatML as chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from textgames.games import example_texts
from textgames.games.config import GAMES, GameConfig
from textgames.models.tiny import TEMPLATE

# Qwen2.5-0.5B's config.json.
HALF_BILLION = {
    "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True,
}  # fmt: skip
SMALL = {
    "vocab_size": 700, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
SYSTEM = "<|im_start|>system\\nYou answer questions.<|im_end|>\\n"
CHAT = f"{{% if messages[0]['role'] != 'system' %}}{{{{ '{SYSTEM}' }}}}{{% endif %}}{TEMPLATE}"


def tokenizer() -> Qwen2Tokenizer:
    """Return a tokenizer with Qwen2.5's special tokens; its vocabulary is smaller than the models'."""
    texts = [text for env in GAMES for text in example_texts.texts(GameConfig(env=env))]
    made = Qwen2Tokenizer().train_new_from_iterator([texts], 500, show_progress=False)
    made.add_special_tokens({
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "additional_special_tokens": ["<|im_start|>"],
    })  # fmt: skip
    made.chat_template = CHAT
    return made


def write(folder: Path, sizes: dict[str, Any], *, max_shard_size: str = "5GB") -> Path:
    """Write a model in bf16, as Qwen2.5 is published, and its tokenizer; return the folder."""
    words = tokenizer()
    config = Qwen2Config(
        **sizes, max_position_embeddings=32_768, rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        bos_token_id=None, eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id, dtype="bfloat16",
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM._from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    words.save_pretrained(folder)
    return folder
