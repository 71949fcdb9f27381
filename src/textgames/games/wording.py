"""What a model is told, and what its reply means."""

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
    """What a conversation about game b begins with, the state as it is now.

    With `--context last` it is also what each later turn shows, alone.

    Args:
        config: Flags.
        game: The batch.
        b: Index of the game.
        think: Thoughts are asked for, before the answer. Only said where the prompt says anything.
    """
    return first_prompts(config, game, [b], think=think)[0]


def first_prompts(
    config: GameConfig, game: Game, which: Sequence[int], *, think: bool = False
) -> list[str]:
    """`first_prompt` of several games."""
    import numpy as np

    grids = [""] * len(which) if game.name == BANDIT else game.render(np.array(which))
    if config.prompt == "grid":
        return [_short(game, b, grid) for b, grid in zip(which, grids, strict=True)]
    return [_whole(config, game, b, grid, think) for b, grid in zip(which, grids, strict=True)]


def _whole(config: GameConfig, game: Game, b: int, grid: str, think: bool) -> str:
    if game.name == BANDIT:
        first, second = _shown(game, b)
        answers = f"{_FORM.format(first)} or {_FORM.format(second)}"
        text = _BANDIT.format(first=first, second=second, answers=answers)
    else:
        listed = (f"{k} ({word})" for k, word in enumerate(game.actions, 1))
        answers = "\n".join(_FORM.format(each) for each in listed)
        if game.name == SOKOBAN:
            boxes = "the box onto the target" if config.boxes == 1 else "every box onto a target"
            text = _SOKOBAN.format(boxes=boxes, answers=answers)
        else:
            text = _FROZENLAKE.format(answers=answers, ice=_SLIPPERY if config.slippery else _FIRM)
        text += _SEEN.format(grid=grid)
    before = "<think> your thoughts </think> " if think else ""
    return f"{text}\nAlways reply in the form {before}<answer> your answer </answer> and write nothing else."


def feedback(config: GameConfig, game: Game, b: int, valid: bool, reward: float, done: bool) -> str:
    """What game b's player is told after an action.

    Args:
        config: Flags.
        game: The batch, after the step.
        b: Index of the game.
        valid: Whether the reply was understood.
        reward: The environment's, without a penalty.
        done: Whether the game is over.
    """
    if config.prompt == "grid":
        return first_prompt(config, game, b)
    if game.name == BANDIT:
        first, second = _shown(game, b)
        said = f"There is no such machine. Choose {first} or {second}."
        if valid:
            said = f"You played {game.actions[game.pulled[b] - 1]}."
    else:
        said = (
            "After your move:"
            if valid
            else "Your answer was not understood, you are where you were:"
        )
        said = f"{said}\n{_grid(game, b)}"
    return f"{said}\nreward: {round(float(reward), 3)}\ndone: {bool(done)}"


def parse(game: Game, reply: str) -> int:
    """The action that a reply means; 0 if it means none.

    It is read from the first `<answer>…</answer>`, without such from all of the reply: a word or number of an
    action, or "1 (Up)" where both say the same, in any case, with nothing else but white space around it. Arms of a
    bandit are told by their names or by 1 and 2, that with little risk first.
    """
    return _parsed(reply, tuple(game.actions), game.name == BANDIT)


@lru_cache(maxsize=2**12)  # most replies come again and again
def _parsed(reply: str, actions: tuple[str, ...], arms: bool) -> int:
    found = _ANSWER.search(reply)
    said = (found.group(1) if found else reply).strip().lower()
    for k, word in enumerate(actions, 1):
        forms = [word, str(k)] if arms else [word, str(k), f"{k} ({word})"]
        if said in (each.lower() for each in forms):
            return k
    return NONE


def answer(game: Game, action: int, style: str = "word") -> str:
    """The reply that means an action, as short as it can be.

    Args:
        game: The batch.
        action: 1 to the number of actions; 0 gives the reply "none", which is none.
        style: "word" or "number".
    """
    if action == NONE:
        return "<answer>none</answer>"
    return f"<answer>{game.actions[action - 1] if style == 'word' else action}</answer>"


def _shown(game: Bandit, b: int) -> tuple[str, str]:
    """A bandit's arms in the order in which they are named."""
    first = int(game.first[b])
    return game.actions[first - 1], game.actions[2 - first]


def _grid(game: Game, b: int) -> str:
    import numpy as np

    return game.render(np.array([b]))[0]


def _short(game: Game, b: int, grid: str) -> str:
    """The grid with a space before each cell and behind each row, without Sokoban's outer wall; the bandit's names.

    Whatever the grid, a tokenizer that was trained on such finds a token for each cell and one for each end of a row.
    """
    if game.name == BANDIT:
        return " or ".join(_shown(game, b))
    return _in_short(grid, game.name == SOKOBAN)


@lru_cache(maxsize=2**16)  # games come back to a state, and are played again
def _in_short(grid: str, walled: bool) -> str:
    rows = [row.split() for row in grid.splitlines()]
    if walled:
        rows = [row[1:-1] for row in rows[1:-1]]
    return "".join("".join(f" {cell}" for cell in row) + " \n" for row in rows)
