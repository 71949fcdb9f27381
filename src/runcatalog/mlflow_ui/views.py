"""What a page of MLflow's UI opens with: columns, order, groups and charts.

MLflow keeps a saved view in a tag of the experiment, `mlflow.sharedViewState.KEY`: a JSON object of `name`, `createdAt`
[ms] and `state`, which is JSON again. In the state are the page's filter and order and all that its user could have
clicked together. The page lists the views under "Views". Read from MLflow 3.17's web client (savedViewEnvelope,
ExperimentPageUIState, RunsChartsCardConfig); a view of another version opens with what that version understands.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runcatalog.analysis import groups
from runcatalog.model.guild_columns import FLAG, Column, values_of
from runcatalog.model.run_record import FINISHED, RunRecord
from runcatalog.store import compat
from runcatalog.store.run_rows import encode

TAG = compat.SHARED_VIEW
MAX_TAG = 20000  # characters; MLflow refuses a longer tag of an experiment
CURVE = 3  # points that make a curve
MAX_CHARTS = 4  # of one kind
MAX_COLUMNS = 6  # of flags, and of metrics
ALL_LINES = 40  # runs of which each can have its line; of more, the first 20 are drawn
_SECTION = "catalog"
_OVERVIEW = "overview"


@dataclass(frozen=True)
class View:
    """A saved view.

    Attributes:
        key: What its link names it by.
        name: What the list of views names it.
        created: Milliseconds since the epoch; the list shows the newest first.
        state: What the page opens with.
    """

    key: str
    name: str
    created: int
    state: dict[str, Any]

    @property
    def value(self) -> str:
        """The tag's value; "" if MLflow would not take it."""
        state = json.dumps(self.state, sort_keys=True, ensure_ascii=False)
        told = {"name": self.name, "createdAt": self.created, "state": state}
        shown = json.dumps(told, sort_keys=True, ensure_ascii=False)
        return shown if len(shown) <= MAX_TAG else ""

    def path(self, experiment: str, *, charts: bool = True) -> str:
        """Returns the page's address, after the server's.

        Args:
            experiment: MLflow's id of the experiment.
            charts: With the charts beside the list of runs, else the table.
        """
        # The page's menu for training runs; without it, it is the one for language models.
        mode = "&workflowType=machine_learning" + ("&compareRunsMode=CHART" if charts else "")
        return f"#/experiments/{experiment}/runs?viewStateShareKey={self.key}{mode}"


@dataclass(frozen=True)
class Shown:
    """What a batch's page shows.

    Attributes:
        objective: Metric by which runs are in order; "" without one.
        ascending: Whether small is good.
        flags: Flags in which the trials differ, the seed apart.
        seeds: Whether points have more than one trial.
        metrics: Metrics of the table, the objective first.
        curves: Metrics that have one.
    """

    objective: str
    ascending: bool
    flags: tuple[str, ...]
    seeds: bool
    metrics: tuple[str, ...]
    curves: tuple[str, ...]

    @classmethod
    def of(
        cls,
        batch: RunRecord | None,
        trials: Sequence[RunRecord],
        declared: Sequence[Column],
        lengths: Mapping[str, int],
    ) -> Shown:
        """Decides it.

        Args:
            batch: The batch's own record.
            trials: Its trials.
            declared: Columns of `guild compare` for the trials' operation.
            lengths: Number of points by metric, of a trial that has all metrics.
        """
        told = ((batch.result if batch else None) or {}).get("optimised")
        own = next((t.objective for t in trials if t.objective), None) or {}
        first = told if isinstance(told, dict) and told.get("name") in lengths else own
        name = str(first.get("name") or "")
        # What a script calls its objective is a metric too, or at least the metric `objective`.
        objective = next((n for n in (name, "objective") if n in lengths), "")
        named = [c.name for c in values_of(declared)]
        wanted = dict.fromkeys([objective, str(own.get("name") or ""), *named])
        metrics = [name for name in wanted if name in lengths]
        return cls(
            objective,
            first.get("goal") == "min",
            tuple(groups.varying(trials)),
            len(groups.groups(trials)) < len(trials),
            tuple(metrics[:MAX_COLUMNS]),
            tuple(_curves(str(own.get("name") or name), metrics, lengths)[:MAX_CHARTS]),
        )


def _curves(objective: str, metrics: Sequence[str], lengths: Mapping[str, int]) -> list[str]:
    """Metrics with a curve: what tells of the objective on the way to it, then the other columns."""
    curved = [name for name in sorted(lengths) if lengths[name] >= CURVE]
    near = [name for name in curved if objective and objective in name]
    # Of these, what is measured on held-out data is what a reader asks for first.
    near.sort(key=lambda name: (name != objective, not name.startswith("validation"), name))
    listed = [name for name in metrics if name in curved]
    rest = [name for name in curved if not name.startswith("time/")]
    return list(dict.fromkeys([*near, *listed] or rest))


def of_batch(
    batch_id: str, name: str, created: int, trials: Sequence[RunRecord], shown: Shown
) -> View:
    """Returns a batch's view: its trials, best first, points of several seeds as a mean with its band."""
    state = _state(f"tags.batch = '{batch_id}'")
    if shown.objective:
        state |= {"orderByKey": _metric(shown.objective), "orderByAsc": shown.ascending}
    flags = [*shown.flags[:MAX_COLUMNS], *(["seed"] if _differ(trials, "seed") else [])]
    state["selectedColumns"] = [*map(_param, flags), *map(_metric, shown.metrics)]
    state["runsHiddenMode"] = "SHOW_ALL" if len(trials) <= ALL_LINES else "FIRST_20_RUNS"
    if shown.seeds and shown.flags:
        keys = [{"mode": "param", "groupByData": encode(flag)} for flag in shown.flags]
        state["groupBy"] = {"aggregateFunction": "average", "groupByKeys": keys}
    charts = _charts(trials, shown)
    state["compareRunCharts"] = [
        {"uuid": f"{_SECTION}-{number}", "metricSectionId": _SECTION, **chart}
        for number, chart in enumerate(charts)
    ]
    state["compareRunSections"] = [
        _section(_SECTION, "This batch", open_=True),
        _section("model", "Model metrics"),
        _section("system", "System metrics"),
    ]
    return View(batch_id[:8], name, created, state)


def overview(
    study: str, heads: Sequence[RunRecord], declared: Sequence[Column], created: int
) -> View:
    """Returns the view of all of a study's runs, newest first, each batch's trials folded under it."""
    flags = Counter(c.name for c in declared if c.kind == FLAG)
    metrics = Counter(str(o["name"]) for head in heads if (o := head.objective))
    metrics.update(column.name for column in values_of(declared))
    state = _state("")
    state["selectedColumns"] = [
        "attributes.`Description`",
        *(_param(name) for name, _ in flags.most_common(MAX_COLUMNS)),
        *(_metric(name) for name, _ in metrics.most_common(MAX_COLUMNS // 2)),
    ]
    return View(_OVERVIEW, f"{study}: all runs", created, state)


def _state(search: str) -> dict[str, Any]:
    return {
        "searchFilter": search,
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "hideEmptyCharts": True,
        "useGroupedValuesInCharts": True,
        "isAccordionReordered": True,  # else the page puts its own sections before ours
    }


def _charts(trials: Sequence[RunRecord], shown: Shown) -> list[dict[str, Any]]:
    charts = [
        {
            "type": "LINE",
            "metricKey": encode(name),
            "selectedMetricKeys": [encode(name)],
            "xAxisKey": "step",
            "yAxisKey": "metric",
            "lineSmoothness": 0,
            "useGlobalXaxisKey": True,
            "useGlobalLineSmoothing": True,
        }
        for name in shown.curves
    ]
    if shown.objective:
        height = {"key": encode(shown.objective), "type": "METRIC"}
        axes = [{"key": encode(f), "type": "PARAM"} for f in shown.flags if _numeric(trials, f)]
        charts += [
            {"type": "SCATTER", "xaxis": axis, "yaxis": height} for axis in axes[:MAX_CHARTS]
        ]
        if len(axes) > 1 and not shown.seeds:
            contour = {"xaxis": axes[0], "yaxis": axes[1], "zaxis": height}
            charts.append({"type": "CONTOUR", **contour})
        if len(shown.flags) > 1:
            charts.append(
                {
                    "type": "PARALLEL",
                    "selectedParams": [encode(flag) for flag in shown.flags[:MAX_COLUMNS]],
                    "selectedMetrics": [encode(shown.objective)],
                    "showAllRuns": True,
                }
            )
        if not shown.curves:
            charts.append({"type": "BAR", "metricKey": encode(shown.objective)})
    return [
        {"runsCountToCompare": 100, "deleted": False, "isGenerated": False, **chart}
        for chart in charts
    ]


def _section(key: str, name: str, *, open_: bool = False) -> dict[str, Any]:
    return {"uuid": key, "name": name, "display": open_, "isReordered": False, "deleted": False}


def _param(flag: str) -> str:
    return f"params.`{encode(flag)}`"


def _metric(name: str) -> str:
    return f"metrics.`{encode(name)}`"


def _differ(trials: Sequence[RunRecord], flag: str) -> bool:
    return len({str(trial.flags.get(flag)) for trial in trials}) > 1


def _numeric(trials: Sequence[RunRecord], flag: str) -> bool:
    told = [trial.flags.get(flag) for trial in trials]
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in told)


def typical(trials: Sequence[RunRecord], counts: Sequence[int]) -> int:
    """Returns which trial has all metrics, most likely: a finished one with the most of them."""
    ranks = [(t.status == FINISHED, count) for t, count in zip(trials, counts, strict=True)]
    return max(range(len(ranks)), key=lambda i: ranks[i])
