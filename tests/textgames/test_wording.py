"""Prompts, and how replies are parsed: no reply, however odd, is taken for another one."""

import re
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import textgames
from runcatalog.record import UserError
from textgames.games import levels, wording
from textgames.games.bandit import HIGH, LOW
from textgames.games.config import GAMES, GameConfig, make_game
from textgames.games.interface import BANDIT

GAMES = {env: make_game(GameConfig(env=env)) for env in GAMES}
WORDS = [word for game in GAMES.values() for word in game.actions]
PARTS = st.sampled_from(
    [*WORDS, *map(str, range(7)), "(", ")", " ", "\n", "\t", "\x00", "<answer>", "</answer>", "<think>", "</think>",
     "answer", "１", "²", "K", "<", "none", "None", "ſ", "İ", "\ud800"]
)  # fmt: skip
ODD = st.one_of(st.text(), st.lists(PARTS, max_size=12).map("".join))


def meaning(game, reply):
    """Read by hand: letter by letter, without regular expressions."""
    text = reply
    begin = reply.find("<answer>")
    if begin >= 0 and (end := reply.find("</answer>", begin)) >= 0:
        text = reply[begin + len("<answer>") : end]
    text = text.strip().lower()
    numbered = game.name != BANDIT
    for k, word in enumerate(game.actions, 1):
        word = word.lower()
        if text in (word, f"{k}") or (numbered and text == f"{k} ({word})"):
            return k
    return 0


@pytest.mark.parametrize("env", GAMES)
@settings(max_examples=300)
@given(reply=ODD)
def test_every_reply_can_be_parsed(env, reply):
    assert wording.parse(GAMES[env], reply) == meaning(GAMES[env], reply)


@pytest.mark.parametrize("env", GAMES)
@settings(max_examples=200)
@given(data=st.data())
def test_text_around_an_answer_does_not_matter(env, data):
    game = GAMES[env]
    action = data.draw(st.integers(1, len(game.actions)))
    style = data.draw(st.sampled_from(["word", "number"]))
    reply = wording.answer(game, action, style)
    before = data.draw(ODD.filter(lambda text: "<answer>" not in text))
    after = data.draw(ODD)
    assert wording.parse(game, before + reply + after) == action
    changed = data.draw(st.sampled_from([str.upper, str.lower, str.title]))
    inside = reply[len("<answer>") : -len("</answer>")]
    for space in ("", " ", "\n", "\t "):
        assert wording.parse(game, f"<answer>{space}{changed(inside)}{space}</answer>") == action
        assert wording.parse(game, f"{space}{changed(inside)}{space}") == action


@pytest.mark.parametrize(
    "reply",
    ["", "Up Down", "1 2", "11", "01", "+1", "1.0", "0", "5", "1 (Down)", "2 (Up)", "(Up)", "1(Up)", "Up.", "go Up",
     "<answer></answer>", "<answer>Up", "Up</answer>", "<answer>none</answer>Up", "<answer>Left, Up</answer>", "Üp"],
)  # fmt: skip
def test_an_ambiguous_reply_is_no_action(reply):
    assert wording.parse(GAMES["sokoban"], reply) == 0
    assert wording.parse(GAMES["frozenlake"], reply) == 0


def test_the_first_answer_counts():
    reply = "<think>maybe <answer> 2 (Down) </answer></think><answer>Up</answer>"
    assert wording.parse(GAMES["sokoban"], reply) == 2
    assert wording.parse(GAMES["sokoban"], "<ANSWER>Up</ANSWER>") == 0
    assert wording.parse(GAMES["bandit"], "<answer>Dragon</answer>") == HIGH
    assert wording.parse(GAMES["bandit"], "1") == LOW
    assert wording.parse(GAMES["bandit"], "1 (phoenix)") == 0
    for game in GAMES.values():
        assert wording.parse(game, wording.answer(game, 0)) == 0


@pytest.mark.parametrize("env", ["sokoban", "frozenlake"])
@pytest.mark.parametrize("think", [False, True])
def test_a_prompt_has_its_parts(env, think):
    config = GameConfig(env=env)
    game = make_game(config)
    game.reset(levels.validation(config, 4))
    prompt = wording.first_prompt(config, game, 2, think=think)
    grid = game.render(np.array([2]))[0]
    assert grid in prompt
    assert ("<think>" in prompt) == think
    for k, word in enumerate(game.actions, 1):
        assert wording.parse(game, re.search(rf"<answer> {k} \({word}\) </answer>", prompt)[0]) == k
    for sign in set(grid) - set(" \t\n"):
        assert f"\n{sign} " in prompt
    game.step(np.array([1]), np.array([2]))
    later = wording.feedback(config, game, 2, True, -0.1, False)
    assert later.endswith("reward: -0.1\ndone: False")
    assert game.render(np.array([2]))[0] in later
    assert wording.feedback(config, game, 2, False, -0.1, False) != later
    assert game.render(np.array([2]))[0] in wording.first_prompt(config, game, 2)


@pytest.mark.parametrize("env", ["sokoban", "frozenlake"])
def test_a_grid_prompt_has_a_cell_per_position(env):
    config = GameConfig(env=env, prompt="grid")
    game = make_game(config)
    game.reset(np.arange(3))
    prompt = wording.first_prompt(config, game, 1)
    assert prompt == wording.feedback(config, game, 1, True, 0.0, False)
    rows = prompt.split(" \n")[:-1]
    assert [len(row) for row in rows] == [8] * 4
    inner = [line.split() for line in game.render(np.array([1]))[0].splitlines()]
    if env == "sokoban":
        inner = [row[1:-1] for row in inner[1:-1]]
    assert [row.split() for row in rows] == inner


def bandit(seeds, **flags):
    config = GameConfig(env="bandit", **flags)
    game = make_game(config)
    game.reset(seeds)
    return config, game


def test_arms_pay_rewards_of_their_distributions():
    seeds = np.arange(200_000)
    _, game = bandit(seeds)
    drawn = {}
    for action in (LOW, HIGH):
        game.reset(seeds)
        drawn[action] = game.step(np.full(len(seeds), action), seeds).reward
    low, high = drawn[LOW], drawn[HIGH]
    assert low.mean() == pytest.approx(0.2, abs=0.002)
    assert low.std() == pytest.approx(0.1, abs=0.002)
    assert high.mean() == pytest.approx(0.75 * 0.1 + 0.25 * 1.0, abs=0.005)
    assert high.std() == pytest.approx(np.sqrt(0.01 + 0.1875 * 0.81), abs=0.005)
    assert (high > 0.55).mean() == pytest.approx(0.25, abs=0.005)
    assert (low > high).mean() == pytest.approx(0.57, abs=0.005)
    tail = [(np.abs(low - 0.2) > 0.1 * k).mean() for k in (1, 2, 3)]
    assert tail == pytest.approx([0.3173, 0.0455, 0.0027], abs=0.004)


def test_any_pull_ends_a_bandit_and_choosing_the_higher_mean_is_success():
    _, game = bandit(np.arange(4))
    outcome = game.step(np.array([HIGH, 0, LOW]), np.array([3, 1, 0]))
    assert outcome.done.all()
    assert outcome.success.tolist() == [True, False, False]
    assert outcome.effective.tolist() == [True, False, True]
    assert outcome.reward[1] == 0
    assert (outcome.penalty == 0).all()
    assert game.done.tolist() == [True, True, False, True]


def test_names_of_arms_can_change_and_their_order():
    seeds = np.arange(1000)
    config, game = bandit(seeds)
    prompts = [wording.first_prompt(config, game, b) for b in seeds]
    before = np.array([text.find("phoenix") < text.find("dragon") for text in prompts])
    assert before.mean() == pytest.approx(0.5, abs=0.08)
    assert (before == (game.first == LOW)).all()
    config, game = bandit(seeds, names_order="high-first", prompt="grid")
    assert {wording.first_prompt(config, game, b) for b in seeds} == {"dragon or phoenix"}
    config, game = bandit(seeds, names_swapped=True)
    assert wording.parse(game, "<answer>phoenix</answer>") == HIGH
    assert wording.parse(game, "<answer>2</answer>") == HIGH
    config, game = bandit(seeds[:3], low_name="Librarian", high_name="Trader")
    game.step(np.array([HIGH, 0]), np.array([0, 1]))
    assert (
        wording.feedback(config, game, 0, True, 0.31234567, True)
        == "You played Trader.\nreward: 0.312\ndone: True"
    )
    assert "Librarian" in wording.feedback(config, game, 1, False, 0.0, True)


@pytest.mark.parametrize(
    "flags",
    [{"low_name": ""}, {"high_name": "2"}, {"low_name": "a <b>"}, {"low_name": " a"}, {"low_name": "Dragon"}],
)  # fmt: skip
def test_indistinguishable_names_are_refused(flags):
    with pytest.raises(UserError, match="-name"):
        GameConfig(env="bandit", **flags)


@pytest.mark.parametrize("env", GAMES)
def test_gymnasiums_checker_passes(env):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(textgames.env_id(env), render_mode="ansi").unwrapped)


def test_the_gymnasium_game_equals_the_batched_game():
    single = gymnasium.make(
        textgames.env_id("frozenlake"),
        size=5,
        max_steps=12,
        context="last",
        disable_env_checker=True,
    )
    config = GameConfig(env="frozenlake", size=5, max_steps=12, context="last")
    game, rng, ends = make_game(config), np.random.default_rng(0), set()
    for seed in range(60):
        game.reset(np.array([seed]))
        assert single.reset(seed=seed)[0] == wording.first_prompt(config, game, 0)
        terminated = truncated = False
        while not (terminated or truncated):
            action = int(rng.integers(5))
            outcome = game.step(np.array([action]), np.array([0]))
            observation, reward, terminated, truncated, info = single.step(
                wording.answer(game, action)
            )
            assert observation == wording.first_prompt(config, game, 0)
            assert reward == outcome.reward[0] + outcome.penalty[0]
            assert info["action"] == action
            assert (terminated or truncated) == outcome.done[0]
        end = (
            "goal"
            if info["success"]
            else "hole"
            if "X" in game.render(np.array([0]))[0]
            else "time"
        )
        assert truncated == (end == "time")
        ends.add(end)
    assert ends == {"goal", "hole", "time"}
