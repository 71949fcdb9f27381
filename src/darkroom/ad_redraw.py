"""Draws the catalog's figures of in-context learning from the committed records.

Run after `catalog export`: python src/darkroom/ad_redraw.py
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from darkroom.distillation import figures as ad_figures
from darkroom.distillation.options import OWN, PRESETS, Config
from darkroom.distillation.scores import Line, label_of
from runcatalog.model import committed
from runcatalog.model.committed import metric_values

STUDIES = {"ad:study": "ad_in_context.svg", "ad:study_mixed": "ad_mixed.svg"}
# Flags that make a variant: what is left out is the same in all, or is what variants are repeated over.
VARIANTS = (
    "preset", "layout", "states", "positions", "windows", "shift", "stretch", "optimizer", "stride",
    "searching", "candidates", "jitter", "label-smoothing", "attention-dropout", "residual-dropout",
    "embedding-dropout", "window", "batch-size",
)  # fmt: skip
# Where neither a record's flags nor its settings tell: there was no such flag yet.
EARLIER = {"searching": 0.0}


def main() -> None:
    """Draws what there are records for, and says if there are none."""
    found = committed.redraw(__doc__.splitlines()[0], "darkroom", draw)
    if not found.keys() & {*STUDIES, "ad:evaluate", "ad:train"}:
        print("no record of ad:study, ad:evaluate or ad:train")


def draw(found: committed.Records, folder: Path) -> list[Path]:
    """Draws figures from records by operation; returns the files."""
    drawn = []
    for operation, name in STUDIES.items():
        if operation in found:
            drawn.append(folder / name)
            ad_figures.in_context(drawn[-1], *curves(found[operation][-1]))
    if "ad:study" in found and "ad:evaluate" in found:
        drawn.append(folder / "ad_by_goal.svg")
        ad_figures.by_goal(drawn[-1], goals(found["ad:study"][-1], found["ad:evaluate"]))
    chosen = [
        each
        for each in found.get("ad:train", [])
        if float(each["flags"].get("validation-share", 0)) > 0
    ]
    if shares := variants(chosen, found.get("ad:evaluate", [])):
        drawn.append(folder / "ad_variants.svg")
        ad_figures.bars(
            drawn[-1], shares, "normalised return, episodes 36 to 40 of validation tasks"
        )
    return drawn


def curves(study: dict[str, Any]) -> tuple[list[Line], tuple[np.ndarray, np.ndarray] | None]:
    """Lines of a study, and its sources' curve."""
    metrics, lines, source = study["metrics"], [], None
    for name in sorted(metrics):
        part, _, what = name.rpartition("/")
        if what == "in_context":
            each = [
                metric_values(study, f"{part}/{k}")
                for k in ("steps", "in_context", "in_context_low", "in_context_high")
            ]
            lines.append(Line(label_of(part), *each))
        elif what == "source":
            at = np.array([step for step, _ in metrics[name]["curve"]], float)
            source = at, metric_values(study, name)
    return lines, source


def goals(study: dict[str, Any], evaluations: list[dict[str, Any]]) -> dict[int, np.ndarray]:
    """Mean over a study's evaluations of the last block at the goals that were kept out, by size."""
    sums: dict[int, np.ndarray] = {}
    counts: dict[int, np.ndarray] = {}
    for each in evaluations:
        if each["run"] not in study["parents"]:
            continue
        for name, metric in each["metrics"].items():
            part, _, what = name.rpartition("/")
            kind, _, size = part.rpartition("_")
            if what == "by_goal" and kind == "held_out":
                side = int(size)
                sums.setdefault(side, np.zeros(side**2))
                counts.setdefault(side, np.zeros(side**2))
                for goal, value in metric["curve"]:
                    sums[side][int(goal)] += value
                    counts[side][int(goal)] += 1
    with np.errstate(invalid="ignore"):
        return {side: sums[side] / counts[side] for side in sums}


def variants(
    trained: list[dict[str, Any]], played: list[dict[str, Any]]
) -> dict[str, list[tuple[float, float]]]:
    """Returns in the middle episodes at validation tasks, by what trainings differ in from today's default.

    Args:
        trained: Records of trainings with validation tasks.
        played: Records of evaluations, of whatever trainings.

    Returns:
        Of each play, at the end of the training or in an evaluation: the mean return, and how many agents a task had.
    """
    default = meaning({}, vars(PRESETS["default"])) | {"updates": PRESETS["default"].updates}
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for each in trained:
        objective = each["result"]["objective"]
        # What a preset's number of updates was then, its objective tells.
        own = meaning(each["flags"], each["result"].get("settings", {})) | {
            "updates": objective["at"]
        }
        others = [f"{name}={text(value)}" for name, value in own.items() if value != default[name]]
        of = found[" ".join(others) or "default"]
        of.append((objective["value"], float(each["flags"]["copies"])))
        block = objective["name"].rpartition("/")[2]
        for evaluation in played:
            # All `metrics` of an evaluation in many sizes would be too long for its record.
            first = evaluation["result"]["objective"]
            told = {one["name"]: one["value"] for one in (first, *first.get("also", ()))}
            sampled = evaluation["flags"].get("actions", "sampled") == "sampled"
            name = f"validation_9/{block}"
            if name in told and sampled and each["run"] in evaluation["parents"]:
                of.append((told[name], float(evaluation["flags"]["copies"])))
    order = sorted(found, key=lambda name: (name != "default", name))
    return {name: found[name] for name in order}


def meaning(flags: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Flags that make a variant, with what the preset stood for then where they were left to it.

    Args:
        flags: As recorded.
        settings: As the result tells them; empty: it does not.
    """
    named = {name: name.replace("-", "_") for name in VARIANTS}
    known = {field.name for field in fields(Config)}
    config = Config(**{n: flags[name] for name, n in named.items() if name in flags and n in known})
    today = vars(config) | vars(config.settings())
    found = {}
    for name, n in named.items():
        if flags.get(name, -1) not in (OWN, -1):
            found[name] = flags[name]
        elif n in settings:
            found[name] = settings[n]
        else:
            found[name] = EARLIER.get(name, today.get(n))
    if not found["searching"]:
        found["candidates"] = PRESETS["default"].candidates  # of what is not drawn
    return found


def text(value: Any) -> str:
    """A flag's value as it is typed."""
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
