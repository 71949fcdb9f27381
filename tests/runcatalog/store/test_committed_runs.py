"""Committed records are read as they are read from MLflow after an import."""

import json
import re
import shutil
from pathlib import Path

import pytest

from runcatalog.analysis import find_runs
from runcatalog.model.errors import CatalogError
from runcatalog.model.marks import marked, unmarked
from runcatalog.model.record_files import dumps, read, write_all
from runcatalog.store.committed_runs import WithCommitted
from runcatalog.store.sqlite_reader import reader

RECORDS = Path(__file__).parents[3] / "experiments" / "records"
EVERY = 40  # record of every study's folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with some records of every study, including batches and marked runs."""
    folder = tmp_path_factory.mktemp("project") / "experiments" / "records"
    for study in RECORDS.iterdir():
        (folder / study.name).mkdir(parents=True)
        for path in sorted(study.glob("*.json"))[::EVERY]:
            shutil.copy(path, folder / study.name)
    return folder


@pytest.fixture(scope="module")
def uri(folder, tmp_path_factory):
    """Return an MLflow into which the records were imported."""
    from runcatalog.store.client import Store
    from runcatalog.sync.imports import put_records

    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"
    put_records(Store(uri), [read(p) for p in sorted(folder.glob("*/*.json"))], str)
    return uri


def described(source):
    """Return all that a reader gives of its runs."""
    stored = source.runs()
    points = source.points([run.id for run in stored])
    return {
        run.run: (run.record, run.flags, run.last, run.status, points.get(run.id, {}))
        for run in stored
    }


def test_records_are_read_as_after_an_import(folder, uri, tmp_path):
    nowhere = reader(f"sqlite:///{tmp_path}/none.db")
    alone, imported = described(WithCommitted(nowhere, folder)), described(reader(uri))
    assert len(alone) == len(list(folder.glob("*/*.json"))) > 20
    assert alone == imported
    assert not (tmp_path / "none.db").exists()
    assert described(WithCommitted(reader(uri), folder)) == imported  # nothing twice


@pytest.mark.parametrize("curve", [[], None, "0", [["one", 0.5]], [0.5]])
def test_a_damaged_record_is_named(tmp_path, make, curve):
    path = tmp_path / "records" / "toy" / "00000001.json"
    path.parent.mkdir(parents=True)
    # As everywhere else, the last value is that of the curve.
    metric = {"last": 0.9, "best": 0.5, "step_of_best": 1, "curve": [[1, 0.5]]}
    content = json.loads(dumps(make(1)))
    source = WithCommitted(reader(f"sqlite:///{tmp_path}/none.db"), tmp_path / "records")
    path.write_text(json.dumps(content | {"metrics": {"loss": metric}}))
    assert [run.last for run in source.runs()] == [{"loss": 0.5}]
    path.write_text(json.dumps(content | {"metrics": {"loss": metric | {"curve": curve}}}))
    with pytest.raises(CatalogError, match=re.escape(f"{path}: ")):
        source.runs()


def test_a_run_whose_start_is_no_number_comes_last(tmp_path, make):
    """Nothing could be read where somebody had set the tag by hand."""
    from runcatalog.store.client import Store
    from runcatalog.sync.imports import put_records

    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    put_records(store, [make(1, value=0.5)], str)
    (run,) = store.runs()
    store.tag(run.id, {"started": "soon"})
    write_all([make(2)], tmp_path / "records")
    runs = WithCommitted(reader(store.uri), tmp_path / "records").runs()
    assert [run.record.started for run in runs] == [2, None]


def test_a_query_finds_the_same_runs(folder, uri, tmp_path):
    nowhere = reader(f"sqlite:///{tmp_path}/none.db")
    for query in (
        "seed=1",
        "status=FINISHED and lr>1e-3",
        "not batch",
        "retracted or superseded_by",
    ):
        results = [
            [run.run for run in find_runs.find_runs(source, query).stored]
            for source in (WithCommitted(nowhere, folder), reader(uri))
        ]
        assert results[0] == results[1]


@pytest.mark.parametrize("by", ["", "b" * 32])
def test_marks_of_committed_records_count_for_the_runs_in_mlflow(folder, uri, tmp_path, by):
    """A colleague's `catalog forget` comes with `git pull`; `catalog best` still ranked the run."""
    shutil.copytree(folder, tmp_path / "records")
    path = min((tmp_path / "records").glob("*/*.json"))
    record = marked(unmarked(read(path)), "a wrong reward", by)
    path.write_text(dumps(record))
    before, after = described(reader(uri)), described(WithCommitted(reader(uri), path.parents[1]))
    own, _, *others = after[record.run]
    assert (own.retracted or own.superseded_why) == "a wrong reward"
    assert own.superseded_by == by
    assert others == list(before[record.run][2:])
    del after[record.run], before[record.run]
    assert after == before
