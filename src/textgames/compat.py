"""Private attributes of transformers 5.23's models, read here alone."""

from typing import Any


def attention_implementation(config: Any) -> str:
    """Return which attention a model computes with: "sdpa", "eager", "flash_attention_2", …"""
    return config._attn_implementation


def unsplittable_layers(model: Any) -> set[str]:
    """Return the class names of a model's layers that must stay on one device."""
    modules = model.modules()
    return {name for m in modules for name in getattr(m, "_no_split_modules", None) or ()}
