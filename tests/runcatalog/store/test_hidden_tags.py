"""Tags that only programs read: not shown by MLflow's pages, read by their old and their new names."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


LENGTHS = st.one_of(st.integers(0, 30), st.integers(7890, 7910), st.integers(15790, 15810))


@given(st.dictionaries(st.sampled_from(["parents", "result", "catalog.written", "label"]), LENGTHS))
def test_a_text_that_is_too_long_for_a_tag_is_whole_again(lengths):
    texts = {
        name: "abcdefg" * (length // 7) + "x" * (length % 7) for name, length in lengths.items()
    }
    longer = stored_names(dict.fromkeys(texts, "an earlier, longer text" * 1000))
    for before in ({}, longer):
        in_mlflow = before | stored_names(texts)
        assert all(len(value) <= 8000 for value in in_mlflow.values())
        for name, text in texts.items():
            if not before or len(text) % 7900:  # else what is left of the earlier one follows
                assert plain_names(in_mlflow)[name] == text


def test_an_older_database_has_the_parts_of_a_result_by_their_plain_names(record):
    (text,) = (value for name, value in tags_of(record).items() if name == "result")
    older = tags_of(record) | {"result": text[:7900], "result.1": text[7900:]}
    assert stored(record, older).record.result == record.result


def test_a_rewritten_tag_replaces_the_old_one(record):
    both = {"catalog.stamp": "old"} | tags_of(record) | stored_names({"catalog.stamp": ""})
    assert stored(record, both).tag("catalog.stamp") == ""
    assert stored(record, both).tags["catalog.stamp"] == ""


def test_no_tag_that_people_see_is_json_or_a_time(record):
    shown = {n: v for n, v in stored_names(tags_of(record)).items() if not n.startswith("mlflow.")}
    assert {"run_id", "operation", "commit", "machine", "seed"} <= shown.keys()
    assert not [value for value in shown.values() if value.startswith(("{", "["))]
    assert str(record.started) not in {shown.get("started")}
