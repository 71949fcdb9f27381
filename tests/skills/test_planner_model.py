"""A small language model that learns to plan."""

import os
import signal
from collections import Counter
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from runcatalog import record
from runcatalog.record.errors import Killed
from skills import planner_model
from skills.agents.evaluation import FIRST_TRAINING_SEED, TEST_SEEDS
from skills.learning.level_sets import fresh_seeds, levels
from skills.levels.content import keys, symmetric_keys
from skills.planner import gguf_file, prompts, small_lm
from skills.planner.demonstrations import Demonstration, demonstrate
from skills.planner.small_lm import ASSISTANT, END, USER, ImitationTrainer, Sizes, Texts

SMALL = {
    "stage": "nlm0", "levels": 20, "validation": 4, "updates": 8, "batch": 8, "width": 32, "layers": 1, "heads": 2,
    "save_interval": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def demonstrations() -> list[Demonstration]:
    levels = np.arange(FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + 200)
    return demonstrate("nlm0", levels, record.Seeds(1), 0.2)


def test_demonstrations_contain_only_observable_facts(demonstrations: list[Demonstration]) -> None:
    assert len(demonstrations) > 400
    for prompt, subtask in demonstrations:
        assert f"\n- {subtask}" in prompt.split("Sub-tasks:")[1]
        if subtask.startswith("pick up"):
            colour = subtask.split()[3]
            shown = f"- {colour} door, locked" in prompt
            assert shown or prompt.startswith(f"Task: open the {colour} door")
    assert {subtask.split(" the ")[0] for _, subtask in demonstrations} >= {
        "explore",
        "open",
        "pick up",
    }


def test_tokens_are_those_of_the_chat_template(demonstrations: list[Demonstration]) -> None:
    tokens = small_lm.tokenizer_for([example.prompt for example in demonstrations])
    texts = Texts.of(demonstrations, tokens)
    for item, conversation, answer in zip(demonstrations, texts.tokens, texts.answers, strict=True):
        asked = [
            {"role": "system", "content": prompts.SYSTEM},
            {"role": "user", "content": item.prompt},
        ]
        expected = tokens.apply_chat_template(asked, add_generation_prompt=True)["input_ids"]
        assert expected == conversation[:answer].tolist()
        text = f"{USER}{item.prompt}{END}{ASSISTANT}{prompts.answer(item.subtask)}{END}"
        assert tokens.decode(conversation) == text
    rows, mask = texts.batch(np.arange(5))
    for i in range(5):
        assert (
            tokens.decode(rows[i][mask[i]]) == f"{prompts.answer(demonstrations[i].subtask)}{END}"
        )


def test_a_gguf_file_has_the_model_and_its_tokens(
    demonstrations: list[Demonstration], tmp_path: Path
) -> None:
    """`transformers` reads the files of llama.cpp as well."""
    tokens = small_lm.tokenizer_for([example.prompt for example in demonstrations])
    model = small_lm.model_for(Sizes(64, 2, 4), tokens, 1)
    small_lm.save(model, tokens, tmp_path / "model")
    gguf_file.convert(tmp_path / "model", tmp_path / "planner.gguf")
    there = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="planner.gguf", dtype=torch.float32
    )
    asked = torch.tensor([tokens(demonstrations[0].prompt)["input_ids"]])
    with torch.no_grad():
        assert torch.equal(there(asked).logits, model(asked).logits)
    fields = gguf.GGUFReader(tmp_path / "planner.gguf").fields
    assert fields["tokenizer.ggml.tokens"].contents() == tokens.convert_ids_to_tokens(
        range(len(tokens))
    )
    assert fields["tokenizer.chat_template"].contents() == small_lm.TEMPLATE
    assert fields["tokenizer.ggml.eos_token_id"].contents() == tokens.eos_token_id


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(record.UserError, match=r"no config\.json"):
        gguf_file.convert(tmp_path, tmp_path / "planner.gguf")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(record.UserError, match="no model of Llama's architecture"):
        gguf_file.convert(tmp_path, tmp_path / "planner.gguf")
    tokens = small_lm.tokenizer_for(["a"])
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    other = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokens), **sizes, **heads))
    small_lm.save(other, tokens, tmp_path / "qwen2")  # Llama's layers, and biases
    with pytest.raises(record.UserError, match="no model of Llama's architecture"):
        gguf_file.convert(tmp_path / "qwen2", tmp_path / "planner.gguf")
    small_lm.save(small_lm.model_for(Sizes(8, 1, 1), tokens, 1), tokens, tmp_path / "model")
    with pytest.raises(record.UserError, match=r"there is no folder .*/missing"):
        gguf_file.convert(tmp_path / "model", tmp_path / "missing/planner.gguf")
    assert not (tmp_path / "planner.gguf").exists()


def test_it_learns_to_plan(demonstrations: list[Demonstration]) -> None:
    """Better than the most frequent answer, in unknown levels."""
    tokens = small_lm.tokenizer_for([example.prompt for example in demonstrations])
    held_out = demonstrate("nlm0", range(30), record.Seeds(2), 0.2)
    texts, others = Texts.of(demonstrations, tokens), Texts.of(held_out, tokens)
    pupil = ImitationTrainer(
        small_lm.model_for(Sizes(64, 2, 4), tokens, 1), texts, updates=220, batch=16, lr=4e-3,
        prompt_weight=1.0, seeds=record.Seeds(1),
    )  # fmt: skip
    before = small_lm.exact_matches(pupil.model, others).mean()
    losses = [pupil.learn()["loss"] for _ in range(220)]
    (_, often), *_ = Counter(item.subtask for item in held_out).most_common()
    assert before < 0.05
    assert small_lm.exact_matches(pupil.model, others).mean() > 1.2 * often / len(held_out)
    assert np.mean(losses[-10:]) < 0.1 * np.mean(losses[:10])


@pytest.mark.parametrize("count", [100, 1000])
def test_no_level_of_training_or_validation_is_tested(count: int) -> None:
    """Of nlm0, whose levels are few: among 2,000 plain seeds are some of test levels."""
    parts = planner_model.level_seeds(planner_model.Config(stage="nlm0", validation=count))
    tested = np.concatenate(
        [
            symmetric_keys(levels("nlm0", np.asarray(seeds))).ravel()
            for seeds in (TEST_SEEDS, fresh_seeds("nlm0"))
        ]
    )
    drawn = {name: keys(levels("nlm0", seeds)) for name, seeds in parts.items()}
    assert [len(drawn["taught"]), len(drawn["kept_out"])] == [2000, count]
    plain = np.arange(FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + 2000)
    assert np.isin(keys(levels("nlm0", plain)), tested).any()
    for found in drawn.values():
        assert not np.isin(found, tested).any()
    validated = symmetric_keys(levels("nlm0", parts["kept_out"]))
    assert not np.isin(drawn["taught"], validated).any()


def test_a_resumed_run_ends_with_the_same_weights(run_main, monkeypatch, tmp_path: Path) -> None:
    whole = run_main(tmp_path / "whole", planner_model, **SMALL)
    learn = ImitationTrainer.learn

    def breaks(self: ImitationTrainer) -> dict[str, float]:
        if self.update == 1:
            os.kill(os.getpid(), signal.SIGUSR1)  # as a scheduler warns
        if self.update == 5:
            raise OSError("the machine goes down")
        return learn(self)

    monkeypatch.setattr(ImitationTrainer, "learn", breaks)
    with pytest.raises(Killed, match="SIGUSR1"):
        run_main(tmp_path / "broken", planner_model, **SMALL)
    assert [path.name for path in (tmp_path / "broken/checkpoints").iterdir()] == ["00000002"]
    with pytest.raises(OSError, match="goes down"):
        run_main(tmp_path / "broken", planner_model, **SMALL)
    monkeypatch.setattr(ImitationTrainer, "learn", learn)
    resumed = run_main(tmp_path / "broken", planner_model, **SMALL)
    assert resumed["digest"] == whole["digest"]
    assert resumed["result"]["metrics"] == whole["result"]["metrics"]


@pytest.mark.parametrize(
    ("flags", "message"), [({"width": 100}, "--width"), ({"levels": 1}, "levels")]
)
def test_wrong_flags_are_named(flags: dict, message: str) -> None:
    with pytest.raises(record.UserError, match=message):
        planner_model.Config(**flags)
