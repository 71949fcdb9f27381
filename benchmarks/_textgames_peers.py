"""What `benchmarks/textgames_models.py` compares with: TRL's GRPOTrainer, and conversations read anew each turn."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from textgames.games import wording
from textgames.games.config import make_game
from textgames.models.chat_template import chat_parts
from textgames.train import Config

CLOSE = "</answer>"


class Rereading:
    """Games in conversation, all of it read again in each turn by a `generate` that knows nothing of turns before.

    Args:
        tokenizer: Of the model; `</answer>` is a token of it.
        config: The flags.
    """

    def __init__(self, tokenizer: Any, config: Config) -> None:
        self.tokenizer, self.config = tokenizer, config
        self._around = chat_parts(tokenizer, think=config.think)
        self.ends = ends(tokenizer)

    def play(
        self, generate: Callable[[list[list[int]]], list[list[int]]], seeds: NDArray[np.int64]
    ) -> dict[str, list[Any]]:
        """Play a game for each seed.

        Args:
            generate: Conversations to replies, in tokens, up to one of `ends`.
            seeds: Of the games.

        Returns:
            In the form that TRL's `rollout_func` gives: `prompt_ids`, `completion_ids`, `env_mask` (1: the
            model's), and the games' `score`.
        """
        config, around = self.config, self._around
        game = make_game(config)
        game.reset(seeds)
        going = np.arange(len(seeds))
        first = [
            around.first(wording.first_prompt(config, game, b, think=config.think)) for b in going
        ]
        prompts = self._tokens(first)
        said: list[list[int]] = [[] for _ in seeds]
        mask: list[list[int]] = [[] for _ in seeds]
        score = np.zeros(len(seeds))
        for turn in range(config.max_turns):
            replies = generate([prompts[b] + said[b] for b in going])
            words = self.tokenizer.batch_decode(
                [each[:-1] if each[-1] == self.ends[0] else each for each in replies]
            )
            actions = np.array([wording.parse(game, each) for each in words])
            for b, reply in zip(going, replies, strict=True):
                said[b] += reply
                mask[b] += [1] * len(reply)
            outcome = game.step(actions, going)
            score[going] += outcome.reward + outcome.penalty
            rest = ~outcome.done & (turn + 1 < config.max_turns)
            told = [
                around.next(
                    wording.feedback(config, game, b, bool(action), float(reward), False),
                    ended=said[b][-1] == self.ends[0],
                )
                for b, action, reward in zip(
                    going[rest], actions[rest], outcome.reward[rest], strict=True
                )
            ]
            going = going[rest]
            if not len(going):
                break
            for b, chunk in zip(going, self._tokens(told), strict=True):
                said[b] += chunk
                mask[b] += [0] * len(chunk)
        return {"prompt_ids": prompts, "completion_ids": said, "env_mask": mask, "score": score.tolist()}  # fmt: skip

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        return self.tokenizer(texts, add_special_tokens=False)["input_ids"]


def ends(tokenizer: Any) -> list[int]:
    """Tokens that end a reply: the template's, and `</answer>`."""
    return tokenizer.convert_tokens_to_ids([tokenizer.eos_token, CLOSE])


@torch.no_grad()
def generated(
    model: Any, tokenizer: Any, conversations: list[list[int]], **settings: Any
) -> list[list[int]]:
    """Replies by transformers' own `generate`: padded on the left, keys and values kept within a reply."""
    inputs = tokenizer.pad({"input_ids": conversations}, padding_side="left", return_tensors="pt")
    found = model.generate(
        **inputs, eos_token_id=ends(tokenizer), pad_token_id=tokenizer.pad_token_id, **settings
    )
    replies = found[:, inputs["input_ids"].shape[1] :].tolist()
    over = set(ends(tokenizer))
    lengths = [
        next((i + 1 for i, token in enumerate(each) if token in over), len(each))
        for each in replies
    ]
    return [each[:length] for each, length in zip(replies, lengths, strict=True)]


class Trl:
    """TRL's GRPOTrainer on the games, as fast as it gets on a CPU, one update a step.

    Args:
        model: Of `transformers`.
        tokenizer: Its own.
        config: The flags of the same training with this project.
        seeds: Of the games, those of one step after those of another.
        micro: Completions that are computed together.

    Attributes:
        replies: The mean number of tokens of a step's replies.
    """

    def __init__(
        self, model: Any, tokenizer: Any, config: Config, seeds: NDArray[np.int64], micro: int
    ) -> None:
        from datasets import Dataset
        from transformers.trainer_callback import PrinterCallback, ProgressCallback
        from trl import GRPOConfig, GRPOTrainer

        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.batch = config.train_batch_size * config.n_rollout
        self._talk = Rereading(tokenizer, config)
        self._times: list[float] = []
        self.replies, self._said = 0.0, 0
        game = make_game(config)
        game.reset(seeds)
        prompts = [
            wording.first_prompt(config, game, b, think=config.think) for b in range(len(seeds))
        ]
        rows = [
            {"prompt": [{"role": "user", "content": text}], "seed": int(seed)}
            for text, seed in zip(prompts, seeds, strict=True)
        ]
        self._seeds = dict(zip(prompts, seeds.tolist(), strict=True))  # alike are the same level
        one_turn = config.max_turns == 1
        model.generation_config.eos_token_id = ends(tokenizer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            settings = GRPOConfig(
                output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False,
                per_device_train_batch_size=micro, gradient_accumulation_steps=self.batch // micro,
                num_generations=config.n_rollout, num_iterations=1, beta=0.0, epsilon=config.clip_low,
                learning_rate=config.actor_lr, lr_scheduler_type="constant", max_grad_norm=config.grad_clip,
                temperature=config.temperature, top_p=config.top_p, top_k=config.top_k,
                max_completion_length=config.max_response_length, entropy_coef=config.entropy_coef,
                max_steps=1, report_to="none", logging_strategy="no", save_strategy="no", disable_tqdm=True,
                shuffle_dataset=False, dataloader_pin_memory=False,
            )  # fmt: skip
            self.trainer = GRPOTrainer(
                model=model, processing_class=tokenizer, args=settings, train_dataset=Dataset.from_list(rows),
                reward_funcs=self._first_move if one_turn else self._whole_game,
                rollout_func=None if one_turn else self._rollout,
            )  # fmt: skip
        self.trainer.remove_callback(PrinterCallback)
        self.trainer.remove_callback(ProgressCallback)
        self.trainer.add_callback(_clock(self._times))

    def rate(self, steps: int) -> float:
        """Games a second in all steps but the first."""
        self._times.clear()
        self._said = 0
        self.trainer.args.max_steps = steps + 1
        self.trainer.train()
        self.replies = self._said / (steps + 1)
        return steps * self.batch / (self._times[-1] - self._times[0])

    def _first_move(
        self, completions: Any, completion_ids: Any, seed: list[int], **_: Any
    ) -> list[float]:
        """Rewards of single replies."""
        game = make_game(self.config)
        game.reset(np.array(seed))
        words = [each[0]["content"] for each in completions]
        actions = np.array([wording.parse(game, each) for each in words])
        self._said += sum(map(len, completion_ids))
        outcome = game.step(actions, np.arange(len(seed)))
        return (outcome.reward + outcome.penalty).tolist()

    def _whole_game(self, score: list[float], **_: Any) -> list[float]:
        """Rewards of whole games."""
        return score

    def _rollout(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """TRL's own way to play several turns."""
        from trl.models import unwrap_model_for_generation

        with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model:
            config = self.config
            found = self._talk.play(
                lambda each: generated(
                    model, self.tokenizer, each, max_new_tokens=config.max_response_length, do_sample=True,
                    temperature=config.temperature, top_k=config.top_k, top_p=config.top_p,
                ),
                np.array([self._seeds[each[0]["content"]] for each in prompts]),
            )  # fmt: skip
        self._said += sum(map(sum, found["env_mask"]))
        return found | {"logprobs": None}


def _clock(times: list[float]) -> Any:
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        """Notes when a step has ended."""

        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

    return Clock()
