"""A model of a lab: what it predicts for workers of this machine beside what they do, and where labs saturate.

The model (see _lab_simulation.py) plays each operation of a lab with what it costs here; the part "costs" measures that
into lab_costs.json, in CPU seconds. The part "validation" is a batch of trials that sleep, on 2, 4 and 8 workers that
share this machine's cores, as the model has it and as it is. Each trial is prepared by Guild, shipped, checked (2 s of
matrix products) and run, so that the cores are busy while the trials sleep.

The part "labs" is of 10, 100 and 1,000 machines, one worker each, with 100,000 trials of 10 minutes and 1,000 points:
the rate at which each part would be busy all the time compared with the rate at which the workers end trials. A ratio
below 1 is a part that is too slow. Submitters have two cores each; MLflow's server and PostgreSQL have four. The table
of docs/cluster.md is written from this part.
"""

import json
import math
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

# The project's root instead of this folder, whose scripts are called as the packages are.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import _lab_costs, _report  # noqa: E402
from benchmarks._lab import Lab  # noqa: E402
from benchmarks._lab_simulation import (  # noqa: E402
    Costs,
    Linear,
    Outcome,
    Scenario,
    simulate,
)

PARTS = ("costs", "validation", "labs")
COSTS = Path(__file__).with_name("lab_costs.json")
LOCAL = (2, 4, 8)
SLEEPERS = 16
LABS = ((10, 1), (100, 1), (1000, 1), (1000, 10))  # workers and submitters
TRIALS, MINUTES, POINTS = 100_000, 10.0, 1000
SPREAD = 0.3  # of the logarithm of a trial's time; its median is MINUTES
PAGE = Path(__file__).resolve().parent.parent / "docs" / "cluster.md"
BEGIN, END = "<!-- lab_model.py writes this table -->\n", "<!-- to here -->\n"
_CATALOG_RUNS = 10_000  # of the rows of catalog.json that are used


def costs() -> Costs:
    """Return the recorded costs."""
    return Costs.from_json(json.loads(COSTS.read_text(encoding="utf-8"))["costs"])


def measure_costs(folder: Path, *, dry_run: bool) -> None:
    """Measure the costs, and write them unless `dry_run`."""
    measured = replace(_lab_costs.measure(folder), catalog=_catalog())
    content = {"unit": "CPU seconds on one core", **_report.where(), "costs": measured.to_json()}
    text = json.dumps(content, indent=1) + "\n"
    print(text)
    if not dry_run:
        COSTS.write_text(text, encoding="utf-8")


def _catalog() -> Linear:
    """Return what a sync with nothing new and a render cost, from their own benchmark."""
    rows = json.loads((_report.RESULTS / "catalog.json").read_text(encoding="utf-8"))
    wanted = [f"{name}, {_CATALOG_RUNS:,} runs" for name in ("sync, nothing new", "render")]
    seconds = sum(row["ours"] for row in rows if row["what"] in wanted)
    return Linear(0.0, seconds / _CATALOG_RUNS)


def validation_rows(lab: Lab, known: Costs, seconds: float, repeats: int) -> list[dict[str, Any]]:
    """Return predicted and measured rates of trials that sleep, for each number of local workers."""
    cores = _report.where()["cores"]
    measures = {str(n): lambda n=n: lab.sleepers_rate(n, SLEEPERS, seconds) for n in LOCAL}
    rates = _report.alternate(measures, repeats)
    rows = []
    for workers in LOCAL:
        scenario = Scenario(workers=workers, trials=SLEEPERS, seconds=seconds, shared=cores)
        predicted = [
            60 * simulate(scenario, known, seed, beats(workers)).rate for seed in range(repeats)
        ]
        what = f"{SLEEPERS} trials that sleep for {seconds:g} s, {workers} local workers"
        options = {"peer_name": "measured", "unit": "trials/min", "target": None}
        rows.append(_report.row(f"{what}: the model", predicted, rates[str(workers)], **options))
    return rows


def beats(workers: int) -> float:
    """Return the heartbeats of all workers in a second."""
    from distributed.scheduler import heartbeat_interval

    return workers / heartbeat_interval(workers)


def lab_outcomes(known: Costs, trials: int = TRIALS) -> dict[tuple[int, int], Outcome]:
    """Return what labs of so many workers and submitters do with the trials."""
    outcomes = {}
    for workers, submitters in LABS:
        scenario = Scenario(
            workers=workers, trials=trials, seconds=60 * MINUTES, spread=SPREAD, points=POINTS,
            submitters=submitters,
        )  # fmt: skip
        outcomes[workers, submitters] = simulate(scenario, known, heartbeats=beats(workers))
    return outcomes


def ended_by(workers: int) -> float:
    """Return the trials that so many workers end in a second if they wait for nothing."""
    return workers / (60 * MINUTES * math.exp(SPREAD**2 / 2))


def lab_rows(outcomes: dict[tuple[int, int], Outcome]) -> list[dict[str, Any]]:
    """Return the rate that each part of the labs could reach, compared with the workers'."""
    rows = []
    for (workers, submitters), outcome in outcomes.items():
        wanted = [ended_by(workers)]
        shown = {"peer_name": "what the workers end", "unit": "trials/s", "target": None}
        lab = f"{workers:,} workers, {submitters} submitter{'s' * (submitters > 1)}"
        for part, rate in sorted(outcome.capacities().items(), key=lambda item: item[1]):
            rows.append(_report.row(f"{lab}: {part}", [rate], wanted, **shown))
        rows.append(_report.row(f"{lab}: all together", [outcome.rate], wanted, **shown))
    return rows


def table(outcomes: dict[tuple[int, int], Outcome]) -> str:
    """Return the table of the page."""
    lines = [
        "| machines | submitters | trials/s that the machines end | reached | days for 100,000 | at most by submitters "
        "| by MLflow | by PostgreSQL | by the scheduler | memory of a submitter |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (workers, submitters), outcome in outcomes.items():
        most = outcome.capacities()
        cells = [f"{workers:,}", str(submitters), _report.number(ended_by(workers))]
        cells += [_report.number(outcome.rate), _report.number(outcome.seconds / 86400)]
        cells += [
            _report.number(most[part])
            for part in ("submitters", "MLflow", "PostgreSQL", "scheduler")
        ]
        lines.append("| " + " | ".join([*cells, f"{outcome.memory / 1000:.0f} GB"]) + " |")
    return "\n".join(lines) + "\n"


def write_table(text: str) -> None:
    """Replace the table of the page."""
    page = PAGE.read_text(encoding="utf-8")
    head, tail = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}", encoding="utf-8")


def main() -> None:
    """Measure and simulate; write lab_costs.json and results/lab_model.json."""
    parser = _report.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="that a local trial sleeps")
    _report.add_parts(parser, PARTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lab-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for part in options.parts:
            if part == "costs":
                (folder / part).mkdir()
                measure_costs(folder / part, dry_run=options.dry_run)
                continue
            if part == "validation":
                lab = Lab(folder / part)
                try:
                    rows = validation_rows(lab, costs(), options.seconds, options.repeats)
                finally:
                    lab.close()
            else:
                outcomes = lab_outcomes(costs())
                rows = lab_rows(outcomes)
                print(table(outcomes))
                if not options.dry_run:
                    write_table(table(outcomes))
            _report.report_part("lab_model", part, PARTS, rows, dry_run=options.dry_run)


if __name__ == "__main__":
    main()
