"""A small language model that learns to plan: tokenizer, initial weights and training.

It is a causal model in the format of `transformers`, which any server can load. Its chat template leaves out the
system message, which is the same in all prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from rl.schedule import rise_and_fall
from runcatalog import record
from skills.planner import prompts
from skills.planner.demonstrations import Demonstration

PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
VOCABULARY = 512
LENGTH = 1024  # of a conversation, at most [tokens]
WARM_UP = 0.05  # share of the updates with a rising step size
CHUNK = 64  # demonstrations that are evaluated together


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model.

    Attributes:
        width: Size of a token's embedding.
        layers: Number of layers.
        heads: Attention heads per layer.
    """

    width: int
    layers: int
    heads: int


def tokenizer_for(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer (Sennrich et al. 2016), trained on texts.

    Texts are split as by StarCoder's tokenizer (Li et al. 2023), which llama.cpp has too: into words, single digits and
    punctuation, with the space before.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[PAD, USER, ASSISTANT, END], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, chat_template=TEMPLATE,
        model_max_length=LENGTH, clean_up_tokenization_spaces=False,
    )  # fmt: skip


def model_for(sizes: Sizes, tokens: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Return a model of Llama's architecture with random weights."""
    config = LlamaConfig(
        vocab_size=len(tokens), hidden_size=sizes.width, intermediate_size=3 * sizes.width,
        num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads, max_position_embeddings=LENGTH,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=tokens.eos_token_id,
        pad_token_id=tokens.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # transformers draws initial weights from torch's global generator
        model = LlamaForCausalLM(config)
    model.generation_config.do_sample = False
    return model


@dataclass(frozen=True)
class Texts:
    """Tokenised conversations.

    Attributes:
        tokens: Tokens of every conversation, int64 [length].
        answers: Position at which the answer begins.
    """

    tokens: list[NDArray[np.int64]]
    answers: list[int]

    @classmethod
    def of(cls, demonstrations: Sequence[Demonstration], tokens: PreTrainedTokenizerFast) -> Texts:
        """Tokenise demonstrations, formatted by the chat template."""
        asked = [f"{USER}{item.prompt}{END}{ASSISTANT}" for item in demonstrations]
        answers = [f"{prompts.answer(item.subtask)}{END}" for item in demonstrations]
        before = tokens(asked, add_special_tokens=False)["input_ids"]
        after = tokens(answers, add_special_tokens=False)["input_ids"]
        pairs = zip(before, after, strict=True)
        return cls([np.array(a + b) for a, b in pairs], [len(prompt) for prompt in before])

    def batch(self, which: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens, int64 [B, T], padded with 0, and the mask of the answers' tokens, bool [B, T]."""
        length = max(len(self.tokens[i]) for i in which)
        rows, is_answer = (
            np.zeros((len(which), length), np.int64),
            np.zeros((len(which), length), bool),
        )
        for row, i in enumerate(which):
            rows[row, : len(self.tokens[i])] = self.tokens[i]
            is_answer[row, self.answers[i] : len(self.tokens[i])] = True
        return torch.from_numpy(rows), torch.from_numpy(is_answer)


class ImitationTrainer:
    """Training of a model on demonstrations with AdamW.

    Args:
        model: Model of `model_for`.
        texts: Training set.
        updates: Number of updates, for the step size's schedule.
        batch: Demonstrations per update.
        lr: AdamW's highest step size.
        prompt_weight: Weight of the loss on the prompt's tokens, relative to the answer's. Predicting prompts teaches
            the model to copy names.
        seeds: Streams of the order of the demonstrations.

    Attributes:
        update: Number of updates so far.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        texts: Texts,
        *,
        updates: int,
        batch: int,
        lr: float,
        prompt_weight: float,
        seeds: record.Seeds,
    ) -> None:
        self.model, self.update = model, 0
        self._texts, self._updates, self._batch = texts, updates, batch
        self._lr, self._prompt_weight, self._seeds = lr, prompt_weight, seeds
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01
        )
        self._order = np.zeros(0, np.int64)
        self._epoch = -1

    def learn(self) -> dict[str, float]:
        """Make an update; return its loss on the answers and the gradient's norm."""
        rows, is_answer = self._texts.batch(self._next_batch())
        logits = self.model(input_ids=rows[:, :-1]).logits
        losses = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
        is_answer = is_answer[:, 1:].flatten()
        is_prompt = (rows[:, 1:].flatten() != 0) & ~is_answer
        loss = losses[is_answer].mean()
        self.optimizer.zero_grad()
        (loss + self._prompt_weight * losses[is_prompt].mean()).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.update += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr * rise_and_fall(self.update, self._updates, WARM_UP)
        self.optimizer.step()
        return {"loss": loss.item(), "grad_norm": norm.item()}

    def _next_batch(self) -> NDArray[np.int64]:
        """Return the next demonstrations; every epoch has them in a new order, without the last incomplete batch.

        Those left out are the longest of a random block of 16 batches.
        """
        count = len(self._texts.tokens)
        batches_per_epoch = count // self._batch
        epoch, at = divmod(self.update, batches_per_epoch)
        if epoch != self._epoch:
            rng = self._seeds.generator("order", epoch)
            order = rng.permutation(count)
            # Batches of similar lengths need little padding.
            lengths = np.array([len(self._texts.tokens[i]) for i in order])
            blocks = np.array_split(np.arange(count), max(1, batches_per_epoch // 16))
            order = np.concatenate(
                [order[b[np.argsort(lengths[b], kind="stable")]] for b in blocks]
            )
            batches = order[: batches_per_epoch * self._batch].reshape(-1, self._batch)
            self._order, self._epoch = rng.permutation(batches), epoch
        return self._order[at]

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the weights by name."""
        return {name: weight.detach() for name, weight in self.model.named_parameters()}

    def state(self) -> dict[str, Any]:
        """Return the checkpoint state without the weights, from which `restore` continues bit for bit."""
        return {"update": self.update, "optimizer": self.optimizer.state_dict()}

    def restore(self, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        """Continue from `tensors()` and `state()`."""
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                weight.copy_(tensors[name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.update = state["update"]


@torch.no_grad()
def exact_matches(model: LlamaForCausalLM, texts: Texts) -> NDArray[np.bool_]:
    """Return whether the greedy answer, token by token, is the demonstrated one, bool [demonstrations]."""
    matches = np.zeros(len(texts.tokens), bool)
    by_length = np.argsort([len(tokens) for tokens in texts.tokens], kind="stable")
    for start in range(0, len(by_length), CHUNK):
        which = by_length[start : start + CHUNK]
        rows, is_answer = texts.batch(which)
        hits = model(input_ids=rows[:, :-1]).logits.argmax(-1) == rows[:, 1:]
        matches[which] = (hits | ~is_answer[:, 1:]).all(1).numpy()
    return matches


def save(model: LlamaForCausalLM, tokens: PreTrainedTokenizerFast, folder: Path) -> None:
    """Save model and tokenizer in the format of `transformers`."""
    disable_progress_bar()
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
