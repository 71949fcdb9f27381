"""A small language model that learns to plan: its tokenizer, its weights, and how it is trained.

It is an ordinary causal model of `transformers` in an ordinary folder, so that any server can serve it. Its chat
template leaves the system message out, which is the same in all prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from rl.schedule import rise_and_fall
from runcatalog import record
from skills.levels.codes import COLOURS
from skills.planner import prompts
from skills.planner.demonstrations import Demonstration

PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
# Names and numbers are tokens of their own, phrases between them may become one.
_WORDS = "|".join((*COLOURS, *(name.split()[0] for name in prompts.NAMES.values())))
_PIECES = rf"\n| ?\d| ?\b(?:{_WORDS})\b|(?:(?! ?\b(?:{_WORDS})\b)[^\d\n])+"
VOCABULARY = 512
LENGTH = 1024  # of a conversation, at most [tokens]
WARM_UP = 0.05  # share of the updates in which the step size rises
CHUNK = 64  # demonstrations that are judged together


@dataclass(frozen=True)
class Sizes:
    """Of the model.

    Attributes:
        width: Of a token's vector.
        layers, heads: How many.
    """

    width: int = 128
    layers: int = 4
    heads: int = 4


def tokenizer_for(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Returns a byte-level BPE tokenizer (Sennrich et al. 2016) that was trained on texts."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(_PIECES), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[PAD, USER, ASSISTANT, END], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    made.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=PAD, eos_token=END, chat_template=TEMPLATE,
        model_max_length=LENGTH, clean_up_tokenization_spaces=False,
    )  # fmt: skip


def model_for(sizes: Sizes, tokens: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Returns a model of Llama's architecture with first weights."""
    config = LlamaConfig(
        vocab_size=len(tokens), hidden_size=sizes.width, intermediate_size=3 * sizes.width,
        num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads, max_position_embeddings=LENGTH,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=tokens.eos_token_id,
        pad_token_id=tokens.pad_token_id,
    )  # fmt: skip
    before = torch.random.get_rng_state()
    torch.manual_seed(seed)  # transformers draws first weights from torch's own generator
    made = LlamaForCausalLM(config)
    torch.random.set_rng_state(before)
    made.generation_config.do_sample = False
    return made


@dataclass(frozen=True)
class Texts:
    """Conversations as tokens.

    Attributes:
        tokens: Of each, int64 [length].
        answers: Where the answer begins.
    """

    tokens: list[NDArray[np.int64]]
    answers: list[int]

    @classmethod
    def of(cls, told: Sequence[Demonstration], tokens: PreTrainedTokenizerFast) -> Texts:
        """The conversations of demonstrations: what the chat template makes of prompt and answer."""
        asked = [f"{USER}{each.prompt}{END}{ASSISTANT}" for each in told]
        said = [f"{prompts.answer(each.subtask)}{END}" for each in told]
        before = tokens(asked, add_special_tokens=False)["input_ids"]
        after = tokens(said, add_special_tokens=False)["input_ids"]
        pairs = zip(before, after, strict=True)
        return cls([np.array(a + b) for a, b in pairs], [len(each) for each in before])

    def batch(self, which: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns tokens, int64 [B, T], padded with 0, and which of them belong to an answer, bool [B, T]."""
        length = max(len(self.tokens[i]) for i in which)
        rows, said = np.zeros((len(which), length), np.int64), np.zeros((len(which), length), bool)
        for row, i in enumerate(which):
            rows[row, : len(self.tokens[i])] = self.tokens[i]
            said[row, self.answers[i] : len(self.tokens[i])] = True
        return torch.from_numpy(rows), torch.from_numpy(said)


class Pupil:
    """A model in training.

    Args:
        model: See `model_for`.
        texts: To learn from.
        updates: How many there will be.
        batch: Demonstrations of an update.
        lr: AdamW's highest step size.
        prompt_weight: Of the loss on a prompt's tokens beside that on an answer's. To foretell prompts teaches
            it to copy names.
        seeds: Of the order of demonstrations.

    Attributes:
        update: How many there were.
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
        """Makes an update; returns its loss on answers."""
        rows, said = self._texts.batch(self._drawn())
        logits = self.model(input_ids=rows[:, :-1]).logits
        losses = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
        said = said[:, 1:].flatten()
        asked = (rows[:, 1:].flatten() != 0) & ~said
        loss = losses[said].mean()
        self.optimizer.zero_grad()
        (loss + self._prompt_weight * losses[asked].mean()).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.update += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr * rise_and_fall(self.update, self._updates, WARM_UP)
        self.optimizer.step()
        return {"loss": loss.item(), "grad_norm": norm.item()}

    def _drawn(self) -> NDArray[np.int64]:
        """The next demonstrations: all of them once, then all again in another order."""
        count = len(self._texts.tokens)
        a_round = count // self._batch
        epoch, at = divmod(self.update, a_round)
        if epoch != self._epoch:
            rng = self._seeds.generator("order", epoch)
            order = rng.permutation(count)
            # Those of a batch are about equally long, so that little is padding.
            lengths = np.array([len(self._texts.tokens[i]) for i in order])
            blocks = np.array_split(np.arange(count), max(1, a_round // 16))
            order = np.concatenate(
                [order[b[np.argsort(lengths[b], kind="stable")]] for b in blocks]
            )
            batches = order[: a_round * self._batch].reshape(a_round, self._batch)
            self._order, self._epoch = rng.permutation(batches), epoch
        return self._order[at]

    def tensors(self) -> dict[str, torch.Tensor]:
        """The weights by name."""
        return {name: weight.detach() for name, weight in self.model.named_parameters()}

    def state(self) -> dict[str, Any]:
        """What it takes, besides the weights, to go on to the bit."""
        return {"update": self.update, "optimizer": self.optimizer.state_dict()}

    def restore(self, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        """Goes on from `tensors()` and `state()`."""
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                weight.copy_(tensors[name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.update = state["update"]


@torch.no_grad()
def right(model: LlamaForCausalLM, texts: Texts) -> NDArray[np.bool_]:
    """Whether the likeliest answer, token by token, is the demonstrated one; bool [demonstrations]."""
    found = np.zeros(len(texts.tokens), bool)
    by_length = np.argsort([len(each) for each in texts.tokens], kind="stable")
    for start in range(0, len(by_length), CHUNK):
        which = by_length[start : start + CHUNK]
        rows, said = texts.batch(which)
        hits = model(input_ids=rows[:, :-1]).logits.argmax(-1) == rows[:, 1:]
        found[which] = (hits | ~said[:, 1:]).all(1).numpy()
    return found


def save(model: LlamaForCausalLM, tokens: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes model and tokenizer as `transformers` does."""
    disable_progress_bar()
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
