"""Values that a study declares for flags which its scripts got later: `added-flags` in guild.yml."""

from dataclasses import replace

import pytest

from memory_reader import MemoryReader
from runcatalog.analysis import groups, ranking, searches
from runcatalog.model.errors import CatalogError
from runcatalog.model.project import Project, with_added_flags
from runcatalog.model.run_record import from_json, to_json
from runcatalog.pages import cited_numbers
from runcatalog.pages.render import Catalog


@pytest.fixture
def declare(project):
    """Return a function that writes what toy:train declares and returns the project."""

    def write(text: str) -> Project:
        (project.experiments / "toy/guild.yml").write_text(
            "- model: toy\n"
            "  operation-defaults:\n"
            f"    added-flags: {text}\n"
            "  operations:\n"
            "    train: {main: src/toy.train}\n"
        )
        return Project(project.root)

    return write


def test_runs_from_before_a_flag_are_of_the_setting_with_its_declared_value(make, declare):
    project = declare("{momentum: 1, never: 3}")
    records = [
        make(1, value=0.5, seed=1, lr=0.1),
        make(2, value=0.7, seed=2, lr=0.1, momentum=1.0),
        make(3, value=0.9, seed=3, lr=0.1, momentum=0.5),
    ]
    known = {r.run: r for r in with_added_flags(records, project.operations())}
    pooled = [[r.seed for r in runs] for runs in groups.by_setting(known.values(), known)]
    assert pooled == [[1, 2], [3]]
    # A flag that no run has is none of the operation's.
    assert all("never" not in groups.compared(r) for r in known.values())

    (project.experiments / "toy/catalog.md.j2").write_text('{{ table(["toy:train"]) }}\n')
    page = Catalog(project, records).pages["catalog/toy.md"]
    rows = [line for line in page.splitlines() if line.startswith("| train")]
    assert [[share in row for share in ("60 %", "90 %")] for row in rows] == [[1, 0], [0, 1]]

    reader = MemoryReader(records)
    ranked = ranking.rank(reader, "toy:train", operations=project.operations)
    assert {g.point["momentum"]: len(g.runs) for g in ranked.groups} == {1.0: 2, 0.5: 1}
    assert len(ranking.rank(reader, "toy:train").groups) == 3


def test_a_renamed_flag_is_an_added_one_and_one_that_was_removed(make, declare):
    operations = declare("{epochs: 50, steps: 50}").operations()
    old = [
        make(n, value=0.5, seed=n, lr=0.1, epochs=count) for n, count in ((1, 50), (2, 50), (3, 9))
    ]
    new = [make(n, value=0.5, seed=n, lr=0.1, steps=count) for n, count in ((4, 50), (5, 9))]
    known = {r.run: r for r in with_added_flags([*old, *new], operations)}
    pooled = [[r.seed for r in runs] for runs in groups.by_setting(known.values(), known)]
    assert sorted(pooled) == [[1, 2, 4], [3], [5]]


def test_the_newest_run_of_a_seed_counts_whether_or_not_it_has_the_flag(make, declare):
    operations = declare("{momentum: 1}").operations()
    first = make(1, value=0.5, seed=1, lr=0.1)
    again = make(2, value=0.7, seed=1, lr=0.1, momentum=1)
    known = {r.run: r for r in with_added_flags([first, again], operations)}
    kept = groups.without_repetitions(list(known.values()), known)
    assert [r.run for r in kept] == [again.run]


def test_a_record_is_written_as_it_was_read(make, declare):
    operations = declare("{momentum: 1}").operations()
    records = [make(1, value=0.5, seed=1, lr=0.1), make(2, value=0.7, seed=2, momentum=1)]
    content = [to_json(record) for record in records]
    compared = with_added_flags([from_json(each) for each in content], operations)
    assert [to_json(record) for record in compared] == content
    assert compared == records
    # What is derived from it is compared in the same way.
    derived = compared[0].with_points({"loss": [(0, 1.0)]})
    assert groups.compared(derived) == {"lr": 0.1, "momentum": 1}
    assert groups.compared(replace(records[0])) == {"lr": 0.1}


def test_cited_numbers_and_templates_count_the_runs_that_tables_count(make, declare):
    project = declare("{momentum: 1}")
    records = [make(1, value=0.5, seed=1, lr=0.1), make(2, value=0.7, seed=2, lr=0.1, momentum=1)]
    (project.experiments / "toy/reported.yml").write_text(
        "headline:\n"
        "  all: {question: How often?, operation: 'toy:train', flags: {lr: 0.1}}\n"
        "  one: {question: How often?, operation: 'toy:train', flags: {momentum: 1}}\n"
    )
    (project.root / "README.md").write_text(
        "60 %<!-- =headline toy/all --> and 60 %<!-- =headline toy/one -->\n"
    )
    assert cited_numbers.problems(project, records) == []
    (project.experiments / "toy/catalog.md.j2").write_text('{{ value("toy:train", momentum=1) }}\n')
    pages = Catalog(project, records).pages
    assert "60 %" in pages["catalog/toy.md"]
    assert pages["runs_catalog.md"].count("| **0.600** [0.000, 1.000] |") == 2


def test_a_batch_gets_no_flags(make, declare):
    operations = declare("{momentum: 1}").operations()
    batch = make(1, result={"batch": {}})
    (compared, _) = with_added_flags([batch, make(2, value=0.7, momentum=1)], operations)
    assert groups.compared(compared) == {}


@pytest.mark.parametrize("text", ["momentum", "[momentum]", "{momentum: [1, 2]}", "{momentum: }"])
def test_what_is_no_flag_with_a_value_is_an_error(declare, text):
    with pytest.raises(CatalogError, match=r"added-flags: \{FLAG: VALUE\} is expected"):
        declare(text).operations()


def test_a_run_from_before_a_flag_is_not_as_declared_where_the_flag_has_another_value(
    make, declare
):
    project = declare("{momentum: 0}")
    guild_file = project.experiments / "toy/guild.yml"
    guild_file.write_text(guild_file.read_text().replace("train}", "train, flags: {momentum: 1}}"))
    records = [make(n, value=0.5, seed=n, lr=0.1) for n in (1, 2, 3)]
    records += [make(10 + n, value=0.9, seed=n, lr=0.1, momentum=1) for n in (1, 2)]
    assert "90 %" in Catalog(project, records).value("toy:train")


def test_a_search_from_before_a_flag_is_compared_with_a_random_search_of_the_same_setting(
    make, declare
):
    operations = declare("{momentum: 1}").operations()
    old = [make(n, lr=n / 10, task="pull") for n in (1, 2)]
    new = [make(10 + n, lr=n / 10, task="pull", momentum=1) for n in (1, 2)]
    other = [make(20 + n, lr=n / 10, task="pull", momentum=2) for n in (1, 2)]
    by_id = {r.run: r for r in with_added_flags([*old, *new, *other], operations)}
    own, same, different = ([by_id[r.run] for r in runs] for runs in (old, new, other))
    assert searches.peer_of(own, {"same": same, "different": different}) == "same"
