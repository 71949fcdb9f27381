"""Headline results that a project declares in experiments/STUDY/reported.yml.

headline:
  accuracy:
    question: Mean success on six tasks
    operation: door:metrics_series4
    flags: {seed: [1, 2, 3]}
    metric: accuracy
    unit: "%"
    reported: 0.73
    same_setting: "no: other doors"
finding:
  text: "It forgets little: {accuracy}"
  if: [accuracy > 0.9]
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runcatalog.model import values
from runcatalog.model.declarations import load_yaml
from runcatalog.model.errors import CatalogError
from runcatalog.model.project import FINDING, HEADLINE, Project
from runcatalog.model.statistics import STATISTICS
from runcatalog.query.fields import suggestion

BEST = "best "  # prefix of the statistic that compares the values of a flag
_KEYS = (
    *("question", "operation", "flags", "parents", "metric", "statistic", "mean_by"),
    *("unit", "goal", "seeds", "reported", "same_setting"),
)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_CONDITION = re.compile(r"\s*(?P<left>[\w-]+)\s*(?P<sign>[<>~])\s*(?P<right>[\w.+-]+)\s*")


@dataclass(frozen=True)
class Headline:
    """A question of a study, and the number of its records that answers it.

    Attributes:
        where: File and entry, for messages.
        study: The study.
        name: Name of the entry.
        question: What was asked.
        operation: Operation of the runs, or of their batch.
        flags: Accepted values by flag; a flag with several values does not separate settings.
        metric: Name of the number, see `record_numbers.values_of`.
        statistic: One of STATISTICS, over the runs; or "best FLAG", the value of a flag with the best mean.
        unit: "%" for shares, also of a table in per cent; "" or a word for other numbers.
        goal: "max" or "min"; "" for that of the objective.
        seeds: Flags of the run, or of the run that it started from, which give its number of seeds.
        reported: The source's result in words; "" without.
        reported_span: The source's number, least and largest; None where it reports none.
        same_setting: "yes" or "no: REASON", whether the setting is the source's; "" without a source.
        parents: Operation of parents, such as the evaluations of a study, whose numbers count instead of the runs' own;
            "" for the runs themselves.
        mean_by: Flag of the runs or their parents, such as the split of the data: runs with one value of it are not
            independent, so their mean is one value of the statistic and its interval; "" where each run is.
    """

    where: str
    study: str
    name: str
    question: str
    operation: str
    flags: Mapping[str, tuple[values.Scalar, ...]]
    metric: str = "objective"
    statistic: str = "mean"
    unit: str = ""
    goal: str = ""
    seeds: tuple[str, ...] = ()
    reported: str = ""
    reported_span: tuple[float, float] | None = None
    same_setting: str = ""
    parents: str = ""
    mean_by: str = ""

    @property
    def compared_flag(self) -> str:
        """The flag whose values are compared; "" for a single number."""
        return self.statistic.removeprefix(BEST) if self.statistic.startswith(BEST) else ""


@dataclass(frozen=True)
class Condition:
    """The interval of a headline minus another or a number lies above 0 (>), below it (<), or contains it (~)."""

    left: str
    sign: str
    right: str

    def __str__(self) -> str:
        return f"{self.left} {self.sign} {self.right}"


@dataclass(frozen=True)
class Finding:
    """What a study has shown, in a sentence.

    Attributes:
        where: File and entry, for messages.
        text: Markdown; `{NAME}` stands for the number of a headline.
        conditions: Comparisons that the records have to support.
    """

    where: str
    text: str
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class Declared:
    """Headlines and findings of a project, by study."""

    headlines: Mapping[str, tuple[Headline, ...]]
    findings: Mapping[str, Finding]

    def named(self, name: str) -> Headline | None:
        """Return a headline by "STUDY/NAME"; None without it."""
        study, _, own = name.partition("/")
        return next((h for h in self.headlines.get(study, ()) if h.name == own), None)


def declared(project: Project) -> Declared:
    """Return what the project declares in experiments/*/reported.yml.

    Raises:
        CatalogError: An entry is invalid; the message names the file and the entry.
    """
    headlines, findings = {}, {}
    for path in sorted(project.experiments.glob("*/reported.yml")):
        content = load_yaml(path)
        if not isinstance(content, dict):
            continue
        study, where = path.parent.name, path.relative_to(project.root).as_posix()
        entries = content.get(HEADLINE)
        if not isinstance(entries, dict | None):
            raise CatalogError(f"{where}: headline: a mapping of names to entries is expected")
        headlines[study] = tuple(
            _headline(f"{where}: headline: {name}", study, str(name), entry)
            for name, entry in (entries or {}).items()
        )
        if FINDING in content:
            names = [headline.name for headline in headlines[study]]
            findings[study] = _finding(f"{where}: finding", content[FINDING], names)
    return Declared({s: entries for s, entries in headlines.items() if entries}, findings)


def _headline(where: str, study: str, name: str, entry: Any) -> Headline:
    if not _NAME.fullmatch(name):
        raise CatalogError(f"{where}: a name is of letters, digits, - and _")
    if not isinstance(entry, dict):
        raise CatalogError(f"{where}: a mapping is expected: {', '.join(_KEYS)}")
    for key in entry:
        if key not in _KEYS:
            raise CatalogError(f"{where}: no such key {key!r}{suggestion(str(key), _KEYS)}")
    text = {key: " ".join(str(entry.get(key) or "").split()) for key in _KEYS}
    for key in ("question", "operation"):
        if not text[key]:
            raise CatalogError(f"{where}: {key} is missing")
    statistic = text["statistic"] or "mean"
    if statistic not in STATISTICS and not statistic.startswith(BEST):
        known = (*STATISTICS, f"{BEST}FLAG")
        raise CatalogError(
            f"{where}: no statistic {statistic!r}: {', '.join(known)}{suggestion(statistic, known)}"
        )
    if text["goal"] not in ("", "max", "min"):
        raise CatalogError(f"{where}: goal is max or min, got {text['goal']!r}")
    flags = entry.get("flags") or {}
    if not isinstance(flags, dict):
        raise CatalogError(f"{where}: flags: a mapping of flags to values is expected")
    shown, span = _reported(f"{where}: reported", entry.get("reported"))
    return Headline(
        where,
        study,
        name,
        text["question"],
        text["operation"],
        {
            str(flag): tuple(map(values.parse_flag, value if isinstance(value, list) else [value]))
            for flag, value in flags.items()
        },
        text["metric"] or "objective",
        statistic,
        text["unit"],
        text["goal"],
        tuple(map(str, _list(entry.get("seeds")))),
        shown,
        span,
        _same_setting(f"{where}: same_setting", entry.get("same_setting")),
        text["parents"],
        text["mean_by"],
    )


def _reported(where: str, content: Any) -> tuple[str, tuple[float, float] | None]:
    """Parse a number, [least, largest], words, or {value, text}."""
    text, value = "", content
    if isinstance(content, dict):
        unknown = set(content) - {"value", "text"}
        if unknown:
            raise CatalogError(f"{where}: no such key {min(map(str, unknown))!r}: value, text")
        text, value = str(content.get("text") or ""), content.get("value")
    elif isinstance(content, str):
        return content, None
    if value is None:
        return text, None
    try:
        numbers = [values.number(number) for number in _list(value)]
    except ValueError as error:
        raise CatalogError(f"{where}: {error}") from None
    if not numbers or len(numbers) > 2 or not all(map(math.isfinite, numbers)):
        raise CatalogError(f"{where}: a number or [least, largest] is expected, got {value!r}")
    return text, (min(numbers), max(numbers))


def _same_setting(where: str, content: Any) -> str:
    if isinstance(content, bool):  # YAML reads yes and no so
        content = "yes" if content else "no"
    text = str(content or "")
    if text.strip() == "no":
        raise CatalogError(f'{where}: "no: " and what differs is expected')
    return text


def _finding(where: str, content: Any, names: list[str]) -> Finding:
    body = content if isinstance(content, dict) else {"text": content}
    unknown = set(body) - {"text", "if"}
    if unknown or not body.get("text"):
        raise CatalogError(f"{where}: text, and if: [CONDITION, …], are expected")
    conditions = []
    for condition in _list(body.get("if")):
        match = _CONDITION.fullmatch(str(condition))
        if match is None:
            raise CatalogError(
                f"{where}: {condition!r} is not NAME > NAME or NUMBER, with >, < or ~"
            )
        for side in (match["left"], match["right"]):
            if side not in names and not (side == match["right"] and is_number(side)):
                raise CatalogError(f"{where}: no headline {side!r}{suggestion(side, names)}")
        conditions.append(Condition(match["left"], match["sign"], match["right"]))
    text = " ".join(str(body["text"]).split())
    for name in re.findall(r"{(.*?)}", text):
        if name not in names:
            raise CatalogError(f"{where}: no headline {name!r}{suggestion(name, names)}")
    return Finding(where, text, tuple(conditions))


def is_number(text: str) -> bool:
    """Return whether a side of a condition is a number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _list(content: Any) -> list[Any]:
    if content is None:
        return []
    return list(content) if isinstance(content, list | tuple) else [content]
