"""What the benchmarks share: alternating repeats, the result file, the page that shows all of them."""

from __future__ import annotations

import argparse
import ast
import datetime
import json
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runcatalog.record.provenance.environment import commit_facts, cpu_name

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "results"
REPEATS = 5


def alternate(
    measures: Mapping[str, Callable[[], float]], repeats: int = REPEATS
) -> dict[str, list[float]]:
    """Measures several things in turn, so that a machine that slows down slows all of them.

    Args:
        measures: Functions that return one measurement each, by name.
        repeats: Number of turns, at least 5; every other turn goes backwards.

    Returns:
        The measurements by name; those at the same position belong to one turn.
    """
    if repeats < REPEATS:
        raise ValueError(f"at least {REPEATS} repeats, not {repeats}")
    found: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(repeats):
        order = list(measures) if turn % 2 == 0 else list(reversed(measures))
        for name in order:
            found[name].append(measures[name]())
    return found


def row(
    what: str,
    ours: Sequence[float],
    peer: Sequence[float],
    *,
    peer_name: str,
    unit: str,
    target: float | None,
    target_is: str = "at least",
    **more: Any,
) -> dict[str, Any]:
    """Returns one line of a result file.

    Args:
        what: What was measured, at which size.
        ours: Measurements of the project.
        peer: Measurements of the peer, turn by turn beside ``ours``.
        peer_name: What a user would take instead.
        unit: Unit of both.
        target: What the ratio should be.
        target_is: "at least" or "at most".
        more: Further fields.
    """
    ratios = [a / b for a, b in zip(ours, peer, strict=True)]
    ratio = statistics.median(ratios)
    met = target is None or (ratio >= target if target_is == "at least" else ratio <= target)
    return {
        "what": what,
        "ours": statistics.median(ours),
        "peer": statistics.median(peer),
        "peer_name": peer_name,
        "unit": unit,
        "ratio": ratio,
        "interval": interval(ratios),
        "target": target,
        "target_is": target_is,
        "met": met,
        "repeats": len(ours),
        **where(),
        **more,
    }


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % percentile bootstrap interval of the median."""
    drawn = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.percentile(np.median(drawn, 1), (2.5, 97.5))
    return float(low), float(high)


def where() -> dict[str, Any]:
    """Returns machine, date and commit of a measurement."""
    facts = commit_facts(FOLDER.parent)
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "date": datetime.date.today().isoformat(),
        "commit": facts["commit"][:8] + ("+" if facts["dirty"] else ""),
    }


def parser(about: str | None) -> argparse.ArgumentParser:
    """Returns a parser of what benchmarks take: how often, and whether to write.

    Args:
        about: The benchmark's docstring.
    """
    made = argparse.ArgumentParser(description=about)
    made.add_argument("--repeats", type=int, default=REPEATS)
    made.add_argument("--dry-run", action="store_true", help="print, write nothing")
    return made


def tell(name: str, rows: list[dict[str, Any]], *, dry_run: bool) -> None:
    """Prints the rows as JSON if nothing should be written, and writes them (see `write`) if not."""
    if dry_run:
        print(json.dumps(rows, indent=1))
    else:
        write(name, rows)


def write(name: str, rows: list[dict[str, Any]]) -> None:
    """Prints the rows, writes ``results/NAME.json`` and renders the page again."""
    for each in rows:
        print(line(each))
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
    render()


def render() -> str:
    """Writes ``README.md`` from all result files, and returns it."""
    parts = [
        "# Benchmarks\n\nThe project and its peers in turn, medians of one run each. This page is "
        "rendered by `python benchmarks/render.py` from `results/`; `make bench` measures again.\n"
    ]
    for path in sorted(RESULTS.glob("*.json")):
        rows = json.loads(path.read_text(encoding="utf-8"))
        command = f"`python benchmarks/{path.stem}.py`"
        parts.append(f"\n## {path.stem}\n\n{_about(path.stem)}\n\n{command}\n\n{_table(rows)}")
    text = "".join(parts)
    (FOLDER / "README.md").write_text(text, encoding="utf-8")
    return text


def _about(name: str) -> str:
    """The docstring of a benchmark."""
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)) or ""


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| what | ours | peer | unit | ratio | target | measured on |",
        "|------|------|------|------|-------|--------|-------------|",
    ]
    for each in rows:
        place = f"{each['cpu']}, {each['cores']} cores, {each['date']}, `{each['commit'] or '-'}`"
        peer = f"{_number(each['peer'])} ({each['peer_name']})"
        cells = [each["what"], _number(each["ours"]), peer, each["unit"], _ratio(each)]
        lines.append("| " + " | ".join([*cells, _target(each), place]) + " |")
    return "\n".join(lines) + "\n"


def line(each: dict[str, Any]) -> str:
    """Returns a result row as one line of text."""
    numbers = f"{_number(each['ours'])} against {_number(each['peer'])} {each['unit']}"
    return (
        f"{each['what']}: {numbers} ({each['peer_name']}), ratio {_ratio(each)}, "
        f"target {_target(each)}"
    )


def _target(each: dict[str, Any]) -> str:
    if each.get("target") is None:
        return "-"
    missed = "" if each.get("met", True) else ", **missed**"
    return f"{each.get('target_is', 'at least')} {each['target']:g}{missed}"


def _ratio(each: dict[str, Any]) -> str:
    ratio = each["ratio"]
    text = f"{ratio:.4f}" if 0.9 < ratio < 1.1 else _number(ratio)
    if each.get("interval"):
        text += " [{}, {}]".format(*map(_number, each["interval"]))
    return text


def _number(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 8)}f}"
