"""Export adds and marks, `catalog forget` marks, and nothing removes a record."""

import json
import re
from pathlib import Path

import pytest

from rendered import committed
from runcatalog.model.marks import marked
from runcatalog.model.record_files import dumps, read, write_all
from runcatalog.store.client import Store
from runcatalog.sync.sync import STAMP


@pytest.fixture
def lab(shell, make):
    """A project with a batch of two trials and two runs, in MLflow and as records, and its page."""
    batch = make(1, operation="toy:sweep", result={"batch": True, "method": "grid"})
    trials = [make(i, value=i / 10, operation="toy:sweep", batch=batch.run, seed=i) for i in (2, 3)]
    shell.records = shell.root / "experiments" / "records"
    shell.runs = [batch, *trials, make(4, value=0.4), make(5, status="KILLED", wall_seconds=1.0)]
    write_all(shell.runs, shell.records)
    shell.inside("import -q")
    shell.inside("render")
    shell.store = Store(f"sqlite:///{shell.root}/mlflow.db")
    return shell


def texts(shell):
    return {path.name: path.read_text() for path in shell.records.glob("*/*.json")}


def page(shell):
    return committed(shell.root)


def stored(shell, number):
    return next(run for run in shell.store.runs() if run.run.startswith(f"{number:08x}"))


def test_a_run_deleted_in_mlflow_keeps_its_record(lab):
    before = texts(lab)
    lab.store.client.delete_run(stored(lab, 4).id)
    output = lab.inside("export")
    assert "1 deleted in MLflow: their records are kept" in output
    assert texts(lab) == before
    lab.inside("check")


def test_numbers_of_a_finished_run_are_not_changed(lab, make):
    before = texts(lab)
    tags = {"result": json.dumps(make(4, value=0.9).result), "label": "renamed"}
    lab.store.tag(stored(lab, 4).id, tags)
    lab.store.tag(stored(lab, 3).id, {"label": "another"})
    output = lab.inside("export", code=1)
    lines = [line for line in output.splitlines() if line.startswith("catalog: ")]
    assert lines == [
        "catalog: run 00000004 (toy:train): result in MLflow differ from its record, which is kept: "
        "a record is never changed. `catalog forget 00000004 --why TEXT` takes it out of the tables; "
        "what runs again with `guild run` is a new run"
    ]
    after = texts(lab)
    assert after["00000004.json"] == before["00000004.json"]
    assert '"label": "another"' in after["00000003.json"]  # the others are exported


def test_a_retracted_record_is_not_compared_with_mlflow(lab, make):
    lab.store.tag(stored(lab, 4).id, {"result": json.dumps(make(4, value=0.9).result)})
    lab.inside("export", code=1)
    lab.inside("forget 00000004 --why 'restarted with other flags'")
    before = texts(lab)
    lab.inside("export")
    assert texts(lab) == before


def test_a_run_that_cannot_be_exported_is_not_said_to_be(lab, make):
    tags = {"result": json.dumps(make(4, value=0.9).result), "wall_seconds": "9.0", STAMP: "guild"}
    lab.store.tag(stored(lab, 4).id, tags)
    assert "not exported" not in lab.inside("render")
    new = make(6, value=0.6)
    lab.store.write(new)
    assert "1 run is not exported" in lab.inside("render")


def test_an_unfinished_run_may_continue(lab):
    run = stored(lab, 5)
    lab.store.tag(run.id, {"wall_seconds": "9.0"})
    lab.store.client.set_terminated(run.id, "FINISHED")
    assert "1 went on since their record was written" in lab.inside("export")
    assert read(lab.records / "toy/00000005.json").status == "FINISHED"


def test_forget_marks_the_record_and_the_run_in_mlflow(lab):
    assert "00000004" in lab.inside("best toy:train")
    output = lab.inside("forget 00000004 --why 'the wrong reward'")
    assert output == "00000004  toy:train  retracted\n"
    path = lab.records / "toy/00000004.json"
    record = read(path)
    assert dumps(record) == dumps(marked(lab.runs[3], "the wrong reward"))
    assert stored(lab, 4).record.retracted == "the wrong reward"
    lab.inside("render")
    assert "| retracted | the wrong reward |" in page(lab)
    lab.inside("check")
    # Neither export nor import takes the mark away.
    lab.inside("export")
    lab.inside("import -q")
    assert read(path) == record
    assert "retracted: the wrong reward; 40 % opening rate" in lab.inside("search retracted")
    assert "no run of toy:train has an objective" in lab.inside("best toy:train", code=1)


def test_a_batch_is_marked_with_its_trials_and_ranked_no_more(lab, make):
    output = lab.inside("forget 00000001 --superseded-by 00000004 --why 'more seeds'")
    assert len(re.findall("superseded by 00000004", output)) == 3
    marks = [read(lab.records / f"toy/0000000{i}.json") for i in (1, 2, 3)]
    assert {(r.superseded_by, r.superseded_why) for r in marks} == {(make(4).run, "more seeds")}
    assert "all runs of toy:sweep are superseded or retracted" in lab.inside(
        "best toy:sweep", code=1
    )
    lab.inside("forget 00000004 --why bug")
    found = lab.inside("search superseded_by=00000004").splitlines()[1:-1]
    assert {line.split()[0] for line in found} == {"00000001", "00000002", "00000003"}


def test_latest_names_the_newest_run_in_each_command(lab):
    assert "00000005 (toy:train): imported" in lab.inside("rerun --check latest", code=1)
    assert "00000005" in lab.inside("weights latest", code=1)
    assert lab.inside("forget latest --why bug") == "00000005  toy:train  retracted\n"


def test_a_mark_that_is_replaced_is_told(lab):
    lab.inside("forget 00000004 --why 'a|b'")
    output = lab.inside("forget 00000004 --why 'the wrong reward'")
    assert output == "00000004  toy:train  retracted (was retracted: a|b)\n"
    assert read(lab.records / "toy/00000004.json").retracted == "the wrong reward"


def test_a_trial_that_is_retracted_keeps_its_reason_when_its_batch_is_marked(lab):
    lab.inside("forget 00000002 --why bug")
    output = lab.inside("forget 00000001 --superseded-by 00000004 --why 'more seeds'")
    assert "00000002" not in output
    record = read(lab.records / "toy/00000002.json")
    assert (record.retracted, record.superseded_by) == ("bug", "")
    assert stored(lab, 2).record.retracted == "bug"
    assert read(lab.records / "toy/00000003.json").superseded_why == "more seeds"


def test_the_trials_of_a_batch_without_a_record_are_marked(shell, make):
    folder = shell.root / "experiments" / "records"
    write_all([make(i, value=0.5, batch=make(1).run) for i in (2, 3)], folder)
    output = shell.inside("forget 00000001 --why bug")
    assert output.splitlines() == [
        "00000001  batch  retracted",
        "00000002  toy:train  retracted",
        "00000003  toy:train  retracted",
    ]
    assert {read(path).retracted for path in folder.glob("*/*.json")} == {"bug"}


def test_a_trial_that_is_retracted_is_left_out_of_its_batch(lab):
    lab.inside("forget 00000002 --why bug")
    lab.inside("render")
    assert re.search(r"\| sweep \| 30 % \|.*\[00000001\]", page(lab))
    assert "1 superseded or retracted" in lab.inside("best toy:sweep")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("forget 1234 --why x", "'1234' is neither in the records nor in MLflow"),
        ("forget 0000000 --why x", "'0000000' could be 000000010000, 000000020000"),
        ("forget 00000004 --why ' '", "--why: a reason is expected"),
        (f"forget 00000004 --why {'x' * 1501}", "--why: 1,501 characters; at most 1,500 are kept"),
        ("forget 00000004 --superseded-by 00000004 --why x", "cannot supersede itself"),
        ("forget 00000001 --superseded-by 00000002 --why x", "cannot supersede itself"),
    ],
)
def test_a_run_that_cannot_be_marked_is_named(lab, line, words):
    before = texts(lab)
    assert words in lab.inside(line, code=1)
    assert texts(lab) == before


def test_one_run_is_exported_to_another_folder(lab, tmp_path):
    elsewhere, before = tmp_path / "elsewhere", texts(lab)
    assert lab.catalog(f"export 0000000 --to {elsewhere}", code=1).startswith("catalog: ")
    assert not elsewhere.exists()
    printed = lab.catalog(f"export 00000004 --to {elsewhere}")
    assert re.fullmatch(r"1 record in \S+/elsewhere: 1 written\n", printed)
    written = {path.relative_to(elsewhere): path.read_text() for path in elsewhere.rglob("*.json")}
    assert written == {Path("toy/00000004.json"): before["00000004.json"]}
    assert texts(lab) == before
    lab.new_mlflow(tmp_path / "other.db")
    assert "1 run read: 1 imported" in lab.catalog(f"import -q {elsewhere}")
    assert "00000004" in lab.inside("best toy:train")


def test_records_that_differ_from_gits_history_are_named(shell, make):
    folder = shell.root / "experiments" / "records"
    write_all([make(n, value=n / 10) for n in (1, 2, 3, 4)], folder)
    who = "-c user.name=a -c user.email=a@b -c commit.gpgsign=false"
    shell(f"git init -q && git add -A && git {who} commit -qm records")
    assert shell.catalog("check --records") == "no record was removed or changed\n"

    def edit(number, old, new):
        path = folder / f"toy/0000000{number}.json"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    edit(1, '"status": "FINISHED"', '"status": FINISHED')
    broken = shell.catalog("check --records", code=1)
    assert re.fullmatch(r"catalog: \S+/toy/00000001\.json: not JSON \([^\n]+\)\n", broken)
    edit(1, '"status": FINISHED', '"status": "FINISHED"')
    edit(1, '"value": 0.1', '"value": 0.9')
    (folder / "toy/00000002.json").unlink()
    write_all([make(3, value=0.3, status="FAILED", reason="by hand")], folder)
    lines = shell.catalog("check --records", code=1).splitlines()
    assert sorted(line.partition("/toy/")[2] for line in lines) == [
        "00000001.json: run 00000001 was committed with another result",
        "00000002.json: the record of run 00000002 (toy:train) was removed; `git checkout` brings it back, "
        "`catalog forget` marks it",
        "00000003.json: run 00000003 was committed with another status",
    ]


def test_records_can_be_marked_in_a_clone_without_mlflow(shell, make):
    folder = shell.root / "experiments" / "records"
    write_all([make(1, value=0.5)], folder)
    shell.inside("forget 00000001 --why bug")
    assert read(folder / "toy/00000001.json").retracted == "bug"
