"""Shared code of the benchmarks: flags, the load limit, alternating repeats, result files, the rendered page."""

from __future__ import annotations

import argparse
import ast
import datetime
import json
import math
import os
import statistics
import string
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runcatalog.record.provenance.git import commit_facts
from runcatalog.record.provenance.machine import cpu_name

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "results"
REPEATS = 5
# 1-minute load average before the start; above it, other processes slow the measurement.
LOAD_LIMIT = 1.5
LOAD_WAIT = 120.0  # s to wait for the load of an earlier benchmark to fall below the limit
_LOAD_POLL = 5.0  # s

_load_before: float | None = None  # load average before the benchmark began


class _Parser(argparse.ArgumentParser):
    """Parser that refuses to start a recorded benchmark on a loaded machine, unless it measures no times."""

    timed = True

    def parse_args(self, *arguments: Any, **options: Any) -> argparse.Namespace:  # type: ignore[override]
        """Parse the flags; `dry_run` is true if the results must not be recorded.

        Raises:
            SystemExit: The load average is above LOAD_LIMIT, and neither --dry-run nor --force is given.
        """
        parsed = super().parse_args(*arguments, **options)
        if self.timed:  # the flags stay the same: `make bench` passes them to all
            parsed.dry_run = not check_load(dry_run=parsed.dry_run, force=parsed.force)
        return parsed


def parser(
    about: str | None, repeats: int | None = REPEATS, timed: bool = True
) -> argparse.ArgumentParser:
    """Return a parser with the flags of all benchmarks; its `parse_args` checks the load.

    Args:
        about: The benchmark's docstring.
        repeats: Default of --repeats; None leaves this flag out.
        timed: Whether it measures times; what does not depend on the load is measured at any.
    """
    flags = _Parser(description=about)
    flags.timed = timed
    if repeats is not None:
        flags.add_argument(
            "--repeats",
            type=_repeats,
            default=repeats,
            help=f"alternating repeats, at least {REPEATS}",
        )
    flags.add_argument("--dry-run", action="store_true", help="print the rows, write nothing")
    flags.add_argument(
        "--force",
        action="store_true",
        help=f"measure at a load above {LOAD_LIMIT} too; such results are printed and not recorded",
    )
    return flags


def _repeats(text: str) -> int:
    """Return a number of repeats; too few are refused before anything is measured."""
    if not text.isdecimal() or int(text) < REPEATS:
        raise argparse.ArgumentTypeError(f"at least {REPEATS} are needed, not {text}")
    return int(text)


def add_parts(flags: argparse.ArgumentParser, parts: Sequence[str]) -> None:
    """Add the flag --parts, a list of the parts of a benchmark to measure."""

    def names(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := set(chosen) - set(parts):
            raise argparse.ArgumentTypeError(
                f"{', '.join(sorted(unknown))}: {', '.join(parts)} are expected"
            )
        return chosen

    flags.add_argument(
        "--parts",
        type=names,
        default=list(parts),
        help=f"parts to measure, of {','.join(parts)}; the rows of the others stay",
    )


def check_load(*, dry_run: bool, force: bool) -> bool:
    """Return whether the results may be recorded: the machine is idle, and they are wanted.

    Raises:
        SystemExit: The load average stays above LOAD_LIMIT, and neither flag is given.
    """
    global _load_before
    _load_before = os.getloadavg()[0] if dry_run or force else _load_after_waiting()
    if dry_run:
        return False
    if _load_before <= LOAD_LIMIT:
        return True
    problem = f"load average {_load_before:.1f} is above {LOAD_LIMIT}"
    if not force:
        raise SystemExit(f"{problem}: nothing is measured; --force measures without recording")
    print(f"{problem}: results are not recorded", file=sys.stderr)
    return False


def _load_after_waiting() -> float:
    """Return the load average once it is below the limit, or after LOAD_WAIT seconds."""
    end = time.monotonic() + LOAD_WAIT
    while (load := os.getloadavg()[0]) > LOAD_LIMIT and time.monotonic() < end:
        time.sleep(_LOAD_POLL)
    return load


def alternate(
    measures: Mapping[str, Callable[[], float]], repeats: int = REPEATS
) -> dict[str, list[float]]:
    """Measure several things in turn, so that a machine that slows down slows all of them.

    Args:
        measures: Functions that return one measurement, by name.
        repeats: Number of turns, at least 5; every other turn is in reverse order.

    Returns:
        The measurements by name; those at the same position belong to one turn.
    """
    if repeats < REPEATS:
        raise ValueError(f"at least {REPEATS} repeats, not {repeats}")
    values: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(repeats):
        order = list(measures) if turn % 2 == 0 else list(reversed(measures))
        for name in order:
            values[name].append(measures[name]())
    return values


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
    """Return one row of a result file; the ratio of a single measurement has no interval.

    Args:
        what: What was measured, at which size.
        ours: Measurements of the project.
        peer: Measurements of the peer, in the same turns as ``ours``.
        peer_name: What a user would use instead.
        unit: Unit of both.
        target: Target of the ratio.
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
        **({"interval": interval(ratios)} if len(ratios) > 1 else {}),
        "target": target,
        "target_is": target_is,
        "met": met,
        "repeats": len(ours),
        **where(),
        **more,
    }


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the median."""
    samples = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.percentile(np.median(samples, 1), (2.5, 97.5))
    return float(low), float(high)


def where() -> dict[str, Any]:
    """Return machine, load before the benchmark, date and commit of a measurement."""
    facts = commit_facts(FOLDER.parent)
    load = os.getloadavg()[0] if _load_before is None else _load_before
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(load, 1),
        "date": datetime.date.today().isoformat(),
        "commit": facts["commit"][:8] + ("+" if facts["dirty"] else ""),
    }


def report(name: str, rows: list[dict[str, Any]], *, dry_run: bool) -> None:
    """Print the rows; unless `dry_run`, write ``results/NAME.json`` and render the page."""
    if dry_run:
        print(json.dumps(rows, indent=1))
        return
    for result in rows:
        print(line(result))
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
    render()


def report_part(
    name: str, part: str, parts: Sequence[str], rows: list[dict[str, Any]], *, dry_run: bool
) -> None:
    """Report the rows of one part of a benchmark; the recorded rows of its other parts stay.

    Args:
        name: The benchmark.
        part: The part that was measured.
        parts: All parts, in the table's order.
        rows: Its rows.
        dry_run: Whether the rows are printed only.
    """
    path = RESULTS / f"{name}.json"
    recorded = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    others = [] if dry_run else [row for row in recorded if row.get("part") != part]
    all_rows = others + [{**row, "part": part} for row in rows]
    all_rows.sort(key=lambda row: parts.index(row["part"]))
    report(name, all_rows, dry_run=dry_run)


def render() -> str:
    """Write ``README.md`` from all result files, and return it."""
    text = page()
    (FOLDER / "README.md").write_text(text, encoding="utf-8")
    return text


def page() -> str:
    """Return the page of all result files."""
    results = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(RESULTS.glob("*.json"))
    }
    machines = list(dict.fromkeys(_machine(row) for rows in results.values() for row in rows))
    names = dict(zip(machines, string.ascii_uppercase, strict=False))
    parts = [
        "# Benchmarks\n\nThe project and its peers in alternating turns; medians of the turns, and of a ratio its 95 % "
        "bootstrap interval. This page is "
        "rendered by `python benchmarks/render.py` from `results/`; `make bench` measures again. "
        f"A benchmark starts only at a load average of at most {LOAD_LIMIT}; `--force` also measures above it, "
        "without recording. Rows with a higher load are older than this limit, or no times (`search`).\n\n"
        f"Machines: {'; '.join(f'{name} {machine}' for machine, name in names.items())}.\n",
        _summary(results),
    ]
    for name, rows in results.items():
        command = f"`python benchmarks/{name}.py`"
        parts.append(f"\n## {name}\n\n{_about(name)}\n\n{command}\n\n{_table(rows, names)}")
    return "".join(parts)


def _about(name: str) -> str:
    """Return the docstring of a benchmark."""
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)) or ""


def _machine(result: dict[str, Any]) -> str:
    return f"{result['cpu']}, {result['cores']} cores"


def _summary(results: Mapping[str, list[dict[str, Any]]]) -> str:
    """Return how many targets are reached, and a table of those that are missed."""
    aims = [
        (name, row) for name, rows in results.items() for row in rows if row["target"] is not None
    ]
    missed = [(name, row) for name, row in aims if not row["met"]]
    lines = [
        f"\n**{len(aims) - len(missed)} of {len(aims)} targets are reached.**"
        + (" Missed:" if missed else ""),
        *(
            ["", "| benchmark | what | peer | ratio | target |", "|---|---|---|---|---|"]
            if missed
            else []
        ),
        *(
            f"| [{name}](#{name}) | {row['what']} | {row['peer_name']} | {_ratio(row)} | {_aim(row)} |"
            for name, row in missed
        ),
    ]
    return "\n".join(lines) + "\n"


def _table(rows: list[dict[str, Any]], machines: Mapping[str, str]) -> str:
    lines = [
        "| what | ours | peer | unit | ratio | target | measured on |",
        "|------|------|------|------|-------|--------|-------------|",
    ]
    for result in rows:
        place = [machines[_machine(result)]]
        place += [f"load {result['load']:.1f}"] if "load" in result else []
        place += [result["date"], f"`{result['commit'] or '-'}`"]
        peer = f"{number(result['peer'])} ({result['peer_name']})"
        cells = [result["what"], number(result["ours"]), peer, result["unit"], _ratio(result)]
        lines.append("| " + " | ".join([*cells, _target(result), ", ".join(place)]) + " |")
    return "\n".join(lines) + "\n"


def line(result: dict[str, Any]) -> str:
    """Return a result row as one line of text."""
    numbers = f"{number(result['ours'])} against {number(result['peer'])} {result['unit']}"
    return (
        f"{result['what']}: {numbers} ({result['peer_name']}), ratio {_ratio(result)}, "
        f"target {_target(result)}"
    )


def _target(result: dict[str, Any]) -> str:
    if result.get("target") is None:
        return "-"
    return _aim(result) + ("" if result["met"] else ", **missed**")


def _aim(result: dict[str, Any]) -> str:
    return f"{result['target_is']} {result['target']:g}"


def _ratio(result: dict[str, Any]) -> str:
    ratio = result["ratio"]
    text = f"{ratio:.4f}" if 0.9 < ratio < 1.1 else number(ratio)
    if result.get("interval"):
        text += " [{}, {}]".format(*map(number, result["interval"]))
    return text


def number(value: float) -> str:
    """Return a number with three digits, in groups."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 8)}f}"
