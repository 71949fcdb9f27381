"""Superseded and retracted records on the page: in a separate list, in no count, mean or figure."""

import pytest

from rendered import joined
from runcatalog.model.marks import marked
from runcatalog.pages import check, render
from runcatalog.pages.cited_numbers import problems


def page(project, records) -> str:
    return joined(render.Catalog(project, records))


@pytest.fixture
def sweep(make):
    batch = make(1, operation="toy:sweep", result={"batch": True, "method": "grid"})
    trials = [
        make(10 + seed, value=value, operation="toy:sweep", batch=batch.run, seed=seed)
        for seed, value in ((1, 0.5), (2, 0.7), (3, 0.9))
    ]
    return [batch, *trials]


def test_a_marked_record_counts_in_no_row_and_is_listed(project, sweep, make):
    batch, first, *others = sweep
    old = marked(make(30, value=0.1, label="old | label"), "worse", make(31).run)
    records = [batch, marked(first, "the wrong | reward"), *others, old, make(31, value=0.93)]
    text = page(project, records)
    assert "| 80 % | [0, 100] | 2 |" in text  # of the other two trials
    listed = text[text.index("## Superseded and retracted") :]
    assert "2 records count in no row, mean or figure" in listed
    assert (
        '| <a id="0000001e"></a>[0000001e](../experiments/records/toy/0000001e.json) | toy:train | old \\| label '
        "| 10 % opening rate | 0000001f | worse |"
    ) in listed
    assert "| retracted | the wrong \\| reward |" in listed
    assert "[2 superseded or retracted](toy_runs.md#superseded-and-retracted)" in text


def test_a_marked_batch_takes_its_trials_along(project, sweep, make):
    batch, *trials = sweep
    text = page(project, [marked(batch, "bug"), *trials, make(31, value=0.93)])
    assert "no current run: 4 superseded or retracted" in text
    assert text.count("| retracted | bug |") == 4


def test_a_section_of_a_study_without_a_template_is_listed_too(project, make):
    text = page(project, [marked(make(1, study="other", operation="other:train"), "bug")])
    assert "| retracted | bug |" in text
    assert "(catalog/other.md)" in text


def test_check_reports_a_mark_that_the_page_lacks(project, make):
    records = [make(1, value=0.1), make(2, value=0.2)]
    render.write(project, records)
    assert check.difference(project, records) == []
    assert check.difference(project, [marked(records[0], "bug"), records[1]])
    # A row whose record is marked is not one without a record.
    assert check.lost_rows(project, [marked(records[0], "bug"), records[1]]) == ""


def test_a_row_of_a_marked_run_shows_the_mark(project, make):
    record = marked(make(1, value=0.1), "worse", make(2).run)
    row = render.Catalog(project, [record]).row(record)
    assert "| 10 % | [6, 17] |" in row
    assert "superseded by 00000002: worse" in row


def test_cited_batches_are_of_their_current_trials(project, sweep):
    batch, first, *others = sweep
    docs = project.root / "docs"
    docs.mkdir()
    (docs / "a.md").write_text(f"80 %<!-- =mean of opening_rate; run: {batch.id8} -->\n")
    assert problems(project, [batch, marked(first, "bug"), *others]) == []
    assert problems(project, sweep)
