"""Draw the catalog's figures of in-context learning from the committed records.

Run after `catalog export`: python src/darkroom/ad_redraw.py
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from darkroom import ad_study
from darkroom.distillation import figures
from darkroom.distillation.ad_options import DEFAULT, PRESET_NUMBER, PRESET_WORD, Config
from darkroom.distillation.scores import LearningCurve, label_of
from runcatalog.model import committed
from runcatalog.model.committed import metric_values
from runcatalog.plots.palette import Palette

EXPLORER = "explorer_9"  # prefix of the metrics of explorers in rooms of the source's size
STUDIES = {"ad:study": "ad_in_context.svg", "ad:study_mixed": "ad_mixed.svg"}
WITH_KEY, WITH_KEY_EXPLORER = "ad:study_key_to_door", "ad:explore_key_to_door"
COMPARED = "held_out_9"  # part of the tasks in which studies are compared
# Flags of ad:study that change what is trained or evaluated.
STUDY_VARIANTS = ("histories", "histories_flags", "train_flags", "evaluate_flags")
# Flags that distinguish variants. Other flags are the same in all variants, or are what variants are repeated over.
VARIANTS = (
    "preset", "layout", "states", "positions", "windows", "shift", "stretch", "optimizer", "stride",
    "searching", "candidates", "jitter", "label-smoothing", "attention-dropout", "residual-dropout",
    "embedding-dropout", "window", "batch-size", "fresh", "history-steps", "width", "layers", "heads",
    "feed-forward", "lr", "muon-lr", "lr-min", "warmup", "weight-decay", "max-grad-norm", "learned-weight",
)  # fmt: skip
# Flags of a study's trainings that change neither what they learn from nor how: where they run, when agents act.
NEUTRAL = ("device", "evaluations")
# Values of records from before the flag existed.
BEFORE_FLAG = {"searching": 0.0}


def main() -> None:
    """Draw the figures that have records, and say if there are none."""
    records = committed.redraw(__doc__.splitlines()[0], "darkroom", draw)
    if not records.keys() & {*STUDIES, WITH_KEY, "ad:evaluate", "ad:train"}:
        print("no record of ad:study, ad:evaluate or ad:train")


def draw(records: committed.Records, folder: Path) -> list[Path]:
    """Draw figures from records by operation and return their files."""
    drawn, palette = [], Palette.read(folder.parents[1])
    explorer = explorer_curve(records.get("ad:explore", []), terminating=False)
    for operation, name in STUDIES.items():
        studies = by_variant(records.get(operation, []))
        if "" in studies:
            drawn.append(folder / name)
            curves, source = study_curves(studies[""])
            figures.in_context(drawn[-1], curves, source, explorer, palette, over="trainings")
    if with_key := records.get(WITH_KEY):
        drawn.append(folder / "ad_key_to_door.svg")
        curves, source = study_curves(sorted(with_key, key=trainings)[-1])
        key_explorer = explorer_curve(records.get(WITH_KEY_EXPLORER, []), terminating=True)
        figures.in_context(drawn[-1], curves, source, key_explorer, palette, over="trainings")
    studies = by_variant(records.get("ad:study", []))
    if len(studies) > 1:
        drawn.append(folder / "ad_studies.svg")
        curves = [
            replace(curve, label=variant or "default")
            for variant, study in studies.items()
            if not variant or "windows=" in variant or "histories=" in variant
            for curve in study_curves(study)[0]
            if curve.label == label_of(COMPARED)
        ]
        figures.in_context(drawn[-1], curves, None, explorer, palette, over="trainings")
    if "" in studies and (scores := variant_scores(tested(studies[""], records), [])):
        drawn.append(folder / "ad_settings.svg")
        splits = ", ".join(str(studies[""]["flags"]["splits"]).split())
        label = f"normalised return, episodes 36 to 40 of the test tasks of splits {splits}"
        figures.dots(drawn[-1], scores, label)
    choosing = [
        training
        for training in trained_in(ad_study.Config.histories, records)
        if float(training["flags"].get("validation-share", 0)) > 0
    ]
    if scores := variant_scores(choosing, records.get("ad:evaluate", [])):
        drawn.append(folder / "ad_variants.svg")
        label = "normalised return, episodes 36 to 40 of validation tasks"
        figures.dots(drawn[-1], scores, label)
    return drawn


def by_variant(studies: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the study with most trainings, of several the newest, by the flags that differ from the default's."""
    default, chosen = vars(ad_study.Config()), {}
    neutral = tuple(f"{flag}=" for flag in NEUTRAL)
    for study in sorted(studies, key=trainings):
        changed = []
        for name in STUDY_VARIANTS:
            flag = name.replace("_", "-")
            value = study["flags"].get(flag, default[name])
            if value != default[name]:  # a value that holds flags names them itself
                changed.append(value if "=" in value else f"{flag}={value}")
        changed = [
            word for value in changed for word in value.split() if not word.startswith(neutral)
        ]
        chosen[" ".join(changed)] = study
    return dict(sorted(chosen.items()))


def tested(study: dict[str, Any], records: committed.Records) -> list[dict[str, Any]]:
    """Return the trainings on the study's splits whose tests are in the same rooms, of any settings.

    Of a training that was repeated with its seed it is the newest.
    """
    flags = {"histories": ad_study.Config.histories} | study["flags"]
    splits = str(flags["splits"]).split()
    newest = {
        repr(
            (settings_of(training), training["flags"]["split"], training["flags"].get("seed"))
        ): training
        for training in trained_in(flags["histories"], records)
        if str(training["flags"]["split"]) in splits
        and not float(training["flags"].get("validation-share", 0))
    }
    return list(newest.values())


def trained_in(operation: str, records: committed.Records) -> list[dict[str, Any]]:
    """Return the trainings on histories that an operation recorded in rooms of the source's size."""
    histories = {
        run["run"]
        for run in records.get(operation, [])
        if str(run["flags"]["size"]) == ad_study.SOURCE_SIZE
    }
    return [run for run in records.get("ad:train", []) if histories & set(run["parents"])]


def trainings(study: dict[str, Any]) -> int:
    """Return the number of trainings of a study."""
    return math.prod(
        len(str(study["flags"].get(name, "1")).split()) for name in ("splits", "seeds")
    )


def study_curves(
    study: dict[str, Any],
) -> tuple[list[LearningCurve], tuple[np.ndarray, np.ndarray] | None]:
    """Return the learning curves of a study, and steps and values of its source agents' curve."""
    metrics, curves, source = study["metrics"], [], None
    for name in sorted(metrics):
        part, _, key = name.rpartition("/")
        if key == "in_context":
            ends = ("steps", "in_context", "in_context_low", "in_context_high")
            found = [f"{part}/{end}" for end in ends]
            # The study of a single training has no interval.
            values = [metric_values(study, end if end in metrics else name) for end in found]
            curves.append(LearningCurve(label_of(part), *values))
        elif key == "source":
            steps = np.array([step for step, _ in metrics[name]["curve"]], float)
            source = steps, metric_values(study, name)
    return curves, source


def explorer_curve(runs: list[dict[str, Any]], *, terminating: bool) -> LearningCurve | None:
    """Return the newest curve of explorers in rooms of the source's size.

    Args:
        runs: Records of explorers.
        terminating: Whether the goal ends their episodes.
    """
    for run in reversed(runs):
        if f"{EXPLORER}/return" in run["metrics"] and run["flags"]["terminating"] == terminating:
            values = metric_values(run, f"{EXPLORER}/return")
            steps = metric_values(run, f"{EXPLORER}/steps")
            return LearningCurve(label_of(EXPLORER), steps, values, values, values)
    return None


def variant_scores(
    trainings: list[dict[str, Any]], evaluations: list[dict[str, Any]]
) -> dict[str, list[tuple[float, float]]]:
    """Return scores by variant, the settings that differ from today's default, in the tasks kept out of the training.

    Args:
        trainings: Records of trainings, all with validation tasks or all without.
        evaluations: Records of evaluations, of any trainings.

    Returns:
        Mean return of the middle episodes and agents per task, of every rollout: at the end of a training, or in an
        evaluation.
    """
    default = variant_settings({}, vars(DEFAULT)) | {"updates": DEFAULT.updates}
    scores: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for training in trainings:
        objective = training["result"]["objective"]
        settings = settings_of(training).items()
        changed = [f"{n}={text(value)}" for n, value in settings if value != default[n]]
        variant = scores[" ".join(changed) or "default"]
        variant.append((objective["value"], float(training["flags"]["copies"])))
        block = objective["name"].rpartition("/")[2]
        for evaluation in evaluations:
            # The objective has these values too; all metrics would be too long for some records.
            first = evaluation["result"]["objective"]
            values = {score["name"]: score["value"] for score in (first, *first.get("also", ()))}
            sampled = evaluation["flags"].get("actions", "sampled") == "sampled"
            name = f"validation_9/{block}"
            if name in values and sampled and training["run"] in evaluation["parents"]:
                variant.append((values[name], float(evaluation["flags"]["copies"])))
    order = sorted(scores, key=lambda name: (name != "default", name))
    return {name: scores[name] for name in order}


def settings_of(training: dict[str, Any]) -> dict[str, Any]:
    """Return :func:`variant_settings` of the record of a training, and its number of updates."""
    result = training["result"]
    # The preset's number of updates at that time is where the objective was measured.
    updates = {"updates": result["objective"]["at"]}
    return variant_settings(training["flags"], result.get("settings", {})) | updates


def variant_settings(flags: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the flags in VARIANTS, those of the preset at that time where they were left to it.

    Args:
        flags: Recorded flags.
        settings: Settings in the recorded result; empty if it has none.
    """
    fields_of = {flag: flag.replace("-", "_") for flag in VARIANTS}
    known = {field.name for field in fields(Config)}
    config = Config(
        **{
            field: flags[flag]
            for flag, field in fields_of.items()
            if flag in flags and field in known
        }
    )
    today = vars(config) | vars(config.settings())
    values = {}
    for flag, field in fields_of.items():
        if flags.get(flag, PRESET_NUMBER) not in (PRESET_WORD, PRESET_NUMBER):
            values[flag] = flags[flag]
        elif field in settings:
            values[flag] = settings[field]
        else:
            values[flag] = BEFORE_FLAG.get(flag, today.get(field))
    if not values["searching"]:
        values["candidates"] = DEFAULT.candidates  # without exploration it has no effect
    return values


def text(value: Any) -> str:
    """Return a flag's value as it is typed."""
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
