"""The private attributes of transformers' models that the text games read."""

from importlib.metadata import version

from transformers import Qwen2Config, Qwen2ForCausalLM

from textgames import compat

MOVED = f"transformers {version('transformers')} moved what textgames/compat.py reads"


def model():
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "vocab_size": 16}
    config = Qwen2Config(**sizes, num_attention_heads=2, num_key_value_heads=2)
    return Qwen2ForCausalLM._from_config(config, attn_implementation="eager")


def test_the_requested_attention_implementation_is_reported():
    assert compat.attention_implementation(model().config) == "eager", MOVED


def test_the_layers_that_stay_on_one_device_are_those_of_the_model():
    built = model()
    layers = {type(layer).__name__ for layer in built.model.layers}
    assert compat.unsplittable_layers(built) == layers, MOVED
