"""Reading the index of an MLflow's runs changes nothing in it."""

from runcatalog.store.client import Store
from runcatalog.store.run_index import RunIndex


def test_an_index_deletes_nothing_by_itself(tmp_path, make):
    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    first = store.write(make(1, value=0.5))
    store.client.create_run(store.experiment("toy"), 1, {"run_id": make(1).run})
    assert len(store.runs()) == 2
    index = RunIndex(store)
    assert len(store.runs()) == 2
    index.remove_duplicates()
    assert [run.id for run in store.runs()] == [first]


def test_a_run_that_was_forgotten_is_not_in_the_index(tmp_path, make):
    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    store.write(make(1, value=0.5))
    index = RunIndex(store)
    index.forget(index.get(make(1).run))
    assert index.get(make(1).run) is None
    assert index.get(make(1).run[:8]) is None
