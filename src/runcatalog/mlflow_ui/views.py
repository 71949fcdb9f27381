"""Saved views of MLflow's UI: columns, order, groups and charts.

MLflow keeps a saved view in a tag of the experiment, `mlflow.sharedViewState.KEY`: a JSON object of `name`, `createdAt`
[ms] and `state`, which is JSON again. The state contains the page's filter, order, columns and charts. The
page lists the views under "Views". The format is that of MLflow 3.17's web client (savedViewEnvelope,
ExperimentPageUIState, RunsChartsCardConfig); other versions ignore unknown fields.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runcatalog.analysis import groups
from runcatalog.model.guild_columns import FLAG, Column, last_value_columns
from runcatalog.model.run_record import FINISHED, RunRecord
from runcatalog.numbers import is_number
from runcatalog.record.delivery.names import encode
from runcatalog.store import compat

TAG = compat.SHARED_VIEW
MAX_TAG = 20000  # characters; limit of an experiment's tag in MLflow
CURVE = 3  # minimum points of a curve
MAX_CHARTS = 4  # per type of chart
CHARTS_IN_A_ROW = (
    2  # MLflow's three are 200 pixels wide on a screen of 1280, beside the list of runs
)
MAX_SECTIONS = 8  # for metrics with a prefix, as `time/`
MAX_COLUMNS = 6  # for flags, and again for metrics
ALL_LINES = 40  # runs; with more, only the first 20 are drawn
_SECTION = "catalog"
_OVERVIEW = "overview"
# The catalog's figures use the last value of a run that stopped early; MLflow cannot.
_OF_A_GROUP = ": mean of the runs that have a point at the step"
# Excludes runs that a mark takes out of every table, also those that are marked after the view was written.
_CURRENT = "tags.superseded_by IS NULL AND tags.retracted IS NULL"


@dataclass(frozen=True)
class View:
    """A saved view.

    Attributes:
        key: Its identifier in the link.
        name: Its name in the list of views.
        created: Milliseconds since the epoch; the list shows the newest first.
        state: Filter, order, columns and charts of the page.
    """

    key: str
    name: str
    created: int
    state: dict[str, Any]

    @property
    def value(self) -> str:
        """The tag's value; "" if it is longer than MLflow accepts."""
        state = json.dumps(self.state, sort_keys=True, ensure_ascii=False)
        content = {"name": self.name, "createdAt": self.created, "state": state}
        tag = json.dumps(content, sort_keys=True, ensure_ascii=False)
        return tag if len(tag) <= MAX_TAG else ""

    def path(self, experiment: str, *, charts: bool = True) -> str:
        """Return the page's address relative to the server's.

        Args:
            experiment: MLflow's id of the experiment.
            charts: Whether to show charts next to the list of runs instead of the table.
        """
        # Selects the menu for training runs; MLflow's default is the menu for language models.
        mode = "&workflowType=machine_learning" + ("&compareRunsMode=CHART" if charts else "")
        return f"#/experiments/{experiment}/runs?viewStateShareKey={self.key}{mode}"


@dataclass(frozen=True)
class PageContents:
    """Columns and charts of a batch's page.

    Attributes:
        objective: Metric that sorts the runs; "" without one.
        ascending: Whether smaller values are better.
        flags: Flags in which the trials differ, except the seed.
        seeds: Whether a point has several trials (seeds).
        metrics: Metrics of the table, the objective first.
        curves: Metrics drawn as curves.
        names: All metrics.
    """

    objective: str
    ascending: bool
    flags: tuple[str, ...]
    seeds: bool
    metrics: tuple[str, ...]
    curves: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def grouped(self) -> bool:
        """Whether runs with equal flags are shown as their mean."""
        return self.seeds and bool(self.flags)

    @classmethod
    def from_trials(
        cls,
        batch: RunRecord | None,
        trials: Sequence[RunRecord],
        declared: Sequence[Column],
        lengths: Mapping[str, int],
    ) -> PageContents:
        """Choose the contents from the batch and its trials.

        Args:
            batch: The batch's own record.
            trials: Its trials.
            declared: Columns of `guild compare` for the trials' operation.
            lengths: Number of points by metric, of the trial with the most metrics.
        """
        optimised = ((batch.result if batch else None) or {}).get("optimised")
        declared_objective = next((t.objective for t in trials if t.objective), None) or {}
        objective_of_search = (
            optimised
            if isinstance(optimised, dict) and optimised.get("name") in lengths
            else declared_objective
        )
        name = str(objective_of_search.get("name") or "")
        # Scripts log the objective under its own name, or under the name `objective`.
        objective = next((n for n in (name, "objective") if n in lengths), "")
        column_names = [c.name for c in last_value_columns(declared)]
        candidates = dict.fromkeys(
            [objective, str(declared_objective.get("name") or ""), *column_names]
        )
        metrics = [name for name in candidates if name in lengths]
        return cls(
            objective,
            objective_of_search.get("goal") == "min",
            tuple(groups.varying(trials)),
            len(groups.groups(trials)) < len(trials),
            tuple(metrics[:MAX_COLUMNS]),
            tuple(
                _curves(str(declared_objective.get("name") or name), metrics, lengths)[:MAX_CHARTS]
            ),
            tuple(sorted(lengths)),
        )


def _curves(objective: str, metrics: Sequence[str], lengths: Mapping[str, int]) -> list[str]:
    """Return the metrics to draw: those related to the objective, then the other columns."""
    with_curve = [name for name in sorted(lengths) if lengths[name] >= CURVE]
    related = [name for name in with_curve if objective and objective in name]
    # Validation metrics first: they are measured on held-out data.
    related.sort(key=lambda name: (name != objective, not name.startswith("validation"), name))
    listed = [name for name in metrics if name in with_curve]
    rest = [name for name in with_curve if not name.startswith("time/")]
    return list(dict.fromkeys([*related, *listed] or rest))


def batch_view(
    batch_id: str, name: str, created: int, trials: Sequence[RunRecord], contents: PageContents
) -> View:
    """Return a batch's view: its trials, best first; several seeds of a point as a mean with a band."""
    state = _state(f"tags.batch = '{batch_id}' AND {_CURRENT}")
    if contents.objective:
        state |= {"orderByKey": _metric(contents.objective), "orderByAsc": contents.ascending}
    seeds = {str(trial.flags.get("seed")) for trial in trials}
    flags = [*contents.flags[:MAX_COLUMNS], *["seed"] * (len(seeds) > 1)]
    state["selectedColumns"] = [*map(_param, flags), *map(_metric, contents.metrics)]
    state["runsHiddenMode"] = "SHOW_ALL" if len(trials) <= ALL_LINES else "FIRST_20_RUNS"
    if contents.grouped:
        keys = [{"mode": "param", "groupByData": encode(flag)} for flag in contents.flags]
        state["groupBy"] = {"aggregateFunction": "average", "groupByKeys": keys}
    _with_charts(state, "This batch", _charts(trials, contents), contents.names)
    return View(batch_id[:8], name, created, state)


def study_view(
    study: str,
    heads: Sequence[RunRecord],
    declared: Sequence[Column],
    names: Collection[str],
    created: int,
) -> View:
    """Return the view of the current runs of a study, newest first, with the trials folded under their batch.

    Args:
        study: Its name.
        heads: Its single runs and batches.
        declared: Columns of `guild compare` for its operations.
        names: All metrics of these runs.
        created: Milliseconds since the epoch.
    """
    flags = Counter(c.name for c in declared if c.kind == FLAG)
    objectives = Counter(str(o["name"]) for head in heads if (o := head.objective))
    metrics = objectives or Counter(column.name for column in last_value_columns(declared))
    state = _state(_CURRENT)
    # One metric, the objective: MLflow shows metrics before flags, and several in the order of their names.
    state["selectedColumns"] = [
        "attributes.`Description`",
        *(_metric(name) for name, _ in metrics.most_common(1)),
        *(_param(name) for name, _ in flags.most_common(MAX_COLUMNS)),
    ]
    shown = [name for name, _ in metrics.most_common(MAX_CHARTS)]
    columns = dict.fromkeys(column.name for column in last_value_columns(declared))
    validated = dict.fromkeys(f"validation_{name}" for name in shown)  # the curve of an objective
    curves = [n for n in validated | columns if n in names and n not in {*shown, "objective"}]
    charts = [chart for name in shown for chart in _bars(name)]
    charts += [_lines(name) for name in curves[:MAX_CHARTS]]
    _with_charts(state, "Objectives of this study", charts, names)
    return View(_OVERVIEW, f"{study}: current runs", created, state)


def _state(query: str) -> dict[str, Any]:
    return {
        "searchFilter": query,
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "hideEmptyCharts": True,
        "useGroupedValuesInCharts": True,
        "isAccordionReordered": True,  # otherwise the page puts its own sections first
    }


def _charts(trials: Sequence[RunRecord], contents: PageContents) -> list[dict[str, Any]]:
    charts = _bars(contents.objective) if contents.objective not in contents.curves[:1] else []
    suffix = _OF_A_GROUP if contents.grouped else ""
    charts += [_lines(name, suffix) for name in contents.curves]
    if contents.objective:
        value_axis = {"key": encode(contents.objective), "type": "METRIC"}
        axes = [{"key": encode(f), "type": "PARAM"} for f in contents.flags if _numeric(trials, f)]
        charts += [
            {"type": "SCATTER", "xaxis": axis, "yaxis": value_axis} for axis in axes[:MAX_CHARTS]
        ]
        if len(axes) > 1 and not contents.seeds:
            contour = {"xaxis": axes[0], "yaxis": axes[1], "zaxis": value_axis}
            charts.append({"type": "CONTOUR", **contour})
        if len(contents.flags) > 1:
            charts.append(
                {
                    "type": "PARALLEL",
                    "selectedParams": [encode(flag) for flag in contents.flags[:MAX_COLUMNS]],
                    "selectedMetrics": [encode(contents.objective)],
                    "showAllRuns": True,
                }
            )
    return charts


def _bars(metric: str) -> list[dict[str, Any]]:
    return [{"type": "BAR", "metricKey": encode(metric)}] if metric else []


def _lines(metric: str, suffix: str = "") -> dict[str, Any]:
    return {
        "type": "LINE",
        "metricKey": encode(metric),
        "selectedMetricKeys": [encode(metric)],
        "displayName": encode(metric) + suffix,
        "xAxisKey": "step",
        "yAxisKey": "metric",
        "lineSmoothness": 0,
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }


def _with_charts(
    state: dict[str, Any], title: str, charts: Sequence[dict[str, Any]], metrics: Iterable[str]
) -> None:
    """Add charts in a section of their own, before MLflow's, which are closed: one per prefix of the metrics' names."""
    prefixes = {encode(name).rpartition("/")[0] for name in metrics} - {""}
    state["compareRunCharts"] = [
        {
            "uuid": f"{_SECTION}-{number}",
            "metricSectionId": _SECTION,
            "runsCountToCompare": 100,
            "deleted": False,
            "isGenerated": False,
            **chart,
        }
        for number, chart in enumerate(charts)
    ]
    state["compareRunSections"] = [
        _section(_SECTION, title, open_=True),
        _section("model", "Model metrics"),
        _section("system", "System metrics"),
        *(_section(f"prefix-{prefix}", prefix) for prefix in sorted(prefixes)[:MAX_SECTIONS]),
    ]


def _section(key: str, name: str, *, open_: bool = False) -> dict[str, Any]:
    shown = {"uuid": key, "name": name, "display": open_, "isReordered": False, "deleted": False}
    return shown | {"columns": CHARTS_IN_A_ROW}


def _param(flag: str) -> str:
    return f"params.`{encode(flag)}`"


def _metric(name: str) -> str:
    return f"metrics.`{encode(name)}`"


def _numeric(trials: Sequence[RunRecord], flag: str) -> bool:
    return all(is_number(trial.flags.get(flag)) for trial in trials)


def most_complete(trials: Sequence[RunRecord], counts: Sequence[int]) -> int:
    """Return the index of the trial with the most metrics, preferring finished trials."""
    ranks = [(t.status == FINISHED, count) for t, count in zip(trials, counts, strict=True)]
    return max(range(len(ranks)), key=lambda i: ranks[i])
