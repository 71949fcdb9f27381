"""Rollouts against a loop that plays one game at a time and computes all tokens again at every step."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from textgames.games import example_texts, levels, wording
from textgames.games.config import GAMES, make_game
from textgames.learning.options import PlayConfig
from textgames.learning.rollout import Generation, generation, play
from textgames.models import tiny
from textgames.models.chat_template import chat_parts
from textgames.results import dialogues

SPOKEN = PlayConfig(
    env="frozenlake", prompt="grid", max_turns=4, max_response_length=7, temperature=1.3, top_p=1.0
)  # fmt: skip


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    """A model that knows nothing, its tokenizer, and answers as tokens."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("tiny")
    tiny.write(folder, example_texts.texts(SPOKEN), width=32, layers=2, heads=2, seed=2)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder), tokenizer


class Scripted:
    """Sample the likeliest token, or by chance the tokens of a whole action."""

    def __init__(self, tokenizer, config, seed, share):
        self.rng, self.share, self.tokenizer = np.random.default_rng(seed), share, tokenizer
        game = make_game(config)
        replies = [wording.answer(game, action) for action in range(1, len(game.actions) + 1)]
        self.replies = tokenizer(replies, add_special_tokens=False)["input_ids"]
        self.left = None

    def __call__(self, logits):
        drawn = logits.argmax(-1)
        if self.left is None or len(self.left) != len(drawn):
            self.left = [[] for _ in drawn]
        for i, left in enumerate(self.left):
            if not left and self.rng.random() < self.share:
                left += self.replies[int(self.rng.integers(len(self.replies)))]
            if left:
                drawn[i] = left.pop(0)
        return drawn


@torch.no_grad()
def alone(model, tokenizer, config, seed):
    """Play one game with the likeliest tokens, without a cache: ((reply, action, reward) per turn, tokens, success)."""
    around = chat_parts(tokenizer, think=config.think)
    game = make_game(config)
    game.reset(np.array([seed]))
    tokens, turns, texts = [], [], []
    shown = wording.first_prompt(config, game, 0, think=config.think)
    end = tokenizer.convert_tokens_to_ids(around.end)
    for turn in range(config.max_turns):
        if turn == 0 or config.context == "last":
            tokens = tokenizer(around.first(shown), add_special_tokens=False)["input_ids"]
        else:
            more = around.next(shown, ended=tokens[-1] == end)
            tokens = tokens + tokenizer(more, add_special_tokens=False)["input_ids"]
        reply = []
        while len(reply) < config.max_response_length:
            logits = model(input_ids=torch.tensor([tokens + reply])).logits[0, -1]
            reply.append(int(logits.argmax()))
            if reply[-1] == end or "</answer>" in tokenizer.decode(reply):
                break
        words = tokenizer.decode(reply[:-1] if reply[-1] == end else reply)
        action = wording.parse(game, words)
        if config.no_think_rl:
            kept = wording.answer(game, action) + around.end
            reply = tokenizer(kept, add_special_tokens=False)["input_ids"]
        tokens = tokens + reply
        texts.append(tokens)
        outcome = game.step(np.array([action]), np.array([0]))
        turns.append((words, action, float(outcome.reward[0] + outcome.penalty[0])))
        if outcome.done[0]:
            break
        shown = (
            wording.feedback(config, game, 0, bool(action), float(outcome.reward[0]), False)
            if config.context == "whole"
            else wording.first_prompt(config, game, 0, think=config.think)
        )
    return turns, texts[-1:] if config.context == "whole" else texts, bool(game.success[0])


@pytest.mark.parametrize("context", ["whole", "last"])
@pytest.mark.parametrize("changed", [{"think": False}, {"think": True}, {"no_think_rl": True}])
def test_batched_games_equal_single_games(language_model, context, changed):
    config = replace(SPOKEN, context=context, **changed)
    seeds = levels.validation(config, 5)
    played = play(
        *language_model, make_game(config), config, seeds, generation(config, None)
    ).trajectories
    for trajectory in played:
        turns, texts, success = alone(*language_model, config, trajectory.seed)
        assert [
            (turn.reply, turn.action, pytest.approx(turn.reward)) for turn in trajectory.turns
        ] == turns
        assert [text.tokens.tolist() for text in trajectory.texts] == texts
        assert trajectory.success is success


@pytest.mark.parametrize("env", GAMES)
@pytest.mark.parametrize("context", ["whole", "last"])
def test_replies_and_rewards_can_be_computed_from_the_tokens(language_model, env, context):
    config = replace(SPOKEN, env=env, context=context, max_turns=6, think=False)
    model, tokenizer = language_model
    script = Scripted(tokenizer, config, 3, 0.25)
    how = Generation(script, config.max_turns, config.max_response_length)
    seeds = levels.validation(config, 24)
    trajectories, computed = play(model, tokenizer, make_game(config), config, seeds, how)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    again = make_game(config)
    again.reset(seeds)
    for b, trajectory in enumerate(trajectories):
        replies = {}
        for text in trajectory.texts:
            for token, turn in zip(text.tokens, text.turns, strict=True):
                replies.setdefault(int(turn), []).append(int(token))
        del replies[-1]
        assert sorted(replies) == list(range(len(trajectory.turns)))
        for i, turn in enumerate(trajectory.turns):
            tokens = replies[i][:-1] if replies[i][-1] == end else replies[i]
            assert tokenizer.decode(tokens) == turn.reply == turn.stored_reply
            assert wording.parse(again, turn.reply) == turn.action
            outcome = again.step(np.array([turn.action]), np.array([b]))
            assert turn.reward == pytest.approx(float(outcome.reward[0] + outcome.penalty[0]))
        assert trajectory.score == pytest.approx(sum(turn.reward for turn in trajectory.turns))
        assert trajectory.success == again.success[b]
        assert trajectory.done == again.done[b]
        assert again.done[b] or len(trajectory.turns) == config.max_turns
        states = trajectory.contexts()
        assert len(states) == len(trajectory.turns)
        for turn, state in zip(trajectory.turns, states, strict=True):
            heard = tokenizer.decode(np.frombuffer(state, np.int64))
            assert turn.observation in heard
            assert heard.endswith("<|im_start|>assistant\n")
        shown = [turn.observation for turn in trajectory.turns]
        assert len(set(states)) == (len(set(shown)) if context == "last" else len(shown))
    assert any(trajectory.valid for trajectory in trajectories)
    if context == "whole":  # no token is computed twice, and the last replies' last ones never are
        tokens = [text.tokens.tolist() for trajectory in trajectories for text in trajectory.texts]
        longest = sum(len(row) - 1 for row in tokens)
        distinct = {tuple(row[:end]) for row in tokens for end in range(1, len(row))}
        assert len(distinct) <= computed <= longest
        assert env != "bandit" or computed < longest / 2  # there are two prompts


def test_a_reply_ends_with_its_answer(language_model):
    model, tokenizer = language_model
    script = Scripted(tokenizer, SPOKEN, 1, 1.0)
    how = Generation(script, 3, 50)
    config = replace(SPOKEN, think=False)
    seeds = levels.validation(config, 8)
    for trajectory in play(model, tokenizer, make_game(config), config, seeds, how).trajectories:
        assert all(turn.reply.endswith("</answer>") and turn.action for turn in trajectory.turns)
        assert all(turn.reply.count("<answer>") == 1 for turn in trajectory.turns)


def test_equal_seeds_sample_equal_replies(language_model):
    seeds = levels.validation(SPOKEN, 6)

    def played(seed):
        how = generation(SPOKEN, torch.Generator().manual_seed(seed))
        return [
            turn.reply
            for trajectory in play(
                *language_model, make_game(SPOKEN), SPOKEN, seeds, how
            ).trajectories
            for turn in trajectory.turns
        ]

    assert played(1) == played(1) != played(2)


def test_the_page_shows_whole_conversations(language_model):
    config = replace(SPOKEN, think=False)
    model, tokenizer = language_model
    how = Generation(Scripted(tokenizer, config, 5, 0.6), 4, 7)
    seeds = levels.validation(config, 12)
    played = play(model, tokenizer, make_game(config), config, seeds, how).trajectories
    page = dialogues.page("Lakes", played)
    best, worst = max(played, key=lambda game: game.score), min(played, key=lambda game: game.score)
    parts = page.split("\n## ")
    assert [part.split("\n")[0] for part in parts[1:]] == ["Best", "Median", "Worst"]
    for part, game in ((parts[1], best), (parts[3], worst)):
        assert f"score {game.score:g}" in part
    for turn in best.turns:
        assert turn.reply.strip() in parts[1]
        assert turn.observation.strip() in parts[1]
