"""Who names the next sub-task: a language model, the search, chance, or nobody who thinks."""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from runcatalog import record
from runcatalog.record import journal
from skills.planner import prompts
from skills.planner.chat import Chat
from skills.planner.oracle import Oracle
from skills.planner.prompts import Situation
from skills.planner.subtasks import EXPLORE, GO_TO_GOAL


class Planner(ABC):
    """Names sub-tasks.

    Attributes:
        corrected: Answers that were valid only at the second time.
        replaced: Sub-tasks that were drawn since no answer was valid.
    """

    corrected = replaced = 0

    @abstractmethod
    def choose(self, situations: list[Situation]) -> list[str]:
        """Returns a sub-task out of the options of each situation."""


class OraclePlanner(Planner):
    """What a shortest solution does next; to explore, while that was not yet seen. It knows the whole level."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def choose(self, situations: list[Situation]) -> list[str]:
        """See `Planner`."""
        return [self.subtask(each) for each in situations]

    def subtask(self, situation: Situation) -> str:
        """Of one situation."""
        found = self._oracle.subtask(situation.level)
        return found if found in situation.options else EXPLORE


class RandomPlanner(Planner):
    """Any of the options.

    Args:
        seeds: Of the run; what is drawn depends on episode and call alone.
    """

    def __init__(self, seeds: record.Seeds) -> None:
        self._seeds = seeds

    def choose(self, situations: list[Situation]) -> list[str]:
        """See `Planner`."""
        return [self.subtask(each) for each in situations]

    def subtask(self, situation: Situation) -> str:
        """Of one situation."""
        index = situation.episode << 10 | situation.call
        options = situation.options
        return options[self._seeds.generator("random sub-task", index).integers(len(options))]


class GoalPlanner(Planner):
    """Nothing but "go to the goal", or to explore until it is seen: what an agent makes of that alone."""

    def choose(self, situations: list[Situation]) -> list[str]:
        """See `Planner`."""
        return [GO_TO_GOAL if GO_TO_GOAL in each.options else EXPLORE for each in situations]


class LanguagePlanner(Planner):
    """A language model behind a chat interface. An invalid answer is asked again once, with what was wrong; after
    a second one the sub-task is drawn.

    Args:
        chat: The model.
        calls: File of all prompts and answers, a JSON object a line. What it has already is not asked again, so a run
            that was killed goes on where it was.
        instead: Draws where no answer is valid.
        together: Situations that are asked at the same time.
    """

    def __init__(self, chat: Chat, calls: Path, instead: RandomPlanner, together: int) -> None:
        self._chat, self._calls, self._instead, self._together = chat, calls, instead, together
        self._lock = threading.Lock()
        journal.repair(calls)
        lines = journal.read_lines(calls) if calls.exists() else ()
        self._known = {_key(line): line for line, _ in lines}

    def choose(self, situations: list[Situation]) -> list[str]:
        """See `Planner`."""
        with ThreadPoolExecutor(self._together) as threads:
            return list(threads.map(self._one, situations))

    def _one(self, situation: Situation) -> str:
        messages = prompts.messages(situation)
        for attempt in range(2):
            reply = self._reply(situation, attempt, messages)
            subtask, problem = prompts.read(reply, situation.options)
            if subtask:
                with self._lock:
                    self.corrected += attempt
                return subtask
            told = prompts.correction(problem)
            messages = [
                *messages,
                {"role": "assistant", "content": reply},
                {"role": "user", "content": told},
            ]
        with self._lock:
            self.replaced += 1
        return self._instead.subtask(situation)

    def _reply(self, situation: Situation, attempt: int, messages: list[dict[str, str]]) -> str:
        about: dict[str, Any] = {
            "episode": situation.episode, "call": situation.call, "attempt": attempt, "step": situation.step,
        }  # fmt: skip
        known = self._known.get(_key(about))
        if known and known["messages"] == messages:
            return str(known["reply"])
        began = time.perf_counter()
        reply = self._chat.ask(messages, prompts.schema(situation.options))
        line = about | {
            "messages": messages,
            "options": situation.options,
            "reply": reply,
            "valid": bool(prompts.read(reply, situation.options)[0]),
            "seconds": round(time.perf_counter() - began, 3),
        }
        with self._lock, self._calls.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return reply


def _key(line: dict[str, Any]) -> tuple[int, int, int]:
    return line["episode"], line["call"], line["attempt"]
