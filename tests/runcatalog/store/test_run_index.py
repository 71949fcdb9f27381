"""Reading the index of an MLflow's runs changes nothing in it."""

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

from runcatalog.store.client import Store
from runcatalog.store.run_index import RunIndex
from runcatalog.sync.imports import put_records


def test_an_index_deletes_nothing_by_itself(tmp_path, make):
    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    first = store.write(make(1, value=0.5))
    store.client.create_run(store.experiment("toy"), 1, {"run_id": make(1).run})
    assert len(store.runs()) == 2
    index = RunIndex(store)
    assert len(store.runs()) == 2
    index.remove_duplicates()
    assert [run.id for run in store.runs()] == [first]


def test_a_run_that_the_user_may_not_delete_is_left_to_the_admin(tmp_path, make, monkeypatch):
    def refuse(run_id):
        raise MlflowException("Permission denied", PERMISSION_DENIED)

    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    first = store.write(make(1, value=0.5))
    store.client.create_run(store.experiment("toy"), 1, {"run_id": make(1).run})
    with monkeypatch.context() as user:
        user.setattr(store.client, "delete_run", refuse)
        index = RunIndex(store)
        index.remove_duplicates()
        index.tidy()
        assert [run.id for run in store.runs()] == [first]
        assert len(store.client.search_runs([store.experiment("toy")])) == 2
    RunIndex(store).tidy()
    assert len(store.client.search_runs([store.experiment("toy")])) == 1


def test_a_run_that_was_forgotten_is_not_in_the_index(tmp_path, make):
    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    store.write(make(1, value=0.5))
    index = RunIndex(store)
    index.forget(index.get(make(1).run))
    assert index.get(make(1).run) is None
    assert index.get(make(1).run[:8]) is None


def test_a_batch_stays_when_an_import_adds_its_trials_or_changes_them(tmp_path, make):
    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    batch = make(1, reported_by="a.csv", result={"batch": True})

    def trials(value):
        return [make(n, value=value, batch=batch.run, reported_by="a.csv") for n in (2, 3, 4)]

    # As after an import that was killed, which writes the batch first.
    put_records(store, [batch], print)
    for value in (0.5, 0.5, 0.7):
        put_records(store, [batch, *trials(value)], print)
        assert {run.run for run in store.runs()} == {make(n).run for n in (1, 2, 3, 4)}
