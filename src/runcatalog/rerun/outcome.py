"""What a repeated run says about its record: equal bits, an indistinguishable value, or a different one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runcatalog.analysis import differences
from runcatalog.model import statistics, values
from runcatalog.model.run_record import RunRecord
from runcatalog.text import markdown


@dataclass(frozen=True)
class Outcome:
    """A repeated run beside its record.

    Attributes:
        record: The record.
        value: Objective of the repeated run; None without one.
        interval: Its 95 % interval; None without one.
        bits: Whether the digests of the final weights and of all metrics are equal; None if the record has none.
        cpu: CPU that the run was repeated on.
        when: Day of the repetition, YYYY-MM-DD.
        versions: Packages with another version than in the record: name to "then, now".
    """

    record: RunRecord
    value: float | None
    interval: tuple[float, float] | None
    bits: bool | None
    cpu: str
    when: str
    versions: Mapping[str, str]

    @property
    def agrees(self) -> bool | None:
        """Whether the value agrees with the record's; None if that is unknown.

        It does if it is equal, or if the 95 % interval of the difference contains 0.
        """
        recorded = (self.record.objective or {}).get("value")
        if self.bits:
            return True
        if recorded is None or self.value is None:
            return None
        if self.value == recorded or (math.isnan(self.value) and math.isnan(recorded)):
            return True
        interval = statistics.bounds([self.record.objective or {}])
        if interval is None:
            return None
        low, high = differences.difference(
            (recorded, *interval), (self.value, *(self.interval or (self.value, self.value)))
        )
        return low <= 0 <= high

    def text(self) -> str:
        """Return the outcome in words."""
        then = (self.record.objective or {}).get("value")
        numbers = ""
        if self.value is not None and then is not None:
            numbers = f": {markdown.number(self.value)} against {markdown.number(then)}"
        if self.bits:
            return f"same bits{numbers}"
        words = {
            True: "other bits, values that are indistinguishable",
            False: "other bits, values that differ",
            None: "other bits; the record has no interval",
        }
        differing = [f"{name} {both}" for name, both in self.versions.items()]
        if self.cpu != self.record.host_cpu:
            differing.insert(0, f"CPU {self.record.host_cpu}, {self.cpu}")
        other = f" (then and now: {'; '.join(differing)})" if differing else ""
        return f"{words[self.agrees]}{numbers}{other}"

    def entry(self) -> dict[str, Any]:
        """Return the entry for the record's list `reproduced`."""
        entry: dict[str, Any] = {
            "when": self.when,
            "cpu": self.cpu,
            "bits": bool(self.bits),
            "value": None if self.value is None else values.json_number(self.value),
        }
        return entry | ({"versions": dict(self.versions)} if self.versions else {})


def compare(
    record: RunRecord,
    repeated: RunRecord,
    facts: Mapping[str, Any],
    digest: Mapping[str, str],
    when: str,
) -> Outcome:
    """Compare a repeated run with its record.

    Args:
        record: The record.
        repeated: The record with the repeated run's result.
        facts: The repeated run's `journal/run.json`.
        digest: Digests of its weights and metrics.
        when: Day of the repetition, YYYY-MM-DD.
    """
    objective = repeated.objective
    known = {name: text for name, text in digest.items() if text}
    now = facts.get("versions") or {}
    versions = {
        name: f"{then}, {now[name]}"
        for name, then in sorted(record.versions.items())
        if name in now and now[name] != then
    }
    return Outcome(
        record=record,
        value=objective["value"] if objective else None,
        interval=statistics.bounds([objective]) if objective else None,
        bits=known == record.digest if record.digest else None,
        cpu=str(facts.get("host_cpu") or ""),
        when=when,
        versions=versions,
    )
