"""MLflow's descriptions, names and views as written by `catalog import`, without overwriting users' changes."""

import json
from pathlib import Path

import pytest

from runcatalog.mlflow_ui import arrange, views
from runcatalog.model.project import Project
from runcatalog.store.client import Store


@pytest.fixture(scope="module")
def store(sweep):
    return Store(sweep.uri)


def tags(store):
    experiment = store.client.get_experiment_by_name("door")
    return experiment.experiment_id, dict(experiment.tags)


def arranged(sweep, store):
    return arrange.arrange(Project(sweep.root), store)


def test_every_figure_of_a_page_has_its_operations():
    """As the template of this project's pages names them, by whichever function."""
    project = Project(Path(__file__).parents[2])
    for study in project.studies():
        named = {path for path, _ in arrange.figures_of(project, study)}
        assert named == set((project.experiments / study / "figures").glob("*.svg")), study


def test_figures_of_a_template_that_only_render_can_compute(tmp_path):
    """A keyword that `landscape` has, and a filter that refuses what has no value here."""
    folder = tmp_path / "experiments" / "toy"
    (folder / "figures").mkdir(parents=True)
    path = folder / "figures" / "search.svg"
    path.touch()
    template = '{{ landscape("search", operation="toy:opt") }} {{ power(0.1) | round }}'
    (folder / "catalog.md.j2").write_text(template)
    assert arrange.figures_of(Project(tmp_path), "toy") == [(path, ["toy:opt"])]


def test_views_descriptions_and_names(sweep, store):
    experiment, experiment_tags = tags(store)
    name = f"lr_opt_pull {sweep.batch[:8]}"
    keys = [key for key in experiment_tags if key.startswith(views.TAG)]
    views_by_key = {key.removeprefix(views.TAG): json.loads(experiment_tags[key]) for key in keys}
    assert {key: view["name"] for key, view in views_by_key.items()} == {
        "overview": "door: current runs",
        sweep.batch[:8]: name,
    }
    state = json.loads(views_by_key[sweep.batch[:8]]["state"])
    assert state["searchFilter"].startswith(f"tags.batch = '{sweep.batch}' AND ")
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`opening_rate`", False)
    assert state["selectedColumns"] == [
        "params.`lr`",
        "params.`seed`",
        "metrics.`opening_rate`",
        "metrics.`validation_episode_return`",
    ]
    assert state["groupBy"]["groupByKeys"] == [{"mode": "param", "groupByData": "lr"}]
    line_charts = [c["metricKey"] for c in state["compareRunCharts"] if c["type"] == "LINE"]
    assert line_charts[0] == "validation_opening_rate"
    titles = [c["displayName"] for c in state["compareRunCharts"] if c["type"] == "LINE"]
    assert titles[0] == "validation_opening_rate: mean of the runs that have a point at the step"
    link = f"#/experiments/{experiment}/runs?viewStateShareKey={sweep.batch[:8]}"
    assert link in experiment_tags[arrange.NOTE]
    assert experiment_tags[arrange.NOTE].startswith("# Doors")

    runs = {run.run: run for run in store.runs()}
    batch = runs.pop(sweep.batch)
    assert batch.tags["mlflow.runName"] == name
    assert batch.tags[arrange.NOTE].startswith("1e-3: 100 % opening rate")
    assert "\\" not in batch.tags[arrange.NOTE]
    assert f"Catalog id {sweep.batch[:8]}" in batch.tags[arrange.NOTE]
    assert "opening_rate is a share from 0 to 1" in batch.tags[arrange.NOTE]
    assert "opening_time [s]" in batch.tags[arrange.NOTE]
    artifacts = store.client.list_artifacts(batch.id, "figures")
    assert [artifact.path for artifact in artifacts] == ["figures/lr_opt.svg"]
    assert {run.tags["mlflow.parentRunId"] for run in runs.values()} == {batch.id}
    assert {run.tags["mlflow.runName"] for run in runs.values()} == sweep.names


def test_a_second_call_writes_nothing(sweep, store, monkeypatch):
    client = store.client
    before = tags(store)

    def refuse(*given, **named):
        raise AssertionError(f"written again: {given} {named}")

    for name in (
        "set_experiment_tag",
        "delete_experiment_tag",
        "update_run",
        "log_batch",
        "log_artifact",
    ):
        monkeypatch.setattr(client, name, refuse)
    pages = arranged(sweep, store)
    assert [page.batch for page in pages] == ["", sweep.batch]
    assert tags(store) == before


@pytest.mark.parametrize("mark", ["retracted", "superseded_by"])
def test_marked_runs_are_in_no_view(sweep, copied, mark):
    client = copied.client
    runs = {run.run: run for run in copied.runs()}
    experiment, _ = tags(copied)

    def listed(key):
        view = json.loads(tags(copied)[1][f"{views.TAG}{key}"])
        query = json.loads(view["state"])["searchFilter"]
        return {run.data.tags["run_id"] for run in client.search_runs([experiment], query)}

    trials = runs.keys() - {sweep.batch}
    assert listed(sweep.batch[:8]) == trials
    assert listed("overview") == runs.keys()
    marked = min(trials)
    client.set_tag(runs[marked].id, mark, "0" * 32)
    assert listed(sweep.batch[:8]) == trials - {marked}
    arranged(sweep, copied)
    assert listed(sweep.batch[:8]) == trials - {marked}
    assert listed("overview") == runs.keys() - {marked}
    note = next(run.tags[arrange.NOTE] for run in copied.runs() if run.run == sweep.batch)
    assert f"{len(trials) - 1} finished" in note
    client.set_tag(runs[sweep.batch].id, mark, "0" * 32)  # and so all of its trials
    assert [page.batch for page in arranged(sweep, copied)] == [""]
    assert f"{views.TAG}{sweep.batch[:8]}" not in tags(copied)[1]


def test_changes_by_users_persist(sweep, copied):
    store = copied
    client, view = store.client, f"{views.TAG}{sweep.batch[:8]}"
    experiment, before = tags(store)
    client.set_experiment_tag(experiment, arrange.NOTE, "mine")
    client.set_experiment_tag(experiment, f"{views.TAG}my-own", "{}")
    client.delete_experiment_tag(experiment, view)
    batch = next(run for run in store.runs() if run.run == sweep.batch)
    client.update_run(batch.id, name="the one of the paper")
    client.set_tag(batch.id, arrange.NOTE, "mine too")
    arranged(sweep, store)
    _, experiment_tags = tags(store)
    assert experiment_tags[arrange.NOTE] == "mine"
    assert experiment_tags[f"{views.TAG}my-own"] == "{}"
    assert view not in experiment_tags
    renamed = next(run for run in store.runs() if run.run == sweep.batch)
    assert renamed.tags["mlflow.runName"] == "the one of the paper"
    assert renamed.tags[arrange.NOTE] == "mine too"

    # A view of a removed batch that no user has edited is deleted.
    written = json.loads(experiment_tags[arrange.WRITTEN])
    old = f"{views.TAG}00000000"
    client.set_experiment_tag(experiment, old, "gone")
    written[old] = arrange._digest("gone")
    client.set_experiment_tag(experiment, arrange.WRITTEN, json.dumps(written))
    arranged(sweep, store)
    assert old not in tags(store)[1]
    assert before.keys() - tags(store)[1].keys() == {view}
