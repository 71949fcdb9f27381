"""Prompts of the games, and the parsing of replies.

The texts are part of trained models: a changed word changes their results.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from textgames.games.config import GameConfig
from textgames.games.interface import BANDIT, NONE, SOKOBAN, Game

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textgames.games.bandit import Bandit

THINK = "<think>"
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_FORM = "<answer> {} </answer>"
_SOKOBAN = """\
You are good at Sokoban puzzles.

Goal: push {boxes}.

What the signs mean:
# wall
_ floor
O target
X box
√ box on a target
P you
S you, standing on a target

Rules:
1. A box is pushed by walking into it, never pulled.
2. Neither you nor a box can enter a wall, and a box cannot be pushed into another one.

Your answer is one of:
{answers}

Rewards:
any move: -0.1
a box comes onto a target: +1
all boxes on targets: +10
"""
_FROZENLAKE = """\
You find your way across a frozen lake.

Goal: get from where you are to G.

What the signs mean:
_ ice
O hole
G goal
P you

Rules:
1. Keep out of the holes: in one of them the game is lost.
{ice}

Your answer is one of:
{answers}

Rewards:
falling into a hole: 0
reaching the goal: +1.0
"""
_SLIPPERY = "2. The ice is slippery: a step may take you to the left or to the right of where you meant to go."
_FIRM = "2. A step takes you where you meant to go."
_BANDIT = """\
You stand before two slot machines.

Rules:
1. One machine is called {first}, the other one {second}.
2. What a machine pays is random. How it is spread has to do with the machine's name.
3. Think about what the names stand for and what that tells about the payments.
4. Choose the machine that pays more on average.

Your answer is the name of a machine:
{answers}

Nothing was played yet. Think it over, then choose a machine.
"""
_SEEN = """
What you have seen so far:
{grid}

Which move comes next?
"""


def first_prompt(config: GameConfig, game: Game, b: int, *, think: bool = False) -> str:
    """Return the first message of a conversation about game b, with its current state.

    With `--context last` it is also the only message of a later turn.

    Args:
        config: The flags.
        game: The batch.
        b: Index of the game.
        think: Ask for thoughts before the answer; not with `--prompt grid`.
    """
    return first_prompts(config, game, [b], think=think)[0]


def first_prompts(
    config: GameConfig, game: Game, which: Sequence[int], *, think: bool = False
) -> list[str]:
    """Return the `first_prompt` of several games."""
    import numpy as np

    grids = [""] * len(which) if game.name == BANDIT else game.render(np.array(which))
    if config.prompt == "grid":
        return [_grid_prompt(game, b, grid) for b, grid in zip(which, grids, strict=True)]
    return [
        _full_prompt(config, game, b, grid, think) for b, grid in zip(which, grids, strict=True)
    ]


def _full_prompt(config: GameConfig, game: Game, b: int, grid: str, think: bool) -> str:
    if game.name == BANDIT:
        first, second = _arm_names(game, b)
        answers = f"{_FORM.format(first)} or {_FORM.format(second)}"
        text = _BANDIT.format(first=first, second=second, answers=answers)
    else:
        listed = (f"{k} ({word})" for k, word in enumerate(game.actions, 1))
        answers = "\n".join(_FORM.format(action) for action in listed)
        if game.name == SOKOBAN:
            boxes = "the box onto the target" if config.boxes == 1 else "every box onto a target"
            text = _SOKOBAN.format(boxes=boxes, answers=answers)
        else:
            text = _FROZENLAKE.format(answers=answers, ice=_SLIPPERY if config.slippery else _FIRM)
        text += _SEEN.format(grid=grid)
    before = "<think> your thoughts </think> " if think else ""
    return f"{text}\nAlways reply in the form {before}<answer> your answer </answer> and write nothing else."


def feedback(config: GameConfig, game: Game, b: int, valid: bool, reward: float, done: bool) -> str:
    """Return the message to the player of game b after an action.

    Args:
        config: The flags.
        game: The batch, after the step.
        b: Index of the game.
        valid: Whether the reply had an action.
        reward: Reward of the environment, without the penalty.
        done: Whether the game is over.
    """
    if config.prompt == "grid":
        return first_prompt(config, game, b)
    if game.name == BANDIT:
        first, second = _arm_names(game, b)
        lead = f"There is no such machine. Choose {first} or {second}."
        if valid:
            lead = f"You played {game.actions[game.pulled[b] - 1]}."
    else:
        lead = (
            "After your move:"
            if valid
            else "Your answer was not understood, you are where you were:"
        )
        lead = f"{lead}\n{_grid(game, b)}"
    return f"{lead}\nreward: {round(float(reward), 3)}\ndone: {bool(done)}"


def parse(game: Game, reply: str) -> int:
    """Return the action of a reply; 0 without one.

    The answer is the first `<answer>…</answer>`, or the whole reply without one: the name or number of an action, or
    both in agreement as in "1 (Up)", in upper or lower case, with nothing else but white space. The arms of a bandit
    are their names, or 1 (low risk) and 2.
    """
    return _parsed(reply, tuple(game.actions), game.name == BANDIT)


@lru_cache(maxsize=2**12)  # most replies repeat
def _parsed(reply: str, actions: tuple[str, ...], arms: bool) -> int:
    match = _ANSWER.search(reply)
    answer = (match.group(1) if match else reply).strip().lower()
    for k, word in enumerate(actions, 1):
        forms = [word, str(k)] if arms else [word, str(k), f"{k} ({word})"]
        if answer in (form.lower() for form in forms):
            return k
    return NONE


def answer(game: Game, action: int, style: str = "word") -> str:
    """Return the shortest reply with an action.

    Args:
        game: The batch.
        action: 1 to the number of actions; 0: the invalid reply "none".
        style: "word" or "number".
    """
    if action == NONE:
        return "<answer>none</answer>"
    return f"<answer>{game.actions[action - 1] if style == 'word' else action}</answer>"


def _arm_names(game: Bandit, b: int) -> tuple[str, str]:
    """Return the names of a bandit's arms in their order in prompts."""
    first = int(game.first[b])
    return game.actions[first - 1], game.actions[2 - first]


def _grid(game: Game, b: int) -> str:
    import numpy as np

    return game.render(np.array([b]))[0]


def _grid_prompt(game: Game, b: int, grid: str) -> str:
    """Return the grid without Sokoban's outer wall, a space before every cell and after every row; the bandit's names.

    A tokenizer that was trained on such texts has tokens for most cells and for the end of a row.
    """
    if game.name == BANDIT:
        return " or ".join(_arm_names(game, b))
    return _compact(grid, game.name == SOKOBAN)


@lru_cache(maxsize=2**16)  # states repeat within a game and in replays
def _compact(grid: str, walled: bool) -> str:
    rows = [row.split() for row in grid.splitlines()]
    if walled:
        rows = [row[1:-1] for row in rows[1:-1]]
    return "".join("".join(f" {cell}" for cell in row) + " \n" for row in rows)
