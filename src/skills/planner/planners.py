"""Planners, which choose the next sub-task: a language model, an oracle, random, or always the goal."""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from runcatalog import record
from runcatalog.record.journal.lines import read_lines, repair
from skills.planner import prompts
from skills.planner.chat import Chat
from skills.planner.oracle import Oracle
from skills.planner.prompts import Situation
from skills.planner.subtasks import EXPLORE, GO_TO_GOAL


class Planner(ABC):
    """Chooses sub-tasks.

    Attributes:
        corrected: Number of answers that were valid at the second attempt only.
        replaced: Number of sub-tasks drawn at random since no answer was valid.
    """

    corrected = replaced = 0

    @abstractmethod
    def choose(self, situations: list[Situation]) -> list[str]:
        """Return one of the options for every situation."""


class OraclePlanner(Planner):
    """The next sub-task of a shortest solution, or to explore while its object is unobserved. Knows the level."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def choose(self, situations: list[Situation]) -> list[str]:
        """See `Planner`."""
        return [self.subtask(situation) for situation in situations]

    def subtask(self, situation: Situation) -> str:
        """Return the sub-task for one situation."""
        subtask = self._oracle.subtask(situation.level)
        return subtask if subtask in situation.options else EXPLORE


class RandomPlanner(Planner):
    """A random option.

    Args:
        seeds: Streams of the run; a draw depends on episode and call alone.
    """

    def __init__(self, seeds: record.Seeds) -> None:
        self._seeds = seeds

    def choose(self, situations: list[Situation]) -> list[str]:
        """See `Planner`."""
        return [self.subtask(situation) for situation in situations]

    def subtask(self, situation: Situation) -> str:
        """Return the sub-task for one situation."""
        index = situation.episode << 10 | situation.call
        options = situation.options
        return options[self._seeds.generator("random sub-task", index).integers(len(options))]


class GoalPlanner(Planner):
    """Always "go to the goal", or to explore until the goal is observed: the baseline of the agent alone."""

    def choose(self, situations: list[Situation]) -> list[str]:
        """See `Planner`."""
        return [GO_TO_GOAL if GO_TO_GOAL in s.options else EXPLORE for s in situations]


class LanguagePlanner(Planner):
    """A language model behind a chat interface. After an invalid answer it gets the error and a second attempt; after
    another the sub-task is drawn at random.

    Args:
        chat: The model.
        calls: File of all prompts and answers, a JSON object per line. Its answers are reused by a resumed run.
        fallback: Draws sub-tasks without a valid answer.
        together: Number of simultaneous requests.
    """

    def __init__(self, chat: Chat, calls: Path, fallback: RandomPlanner, together: int) -> None:
        self._chat, self._calls, self._fallback, self._together = chat, calls, fallback, together
        self._lock = threading.Lock()
        repair(calls)
        lines = read_lines(calls) if calls.exists() else ()
        self._answered = {_key(line): line for line, _ in lines}

    def choose(self, situations: list[Situation]) -> list[str]:
        """See `Planner`."""
        with ThreadPoolExecutor(self._together) as threads:
            return list(threads.map(self._choose_one, situations))

    def _choose_one(self, situation: Situation) -> str:
        messages = prompts.messages(situation)
        for attempt in range(2):
            reply = self._reply(situation, attempt, messages)
            subtask, problem = prompts.parse_answer(reply, situation.options)
            if subtask:
                with self._lock:
                    self.corrected += attempt
                return subtask
            correction = prompts.correction(problem)
            messages = [
                *messages,
                {"role": "assistant", "content": reply},
                {"role": "user", "content": correction},
            ]
        with self._lock:
            self.replaced += 1
        return self._fallback.subtask(situation)

    def _reply(self, situation: Situation, attempt: int, messages: list[dict[str, str]]) -> str:
        call: dict[str, Any] = {
            "episode": situation.episode, "call": situation.call, "attempt": attempt, "step": situation.step,
        }  # fmt: skip
        answered = self._answered.get(_key(call))
        if answered and answered["messages"] == messages:
            return str(answered["reply"])
        began = time.perf_counter()
        reply = self._chat.ask(messages, prompts.schema(situation.options))
        line = call | {
            "messages": messages,
            "options": situation.options,
            "reply": reply,
            "valid": bool(prompts.parse_answer(reply, situation.options)[0]),
            "seconds": round(time.perf_counter() - began, 3),
        }
        with self._lock, self._calls.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return reply


def _key(line: dict[str, Any]) -> tuple[int, int, int]:
    return line["episode"], line["call"], line["attempt"]
