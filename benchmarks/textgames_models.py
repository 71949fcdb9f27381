"""Language models in the text games compared with TRL's GRPOTrainer, and with rereading the conversation in every turn.

All on one thread, in fp32, with the project's tiny model (0.8 M weights) on Sokoban. The first rows are updates with
all that belongs to them: games, rollouts, an optimiser's step. Model, games, tokens of replies and the number of
trajectories are the same, and there is no reference model. A level is played 16 times in an update; what such
conversations share this project computes once. TRL runs without logs and checkpoints, computes as many completions
together as is fastest, ends replies where this project does, and takes its games and parser for rewards. Several
turns it plays by a `rollout_func`: games are stepped together as here, `generate` reads the conversation so far.

The last rows are rollouts alone. Replies are given, so that conversations are the same to the token, which is checked.
"""

import copy
import itertools
import os
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

# The project's root instead of this folder, whose scripts are called as the packages are.
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from benchmarks import _report  # noqa: E402
from benchmarks import _textgames_peers as peers  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor  # noqa: E402

from runcatalog import record  # noqa: E402
from textgames.games import example_texts, levels  # noqa: E402
from textgames.games.config import make_game  # noqa: E402
from textgames.learning import advantages, demonstrations  # noqa: E402
from textgames.learning.imitation import ImitationSettings, SupervisedLearner  # noqa: E402
from textgames.learning.rollout import Generation, generation, play  # noqa: E402
from textgames.models import loading, tiny  # noqa: E402
from textgames.models.sources import Source  # noqa: E402
from textgames.train import Config, advantage_settings, make_learner  # noqa: E402

LEVELS, TIMES = 16, 16  # of an update: levels, and how often each is played
FEW = 4  # levels of an update with long replies
MICRO = 64  # completions that TRL computes together
UPDATES = 2  # of a turn of measurement
LESSONS = 64  # updates of supervised training, after which replies are answers
FORCED = "<answer>Up</answer>"
SOKOBAN = Config(
    env="sokoban", prompt="grid", think=False, max_turns=1, max_response_length=8, temperature=1.0, top_p=1.0,
    train_batch_size=LEVELS, n_rollout=TIMES, ppo_batch_size=0, micro_batch_size=64, kl_coef=0.0, entropy_coef=0.0,
)  # fmt: skip


def made() -> tuple[Any, Any]:
    """A tiny model that knows nothing, and its tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        tiny.write(Path(folder), example_texts.texts(SOKOBAN), width=128, layers=4, heads=4, seed=1)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return AutoModelForCausalLM.from_pretrained(folder), tokenizer


def taught(model: Any, tokenizer: Any) -> Any:
    """A copy of the model that was taught to answer."""
    model, config = copy.deepcopy(model), replace(SOKOBAN, max_turns=25)
    seeds, _ = demonstrations.seeds(config, 1000, 1)
    texts = demonstrations.texts(config, seeds, tokenizer, np.random.default_rng(0))
    loaded = loading.Loaded(model, tokenizer, Source(None), config, torch.device("cpu"))
    settings = ImitationSettings(
        updates=LESSONS, batch_size=64, micro_batch_size=64, lr=2e-3, warm_up=0.05
    )
    pupil = SupervisedLearner(loaded, texts, settings, record.Seeds(0))
    for _ in range(LESSONS):
        pupil.learn()
    return model


class Ours:
    """Rollouts and updates of `ragen:train`.

    Args:
        model: Of `transformers`.
        tokenizer: Its own.
        config: The flags.
        seeds: Of the games, those of one update after those of another.

    Attributes:
        replies: The mean number of tokens of an update's replies.
    """

    def __init__(self, model: Any, tokenizer: Any, config: Config, seeds: np.ndarray) -> None:
        self.model, self.tokenizer, self.config, self.seeds = model, tokenizer, config, seeds
        loaded = loading.Loaded(model, tokenizer, Source(None), config, torch.device("cpu"))
        self.learner = make_learner(config, loaded)
        self.groups = np.repeat(np.arange(config.train_batch_size), config.n_rollout)
        self.replies, self._update = 0.0, 0

    def rate(self, updates: int) -> float:
        """Games a second."""
        begin, tokens = time.perf_counter(), 0
        for _ in range(updates):
            at = self._update * self.config.train_batch_size % len(self.seeds)
            drawn = np.repeat(
                self.seeds[at:][: self.config.train_batch_size], self.config.n_rollout
            )
            how = generation(self.config, torch.Generator().manual_seed(self._update))
            game = make_game(self.config)
            played = play(self.model, self.tokenizer, game, self.config, drawn, how).trajectories
            estimates = advantages.estimate(
                played, self.groups, None, advantage_settings(self.config)
            )
            rng = np.random.default_rng(self._update)
            self.learner.update(played, estimates, self.groups, rng)
            tokens += sum(int((text.turns >= 0).sum()) for each in played for text in each.texts)
            self._update += 1
        self.replies = tokens / updates
        return updates * len(self.groups) / (time.perf_counter() - begin)


def trained_row(
    what: str, model: Any, tokenizer: Any, config: Config, repeats: int
) -> dict[str, Any]:
    """Return the row of games per second in rollout and update, compared with TRL."""
    what = f"rollout and update, {config.train_batch_size} levels x {config.n_rollout}, {what}"
    seeds = levels.training(config, config.train_batch_size * 2 * UPDATES)
    ours = Ours(copy.deepcopy(model), tokenizer, config, seeds)
    trl = peers.Trl(copy.deepcopy(model), tokenizer, config, seeds, MICRO)
    measures = {"ours": partial(ours.rate, UPDATES), "trl": partial(trl.rate, UPDATES)}
    for measure in measures.values():
        measure()
    rates = _report.alternate(measures, repeats)
    if not 0.9 < ours.replies / trl.replies < 1.1:
        raise ValueError(
            f"{ours.replies:.0f} tokens an update, TRL {trl.replies:.0f}: not the same"
        )
    several = "; several turns by rollout_func" if config.max_turns > 1 else ""
    return _report.row(
        what, rates["ours"], rates["trl"], peer_name=f"TRL's GRPOTrainer{several}", unit="games/s", target=2,
        tokens=round(ours.replies), peer_tokens=round(trl.replies),
    )  # fmt: skip


class Forced(LogitsProcessor):
    """Says the same tokens again and again, for `generate` and, without the tokens before, for `play`."""

    def __init__(self, tokens: list[int]) -> None:
        self._next = itertools.cycle(tokens)

    def __call__(self, _: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits of the next token."""
        forced = torch.full_like(scores, -1e9)
        forced[:, next(self._next)] = 0
        return forced

    def draw(self, logits: torch.Tensor) -> torch.Tensor:
        """The next token of each row."""
        return torch.full((len(logits),), next(self._next))


def kept_row(model: Any, tokenizer: Any, turns: int, count: int, repeats: int) -> dict[str, Any]:
    """Turns a second with keys and values kept, beside conversations that are read again in each turn."""
    config = replace(SOKOBAN, max_turns=turns)
    seeds, game = levels.training(config, count), make_game(config)
    (forced,) = tokenizer([FORCED], add_special_tokens=False)["input_ids"]
    talk = peers.Rereading(tokenizer, config)

    def ours() -> Any:
        how = Generation(Forced(forced).draw, turns, config.max_response_length)
        return play(model, tokenizer, game, config, seeds, how).trajectories

    def again() -> Any:
        return talk.play(
            lambda talks: peers.generated(
                model, tokenizer, talks, max_new_tokens=config.max_response_length, do_sample=False,
                logits_processor=[Forced(forced)],
            ),
            seeds,
        )  # fmt: skip

    played, other = ours(), again()
    for each, prompt, said in zip(
        played, other["prompt_ids"], other["completion_ids"], strict=True
    ):
        if each.texts[0].tokens.tolist() != prompt + said:
            raise ValueError("the conversations are not the same")
    total = sum(len(each.turns) for each in played)

    def rate(function: Any) -> float:
        begin = time.perf_counter()
        function()
        return total / (time.perf_counter() - begin)

    rates = _report.alternate({"ours": partial(rate, ours), "again": partial(rate, again)}, repeats)
    return _report.row(
        f"rollouts of {turns} turns, {count} games", rates["ours"], rates["again"], unit="turns/s",
        peer_name="transformers' generate on the whole conversation each turn", target=4 if turns == 10 else None,
        turns=total,
    )  # fmt: skip


def main() -> None:
    """Measure all in turn and write the result."""
    options = _report.parser(__doc__).parse_args()
    torch.set_num_threads(1)
    first, tokenizer = made()
    model = taught(first, tokenizer)
    long = replace(
        SOKOBAN, prompt="full", max_response_length=64, train_batch_size=FEW, ppo_batch_size=0
    )
    rows = [
        trained_row(told, given, tokenizer, config, options.repeats)
        for told, given, config in (
            ("one turn, replies of 3 tokens", model, SOKOBAN),
            ("one turn, replies of 64 tokens", first, long),
            ("five turns, replies of 3 tokens", model, replace(SOKOBAN, max_turns=5)),
        )
    ]
    rows += [
        kept_row(model, tokenizer, turns, count, options.repeats)
        for turns, count in ((10, 128), (25, 64))
    ]
    _report.report("textgames_models", rows, dry_run=options.dry_run)


if __name__ == "__main__":
    main()
