"""Tags that only programs read: not shown by MLflow's pages, read by their old and their new names."""

from dataclasses import replace

import pytest

from runcatalog.model.run_record import RunRecord
from runcatalog.record.delivery.hidden_tags import plain_names, stored_names
from runcatalog.store.run_rows import StoredRun, params_of, tags_of

LONG = {"table": {"columns": ["x"], "rows": [["y" * 9000]]}}  # longer than a tag


@pytest.fixture
def record(make) -> RunRecord:
    return replace(
        make(1, lr=0.5),
        result={"objective": {"name": "rate", "value": 0.5, "kind": "rate", "goal": "max"}} | LONG,
        versions={"numpy": "2.4.0"},
        environment={"OMP_NUM_THREADS": "1"},
        digest={"weights": "a" * 64, "metrics": "b" * 64},
        reproduced=({"bits": True, "when": "2026-11-24"},),
    )


def stored(record: RunRecord, tags: dict[str, str]) -> StoredRun:
    kinds = {"tags": tags, "params": params_of(record), "metrics": {}}
    return StoredRun.from_mlflow(
        ("id", record.study, record.status, "active"), record.run, kinds.get
    )


def test_old_and_new_names_give_the_same_record(record):
    plain = tags_of(record)
    hidden = stored_names(plain)
    assert plain_names(hidden).items() >= plain.items()
    old, new = stored(record, plain), stored(record, hidden)
    assert old.record == new.record
    assert new.record.result == record.result
    assert new.record.reproduced == record.reproduced
    for name in plain:
        assert old.tag(name) == new.tag(name)


def test_a_rewritten_tag_replaces_the_old_one(record):
    both = {"catalog.stamp": "old"} | tags_of(record) | stored_names({"catalog.stamp": ""})
    assert stored(record, both).tag("catalog.stamp") == ""
    assert stored(record, both).tags["catalog.stamp"] == ""


def test_no_tag_that_people_see_is_json_or_a_time(record):
    shown = {n: v for n, v in stored_names(tags_of(record)).items() if not n.startswith("mlflow.")}
    assert {"run_id", "operation", "commit", "machine", "seed"} <= shown.keys()
    assert not [value for value in shown.values() if value.startswith(("{", "["))]
    assert str(record.started) not in {shown.get("started")}
