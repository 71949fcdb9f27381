"""Convert a model of `skill:planner_model` to GGUF, the file format of llama.cpp.

As a command: `python -m skills.planner.gguf_file FOLDER FILE`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import torch
from transformers import AutoConfig, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from runcatalog import record

PRE_TOKENIZER = "starcoder"  # llama.cpp's name for the splitting of `small_lm.tokenizer_for`


def convert(folder: Path, file: Path) -> None:
    """Write a saved model with its tokenizer and chat template to a GGUF file, in float32.

    Args:
        folder: Folder of `small_lm.save`, such as a run's `artifacts/model`.
        file: The new file.

    Raises:
        UserError: The folder has no such model, or there is no folder for the file.
    """
    if not (folder / "config.json").is_file():
        raise record.UserError(
            f"{folder}: no config.json; the model of a run is in its artifacts/model"
        )
    if not file.parent.is_dir():
        raise record.UserError(f"{file}: there is no folder {file.parent}")
    disable_progress_bar()
    try:
        # `from_pretrained` would ignore weights that Llama does not have, such as the biases of Qwen2.
        if not isinstance(AutoConfig.from_pretrained(folder), LlamaConfig):
            raise ValueError("config.json has another one")
        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        tokens = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, RuntimeError) as error:
        raise record.UserError(f"{folder}: no model of Llama's architecture: {error}") from None
    config = model.config
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.LLAMA])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    _add_tokens(writer, tokens, folder)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in model.named_parameters():
        renamed = names.get_name(name, try_suffixes=(".weight",))
        for part, count in heads.items():
            if f".{part}." in name:
                weight = _interleaved(weight, count)
        writer.add_tensor(renamed, weight.detach().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokens(writer: gguf.GGUFWriter, tokens: AutoTokenizer, folder: Path) -> None:
    special = set(tokens.all_special_ids) | set(tokens.added_tokens_decoder)
    kinds = [
        gguf.TokenType.CONTROL if number in special else gguf.TokenType.NORMAL
        for number in range(len(tokens))
    ]
    writer.add_tokenizer_model("gpt2")  # llama.cpp's name of byte-level BPE
    writer.add_tokenizer_pre(PRE_TOKENIZER)
    writer.add_token_list(tokens.convert_ids_to_tokens(range(len(tokens))))
    writer.add_token_types(kinds)
    gguf.SpecialVocab(folder, load_merges=True).add_to_gguf(writer)
    writer.add_add_bos_token(False)


def _interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the rows of a projection, [heads * size, width], as llama.cpp rotates them: pairs are neighbours.

    `transformers` pairs row i of a head with row i + size / 2.
    """
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).transpose(1, 2).reshape(rows, width)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of the model: a run's artifacts/model")
    parser.add_argument("file", type=Path, help="the new file, such as planner.gguf")
    options = parser.parse_args()
    try:
        convert(options.folder, options.file)
    except record.UserError as error:
        parser.exit(2, f"skills.planner.gguf_file: {error}\n")
    print(f"{options.file}: {options.file.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
