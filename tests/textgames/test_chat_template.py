"""Conversations assembled from parts against the chat templates' own text."""

from itertools import chain

import pytest
from transformers import Qwen2Tokenizer

from runcatalog import record
from textgames.models import chat_template, tiny

# Templates in the manner of well-known models, and the tokens that end a reply.
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SYSTEM = "<|im_start|>system\nYou help.<|im_end|>\n"
QWEN = f"{{% if messages[0]['role'] != 'system' %}}{SYSTEM}{{% endif %}}{CHATML}"
DATE = "<|start_header_id|>system<|end_header_id|>\n\nToday: a day<|eot_id|>"
LLAMA = (
    f"{{{{ bos_token }}}}{DATE}"
    "{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + (m['content'] | trim) "
    "+ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + (m['content'] | trim) + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + '[/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)
REASONER = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '<|User|>' + m['content'] }}"
    "{% else %}{{ '<|Assistant|>' + m['content'].split('</think>')[-1] + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}"
)
KINDS = {
    "ChatML": (CHATML, {"eos_token": "<|im_end|>"}, ["<|im_start|>"], "<|im_end|>"),
    "Qwen2.5": (QWEN, {"eos_token": "<|im_end|>"}, ["<|im_start|>"], "<|im_end|>"),
    "Qwen2.5 base": (QWEN, {"eos_token": "<|endoftext|>"}, ["<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "Llama 3": (
        LLAMA, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        ["<|start_header_id|>", "<|end_header_id|>"], "<|eot_id|>",
    ),
    "Gemma": (
        GEMMA, {"bos_token": "<bos>", "eos_token": "<eos>"}, ["<start_of_turn>", "<end_of_turn>"], "<end_of_turn>",
    ),
    "Mistral": (MISTRAL, {"bos_token": "<s>", "eos_token": "</s>"}, ["[INST]", "[/INST]"], "</s>"),
    "R1": (REASONER, {"bos_token": "<s>", "eos_token": "</s>"}, ["<|User|>", "<|Assistant|>"], "</s>"),
}  # fmt: skip
TALK = ["the first state", "<answer>Up</answer>", "another state", "<answer>Down</answer>", "a third"]  # fmt: skip
ROLES = ("user", "assistant") * 2 + ("user",)


def tokenizer_of(kind: str) -> Qwen2Tokenizer:
    template, named, more, _ = KINDS[kind]
    tokenizer = Qwen2Tokenizer().train_new_from_iterator([TALK], 300, show_progress=False)
    tokenizer.add_special_tokens(named | {"additional_special_tokens": more})
    tokenizer.chat_template = template
    return tokenizer


def conversation(pieces: chat_template.ChatParts) -> str:
    """The conversation from its parts; the first reply has its end token, the second has none."""
    first = pieces.first(TALK[0]) + TALK[1] + pieces.end
    return first + pieces.next(TALK[2], ended=True) + TALK[3] + pieces.next(TALK[4], ended=False)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_give_the_text_of_the_template(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    messages = [{"role": r, "content": text} for r, text in zip(ROLES, TALK, strict=True)]
    whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    for family, system in (("Qwen", SYSTEM), ("Llama", DATE)):
        if kind.startswith(family):
            assert system in whole
            whole = whole.replace(system, "")
    if kind == "R1":  # opens a thought before every reply, the template only before the last one
        whole = whole.replace("<|Assistant|><answer>", "<|Assistant|><think>\n<answer>")
    if kind == "Mistral":  # the space before a reply is the template's
        whole += " "
    assert conversation(chat_template.chat_parts(tokenizer)) == whole


@pytest.mark.parametrize("kind", KINDS)
def test_what_ends_a_reply_is_one_special_token(kind: str) -> None:
    tokenizer, end = tokenizer_of(kind), KINDS[kind][-1]
    pieces = chat_template.chat_parts(tokenizer)
    assert pieces.end == end
    ids = tokenizer(pieces.end, add_special_tokens=False)["input_ids"]
    assert ids == [tokenizer.convert_tokens_to_ids(end)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_thought_is_opened_once(kind: str) -> None:
    opened = chat_template.chat_parts(tokenizer_of(kind), think=True)
    for text in (opened.first("a"), opened.next("b", ended=True), opened.next("b", ended=False)):
        assert text.count("<think>") == 1
        assert text.rstrip().endswith("<think>")


def test_the_tiny_models_template_is_one_of_them() -> None:
    tokenizer = tiny.tokenizer_for([*TALK, "<think>"])
    pieces = chat_template.chat_parts(tokenizer, think=True)
    assert pieces.first("x") == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<think>"
    assert pieces.end == "<|im_end|>"
    # Piece by piece it has the tokens that it has as a whole.
    parts = [pieces.first(TALK[0]), TALK[1], pieces.end, pieces.next(TALK[2], ended=True), TALK[3]]
    ids = tokenizer(parts, add_special_tokens=False)["input_ids"]
    assert [*chain(*ids)] == tokenizer("".join(parts), add_special_tokens=False)["input_ids"]


def test_an_unusable_template_is_an_error() -> None:
    tokenizer = tokenizer_of("ChatML")
    for template, needed in (
        (None, "no chat template"),
        ("{% for m in messages %}{{ m['content'] | upper }}{% endfor %}", "once and unchanged"),
        ("{{ messages[-1]['content'] }}", "every message once"),
    ):
        tokenizer.chat_template = template
        with pytest.raises(record.UserError, match=needed):
            chat_template.chat_parts(tokenizer)
